"""What storage says is durable survives a loss of power, down to the names of directories."""

import random
from unittest.mock import patch

import pytest

from headrace.errors import StorageError
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


FAILING_SYNC = patch.object(SimulatedFiles, "sync_directory", side_effect=StorageError("EIO"))


def test_a_vote_that_a_start_finds_survives_a_loss_of_power_though_its_run_ended_early() -> None:
    """The same candidate may get it again at once, without another write of the file."""
    for seed in range(20):
        disk = SimulatedDisk(random.Random(seed), lambda *_: None, "h")
        claimed(disk, bytes(16))
        files = SimulatedFiles(disk)
        files.make_directory("/var/data/log")
        file = QuorumStateFile(files, "/var/data/log")
        file.write(HardState(epoch=2))
        with FAILING_SYNC, pytest.raises(StorageError):
            file.write(HardState(epoch=3, voted_for=2))
        found = QuorumStateFile(SimulatedFiles(disk), "/var/data/log").load()
        assert found == HardState(epoch=3, voted_for=2)
        disk.crash(power_loss=True)
        assert QuorumStateFile(SimulatedFiles(disk), "/var/data/log").read() == found


def test_a_mark_of_a_clean_shutdown_does_not_come_back_after_an_unclean_start() -> None:
    """Records of the run in between would be believed without a scan."""
    for seed in range(20):
        disk = SimulatedDisk(random.Random(seed), lambda *_: None, "h")
        claimed(disk, bytes(16)).mark_clean(broker_epoch=5)
        disk.crash(power_loss=False)
        with FAILING_SYNC, pytest.raises(StorageError):
            claimed(disk, bytes(16)).load()
        disk.crash(power_loss=False)
        unclean = claimed(disk, bytes(16))
        unclean.load()
        assert not unclean.clean
        disk.crash(power_loss=True)
        again = claimed(disk, bytes(16))
        again.load()
        assert not again.clean
