"""Refresh of key sets: loads them from files and URLs in threads, in the background and when a key id is unknown."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

import structlog

from penstock.auth.config import AuthConfig
from penstock.auth.identity.authenticator import Authenticator
from penstock.auth.oidc.issuer import read_issuers
from penstock.auth.oidc.key_set import MAX_BYTES, KeySet, KeySetInvalid
from penstock.auth.oidc.verifier import JwtVerifier
from penstock.chassis.lifecycle import background

log = structlog.get_logger()

FETCH_TIMEOUT_S = 5.0  # s without a byte
MAX_WAITING = 1_000  # frames and checks that wait for keys; further ones are rejected and may be retried


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow no redirect: the configured address is the one that is trusted."""


_opener = urllib.request.build_opener(_NoRedirects)


def read_document(key_set: KeySet) -> bytes:
    """Return the document of a key set. Blocks. Raises OSError, HTTPException or ValueError."""
    if not key_set.issuer.is_url:
        with Path(key_set.issuer.jwks).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    request = urllib.request.Request(key_set.issuer.jwks, headers={"accept": "application/json"})  # noqa: S310  # checked
    with _opener.open(request, timeout=FETCH_TIMEOUT_S) as response:
        document: bytes = response.read(MAX_BYTES + 1)
        return document


@dataclass(eq=False)
class KeyRefresh:
    """Loads each key set regularly, and the requested ones at once. Callbacks wait for the end of such a load."""

    key_sets: list[KeySet]
    clock: Callable[[], float]
    interval: float  # s
    on_loaded: Callable[..., None] = lambda *_, **__: None  # the verifier's
    loads: int = 0
    failures: int = 0
    _requested: dict[KeySet, None] = field(default_factory=dict)
    _is_requested: asyncio.Event = field(default_factory=asyncio.Event)
    _waiting: list[Callable[[], None]] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, float]:
        now = self.clock()
        return {
            "key_set_loads": self.loads,
            "key_set_failures": self.failures,
            "key_sets_stale": sum(each.is_stale(now) for each in self.key_sets),
        }

    def request(self, key_set: KeySet) -> None:
        self._requested[key_set] = None
        self._is_requested.set()

    def wait(self, on_loaded: Callable[[], None]) -> bool:
        """Call `on_loaded` once the next requested load has ended. Return False if too many wait."""
        if len(self._waiting) >= MAX_WAITING:
            return False
        self._waiting.append(on_loaded)
        return True

    async def load_all(self) -> None:
        await self._load(self.key_sets)

    async def run(self) -> None:
        """Load the keys until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._load_regularly())
            group.create_task(self._load_requested())

    async def _load_regularly(self) -> None:
        while True:
            await asyncio.sleep(self.interval)
            await self._load(self.key_sets)

    async def _load_requested(self) -> None:
        while True:
            await self._is_requested.wait()
            self._is_requested.clear()
            requested, self._requested = list(self._requested), {}
            await self._load(requested)
            waiting, self._waiting = self._waiting, []
            for on_loaded in waiting:
                on_loaded()

    async def _load(self, key_sets: list[KeySet]) -> None:
        changed = await asyncio.gather(*(self._load_one(each) for each in key_sets))
        self.on_loaded(key_sets, has_changed=any(changed))

    async def _load_one(self, key_set: KeySet) -> bool:
        """Load one set. A failure is logged, and the former keys stay in use until they are too old."""
        try:
            document = await asyncio.to_thread(read_document, key_set)
            has_changed = key_set.load(document, self.clock())
        except (OSError, HTTPException, ValueError, KeySetInvalid) as error:
            self.failures += 1
            log.warning(
                "key_set_not_loaded", issuer=key_set.issuer.issuer, source=key_set.issuer.jwks, error=str(error)
            )
            return False
        self.loads += 1
        if has_changed:
            log.info("key_set_changed", issuer=key_set.issuer.issuer, keys=repr(key_set))
        return has_changed


@asynccontextmanager
async def accepting_tokens(
    config: AuthConfig, authenticator: Authenticator, clock: Callable[[], float]
) -> AsyncIterator[KeyRefresh]:
    """Let the authenticator accept tokens of the configured issuers while the block runs.

    An issuer that cannot be reached at the start is tried again; until then its tokens are refused.
    """
    key_sets = [
        KeySet(each, config.jwks_max_age, config.jwks_request_interval) for each in read_issuers(config.issuers)
    ]
    refresh = KeyRefresh(key_sets, clock, config.jwks_refresh_interval)
    verifier = JwtVerifier({each.issuer.issuer: each for each in key_sets}, config.token_leeway, refresh.request)
    refresh.on_loaded = verifier.on_loaded
    await refresh.load_all()
    authenticator.tokens = verifier
    async with background(refresh.run()):
        yield refresh
