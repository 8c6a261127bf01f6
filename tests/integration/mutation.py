"""Requests that are almost right, sent to a broker by the thousand.

Valid requests of every API in every version are changed a little: bits, lengths, cuts, splices.
Most of a request is left alone, so that a change is met deep inside a handler and not by the first
check. Everything follows from a seed.
"""

import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from struct import pack_into, unpack_from

from headrace.errors import ErrorCode
from headrace.protocol.apis import (
    APIS,
    Api,
    decode_response,
    encode_request,
    served_versions,
)
from headrace.protocol.batch import crc32c
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.schema import Message
from headrace.testing.time_limits import scaled
from tests.golden_frames import CLIENTS, load_frames
from tests.integration.requests import batch, requests_of
from tests.integration.wire import every_version
from tests.random_messages import random_struct, varied

CONNECTIONS = 16
FRAMES_PER_CONNECTION = 4
# A fetch may have been changed into one that waits: its connection is given up.
SILENCE_SECONDS = 0.25

_VARIED = 12
_RANDOM = 3
_HEADER_BYTES = 10
_NUMBERS = (0, 1, -1, 127, 128, -128, 255, 256, 32767, -32768, 65535, 2**31 - 1, -(2**31))


def corpus(rng: Random, topic: str, topic_id: bytes) -> list[bytes]:
    """Valid frames, without their length: sensible ones about a topic, ones with some values that
    make no sense, ones with no value that does, and those of real clients."""
    frames: list[bytes] = []
    for api_key, make in requests_of(topic, topic_id).items():
        for version in every_version(api_key):
            request = make(version)
            # Checked as if they were to be made. Some are made after all, by a bit that changes.
            if isinstance(request, CreateTopicsRequest | CreatePartitionsRequest):
                request.validate_only = True
            frames.append(_frame(request, version))
            frames += [_frame(varied(rng, request, version), version) for _ in range(_VARIED)]
            frames += [
                _frame(random_struct(rng, type(request), version), version) for _ in range(_RANDOM)
            ]
    return frames + [
        frame.data
        for client in CLIENTS
        for frame in load_frames(client)
        if frame.direction == "request" and frame.api is not Api.CREATE_TOPICS
    ]


def _frame(request: Message, version: int) -> bytes:
    return b"".join(encode_request(request, version, 0, None))[4:]


class Mutator:
    """An endless supply of frames, with their lengths, from a corpus of valid ones."""

    def __init__(self, rng: Random, frames: Sequence[bytes]) -> None:
        self._rng = rng
        self._frames = frames
        self._changes: tuple[Callable[[bytearray], bytearray], ...] = (
            self._flip_bits,
            self._set_bytes,
            self._set_number,
            self._cut,
            self._splice,
            self._insert,
            self._repeat,
            self._change_batch,
        )

    def next(self, correlation_id: int) -> bytes:
        """A frame; what it is answered with carries the given id, if it is answered."""
        rng = self._rng
        body = bytearray(rng.choice(self._frames))
        for _ in range(rng.choice((0, 0, 1, 1, 1, 2))):
            body = rng.choice(self._changes)(body)
        if len(body) >= 8:
            pack_into(">i", body, 4, correlation_id)
        size = len(body)
        if rng.random() < 0.01:
            size += rng.choice((-1, 1, 100, 10**6))
        return max(size, 0).to_bytes(4, "big") + bytes(body)

    def _position(self, body: bytearray) -> int:
        """Mostly after the header: with that changed little else is looked at."""
        first = _HEADER_BYTES if self._rng.random() < 0.95 else 0
        return self._rng.randrange(min(first, len(body) - 1), len(body)) if body else 0

    def _flip_bits(self, body: bytearray) -> bytearray:
        for _ in range(self._rng.choice((1, 1, 2, 8))):
            if body:
                body[self._position(body)] ^= 1 << self._rng.randrange(8)
        return body

    def _set_bytes(self, body: bytearray) -> bytearray:
        if body:
            position = self._position(body)
            count = self._rng.choice((1, 1, 2, 4, 8))
            value = self._rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            body[position : position + count] = bytes([value]) * count
        return body

    def _set_number(self, body: bytearray) -> bytearray:
        size = self._rng.choice((1, 2, 4, 8))
        if len(body) > size:
            position = min(self._position(body), len(body) - size)
            number = self._rng.choice(_NUMBERS) % 256**size
            body[position : position + size] = number.to_bytes(size, "big")
        return body

    def _cut(self, body: bytearray) -> bytearray:
        return body[: self._position(body)]

    def _splice(self, body: bytearray) -> bytearray:
        other = self._rng.choice(self._frames)
        return body[: self._position(body)] + other[self._rng.randrange(len(other)) :]

    def _insert(self, body: bytearray) -> bytearray:
        position = self._position(body)
        return body[:position] + self._rng.randbytes(self._rng.choice((1, 4, 50))) + body[position:]

    def _repeat(self, body: bytearray) -> bytearray:
        position = self._position(body)
        chunk = body[position : position + self._rng.choice((1, 4, 30))]
        return body[:position] + chunk * self._rng.randrange(1, 20) + body[position:]

    def _change_batch(self, body: bytearray) -> bytearray:
        """Change a record batch and make its CRC right again, so that it is looked into."""
        if len(body) < 8 or unpack_from(">h", body)[0] != Api.PRODUCE:
            return self._flip_bits(body)
        template = batch(b"v")
        start = body.find(template[16:17] + template[21:27])
        # Where it begins depends on the version; the fields before the attributes give it away.
        start = body.find(b"\2", 8) - 16 if start < 0 else start - 16
        if start < 8 or start + 61 > len(body):
            return body
        size = min(12 + max(unpack_from(">i", body, start + 8)[0], 49), len(body) - start)
        position = start + self._rng.randrange(21, size)
        body[position] ^= 1 << self._rng.randrange(8)
        pack_into(">I", body, start + 17, crc32c(memoryview(body)[start + 21 : start + size]))
        return body


@dataclass(slots=True)
class Counts:
    """What came of the requests."""

    sent: int = 0
    answered: int = 0
    closed: int = 0
    silent: int = 0

    def add(self, other: "Counts") -> None:
        self.sent += other.sent
        self.answered += other.answered
        self.closed += other.closed
        self.silent += other.silent


def is_torn(frame: bytes) -> bool:
    """Whether a frame's length is not that of what follows it."""
    return len(frame) < 4 or int.from_bytes(frame[:4], "big") != len(frame) - 4


class Conversation:
    """Some frames on one connection, and what became of them."""

    def __init__(self, address: tuple[str, int], frames: Sequence[bytes]) -> None:
        self.socket = socket.create_connection(address, scaled(10))
        self.socket.setblocking(False)
        self.frames = frames
        self.heard = time.monotonic()
        self.last_answered = -1
        self.over = False
        self._out = memoryview(b"".join(frames))
        self._in = bytearray()

    @property
    def wants_to_write(self) -> bool:
        return bool(self._out)

    def write(self) -> None:
        self._out = self._out[self.socket.send(self._out) :]

    def read(self) -> bool:
        """Take what has arrived; False if the broker closed the connection."""
        data = self.socket.recv(1 << 20)
        self._in += data
        self.heard = time.monotonic()
        return bool(data)

    def answers(self) -> Iterator[tuple[int, bytes]]:
        """The whole answers received, each with the number of its frame on this connection."""
        while len(self._in) >= 4:
            size = int.from_bytes(self._in[:4], "big")
            if len(self._in) < 4 + size:
                return
            answer = bytes(self._in[4 : 4 + size])
            del self._in[: 4 + size]
            number = int.from_bytes(answer[:4], "big")
            if not self.last_answered < number < len(self.frames):
                # A frame that is shorter than it says swallows those behind it, and may be a
                # request all the same. Nothing on this connection can be told apart any more.
                assert any(map(is_torn, self.frames[self.last_answered + 1 :])), "out of order"
                self.over = True
                return
            self.last_answered = number
            yield number, answer


class Attack:
    """Sends mutated requests over many connections at once, and reads every answer."""

    def __init__(self, address: str, mutator: Mutator) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._mutator = mutator
        self.counts = Counts()

    def run(self, count: int) -> None:
        """Send so many requests. Those behind one that closed its connection are sent again."""
        end = self.counts.sent + count
        left_over: list[bytes] = []
        with selectors.DefaultSelector() as selector:
            open_count = 0
            while open_count or self.counts.sent < end:
                while open_count < CONNECTIONS and self.counts.sent < end:
                    self._open(selector, left_over)
                    open_count += 1
                for key, events in selector.select(SILENCE_SECONDS / 4):
                    self._move(selector, key.data, events)
                now, silence_s = time.monotonic(), scaled(SILENCE_SECONDS)
                for key in list(selector.get_map().values()):
                    talk: Conversation = key.data
                    talk.over = talk.over or talk.last_answered == len(talk.frames) - 1
                    if not talk.over and now - talk.heard > silence_s:
                        self.counts.silent += 1
                        talk.over = True
                    if talk.over:
                        self._close(selector, talk, left_over)
                open_count = len(selector.get_map())

    def _open(self, selector: selectors.BaseSelector, left_over: list[bytes]) -> None:
        frames = []
        for number in range(FRAMES_PER_CONNECTION):
            if left_over:
                frame = bytearray(left_over.pop())
                if len(frame) >= 12:
                    pack_into(">i", frame, 8, number)
                frames.append(bytes(frame))
            else:
                frames.append(self._mutator.next(number))
        talk = Conversation(self._address, frames)
        selector.register(talk.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, talk)

    def _move(self, selector: selectors.BaseSelector, talk: Conversation, events: int) -> None:
        try:
            if events & selectors.EVENT_READ and not talk.read():
                raise ConnectionResetError
            if events & selectors.EVENT_WRITE:
                talk.write()
        except (ConnectionResetError, BrokenPipeError):
            self.counts.closed += 1
            talk.over = True
        for number, answer in talk.answers():
            self._check(talk.frames[number], answer)
        wanted = selectors.EVENT_READ
        if talk.wants_to_write:
            wanted |= selectors.EVENT_WRITE
        selector.modify(talk.socket, wanted, talk)

    def _close(
        self, selector: selectors.BaseSelector, talk: Conversation, left_over: list[bytes]
    ) -> None:
        selector.unregister(talk.socket)
        talk.socket.close()
        # The frame after the last answer is the one that ended it, or that wanted no answer.
        reached = min(talk.last_answered + 2, len(talk.frames))
        self.counts.sent += reached
        left_over += reversed(talk.frames[reached:])

    def _check(self, frame: bytes, answer: bytes) -> None:
        """An answer must be one, by the tables of the version that was asked."""
        self.counts.answered += 1
        api_key, version = unpack_from(">hh", frame, 4)
        assert api_key in APIS, "an API that does not exist was answered"
        first, last = served_versions(api_key)
        if not first <= version <= last:
            assert api_key == Api.API_VERSIONS
            _, response = decode_response(api_key, 0, answer)
            assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
            return
        decode_response(api_key, version, answer)
