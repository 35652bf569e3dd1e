"""Identification of callers that are not cached: one question to auth for all calls that wait for the same caller."""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from penstock.chassis.errors import PenstockError, Unauthenticated
from penstock.mesh.credential_hash import CredentialHash
from penstock.mesh.v1.admission_pb2 import Credential, Identity

REJECTION_TTL_S = 1.0  # a key that auth has just rejected is rejected again without asking
MAX_REJECTIONS = 10_000


class RejectionCache:
    """Recent rejections of unknown keys by digest of the credential. The oldest are dropped first."""

    def __init__(self, *, max_entries: int = MAX_REJECTIONS, ttl: float = REJECTION_TTL_S) -> None:
        self._max_entries = max_entries
        self._ttl = ttl  # s
        self._rejections: OrderedDict[bytes, tuple[PenstockError, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rejections)

    def record(self, digest: bytes, error: PenstockError, now: float) -> None:
        self._rejections.pop(digest, None)
        self._rejections[digest] = error, now + self._ttl
        if len(self._rejections) > self._max_entries:
            self._rejections.popitem(last=False)

    def find(self, digest: bytes, now: float) -> PenstockError | None:
        error, expires_at = self._rejections.get(digest, (None, 0.0))
        return error if now < expires_at else None


class CallerIdentification:
    """Asks `identify` about a caller. Calls that wait for the same credential share one question."""

    def __init__(self, identify: Callable[[Credential], Awaitable[Identity]]) -> None:
        self._identify = identify
        self._hash = CredentialHash(secrets.token_bytes(32))
        self._rejections = RejectionCache()
        self._pending: dict[bytes, asyncio.Future[Identity]] = {}
        self.asked = 0
        self.rejected = 0

    def is_pending(self, credential: Credential) -> bool:
        """Return whether auth is being asked about this caller."""
        return bool(self._pending) and self._hash.digest(credential) in self._pending

    async def identify(self, credential: Credential) -> Identity:
        """Return the identity of a caller. Raises auth's rejection, or Unavailable."""
        digest = self._hash.digest(credential)
        while pending := self._pending.get(digest):
            try:
                return await asyncio.shield(pending)
            except asyncio.CancelledError:  # of this call, or of the call that asked
                if not pending.cancelled() or _is_cancelled():
                    raise
            except PenstockError as error:
                self.rejected += 1
                raise error.with_traceback(None) from None
        if rejection := self._rejections.find(digest, asyncio.get_running_loop().time()):
            self.rejected += 1
            raise rejection.with_traceback(None)
        return await self._ask(digest, credential)

    async def _ask(self, digest: bytes, credential: Credential) -> Identity:
        loop = asyncio.get_running_loop()
        answer = self._pending[digest] = loop.create_future()
        self.asked += 1
        try:
            identity = await self._identify(credential)
        except PenstockError as error:
            self.rejected += 1
            if isinstance(error, Unauthenticated):
                self._rejections.record(digest, error, loop.time())
            answer.set_exception(error)
            answer.exception()  # marks it as retrieved, as no other call may wait for it
            raise
        else:
            answer.set_result(identity)
            return identity
        finally:
            del self._pending[digest]
            answer.cancel()  # has no effect unless this call was cancelled or failed otherwise


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
