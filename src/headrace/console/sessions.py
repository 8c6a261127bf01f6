"""Sessions of viewers who signed in, and the limit on failed sign-ins.

Rule: no I/O but closing an access; the time comes from a clock. Sessions and notes of failures are
bounded in number and in age.
"""

import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from headrace.clock import Clock
from headrace.console.cluster_access import ClusterAccess

# A session of a cluster with 10,000 topics takes about 30 MB, for its own samples.
SESSIONS_MAX = 32
IDLE_S_MAX = 3600.0
# Also a viewer who comes back every minute signs in once a working day.
AGE_S_MAX = 12 * 3600.0

FAILURES_MAX = 5
FAILURES_S = 60.0
# Addresses and users with failures that are kept in mind.
_SUBJECTS_MAX = 10_000


@dataclass(slots=True)
class Session:
    """A viewer who signed in: the access as that user, and when it was begun and last used."""

    token: str
    access: ClusterAccess
    begun_s: float
    used_s: float
    age_s_max: float = AGE_S_MAX


class Sessions:
    """The sessions by their tokens, the longest unused first."""

    def __init__(self, clock: Clock, sessions_max: int = SESSIONS_MAX) -> None:
        self._clock = clock
        self._sessions_max = sessions_max
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    async def begin(self, access: ClusterAccess, age_s_max: float = AGE_S_MAX) -> Session:
        """A session with a token that nobody can guess; a full table drops the longest unused."""
        while len(self._sessions) >= self._sessions_max:
            _, oldest = self._sessions.popitem(last=False)
            await oldest.access.close()
        now = self._clock.monotonic()
        session = Session(new_token(), access, now, now, min(age_s_max, AGE_S_MAX))
        self._sessions[session.token] = session
        return session

    def find(self, token: str, *, is_use: bool = True) -> Session | None:
        """The session of a token that is not too old; `is_use` keeps it from becoming idle."""
        session = self._sessions.get(token)
        if session is None or self._is_over(session):
            return None
        if is_use:
            session.used_s = self._clock.monotonic()
            self._sessions.move_to_end(token)
        return session

    async def end(self, token: str) -> None:
        """Sign out."""
        session = self._sessions.pop(token, None)
        if session is not None:
            await session.access.close()

    async def end_expired(self) -> None:
        """Close the sessions that are idle or old."""
        for session in [old for old in self._sessions.values() if self._is_over(old)]:
            await self.end(session.token)

    async def close(self) -> None:
        """End all sessions."""
        for token in list(self._sessions):
            await self.end(token)

    def _is_over(self, session: Session) -> bool:
        now = self._clock.monotonic()
        return now - session.used_s > IDLE_S_MAX or now - session.begun_s > session.age_s_max


class SignInLimit:
    """A bound on failed sign-ins in `FAILURES_S`: of a user at an address, an address, a user.

    The bound of a user is the widest: whoever fails on purpose should not lock out the user.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def wait_s(self, address: str, user: str) -> float:
        """How long until this user may try again from this address; 0 if now."""
        now = self._clock.monotonic()
        waits = [0.0]
        for subject, most in _subjects(address, user).items():
            recent = [at for at in self._failures.get(subject, ()) if now - at < FAILURES_S]
            if len(recent) >= most:
                waits.append(recent[-most] + FAILURES_S - now)
        return max(waits)

    def note_failure(self, address: str, user: str) -> None:
        """Count a failed sign-in."""
        now = self._clock.monotonic()
        for subject, most in _subjects(address, user).items():
            failures = self._failures.setdefault(subject, [])
            failures.append(now)
            del failures[:-most]
            self._failures.move_to_end(subject)
        while len(self._failures) > _SUBJECTS_MAX:
            self._failures.popitem(last=False)

    def forget(self, address: str, user: str) -> None:
        """A sign-in that succeeded takes its own failures away."""
        for subject in _subjects(address, user):
            self._failures.pop(subject, None)


def _subjects(address: str, user: str) -> dict[str, int]:
    """Of whom failures are counted, and how many are allowed."""
    return {
        f"both {address} {user}": FAILURES_MAX,
        f"address {address}": 4 * FAILURES_MAX,
        f"user {user}": 8 * FAILURES_MAX,
    }


class CsrfTokens:
    """Tokens of forms, each good for the cookie of one viewer while this process runs."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def token(self, viewer_id: str) -> str:
        """The token that forms of this viewer carry."""
        return hmac.new(self._key, viewer_id.encode(), hashlib.sha256).hexdigest()

    def is_valid(self, viewer_id: str, token: str) -> bool:
        """Whether a form's token is that of the viewer who sends it."""
        return hmac.compare_digest(self.token(viewer_id).encode(), token.encode())


def new_token() -> str:
    """A token of 256 random bits, as text for cookies."""
    return secrets.token_urlsafe(32)
