"""Take-over of responses whose edge died, was cut off, or has given them away."""

import asyncio
import random
from dataclasses import replace

import structlog

from penstock.chassis.clocks import WallMonotonicClock
from penstock.chassis.errors import DeadlineExceeded, PenstockError
from penstock.chassis.observability.trace_context import traceparent_or_empty
from penstock.edge.gateway import Gateway
from penstock.edge.request.estimate import AdmissionResult, estimate_from_spec
from penstock.edge.request.spec import RequestSpec
from penstock.edge.stored.held import HeldResponse, Key
from penstock.edge.stored.keeper import CLAIM_INTERVAL_S, ResponseKeeper
from penstock.edge.stored.stream import ResponseOutput
from penstock.edge.stored.vault import ResponseVault
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.mesh.v1.responses_pb2 import RESPONSE_STATUS_CANCELLED, ResponseKey, ResumeRecord, StoredResponse

log = structlog.get_logger()

MAX_CLAIMED = 16  # at one time
MAX_UNOPENED = 1_000  # responses that are logged because they cannot be continued


class ResponseTakeover:
    """Claims responses that no edge holds, and continues them from their stored tokens."""

    def __init__(
        self, keeper: ResponseKeeper, gateway: Gateway, vault: ResponseVault, clock: WallMonotonicClock
    ) -> None:
        self._keeper = keeper
        self._gateway = gateway
        self._vault = vault
        self._clock = clock
        self._unopened: set[Key] = set()  # responses that could not be continued; logged once
        self.resumed = 0

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the admin snapshot."""
        return {"responses_resumed": self.resumed}

    async def take_over(self, key: ResponseKey, output: ResponseOutput | None = None) -> HeldResponse | None:
        """Continue a response that no edge holds; None if another edge was faster.

        `output`: that its readers here follow already. Raises what keeps this edge from it.
        """
        claimed = () if self._keeper.is_released else await self._vault.claim(key)
        return await self._resume(claimed[0], output) if claimed else None

    async def run(self) -> None:
        """Continue responses in the background that no edge holds, until this edge ends."""
        while not self._keeper.is_released:
            await asyncio.sleep(CLAIM_INTERVAL_S * random.uniform(0.5, 1.5))  # noqa: S311  # spreads the edges
            try:
                for stored in await self._vault.claim(limit=MAX_CLAIMED):
                    self._keeper.run_beside(self._resume_in_background(stored))
            except PenstockError as error:
                log.debug("responses_not_claimed", error=error.message)

    async def _resume_in_background(self, stored: StoredResponse) -> None:
        """Continue a response. If that is impossible now, its lease expires, and it is claimed again."""
        name = stored.key.tenant_id, stored.key.response_id
        try:
            await self._resume(stored)
        except PenstockError as error:
            if name not in self._unopened and len(self._unopened) < MAX_UNOPENED:
                self._unopened.add(name)
                log.warning("response_not_resumed", response_id=stored.key.response_id, error=error.message)

    async def _resume(self, stored: StoredResponse, output: ResponseOutput | None = None) -> HeldResponse:
        """Continue a response that this edge has claimed. Raises what keeps this edge from it.

        `output`: that its readers here follow already.
        """
        key = stored.key
        if known := self._keeper.held(key):  # its lease had expired while the store was away
            known.epoch = stored.epoch
            return known
        body, record = self._vault.open_request(stored), self._vault.open_resume(stored)
        history = await self._vault.history(key.tenant_id, stored.previous_response_id)
        request = self._vault.parse(key, body, history)
        held = self._keeper.new_held(key, request, body, is_background=stored.background)
        held.output = output or held.output
        held.is_resumed, held.epoch = True, stored.epoch
        self._vault.add_tokens(held.output, stored)
        held.saved_tokens = len(held.output.log)
        self._keeper.hold(held)
        self.resumed += 1
        log.info("response_resumed", response_id=key.response_id, tokens=held.saved_tokens, epoch=stored.epoch)
        if stored.is_cancel_requested:
            held.end(RESPONSE_STATUS_CANCELLED)
            return held
        credential = Credential(bearer=record.bearer, loopback=record.loopback)
        spec = _resumed_spec(request.spec, record, held.output)
        try:
            admission = self._admit(spec, credential, record)
            traceparent = traceparent_or_empty(record.traceparent)
            context = self._gateway.create(spec, credential, admission, held, traceparent=traceparent)
        except PenstockError as error:
            held.send_failed(error)
            return held
        held.attach(context)
        await self._keeper.start(context)
        return held

    def _admit(self, spec: RequestSpec, credential: Credential, record: ResumeRecord) -> AdmissionResult:
        time_left = record.deadline - self._clock.now()
        if time_left <= 0:
            raise DeadlineExceeded("the response was not complete at its deadline")
        return self._gateway.admit(
            estimate_from_spec(spec),
            credential,
            traceparent=record.traceparent,
            time_left=time_left,
            session=lambda: record.session,
        )


def _resumed_spec(spec: RequestSpec, record: ResumeRecord, output: ResponseOutput) -> RequestSpec:
    """Return the spec that continues an output. Without tokens, its model is chosen again."""
    spec = replace(spec, request_id=record.request_id, seed=record.seed)
    accepted = output.accepted
    if not (accepted and len(output.log)):
        return spec
    return replace(
        spec,
        model=accepted.model,
        model_version=accepted.model_version,
        answer_id=accepted.answer_id,
        resume_ids=tuple(output.log.token_ids),
    )
