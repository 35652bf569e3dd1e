"""Model catalog: model cards that are fetched from workers, and the tokenizers that are built from them."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import grpc
import structlog

from penstock.chassis.channels import channel
from penstock.chassis.clocks import WallMonotonicClock
from penstock.chassis.errors import InvalidArgument, NotFound, PenstockError, Unavailable, error_from_rpc
from penstock.edge.models.registry import ModelRegistry
from penstock.edge.text.codec import TextCodec, codec_from
from penstock.edge.text.executor import TokenizerPools
from penstock.mesh.v1.queue_pb2 import Catalog as CatalogFrame
from penstock.mesh.v1.ticket_pb2 import CatalogEntry
from penstock.mesh.v1.worker_pb2 import GetModelCardRequest, ModelCard
from penstock.mesh.v1.worker_pb2_grpc import WorkerServiceStub
from penstock.v1.inference_pb2 import Model as ModelMessage

log = structlog.get_logger()

CARD_FETCH_TIMEOUT_S = 10.0  # a large tokenizer has 5 MB
CARD_RETRY_BACKOFF_S = (0.5, 15.0)  # first and longest delay between attempts to fetch a card


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its card and a built tokenizer."""

    name: str
    digest: str
    context_length: int  # tokens of prompt and answer together
    vocabulary_size: int
    eos_ids: frozenset[int]
    block_size: int  # tokens
    codec: TextCodec


class ModelCatalog:
    """Loaded models by name. A model is loaded once its card is fetched and its tokenizer is built, keyed by digest."""

    def __init__(self, clock: WallMonotonicClock, pools: TokenizerPools, *, wait_timeout: float) -> None:
        self._clock = clock
        self._pools = pools
        self._wait_timeout = wait_timeout  # s to wait for an announced model to load
        self._registry = ModelRegistry()
        self._reachable_shards: set[str] = set()  # shards that are connected and have sent a catalog
        self._models: dict[str, LoadedModel] = {}  # by digest
        self._loading: set[str] = set()  # digests
        self._changed = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as self._group:
            self._load_missing()
            await asyncio.Event().wait()

    def on_catalog(self, shard: str, frame: CatalogFrame) -> None:
        self._reachable_shards.add(shard)
        self._registry.update_shard(shard, frame.entries, self._clock.now())
        self._load_missing()
        self._notify_changed()

    def on_shard_removed(self, shard: str) -> None:
        """The shard was removed from the configuration or from DNS, so its models are removed."""
        self.on_shard_unreachable(shard)
        self._registry.remove_shard(shard, self._clock.now())

    def on_shard_unreachable(self, shard: str) -> None:
        """The stream to the shard is lost. Its last catalog is kept, since its models are probably still served."""
        self._reachable_shards.discard(shard)

    def contains(self, name: str) -> bool:
        return name in self._entries()

    async def wait_ready(self) -> None:
        """Wait until at least one model is served and every served model is loaded."""
        while not self._is_ready:
            await self._changed.wait()

    async def find(self, name: str) -> LoadedModel:
        """Return a model by name, or the only model for an empty name. Waits while the model loads.

        Raises NotFound for an unknown name, InvalidArgument for an empty name if several models are served, and
        Unavailable if the model does not load in time.
        """
        try:
            async with asyncio.timeout(self._wait_timeout):
                while (model := self._get_loaded(name)) is None:
                    await self._changed.wait()
                return model
        except TimeoutError:
            raise self._unavailable(name) from None

    def get_cached(self, name: str) -> LoadedModel | None:
        """Return the model that `find` would return without waiting. None if it would wait or raise."""
        try:
            return self._get_loaded(name)
        except PenstockError:
            return None

    def list(self) -> list[ModelMessage]:
        """Return the loaded models, sorted by name."""
        found = []
        for name, entry in sorted(self._entries().items()):
            if model := self._models.get(entry.card_digest):
                found.append(
                    ModelMessage(
                        name=name,
                        context_length=model.context_length,
                        vocabulary_size=model.vocabulary_size,
                        workers_hint=entry.workers_hint,
                    )
                )
        return found

    @property
    def _is_ready(self) -> bool:
        entries = self._entries()
        return bool(entries) and all(each.card_digest in self._models for each in entries.values())

    def _entries(self) -> Mapping[str, CatalogEntry]:
        return self._registry.entries(self._clock.now())

    def _get_loaded(self, name: str) -> LoadedModel | None:
        """Return the model, or None if it may load later."""
        entries = self._entries()
        if not entries:
            return None
        if not name:
            if len(entries) > 1:
                text = f"several models are served, so `model` must name one of: {', '.join(sorted(entries))}"
                raise InvalidArgument(text, field="model", reason="MODEL_MISSING")
            name = next(iter(entries))
        if name not in entries:
            raise self._not_found(name)
        return self._models.get(entries[name].card_digest)

    def _not_found(self, name: str) -> NotFound:
        served = ", ".join(sorted(self._entries()))
        return NotFound(f"no model {name!r} is served; served are: {served}", reason="MODEL_UNKNOWN")

    def _unavailable(self, name: str) -> Unavailable:
        """Return an error that names the cause for which a model did not load in time."""
        text, reason = "no worker serves any model at present", "NO_WORKER"
        if entries := self._entries():
            text = f"the card of {name or next(iter(entries))} cannot be fetched"
        elif not self._reachable_shards:
            text, reason = "no queue can be reached", "QUEUE_LOST"
        return Unavailable(f"{text}; retry in a moment", reason=reason, retry_after=1.0)

    def _notify_changed(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _load_missing(self) -> None:
        wanted = {entry.card_digest for entry in self._entries().values()}
        for digest in self._models.keys() - wanted:
            del self._models[digest]
        for digest in wanted - self._models.keys() - self._loading:
            if self._group:
                self._loading.add(digest)
                self._group.create_task(self._load(digest), name=f"card {digest}")

    async def _load(self, digest: str) -> None:
        """Fetch one card and build its tokenizer. Retries with backoff while the model is served."""
        wait = CARD_RETRY_BACKOFF_S[0]
        try:
            while entry := next((each for each in self._entries().values() if each.card_digest == digest), None):
                try:
                    self._models[digest] = await self._fetch(entry)
                except (PenstockError, OSError) as error:
                    log.warning("model_card_failed", model=entry.model, worker=entry.worker_address, error=str(error))
                    await asyncio.sleep(wait)
                    wait = min(2 * wait, CARD_RETRY_BACKOFF_S[1])
                else:
                    log.info("model_ready", model=entry.model, card_digest=digest)
                    return
        finally:
            self._loading.discard(digest)
            self._notify_changed()

    async def _fetch(self, entry: CatalogEntry) -> LoadedModel:
        async with channel(entry.worker_address) as to_worker:
            try:
                response = await WorkerServiceStub(to_worker).GetModelCard(
                    GetModelCardRequest(), timeout=CARD_FETCH_TIMEOUT_S
                )
            except grpc.aio.AioRpcError as error:
                raise error_from_rpc(error) from error
        card = response.card
        return await self._pools.run(len(card.tokenizer_json_zlib), partial(_load_model, card, entry.card_digest))


def _load_model(card: ModelCard, digest: str) -> LoadedModel:
    return LoadedModel(
        name=card.name,
        digest=digest,
        context_length=card.context_length,
        vocabulary_size=card.vocabulary_size,
        eos_ids=frozenset(card.eos_token_ids),
        block_size=card.block_size,
        codec=codec_from(card),
    )
