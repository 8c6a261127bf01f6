"""What operators are told of a replica that stopped, by `topics describe` and `doctor`."""

import json
from subprocess import CompletedProcess, run
from typing import Any

from headrace import Admin, Producer, TopicPartition
from headrace.testing.cluster import Cluster
from headrace.testing.time_limits import scaled, wait_until
from tests.support import headrace_command


def headrace(cluster: Cluster, *arguments: str) -> CompletedProcess[str]:
    command = [headrace_command(), *arguments, "-b", cluster.bootstrap_servers]
    return run(command, capture_output=True, text=True, timeout=scaled(60), check=False)


def findings(cluster: Cluster) -> list[Any]:
    done = headrace(cluster, "doctor", "--json")
    found: list[Any] = json.loads(done.stdout)["findings"]
    assert done.returncode == (1 if found else 0), done
    return found


def test_a_replica_that_stopped_is_shown_until_its_records_are_given_up() -> None:
    with Cluster(brokers=3) as cluster, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        topic = cluster.create_topic(replication_factor=2, min_insync_replicas=1)
        wait_until(lambda: not findings(cluster), 60, lambda: f"{findings(cluster)}")
        tp = TopicPartition(topic, 0)
        leader = cluster.leader_of(topic)
        [follower] = [
            broker_id for broker_id in cluster.partitions_of(topic)[0].isr if broker_id != leader
        ]
        [third] = {1, 2, 3} - {leader, follower}
        # Records that the leader alone has are committed, and then given up by an operator.
        cluster.broker(follower).stop()
        cluster.wait_for_isr(topic, 1)
        with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            producer.send(topic, b"kept").result()
        cluster.broker(leader).stop()
        cluster.broker(follower).start()
        found = findings(cluster)
        assert {entry["check"] for entry in found} == {"broker", "offline-partition"}
        done = headrace(cluster, "brokers", "elect", "--topic", topic, "--unclean", "--yes")
        assert done.returncode == 0, done
        admin.alter_partition_reassignments({tp: [follower, third, leader]})
        cluster.wait_until(
            lambda: {follower, third} <= set(cluster.partitions_of(topic)[0].isr) or None,
            scaled(60),
            "the third broker is not in sync",
        )
        # Its broker was away meanwhile, and knows nothing of that.
        cluster.broker(leader).start()
        wait_until(
            lambda: any(finding["check"] == "replica" for finding in findings(cluster)),
            60,
            lambda: f"nobody tells: {findings(cluster)}",
        )
        [stopped] = [finding for finding in findings(cluster) if finding["check"] == "replica"]
        assert stopped["subject"] == f"{tp} on broker {leader}"
        assert stopped["detail"].startswith("the replica is stopped: records from offset 0 to 1")
        lines = headrace(cluster, "topics", "describe", topic).stdout.splitlines()
        [line] = [line for line in lines if f"the replica on broker {leader} is stopped" in line]
        # The advice in it is followed.
        advice = line.split("`")[1].split()
        assert advice[:4] == ["headrace", "log", "strays", "set-aside"]
        cluster.broker(leader).stop()
        run([headrace_command(), *advice[1:]], capture_output=True, check=True)
        cluster.broker(leader).start()
        cluster.wait_for_isr(topic, 3)
        wait_until(
            lambda: [finding["check"] for finding in findings(cluster)] == ["set-aside"],
            60,
            lambda: f"{findings(cluster)}",
        )
        stray = findings(cluster)[0]["detail"]
        assert f"headrace log strays list {cluster.broker(leader).data_dir}" in stray
