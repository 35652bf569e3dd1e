"""The service `envoy.service.auth.v3.Authorization`: checks of proxies. It never uses the store."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import grpc
import structlog

from penstock.auth.authorizer import Authorizer
from penstock.auth.ext_authz import responses
from penstock.auth.ext_authz.caller import caller_of, is_grpc
from penstock.auth.identity.authenticator import SigningKeyPending
from penstock.auth.identity.identity_keys import IdentityKeyRing
from penstock.chassis.errors import Internal, PenstockError
from penstock.chassis.server.interceptors import unguarded
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.mesh.v1.authorization_pb2 import CheckRequest

log = structlog.get_logger()

SERVICE = "envoy.service.auth.v3.Authorization"
KEYS_TIMEOUT_S = 1.0  # s; a proxy waits not much longer
MAX_ANSWERS = 1_024  # serialized answers that are kept; all callers of one kind receive the same one


class AuthorizationService:
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

    @unguarded
    async def Check(self, message: bytes, context: Any) -> bytes:
        """Answer a CheckRequest with a CheckResponse, both serialized. It raises nothing.

        It waits only if the token names a key that its issuer may have added since its keys were loaded.
        """
        try:
            return await self._answer(CheckRequest.FromString(message), context.peer())
        except Exception:  # a request that is not understood does not pass
            log.exception("proxy_check_failed", bytes=len(message))
            return self._denied(Internal("internal error"), is_grpc=False)

    async def _answer(self, request: CheckRequest, proxy: str) -> bytes:
        credential = caller_of(request, proxy, trusted_hops=self._trusted_hops)
        try:
            return self._pass(credential)
        except PenstockError as rejection:
            error = rejection
        if isinstance(error, SigningKeyPending) and await self._have_keys_been_loaded():
            try:
                return self._pass(credential)
            except PenstockError as rejection:
                error = rejection
        self.denied += 1
        return self._denied(error, is_grpc=is_grpc(request))

    def _pass(self, credential: Credential) -> bytes:
        """Return the answer for a known caller. Raises the error for another."""
        now = self._clock()
        identity = self._authorizer.identify(credential, now)
        header = self._identity_keys.sign(identity, credential, now)
        self.passed += 1
        return responses.passed(identity, header).SerializeToString()

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

    def _denied(self, error: PenstockError, *, is_grpc: bool) -> bytes:
        """Return the answer of an error, which is the same for all callers."""
        kind = error.reason, error.message, is_grpc
        answer = self._answers.get(kind)
        if answer is None:
            answer = self._answers[kind] = responses.denied(error, is_grpc=is_grpc).SerializeToString()
            if len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)
        return answer


def add_authorization_to_server(service: AuthorizationService, server: Any) -> None:
    """Register the service under Envoy's name."""
    check: Any = grpc.unary_unary_rpc_method_handler(service.Check)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Check": check}),))
