"""The service `envoy.service.auth.v3.Authorization`: checks of proxies. It never uses the store."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import grpc
import structlog

from penstock.auth.authorizer import Authorizer
from penstock.auth.ext_authz import responses
from penstock.auth.ext_authz.caller import caller_of, is_grpc
from penstock.auth.identity.identity_keys import IdentityKeyRing
from penstock.chassis.errors import Internal, PenstockError
from penstock.chassis.server.interceptors import unguarded
from penstock.mesh.v1.authorization_pb2 import CheckRequest

log = structlog.get_logger()

SERVICE = "envoy.service.auth.v3.Authorization"
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
    ) -> None:
        self._authorizer = authorizer
        self._identity_keys = identity_keys
        self._clock = clock
        self._trusted_hops = trusted_hops
        self._answers: OrderedDict[tuple[str, str, bool], bytes] = OrderedDict()
        self.passed = 0
        self.denied = 0

    @property
    def figures(self) -> dict[str, float]:
        return {"proxy_checks_passed": self.passed, "proxy_checks_denied": self.denied}

    @unguarded
    async def Check(self, message: bytes, context: Any) -> bytes:
        """Answer a CheckRequest with a CheckResponse, both serialized. It neither waits nor raises."""
        try:
            return self._check(CheckRequest.FromString(message), context.peer())
        except Exception:  # a request that is not understood does not pass
            log.exception("proxy_check_failed", bytes=len(message))
            return self._denied(Internal("internal error"), is_grpc=False)

    def _check(self, request: CheckRequest, proxy: str) -> bytes:
        credential = caller_of(request, proxy, trusted_hops=self._trusted_hops)
        now = self._clock()
        try:
            identity = self._authorizer.identify(credential, now)
        except PenstockError as error:
            self.denied += 1
            return self._denied(error, is_grpc=is_grpc(request))
        self.passed += 1
        header = self._identity_keys.sign(identity, credential, now)
        return responses.passed(identity, header).SerializeToString()

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
