"""The consumer group protocol (KIP-848): heartbeats of members that the coordinator assigns to.

A heartbeat joins, goes on or leaves. It may change the member's subscription, and with it the epoch
of the group; the group's epoch leads to a target assignment, and the target to the next step of the
member, which the response tells it.

Rule: a request is refused before it has changed anything. Every change is a record, which is
applied to the group when it is written: later requests build on it, and their replies wait until it
is committed, since replies leave in order. A shard whose append fails is dropped.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

from headrace.coordinator.groups.consumer_group import (
    ConsumerGroup,
    MemberTimers,
    ResolvedPattern,
    assignment_record,
    epoch_record,
    member_tombstones,
    metadata_record,
    pattern_record,
    target_epoch_record,
    target_record,
)
from headrace.coordinator.groups.partition_assignors import ASSIGNORS, SubscribedMember
from headrace.coordinator.groups.reconciliation import (
    JOINING,
    LEAVING,
    LEAVING_STATIC,
    NOTHING,
    AssignedPartitions,
    ConsumerMember,
    MemberState,
    Partitions,
    Reconciliation,
    TargetAssignment,
)
from headrace.coordinator.groups.topic_catalog import TopicCatalog, hash_of_topics
from headrace.coordinator.patterns import full_matcher
from headrace.coordinator.records import (
    ConsumerGroupKey,
    ConsumerGroupValue,
    consumer_group_record,
)
from headrace.coordinator.shard import (
    ConsumerGroupOptions,
    GroupCall,
    GroupSettings,
    RequestClient,
    fits_string,
)
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages import consumer_group_heartbeat as messages
from headrace.protocol.messages import consumer_group_records as records
from headrace.types import uuid_text

# The first version in which a client chooses its member id.
_OWN_MEMBER_ID_SINCE = 1
# Topics that the patterns of a group are matched with before other tasks of the loop run.
_NAMES_PER_TURN = 500
# The shortest time between two resolutions of a group's patterns.
_PATTERN_PAUSE_MS = 10_000


class _PatternScan:
    """The resolution of a group's patterns, as far as it has come."""

    def __init__(
        self,
        patterns: Mapping[str, Callable[[str], bool]],
        topics: TopicCatalog,
        may_see: Callable[[str], bool],
    ) -> None:
        self.version = topics.version
        self.found: dict[str, set[str]] = {pattern: set() for pattern in patterns}
        self._patterns = patterns
        self._names = iter(tuple(topics.names()))
        self._may_see = may_see

    def go_on(self) -> bool:
        """Match the next names; whether any are left."""
        for _ in range(max(_NAMES_PER_TURN // len(self._patterns), 1)):
            name = next(self._names, None)
            if name is None:
                return False
            matched = [pattern for pattern, matches in self._patterns.items() if matches(name)]
            if matched and self._may_see(name):
                for pattern in matched:
                    self.found[pattern].add(name)
        return True


class ConsumerGroupProtocol:
    """The protocol of consumer groups for the groups of a shard. Not thread-safe."""

    def __init__(
        self,
        settings: GroupSettings,
        options_of: Callable[[str], ConsumerGroupOptions],
        topics: TopicCatalog,
    ) -> None:
        self._settings = settings
        self._options_of = options_of
        self._topics = topics
        self._scans: dict[str, _PatternScan] = {}
        # Whether the owner of the groups has a group go on in the other protocol from then on.
        self.after_removal: Callable[[GroupCall, ConsumerGroup], bool] = lambda *_: False

    # -- groups

    def new_group(self, group_id: str) -> ConsumerGroup:
        """Make a group without members; its timers call this protocol."""
        group = ConsumerGroup(group_id)
        group.assignment_timer.fire = partial(self._on_assignment_due, group)
        group.pattern_timer.fire = partial(self._on_pattern_turn, group)
        return group

    def start_sessions(self, call: GroupCall, group: ConsumerGroup) -> None:
        """Give the members of a restored group one session timeout to send a heartbeat."""
        for member in group.members.values():
            self.renew_session(call, group, member.member_id)
            if member.state is MemberState.UNREVOKED:
                self._start_rebalance_timer(call, group, member)

    def end_group(self, call: GroupCall, group: ConsumerGroup) -> None:
        """Write the end of a group, which is Dead from now on."""
        self.write(call, group, *group.end_records())
        self.stop_timers(call, group)

    def stop_timers(self, call: GroupCall, group: ConsumerGroup) -> None:
        """Stop all timers of a group that is gone, or of another type now."""
        self._scans.pop(group.group_id, None)
        for timer in (group.assignment_timer, group.pattern_timer, group.expiry_timer):
            call.deadlines.stop(timer)
        for member_id in tuple(group.timers):
            self._stop_member_timers(call, group, member_id)

    def default_assignor(self, group_id: str) -> str:
        return self._options_of(group_id).assignors[0]

    def write(
        self,
        call: GroupCall,
        group: ConsumerGroup,
        *changes: tuple[ConsumerGroupKey, ConsumerGroupValue | None],
    ) -> None:
        """Write records of a group, and apply them."""
        for key, value in changes:
            call.out.records.append(consumer_group_record(key, value))
            group.apply(key, value)

    # -- heartbeats

    def heartbeat(
        self,
        call: GroupCall,
        group: ConsumerGroup,
        request: messages.ConsumerGroupHeartbeatRequest,
        client: RequestClient,
    ) -> messages.ConsumerGroupHeartbeatResponse:
        """Handle a heartbeat that `check_heartbeat` passes. KafkaError if it is refused.

        A group that joins no member by this has no record of it.
        """
        if request.member_epoch in (LEAVING, LEAVING_STATIC):
            return self._leave(call, group, request)
        options = self._options_of(group.group_id)
        self.check_room(group, request.member_id)
        member, replaced = self._member_of(call, group, request)
        updated = _with_subscription(member, request, client)
        if updated != member:
            self.check_record(group, updated)
        if updated.pattern and updated.pattern not in group.pattern_counts:
            full_matcher(updated.pattern)
        # Nothing is refused from here on.
        if replaced is not None:
            self.replace_member(call, group, replaced, member)
        now = self.update(call, group, member, updated, _owned(request), client)
        self.renew_session(call, group, now.member_id)
        response = messages.ConsumerGroupHeartbeatResponse(
            member_id=now.member_id,
            member_epoch=now.epoch,
            heartbeat_interval_ms=options.heartbeat_interval_ms,
        )
        is_full = (
            request.rebalance_timeout_ms != -1
            and request.topic_partitions is not None
            and (
                request.subscribed_topic_names is not None
                or request.subscribed_topic_regex is not None
            )
        )
        is_changed = not _same_partitions(member.assigned, now.assigned)
        if request.member_epoch == JOINING or is_full or is_changed:
            response.assignment = messages.Assignment(
                topic_partitions=[
                    messages.ConsumerGroupHeartbeatResponseTopicPartitions(
                        topic_id=topic_id, partitions=sorted(partitions)
                    )
                    for topic_id, partitions in now.assigned.items()
                    if partitions
                ]
            )
        return response

    def check_room(self, group: ConsumerGroup, member_id: str) -> None:
        """KafkaError if a group has no room for a member that is not there yet."""
        bound = self._options_of(group.group_id).max_size
        if member_id not in group.members and len(group.members) >= bound:
            detail = f"it has {bound} members, all it may"
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, detail)

    def check_join(
        self,
        group_id: str,
        size: int,
        request: messages.ConsumerGroupHeartbeatRequest,
        client: RequestClient,
    ) -> None:
        """KafkaError if a new member would be refused in a group of this size."""
        bound = self._options_of(group_id).max_size
        if size >= bound:
            detail = f"it has {bound} members, all it may"
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, detail)
        member = _with_subscription(ConsumerMember(request.member_id), request, client)
        self.check_record(ConsumerGroup(group_id), member)
        if member.pattern:
            full_matcher(member.pattern)

    def check_heartbeat(
        self, request: messages.ConsumerGroupHeartbeatRequest, version: int
    ) -> None:
        """KafkaError if a request contradicts itself, whatever its group is."""
        epoch = request.member_epoch
        needs_id = version >= _OWN_MEMBER_ID_SINCE or epoch > 0 or epoch == LEAVING
        if needs_id and not request.member_id.strip():
            raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
        for name, text in (
            ("GroupId", request.group_id),
            ("InstanceId", request.instance_id),
            ("RackId", request.rack_id),
        ):
            if text is not None and not text.strip():
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")
        texts = [request.group_id, request.member_id, request.instance_id, request.rack_id]
        texts += [request.subscribed_topic_regex, *(request.subscribed_topic_names or ())]
        if not all(fits_string(text) for text in texts):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a name is longer than 32767 bytes")
        if epoch == JOINING:
            _check_joining(request)
        elif epoch == LEAVING_STATIC and request.instance_id is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")
        elif epoch < LEAVING_STATIC:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
        assignors = self._options_of(request.group_id).assignors
        if request.server_assignor is not None and request.server_assignor not in assignors:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {request.server_assignor} is not supported. Supported assignors:"
                f" {', '.join(assignors)}.",
            )

    def _member_of(
        self, call: GroupCall, group: ConsumerGroup, request: messages.ConsumerGroupHeartbeatRequest
    ) -> tuple[ConsumerMember, ConsumerMember | None]:
        """The member that sends a request, and the static member that it takes the place of."""
        epoch = request.member_epoch
        member_id = request.member_id or uuid_text(call.random.randbytes(16))
        if request.instance_id is None:
            member = group.members.get(member_id)
            if member is None:
                if epoch != JOINING:
                    raise _unknown_member(group, member_id)
                return ConsumerMember(member_id), None
            _check_epoch(member, request)
            return member, None
        holder = group.static_member(request.instance_id)
        if epoch != JOINING:
            holder = _holder(holder, request)
            _check_epoch(holder, request)
            return holder, None
        if holder is None:
            return ConsumerMember(member_id), None
        if holder.epoch != LEAVING_STATIC and holder.classic is None:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {request.instance_id} cannot join the"
                f" group because the instance id is owned by {holder.member_id} member.",
            )
        returned = replace(holder, member_id=member_id, epoch=JOINING, previous_epoch=JOINING)
        return returned, holder

    def check_record(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        record = consumer_group_record(*metadata_record(group.group_id, member))
        if len(record.value or b"") > self._settings.record_bytes_max:
            # Unlike Kafka: there the append fails.
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the subscription is too large")

    def replace_member(
        self,
        call: GroupCall,
        group: ConsumerGroup,
        old: ConsumerMember,
        new: ConsumerMember,
    ) -> None:
        """Put a static member that comes back in the place of the one that left."""
        target = group.target.get(old.member_id, {})
        self._stop_member_timers(call, group, old.member_id)
        self.write(
            call,
            group,
            *member_tombstones(group.group_id, old.member_id),
            metadata_record(group.group_id, new),
            target_record(group.group_id, new.member_id, target),
            assignment_record(group.group_id, new),
        )

    def update(
        self,
        call: GroupCall,
        group: ConsumerGroup,
        member: ConsumerMember,
        updated: ConsumerMember,
        owned: Partitions | None,
        client: RequestClient,
        *,
        at_once: bool = False,
    ) -> ConsumerMember:
        """Write a member's new subscription, and take all steps it leads to; the member then.

        A target assignment is computed `at_once` for members that would join again and again for
        it.
        """
        is_new = member.member_id not in group.members
        if is_new or updated != member:
            self.write(call, group, metadata_record(group.group_id, updated))
        topics_changed = updated.topics != member.topics
        pattern_changed = updated.pattern != member.pattern
        if pattern_changed:
            self._drop_pattern(call, group, member.pattern)
        # A pattern that is not resolved yet raises the epoch when it is.
        is_known = not updated.pattern or updated.pattern in group.patterns
        bump = group.epoch == 0 or topics_changed or (pattern_changed and is_known)
        if bump or group.topics_version != self._topics.version:
            self._raise_epoch(call, group, even_if_same=bump)
        self._resolve_patterns(call, group, client)
        if group.epoch > group.assignment_epoch:
            if at_once:
                self._assign(call, group)
            else:
                self._assign_or_wait(call, group)
        return self._reconcile(
            call,
            group,
            updated.member_id,
            owned,
            subscription_changed=topics_changed or pattern_changed,
        )

    def _raise_epoch(self, call: GroupCall, group: ConsumerGroup, *, even_if_same: bool) -> None:
        """Begin another epoch of the group if its topics have changed, or in any case."""
        group.topics_version = self._topics.version
        topics_hash = hash_of_topics(group.subscribed_topics(), self._topics)
        if not even_if_same and topics_hash == group.metadata_hash:
            return
        group.rebalance_count += 1
        self.write(call, group, epoch_record(group.group_id, group.epoch + 1, topics_hash))
        if group.has_topics_record:
            # Kafka 4.0 kept the topics themselves, which the hash has replaced.
            key = records.ConsumerGroupPartitionMetadataKey(group_id=group.group_id)
            self.write(call, group, (key, None))

    # -- the target assignment

    def _assign_or_wait(self, call: GroupCall, group: ConsumerGroup) -> None:
        """Compute the target assignment, now or when the interval since the last is over."""
        interval_ms = self._options_of(group.group_id).assignment_interval_ms
        wait_ms = group.assignment_timestamp_ms + interval_ms - call.wall_ms
        # Members that start together are assigned to together. A single one need not wait, nor
        # anybody for a time of day that was put back.
        if len(group.members) > 1 and 0 < wait_ms <= interval_ms:
            if group.assignment_timer.deadline_ms is None:
                call.deadlines.start(group.assignment_timer, call.now_ms + wait_ms)
        else:
            self._assign(call, group)

    def _on_assignment_due(self, group: ConsumerGroup, call: GroupCall, now_ms: int) -> None:
        if group.members and group.epoch > group.assignment_epoch:
            self._assign(call, group)

    def _assign(self, call: GroupCall, group: ConsumerGroup) -> None:
        """Compute the target assignment of the group's epoch; write what is different in it."""
        call.deadlines.stop(group.assignment_timer)
        options = self._options_of(group.group_id)
        name = group.preferred_assignor()
        assignor = ASSIGNORS[name if name in options.assignors else options.assignors[0]]
        sizes: dict[bytes, int] = {}
        ids: dict[str, bytes] = {}
        for topic_name in sorted(group.subscribed_topics()):
            topic = self._topics.by_name(topic_name)
            if topic is not None:
                sizes[topic.topic_id] = topic.size
                ids[topic_name] = topic.topic_id
        # Most members have the same topics: one set of ids serves them all.
        known: dict[frozenset[str], frozenset[bytes]] = {}
        members = {}
        for member in group.members.values():
            topics = group.topics_of(member)
            if topics not in known:
                known[topics] = frozenset(ids[topic] for topic in topics if topic in ids)
            members[member.member_id] = SubscribedMember(
                known[topics], _as_sets(group.target.get(member.member_id, {})), member.instance_id
            )
        assignment = assignor(members, sizes)
        for member_id in group.members:
            partitions = assignment.get(member_id, {})
            if member_id not in group.target or group.target[member_id] != partitions:
                self.write(call, group, target_record(group.group_id, member_id, partitions))
        epoch = target_epoch_record(group.group_id, group.epoch, call.wall_ms)
        self.write(call, group, epoch)

    # -- the members on the way to it

    def _reconcile(
        self,
        call: GroupCall,
        group: ConsumerGroup,
        member_id: str,
        owned: Partitions | None,
        *,
        subscription_changed: bool,
    ) -> ConsumerMember:
        """Take the next step of a member towards its target."""
        member = group.members[member_id]
        epoch = group.assignment_epoch
        if member.is_reconciled(epoch) and not subscription_changed:
            return member
        step = Reconciliation(
            TargetAssignment(epoch, group.target.get(member_id, {})),
            self._ids_of(group.topics_of(member)),
            owned,
            group.owner_of,
        )
        reached = step.next(member, subscription_changed=subscription_changed)
        if reached == member:
            return member
        self.write(call, group, assignment_record(group.group_id, reached))
        if reached.state is MemberState.UNREVOKED and reached.classic is None:
            self._start_rebalance_timer(call, group, reached)
        elif member_id in group.timers:
            call.deadlines.stop(group.timers[member_id].rebalance)
        return reached

    def _ids_of(self, topics: Iterable[str]) -> Collection[bytes]:
        found = (self._topics.by_name(name) for name in topics)
        return {topic.topic_id for topic in found if topic is not None}

    def _start_rebalance_timer(
        self, call: GroupCall, group: ConsumerGroup, member: ConsumerMember
    ) -> None:
        """Remove a member that does not give its partitions up in time."""
        timer = self.timers_of(group, member.member_id).rebalance
        timer.fire = partial(self._on_rebalance_timeout, group, member.member_id, member.epoch)
        call.deadlines.start(timer, call.now_ms + max(member.rebalance_timeout_ms, 0))

    def _on_rebalance_timeout(
        self, group: ConsumerGroup, member_id: str, epoch: int, call: GroupCall, now_ms: int
    ) -> None:
        if member_id in group.members and group.members[member_id].epoch == epoch:
            self.remove_members(call, group, [member_id])

    # -- leaving

    def _leave(
        self,
        call: GroupCall,
        group: ConsumerGroup,
        request: messages.ConsumerGroupHeartbeatRequest,
    ) -> messages.ConsumerGroupHeartbeatResponse:
        response = messages.ConsumerGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch
        )
        if request.instance_id is None:
            if request.member_id not in group.members:
                raise _unknown_member(group, request.member_id)
            self.remove_members(call, group, [request.member_id])
            return response
        member = _holder(group.static_member(request.instance_id), request)
        if request.member_epoch == LEAVING:
            self.remove_members(call, group, [member.member_id])
            return response
        # It comes back: its session goes on, and it has given up what it was to revoke.
        away = replace(member, epoch=LEAVING_STATIC, revoking=NOTHING)
        self.write(call, group, assignment_record(group.group_id, away))
        if member.member_id in group.timers:
            call.deadlines.stop(group.timers[member.member_id].rebalance)
        return response

    def remove_members(
        self, call: GroupCall, group: ConsumerGroup, member_ids: Collection[str]
    ) -> None:
        """Remove members, and begin another epoch without them."""
        for member_id in member_ids:
            pattern = group.members[member_id].pattern
            self.write(call, group, *member_tombstones(group.group_id, member_id))
            self._stop_member_timers(call, group, member_id)
            self._drop_pattern(call, group, pattern)
        if self.after_removal(call, group):
            return
        self._raise_epoch(call, group, even_if_same=True)
        if group.is_empty:
            group.emptied_ms = call.now_ms

    def renew_session(self, call: GroupCall, group: ConsumerGroup, member_id: str) -> None:
        """Give a member another session timeout until it must be heard of."""
        timer = self.timers_of(group, member_id).session
        if timer.fire is None:
            timer.fire = partial(self._on_session_timeout, group, member_id)
        classic = group.members[member_id].classic
        timeout_ms = (
            self._options_of(group.group_id).session_timeout_ms
            if classic is None
            else classic.session_timeout_ms
        )
        call.deadlines.start(timer, call.now_ms + timeout_ms)

    def _on_session_timeout(
        self, group: ConsumerGroup, member_id: str, call: GroupCall, now_ms: int
    ) -> None:
        if member_id in group.members:
            self.remove_members(call, group, [member_id])

    def timers_of(self, group: ConsumerGroup, member_id: str) -> MemberTimers:
        timers = group.timers.get(member_id)
        if timers is None:
            timers = group.timers[member_id] = MemberTimers()
        return timers

    def _stop_member_timers(self, call: GroupCall, group: ConsumerGroup, member_id: str) -> None:
        timers = group.timers.pop(member_id, None)
        if timers is not None:
            call.deadlines.stop(timers.session)
            call.deadlines.stop(timers.rebalance)

    # -- patterns

    def _drop_pattern(self, call: GroupCall, group: ConsumerGroup, pattern: str) -> None:
        """Forget the topics of a pattern that no member has any more."""
        if pattern in group.patterns and pattern not in group.pattern_counts:
            self.write(call, group, pattern_record(group.group_id, pattern, None))

    def _resolve_patterns(
        self, call: GroupCall, group: ConsumerGroup, client: RequestClient
    ) -> None:
        """Begin to match the group's patterns with the names of all topics, if it is time."""
        if not group.pattern_counts or group.group_id in self._scans:
            return
        is_due = group.pattern_counts.keys() != group.patterns.keys()
        if group.patterns:
            last = next(iter(group.patterns.values()))
            age_ms = call.wall_ms - last.timestamp_ms
            if 0 <= age_ms <= _PATTERN_PAUSE_MS:
                return
            refresh_ms = self._options_of(group.group_id).pattern_refresh_interval_ms
            is_due |= last.version < self._topics.names_version or not 0 <= age_ms <= refresh_ms
        if is_due:
            matchers = {pattern: _matcher(pattern) for pattern in sorted(group.pattern_counts)}
            scan = _PatternScan(matchers, self._topics, client.may_see)
            self._scans[group.group_id] = scan
            call.deadlines.start(group.pattern_timer, call.now_ms)

    def _on_pattern_turn(self, group: ConsumerGroup, call: GroupCall, now_ms: int) -> None:
        scan = self._scans[group.group_id]
        if scan.go_on():
            # Later than now, so that the loop has a turn for other tasks in between.
            call.deadlines.start(group.pattern_timer, now_ms + 1)
            return
        del self._scans[group.group_id]
        changed = False
        for pattern, topics in scan.found.items():
            if pattern not in group.pattern_counts:
                continue
            known = group.patterns.get(pattern)
            resolved = ResolvedPattern(frozenset(topics), scan.version, call.wall_ms)
            changed |= resolved.topics != (frozenset() if known is None else known.topics)
            self.write(call, group, pattern_record(group.group_id, pattern, resolved))
        self._raise_epoch(call, group, even_if_same=changed)


def _matcher(pattern: str) -> Callable[[str], bool]:
    """The test of a pattern of a group, which matches nothing if this broker cannot read it.

    It was checked when a member brought it, but perhaps by Kafka, or by a broker with RE2.
    """
    try:
        return full_matcher(pattern)
    except KafkaError:
        return lambda _: False


def _check_joining(request: messages.ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        detail = "RebalanceTimeoutMs must be provided in first request."
        raise KafkaError(ErrorCode.INVALID_REQUEST, detail)
    if request.topic_partitions is None or request.topic_partitions:
        detail = "TopicPartitions must be empty when (re-)joining."
        raise KafkaError(ErrorCode.INVALID_REQUEST, detail)
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        detail = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when"
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{detail} (re-)joining.")


def _check_epoch(member: ConsumerMember, request: messages.ConsumerGroupHeartbeatRequest) -> None:
    """Fence a member that missed an epoch, or was another's; the last response may be lost."""
    epoch = request.member_epoch
    if epoch == member.epoch:
        return
    owned = _owned(request)
    if epoch < member.epoch and epoch == member.previous_epoch and owned is not None:
        if all(
            partition in member.assigned.get(topic_id, ())
            for topic_id, partitions in owned.items()
            for partition in partitions
        ):
            return
    relation = "greater" if epoch > member.epoch else "smaller"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by"
        f" the group coordinator ({member.epoch}). The member must abandon all its partitions and"
        " rejoin.",
    )


def _holder(
    holder: ConsumerMember | None, request: messages.ConsumerGroupHeartbeatRequest
) -> ConsumerMember:
    """The static member that sends a request; KafkaError if it is not the holder of its id."""
    if holder is None:
        detail = f"Instance id {request.instance_id} is unknown."
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, detail)
    if holder.member_id != request.member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {request.member_id} with instance id {request.instance_id} was fenced"
            f" by member {holder.member_id}.",
        )
    return holder


def _unknown_member(group: ConsumerGroup, member_id: str) -> KafkaError:
    detail = f"Member {member_id} is not a member of group {group.group_id}."
    return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, detail)


def _with_subscription(
    member: ConsumerMember,
    request: messages.ConsumerGroupHeartbeatRequest,
    client: RequestClient,
) -> ConsumerMember:
    """The member with what a request changes; a heartbeat leaves out what stays."""
    names, pattern = request.subscribed_topic_names, request.subscribed_topic_regex
    if request.member_epoch == JOINING:
        # Unlike Kafka: a static member that comes back does not inherit the part of the
        # subscription that it leaves out.
        names, pattern = names or [], pattern or ""
    timeout_ms = request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
        topics=member.topics if names is None else frozenset(names),
        pattern=member.pattern if pattern is None else pattern,
        client_id=client.client_id,
        client_host=client.host,
        classic=None,
    )


def _owned(request: messages.ConsumerGroupHeartbeatRequest) -> Partitions | None:
    """The partitions that a member reports to own, None if it did not report any."""
    if request.topic_partitions is None:
        return None
    owned: dict[bytes, set[int]] = {}
    for topic in request.topic_partitions:
        owned.setdefault(topic.topic_id, set()).update(topic.partitions)
    return owned


def _same_partitions(some: AssignedPartitions, others: AssignedPartitions) -> bool:
    return {topic: set(found) for topic, found in some.items() if found} == {
        topic: set(found) for topic, found in others.items() if found
    }


def _as_sets(partitions: Partitions) -> dict[bytes, frozenset[int]]:
    return {topic_id: frozenset(found) for topic_id, found in partitions.items()}
