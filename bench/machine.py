"""The limits of this machine, measured in the same run as headrace.

The limit for a broker is a process that receives bytes from a loopback socket, computes their
CRC-32C and writes them to a file: the least work of any broker.
"""

import multiprocessing
import os
import socket
import time
from pathlib import Path

from headrace.protocol.batch import crc32c

_CHUNK_BYTES = 1024 * 1024
_SOURCE_BYTES = 64 * _CHUNK_BYTES


def warm_page_cache(directory: Path, size: int) -> None:
    """Make the memory for the page cache of new files resident.

    In a virtual machine the first touch of a page costs a trip to the host, several times the copy
    itself; without this, the first measurement would pay for it.
    """
    path = directory / "warm"
    chunk = bytes(_CHUNK_BYTES)
    with path.open("wb", buffering=0) as file:
        for _ in range(size // _CHUNK_BYTES):
            file.write(chunk)
    path.unlink()


def copy_limit_mb_per_s(directory: Path, total: int, unit: int) -> float:
    """The limit of loopback to file with CRC, sent in writes of `unit` bytes."""
    listener = socket.create_server(("127.0.0.1", 0))
    sender = multiprocessing.get_context("spawn").Process(
        target=_send, args=(listener.getsockname()[1], total, unit)
    )
    sender.start()
    listener.settimeout(30)
    connection, _ = listener.accept()
    buffer = bytearray(_CHUNK_BYTES)
    view = memoryview(buffer)
    path = directory / "limit"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC)
    position = 0
    began = 0.0
    while count := connection.recv_into(buffer):
        began = began or time.perf_counter()
        crc32c(view[:count])
        os.pwrite(descriptor, view[:count], position)
        position += count
    seconds = time.perf_counter() - began
    sender.join()
    os.close(descriptor)
    path.unlink()
    connection.close()
    listener.close()
    assert position >= total, (position, total)
    return position / seconds / 1e6


def _send(port: int, total: int, unit: int) -> None:
    # Sent from more memory than a cache holds, like a producer's messages.
    source = memoryview(bytearray(_SOURCE_BYTES))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for number in range(-(-total // unit)):
            start = number * unit % (_SOURCE_BYTES - unit)
            connection.sendall(source[start : start + unit])


def read_limit_mb_per_s(directory: Path, total: int) -> float:
    """The limit of file to loopback, received and dropped: the least work of a consumer."""
    path = directory / "read-limit"
    chunk = bytes(_CHUNK_BYTES)
    with path.open("wb", buffering=0) as file:
        for _ in range(total // _CHUNK_BYTES):
            file.write(chunk)
    listener = socket.create_server(("127.0.0.1", 0))
    receiver = multiprocessing.get_context("spawn").Process(
        target=_drop, args=(listener.getsockname()[1],)
    )
    receiver.start()
    listener.settimeout(30)
    connection, _ = listener.accept()
    began = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while data := file.read(_CHUNK_BYTES):
            connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
    receiver.join()
    seconds = time.perf_counter() - began
    connection.close()
    listener.close()
    path.unlink()
    return total / seconds / 1e6


def _drop(port: int) -> None:
    buffer = bytearray(_CHUNK_BYTES)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while connection.recv_into(buffer):
            pass
