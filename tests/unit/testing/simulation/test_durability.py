"""What storage says is durable survives a loss of power, down to the names of directories."""

import random

from headrace.raft.messages import HardState
from headrace.storage.data_directory import DataDirectory
from headrace.storage.metadata_log import QuorumStateFile
from headrace.testing.simulation.simulated_disk import SimulatedDisk, SimulatedFiles


def claimed(disk: SimulatedDisk, directory_id: bytes) -> DataDirectory:
    directory = DataDirectory(SimulatedFiles(disk), "/var/data")
    directory.lock()
    directory.read_meta()
    directory.claim("cluster", 1, lambda: directory_id)
    return directory


def test_claimed_data_directory_is_there_after_a_power_loss() -> None:
    for seed in range(20):
        disk = SimulatedDisk(random.Random(seed), lambda *_: None, "h")
        claimed(disk, bytes(16))
        disk.crash(power_loss=True)
        again = claimed(disk, bytes(15) + b"\x01")
        assert again.meta is not None and again.meta.directory_id == bytes(16)


def test_vote_is_there_after_a_power_loss() -> None:
    for seed in range(20):
        disk = SimulatedDisk(random.Random(seed), lambda *_: None, "h")
        claimed(disk, bytes(16))
        files = SimulatedFiles(disk)
        files.make_directory("/var/data/log")
        QuorumStateFile(files, "/var/data/log").write(HardState(epoch=3, voted_for=2))
        disk.crash(power_loss=True)
        state = QuorumStateFile(SimulatedFiles(disk), "/var/data/log").read()
        assert state == HardState(epoch=3, voted_for=2)
