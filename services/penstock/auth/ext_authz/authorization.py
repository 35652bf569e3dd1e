"""Checks of proxies: which callers pass, and the answers to the others. The store is never used."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping

import structlog

from penstock.auth.authorizer import Authorizer
from penstock.auth.ext_authz import answers
from penstock.auth.ext_authz.caller import caller_of, is_grpc
from penstock.auth.identity.authenticator import SigningKeyPending
from penstock.auth.identity.identity_keys import IdentityKeyRing
from penstock.chassis.errors import Internal, PenstockError
from penstock.mesh.v1.admission_pb2 import Credential

log = structlog.get_logger()

KEYS_TIMEOUT_S = 1.0  # s; a proxy waits not much longer
MAX_ANSWERS = 1_024  # responses that are kept; all callers of one kind receive the same one


class Authorization:
    """Answers the checks of proxies. Passing callers receive the identity header that edges accept from proxies."""

    def __init__(
        self,
        authorizer: Authorizer,
        identity_keys: IdentityKeyRing,
        clock: Callable[[], float],
        *,
        trusted_hops: int = 0,
        wait_for_keys: Callable[[Callable[[], None]], bool] | None = None,  # None: no tokens are accepted
    ) -> None:
        self._authorizer = authorizer
        self._identity_keys = identity_keys
        self._clock = clock
        self._trusted_hops = trusted_hops
        self._wait_for_keys = wait_for_keys
        self._answers: OrderedDict[tuple[str, str, bool], bytes] = OrderedDict()
        self.passed = 0
        self.denied = 0

    @property
    def figures(self) -> dict[str, float]:
        return {"proxy_checks_passed": self.passed, "proxy_checks_denied": self.denied}

    def answer(self, headers: Mapping[str, str], proxy: str) -> bytes:
        """Return the response to the check of a request. Names of headers are in lower case.

        Raises SigningKeyPending, and nothing else, if `answer_later` has to wait for keys of an issuer.
        """
        try:
            return self._pass(caller_of(headers, proxy, trusted_hops=self._trusted_hops))
        except SigningKeyPending:
            raise
        except PenstockError as error:
            return self._deny(error, headers)
        except Exception:  # a request that is not understood does not pass
            log.exception("proxy_check_failed")
            return self._deny(Internal("internal error"), headers)

    async def answer_later(self, headers: Mapping[str, str], proxy: str, pending: SigningKeyPending) -> bytes:
        """Return the response once the keys that `pending` waits for are loaded, or its error. It raises nothing."""
        if await self._have_keys_been_loaded():
            try:
                return self.answer(headers, proxy)
            except SigningKeyPending as repeated:
                pending = repeated
        return self._deny(pending, headers)

    def _pass(self, credential: Credential) -> bytes:
        """Return the response for a known caller. Raises the error for another."""
        now = self._clock()
        identity = self._authorizer.identify(credential, now)
        header = self._identity_keys.sign(identity, credential, now)
        self.passed += 1
        return answers.passed(header, identity.allowed_regions)

    def _deny(self, error: PenstockError, headers: Mapping[str, str]) -> bytes:
        """Return the response of an error, which is the same for all callers."""
        self.denied += 1
        kind = error.reason, error.message, is_grpc(headers)
        answer = self._answers.get(kind)
        if answer is None:
            answer = self._answers[kind] = answers.denied(error, is_grpc=kind[2])
            if len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)
        return answer

    async def _have_keys_been_loaded(self) -> bool:
        """Wait for the keys that are being loaded. Return False if too many checks wait, or after `KEYS_TIMEOUT_S`."""
        loaded = asyncio.Event()
        if self._wait_for_keys is None or not self._wait_for_keys(loaded.set):
            return False
        try:
            async with asyncio.timeout(KEYS_TIMEOUT_S):
                await loaded.wait()
        except TimeoutError:
            return False
        return True
