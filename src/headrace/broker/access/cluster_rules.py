"""Access rules of the APIs about the cluster: nodes, settings, users, tokens, quotas and ACLs."""

from typing import Any

from headrace.broker.access.rules import (
    DENIED,
    EACH_RESOURCE,
    LEFT_OUT,
    AccessRule,
    NeededRight,
    of_cluster,
    refuse_whole,
    remove_denied,
    right,
    with_refused,
)
from headrace.broker.request import Denial, RequestContext
from headrace.errors import ErrorCode
from headrace.metadata.image import ConfigResourceType
from headrace.protocol.messages import (
    alter_client_quotas,
    alter_configs,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    create_acls,
    delete_acls,
    describe_configs,
    elect_leaders,
    incremental_alter_configs,
)
from headrace.protocol.messages.describe_client_quotas import DescribeClientQuotasResponse
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace.protocol.messages.describe_log_dirs import DescribeLogDirsResponse
from headrace.protocol.messages.envelope import EnvelopeResponse
from headrace.security.acls import CLUSTER_NAME, AclOperation, AclResourceType

_CLUSTER = AclResourceType.CLUSTER
_CLUSTER_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED

# Requests of other nodes: replication, the quorum, and what brokers tell the controller.
NODES = of_cluster(AclOperation.CLUSTER_ACTION)
DESCRIBE = of_cluster(AclOperation.DESCRIBE)
DESCRIBE_CONFIGS_OF_CLUSTER = of_cluster(AclOperation.DESCRIBE_CONFIGS)
ALTER = of_cluster(AclOperation.ALTER)

ENVELOPE = of_cluster(
    AclOperation.CLUSTER_ACTION,
    lambda context, request, code: EnvelopeResponse(error_code=code, response_data=None),
)


# -- Settings

_TYPE_OF_CONFIGS = {
    int(ConfigResourceType.TOPIC): AclResourceType.TOPIC,
    int(ConfigResourceType.GROUP): AclResourceType.GROUP,
}


def _config_right(
    operation: AclOperation, resource: Any
) -> tuple[AclOperation, AclResourceType, str]:
    """The right to a resource with settings; those of brokers and the like are the cluster's."""
    resource_type = _TYPE_OF_CONFIGS.get(resource.resource_type, _CLUSTER)
    name = CLUSTER_NAME if resource_type is _CLUSTER else resource.resource_name
    if resource.resource_type == ConfigResourceType.ROLE:
        # Whoever changes roles changes rights.
        writes = operation is AclOperation.ALTER_CONFIGS
        operation = AclOperation.ALTER if writes else AclOperation.DESCRIBE
    return operation, resource_type, name


def _of_configs(operation: AclOperation, field: str, result_class: type[Any]) -> AccessRule:
    def check(context: RequestContext, request: Any) -> Denial:
        denied = remove_denied(
            request,
            "resources",
            lambda resource: context.may(*_config_right(operation, resource)),
        )
        refused = [
            result_class(
                error_code=DENIED[_config_right(operation, resource)[1]],
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in denied
        ]
        return with_refused(context, field, refused, anything_left=bool(request.resources))

    writes = operation is AclOperation.ALTER_CONFIGS
    return AccessRule(
        (
            right(operation, AclResourceType.TOPIC, EACH_RESOURCE, "of topics"),
            right(operation, AclResourceType.GROUP, EACH_RESOURCE, "of groups"),
            right(operation, _CLUSTER, EACH_RESOURCE, "of brokers, loggers and client metrics"),
            right(
                AclOperation.ALTER if writes else AclOperation.DESCRIBE,
                _CLUSTER,
                EACH_RESOURCE,
                "of roles",
            ),
        ),
        check,
    )


DESCRIBE_CONFIGS = _of_configs(
    AclOperation.DESCRIBE_CONFIGS, "results", describe_configs.DescribeConfigsResult
)
ALTER_CONFIGS = _of_configs(
    AclOperation.ALTER_CONFIGS, "responses", alter_configs.AlterConfigsResourceResponse
)
INCREMENTAL_ALTER_CONFIGS = _of_configs(
    AclOperation.ALTER_CONFIGS,
    "responses",
    incremental_alter_configs.AlterConfigsResourceResponse,
)


# -- Requests without a place for one error code


def _refuse_creations(
    context: RequestContext, request: create_acls.CreateAclsRequest, code: ErrorCode
) -> create_acls.CreateAclsResponse:
    results = [
        create_acls.AclCreationResult(error_code=code, error_message=None)
        for _ in request.creations
    ]
    return create_acls.CreateAclsResponse(results=results)


CREATE_ACLS = of_cluster(AclOperation.ALTER, _refuse_creations, "each ACL")


def _refuse_deletions(
    context: RequestContext, request: delete_acls.DeleteAclsRequest, code: ErrorCode
) -> delete_acls.DeleteAclsResponse:
    results = [
        delete_acls.DeleteAclsFilterResult(error_code=code, error_message=None)
        for _ in request.filters
    ]
    return delete_acls.DeleteAclsResponse(filter_results=results)


DELETE_ACLS = of_cluster(AclOperation.ALTER, _refuse_deletions, "each filter")


def _refuse_moves(
    context: RequestContext,
    request: alter_replica_log_dirs.AlterReplicaLogDirsRequest,
    code: ErrorCode,
) -> alter_replica_log_dirs.AlterReplicaLogDirsResponse:
    return alter_replica_log_dirs.AlterReplicaLogDirsResponse(
        results=[
            alter_replica_log_dirs.AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    alter_replica_log_dirs.AlterReplicaLogDirPartitionResult(
                        partition_index=index, error_code=code
                    )
                    for index in topic.partitions
                ],
            )
            for directory in request.dirs
            for topic in directory.topics
        ]
    )


ALTER_REPLICA_LOG_DIRS = of_cluster(AclOperation.ALTER, _refuse_moves, "each partition")

# Before version 3 the answer has no place for a code, and no directories.
DESCRIBE_LOG_DIRS = of_cluster(
    AclOperation.DESCRIBE,
    lambda context, request, code: DescribeLogDirsResponse(
        error_code=code if context.version >= 3 else ErrorCode.NONE
    ),
)


def _refuse_elections(
    context: RequestContext, request: elect_leaders.ElectLeadersRequest, code: ErrorCode
) -> elect_leaders.ElectLeadersResponse:
    response = elect_leaders.ElectLeadersResponse()
    if context.version > 0:
        response.error_code = code
    response.replica_election_results = [
        elect_leaders.ReplicaElectionResult(
            topic=topic.topic,
            partition_result=[
                elect_leaders.PartitionResult(
                    partition_id=index, error_code=code, error_message=None
                )
                for index in topic.partitions
            ],
        )
        for topic in request.topic_partitions or ()
    ]
    return response


ELECT_LEADERS = of_cluster(AclOperation.ALTER, _refuse_elections, "the whole, and each partition")

DESCRIBE_CLIENT_QUOTAS = of_cluster(
    AclOperation.DESCRIBE_CONFIGS,
    lambda context, request, code: DescribeClientQuotasResponse(
        error_code=code, error_message=None, entries=None
    ),
)


def _refuse_quotas(
    context: RequestContext, request: alter_client_quotas.AlterClientQuotasRequest, code: ErrorCode
) -> alter_client_quotas.AlterClientQuotasResponse:
    return alter_client_quotas.AlterClientQuotasResponse(
        entries=[
            alter_client_quotas.AlterClientQuotasResponseEntryData(
                error_code=code,
                error_message=None,
                entity=[
                    alter_client_quotas.AlterClientQuotasResponseEntityData(
                        entity_type=part.entity_type, entity_name=part.entity_name
                    )
                    for part in entry.entity
                ],
            )
            for entry in request.entries
        ]
    )


ALTER_CLIENT_QUOTAS = of_cluster(AclOperation.ALTER_CONFIGS, _refuse_quotas, "each entity")


def _refuse_credentials(
    context: RequestContext,
    request: alter_user_scram_credentials.AlterUserScramCredentialsRequest,
    code: ErrorCode,
) -> alter_user_scram_credentials.AlterUserScramCredentialsResponse:
    users = dict.fromkeys(deletion.name for deletion in request.deletions)
    users |= dict.fromkeys(upsertion.name for upsertion in request.upsertions)
    return alter_user_scram_credentials.AlterUserScramCredentialsResponse(
        results=[
            alter_user_scram_credentials.AlterUserScramCredentialsResult(
                user=user, error_code=code, error_message=None
            )
            for user in users
        ]
    )


ALTER_USER_SCRAM_CREDENTIALS = of_cluster(AclOperation.ALTER, _refuse_credentials, "each user")


# -- DescribeCluster


def _check_describe_cluster(context: RequestContext, request: DescribeClusterRequest) -> Denial:
    if context.listener not in context.node.config.controller_listener_names:
        return None
    if context.may(AclOperation.ALTER, _CLUSTER, CLUSTER_NAME):
        return None
    return refuse_whole(context, _CLUSTER_DENIED)


DESCRIBE_CLUSTER = AccessRule(
    (
        NeededRight(
            AclOperation.ALTER,
            _CLUSTER,
            "the whole answer",
            _CLUSTER_DENIED,
            "at the listeners of controllers; free for all at those of brokers",
        ),
    ),
    _check_describe_cluster,
)

# Access rules of the APIs about delegation tokens.
#
# Their handlers ask for the rights: which are needed depends on whose a token is.


_USER, _TOKEN = AclResourceType.USER, AclResourceType.DELEGATION_TOKEN

CREATE_TOKEN = AccessRule(
    (right(AclOperation.CREATE_TOKENS, _USER, note="for a token of another owner"),)
)
DESCRIBE_TOKENS = AccessRule(
    (
        right(
            AclOperation.DESCRIBE,
            _TOKEN,
            LEFT_OUT,
            "for tokens that the sender neither owns nor requested, and may not renew",
            instead=(AclOperation.DESCRIBE_TOKENS, _USER),
        ),
    )
)
