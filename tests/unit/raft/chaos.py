"""What goes wrong in a simulated cluster, and how it ends."""

from random import Random

from headrace.raft.messages import EndEpochRequest, HardState, RaftRole, Voter
from headrace.raft.raft_node import RaftNode
from tests.unit.raft.simulated import Cluster, Faults

STEPS = 50
STEP_MS = (1, 3, 10, 30, 100, 300, 600)
HEALING_MS = 15_000


class Chaos:
    """A run from one seed: some voters, some observers, and a number of mishaps."""

    def __init__(self, seed: int, node_class: type[RaftNode] = RaftNode) -> None:
        self.rng = Random(seed)
        voters = self.rng.choice((1, 2, 3, 3, 3, 3, 4, 5))
        self.cluster = Cluster(seed, voters, self.rng.choice((0, 0, 1, 2)), node_class)
        self._written = 0
        # Two voters that remain of three cannot do without the data of either.
        self._wipes = voters > 2 and self.rng.random() < 0.5

    def run(self) -> None:
        """Have mishaps, then heal, and see that the cluster works again."""
        for _ in range(STEPS):
            self._mishap()
            for _ in range(self.rng.randint(0, 3)):
                self._write()
            self.cluster.run(self.cluster.now + self.rng.choice(STEP_MS))
        self.settle()

    def settle(self) -> None:
        cluster = self.cluster
        cluster.heal()
        deadline = cluster.now + HEALING_MS
        assert cluster.run(deadline, lambda: cluster.leader is not None), self.describe()
        before = len(cluster.committed)
        while len(cluster.committed) == before or not cluster.agrees():
            assert cluster.now < deadline, self.describe()
            if len(cluster.committed) == before:
                self._write()
            cluster.run(cluster.now + 200, cluster.agrees)

    def describe(self) -> list[tuple[int, RaftRole, int, int, int, HardState | None]]:
        """What a failure needs to be understood: who is where, if there is no progress."""
        return [
            (
                process.node_id,
                process.node.role,
                process.node.epoch,
                process.high_watermark,
                process.log.end_offset,
                process.hard_state,
            )
            for process in self.cluster.alive
        ]

    def _write(self) -> None:
        self._written += 1
        self.cluster.write(self._written)

    def _mishap(self) -> None:
        mishaps = (
            self._crash,
            self._bounce,
            self._bounce,
            self._crash_leader,
            self._restart,
            self._restart,
            self._restart,
            self._cut,
            self._isolate_leader,
            self._mend,
            self._mend,
            self._disturb,
            self._snapshot,
            self._hand_over,
            self._rivals,
            self._rivals_and_bounces,
            self._wipe if self._wipes else self._change_voters,
        )
        self.rng.choice(mishaps)()

    def _crash(self) -> None:
        if self.cluster.alive:
            self.rng.choice(self.cluster.alive).crash()

    def _bounce(self) -> None:
        """Crash and be back at once, before an election can be over."""
        if self.cluster.alive:
            self.rng.choice(self.cluster.alive).bounce()

    def _crash_leader(self) -> None:
        leader = self.cluster.leader
        if leader is not None:
            leader.crash()

    def _restart(self) -> None:
        down = [process for process in self.cluster.processes.values() if process.raft is None]
        if down:
            self.rng.choice(down).start()

    def _cut(self) -> None:
        """Cut links, some of them in one direction only."""
        nodes = list(self.cluster.processes)
        for node in nodes:
            for other in nodes:
                if self.rng.random() < 0.3:
                    self.cluster.faults.cuts.add((node, other))

    def _isolate_leader(self) -> None:
        leader = self.cluster.leader
        if leader is not None:
            for other in self.cluster.processes:
                self.cluster.faults.cuts |= {(leader.node_id, other), (other, leader.node_id)}

    def _mend(self) -> None:
        self.cluster.faults = Faults()

    def _disturb(self) -> None:
        faults = self.cluster.faults
        faults.loss = self.rng.choice((0.0, 0.1, 0.3))
        faults.twice = self.rng.choice((0.0, 0.2))
        faults.late = self.rng.choice((0.0, 0.1, 0.5))

    def _snapshot(self) -> None:
        for process in self.cluster.alive:
            if process.high_watermark > process.log.start_offset and self.rng.random() < 0.5:
                process.snapshot()

    def _rivals(self) -> None:
        """Have several stand at once, without asking first: as if the leader had named them all."""
        for process in self.cluster.alive:
            hard = process.node.hard_state
            if hard.leader_id not in (-1, process.node_id) and self.rng.random() < 0.7:
                request = EndEpochRequest(hard.epoch, hard.leader_id, (process.node_id,))
                process.handle(request, lambda _: None)

    def _rivals_and_bounces(self) -> None:
        """Have several stand, and others crash in the middle of it and come back."""
        self._rivals()
        for process in self.cluster.alive:
            if process.node.role is not RaftRole.CANDIDATE:
                self.cluster.after(self.rng.randint(1, 12), process.bounce, process)

    def _hand_over(self) -> None:
        leader = self.cluster.leader
        if leader is None:
            return
        if self.rng.random() < 0.5:
            leader.do(lambda node: node.resign(self.cluster.now))
        else:
            target = self.rng.choice(list(self.cluster.processes))
            leader.do(lambda node: node.transfer(target, self.cluster.now)[1])

    def _change_voters(self) -> None:
        leader = self.cluster.leader
        if leader is None:
            return
        node_id = self.rng.choice(list(self.cluster.processes))
        voters = {voter.node_id for voter in leader.node.voters}
        now = self.cluster.now
        if node_id not in voters:
            leader.do(lambda node: node.add_voter(Voter(node_id), now)[1])
        elif len(voters) > 1:
            leader.do(lambda node: node.remove_voter(node_id, now)[1])

    def _wipe(self) -> None:
        """Lose some or all data of one node, which has to recover before the next one does.

        And not before the cluster has data: a node cannot tell a disk that was wiped from one that
        was never written, so until then it takes part in founding the cluster (see `may_vote`).
        """
        processes = self.cluster.processes.values()
        founded = all(process.log.end_offset > 0 for process in processes)
        whole = all(
            process.hard_state is not None and process.hard_state.may_vote for process in processes
        )
        process = self.rng.choice(list(processes))
        if founded and whole:
            if process.raft is not None:
                process.crash()
            self.rng.choice((process.wipe, process.lose_log, process.lose_quorum_state))()


def run_chaos(seed: int, node_class: type[RaftNode] = RaftNode) -> Chaos:
    chaos = Chaos(seed, node_class)
    chaos.run()
    return chaos
