"""The edge as its front ends see it: gRPC and HTTP both speak through these four calls."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from penstock.edge.spec import RequestSpec
from penstock.mesh.v1.admission_pb2 import Credential, Identity
from penstock.v1.inference_pb2 import Accepted, CountTokensResponse, Delta, Finished, Model

Answer = AsyncIterator[Accepted | Delta | Finished]


class Gateway(Protocol):
    """Requests in, answers out. Every call raises PenstockError with what its caller may be told."""

    def generate(
        self,
        spec: RequestSpec,
        credential: Credential,
        *,
        traceparent: str = "",
        time_left: float
        | None = None,  # s, of the call's own deadline; the earlier of it and the spec's timeout counts
    ) -> AbstractAsyncContextManager[Answer]:
        """Run one request: `accepted` first, then deltas, then `finished`.

        async with gateway.generate(spec, credential) as answer:
            async for event in answer: ...

        Entering raises what is wrong with the request itself (model, prompt, sizes); iterating raises refusals and
        failures, the first of them before `accepted`. Leaving the block early cancels the request down to the GPU.
        """

    async def count_tokens(
        self, spec: RequestSpec, credential: Credential, *, include_token_ids: bool = False
    ) -> CountTokensResponse: ...

    async def list_models(self, credential: Credential) -> list[Model]: ...

    async def identify(self, credential: Credential) -> Identity: ...
