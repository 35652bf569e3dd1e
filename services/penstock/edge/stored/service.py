"""The parts that store responses in one edge."""

import asyncio

from penstock.chassis.clocks import WallMonotonicClock
from penstock.chassis.security.channels import PLAINTEXT, Dialer
from penstock.edge.config import EdgeConfig
from penstock.edge.gateway import Gateway
from penstock.edge.stored.cipher import ResponseCipher
from penstock.edge.stored.keeper import ResponseKeeper
from penstock.edge.stored.retrieval import ResponseRetrieval
from penstock.edge.stored.takeover import ResponseTakeover
from penstock.edge.stored.vault import ResponseApi, ResponseVault
from penstock.edge.upstreams.response_store import ResponseStoreClient
from penstock.v1.stream_pb2 import Hello


class StoredResponses:
    """Stores responses if the operator has set keys; without keys nothing is stored, and no stream is opened."""

    def __init__(
        self,
        config: EdgeConfig,
        gateway: Gateway,
        api: ResponseApi,
        hello: Hello,
        clock: WallMonotonicClock,
        *,
        dialer: Dialer = PLAINTEXT,
    ) -> None:
        cipher = ResponseCipher(config.response_key_bytes)
        self.is_enabled = bool(cipher)
        self._store = ResponseStoreClient(config.auths, hello, dialer=dialer)
        self.vault = ResponseVault(self._store, cipher, api, lease_s=config.response_lease)
        self.keeper = ResponseKeeper(gateway, self.vault)
        self._takeover = ResponseTakeover(self.keeper, gateway, self.vault, clock)
        self.retrieval = ResponseRetrieval(self.keeper, self._takeover, self.vault)

    @property
    def is_reachable(self) -> bool:
        return self._store.links_up > 0

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the admin snapshot."""
        links = {"response_store_links_up": float(self._store.links_up)}
        return links | self.keeper.figures | self._takeover.figures | self.retrieval.figures

    async def run(self) -> None:
        if self.is_enabled:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._store.run())
                group.create_task(self.keeper.run())
                group.create_task(self._takeover.run())

    async def release(self, *, only_background: bool = False) -> None:
        """Give responses to other edges, because this edge ends."""
        if self.is_enabled:
            await self.keeper.release(only_background=only_background)
