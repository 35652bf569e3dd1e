"""Model catalog: model cards that are fetched from workers, and the tokenizers that are built from them."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import grpc
import structlog

from penstock.chassis.clocks import WallMonotonicClock
from penstock.chassis.errors import InvalidArgument, NotFound, PenstockError, Unavailable, error_from_rpc
from penstock.chassis.security.channels import PLAINTEXT, Dialer
from penstock.chassis.streams.endpoint import check_message
from penstock.edge.lifecycle.output import GenerationPlan
from penstock.edge.lifecycle.transitions import model_replaced
from penstock.edge.models.loaded_model import LoadedModel, load_model, model_message, weight_of
from penstock.edge.models.registry import ModelRegistry
from penstock.edge.models.version_balancer import VersionBalancer
from penstock.edge.text.executor import TokenizerPools
from penstock.mesh.limits.compiler import check_of
from penstock.mesh.model_key import model_key
from penstock.mesh.v1.queue_pb2 import Catalog as CatalogFrame
from penstock.mesh.v1.ticket_pb2 import CatalogEntry
from penstock.mesh.v1.worker_pb2 import GetModelCardRequest
from penstock.mesh.v1.worker_pb2_grpc import WorkerServiceStub
from penstock.v1.inference_pb2 import Model as ModelMessage

log = structlog.get_logger()

CARD_FETCH_TIMEOUT_S = 10.0  # a large tokenizer has 5 MB
CARD_RETRY_BACKOFF_S = (0.5, 15.0)  # first and longest delay between attempts to fetch a card


class ModelCatalog:
    """Loaded models by key. A model is loaded once its card is fetched and its tokenizer is built."""

    def __init__(
        self, clock: WallMonotonicClock, pools: TokenizerPools, *, wait_timeout: float, dialer: Dialer = PLAINTEXT
    ) -> None:
        self._dialer = dialer
        self._clock = clock
        self._pools = pools
        self._wait_timeout = wait_timeout  # s to wait for an announced model to load
        self._registry = ModelRegistry()
        self._reachable_shards: set[str] = set()  # shards that are connected and have sent a catalog
        self._models: dict[str, LoadedModel] = {}  # by key
        self._loading: set[str] = set()  # keys
        self._balancers: dict[str, VersionBalancer] = {}  # by name
        self._changed = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as self._group:
            self._load_missing()
            await asyncio.Event().wait()

    def on_catalog(self, shard: str, frame: CatalogFrame) -> bool:
        """Apply the catalog of a shard. Return whether the shard names other models than before."""
        self._reachable_shards.add(shard)
        has_changed = self._registry.update_shard(shard, frame.entries, self._clock.now())
        self._load_missing()
        self._notify_changed()
        return has_changed

    def on_shard_removed(self, shard: str) -> None:
        """The shard was removed from the configuration or from DNS, so its models are removed."""
        self.on_shard_unreachable(shard)
        self._registry.remove_shard(shard, self._clock.now())

    def on_shard_unreachable(self, shard: str) -> None:
        """The stream to the shard is lost. Its last catalog is kept, since its models are probably still served."""
        self._reachable_shards.discard(shard)

    def contains(self, key: str) -> bool:
        return key in self._entries()

    def is_replaced(self, plan: GenerationPlan) -> bool:
        """Whether no worker serves the version of a plan at present, while workers serve another version."""
        return self._registry.is_replaced(plan.model_key, plan.model, self._clock.now())

    def is_available(self, name: str) -> bool:
        """Whether a worker serves the model now, and its tokenizer is built."""
        return self._registry.is_named(name, self._clock.now()) and bool(self._loaded_weights(name))

    def may_serve(self, name: str) -> bool:
        """Whether a request of the model may wait for it: it was served a moment ago, or no model is known yet."""
        versions = self._versions()
        return not versions or name in versions

    def has_version(self, name: str, version: str) -> bool:
        """Whether workers serve a version of the model, or did a moment ago."""
        return self.contains(model_key(name, version))

    async def wait_ready(self) -> None:
        """Wait until at least one model is served and every served model is loaded."""
        while not self._is_ready:
            await self._changed.wait()

    async def wait_changed(self, timeout_s: float) -> None:
        """Wait until the served or the loaded models change, for at most `timeout_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    async def find(self, name: str) -> LoadedModel:
        """Return the version of a model with the most capacity; an empty name means the only model.

        Waits while the model loads. Raises NotFound for an unknown name, InvalidArgument for an empty name if several
        models are served, and Unavailable if the model does not load in time.
        """
        return await self._wait_loaded(name, lambda: self._find_cached(name))

    async def choose(self, name: str, version: str = "") -> LoadedModel:
        """Return the version for the next request: `version` if it is given, or one in proportion to capacity.

        Waits and raises as `find`; raises Aborted / MODEL_REPLACED if `version` is not served and does not return in
        time, such as by a worker that restarts.
        """
        if version:
            return await self._wait_version(name, version)
        return await self._wait_loaded(name, lambda: self._balance(name))

    def get_cached(self, name: str) -> LoadedModel | None:
        """Return the model that `find` would return without waiting. None if it would wait or raise."""
        try:
            return self._find_cached(name)
        except PenstockError:
            return None

    def get_version(self, key: str) -> LoadedModel | None:
        """Return the loaded model with a key."""
        return self._models.get(key)

    def list(self) -> list[ModelMessage]:
        """Return the loaded models, sorted by name."""
        names = sorted(self._versions())
        return [model_message(model, self._versions()[name]) for name in names if (model := self.get_cached(name))]

    @property
    def _is_ready(self) -> bool:
        entries = self._entries()
        return bool(entries) and all(key in self._models for key in entries)

    def _entries(self) -> Mapping[str, CatalogEntry]:
        return self._registry.entries(self._clock.now())

    def _versions(self) -> Mapping[str, Mapping[str, CatalogEntry]]:
        return self._registry.versions(self._clock.now())

    async def _wait_loaded(self, name: str, find: Callable[[], LoadedModel | None]) -> LoadedModel:
        if model := find():  # almost always, and a timeout costs more than the rest
            return model
        try:
            async with asyncio.timeout(self._wait_timeout):
                while (model := find()) is None:
                    await self._changed.wait()
                return model
        except TimeoutError:
            raise self._unavailable(name) from None

    def _find_cached(self, name: str) -> LoadedModel | None:
        """Return the loaded version with the most capacity. None if one may load later; raises as `find`."""
        weights = self._loaded_weights(name)
        return self._models[max(weights, key=lambda key: (weights[key], key))] if weights else None

    def _balance(self, name: str) -> LoadedModel | None:
        weights = self._loaded_weights(name)
        return self._models[self._balancers.setdefault(name, VersionBalancer()).choose(weights)] if weights else None

    async def _wait_version(self, name: str, version: str) -> LoadedModel:
        """Return a version, also one that was lost a moment ago."""

        def find() -> LoadedModel | None:
            entry = next(iter(self._versions_of(name).values()), None)
            return self._models.get(model_key(entry.model, version)) if entry else None

        try:
            return await self._wait_loaded(name, find)
        except Unavailable:
            raise (model_replaced() if self._loaded_weights(name) else self._unavailable(name)) from None

    def _loaded_weights(self, name: str) -> dict[str, int]:
        """Return the capacity of the loaded versions, by key. Empty if one may load later."""
        return {key: weight_of(entry) for key, entry in self._versions_of(name).items() if key in self._models}

    def _versions_of(self, name: str) -> Mapping[str, CatalogEntry]:
        """Return the versions of a name, by key. Empty if no model is served at present."""
        versions = self._versions()
        if not versions:
            return {}
        if not name:
            if len(versions) > 1:
                text = f"several models are served, so `model` must name one of: {', '.join(sorted(versions))}"
                raise InvalidArgument(text, field="model", reason="MODEL_MISSING")
            name = next(iter(versions))
        if name not in versions:
            served = ", ".join(sorted(versions))
            raise NotFound(f"no model {name!r} is served; served are: {served}", reason="MODEL_UNKNOWN")
        return versions[name]

    def _unavailable(self, name: str) -> Unavailable:
        """Return an error that names the cause for which a model did not load in time."""
        text, reason = "no worker serves any model at present", "NO_WORKER"
        if versions := self._versions():
            text = f"the card of {name or next(iter(versions))} cannot be fetched"
        elif not self._reachable_shards:
            text, reason = "no queue can be reached", "QUEUE_LOST"
        return Unavailable(f"{text}; retry in a moment", reason=reason, retry_after=1.0)

    def _notify_changed(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _load_missing(self) -> None:
        wanted = self._entries()
        for key in self._models.keys() - wanted.keys():
            del self._models[key]
        for key, model in self._models.items():  # workers of one version may differ in memory
            self._models[key] = model.with_context(wanted[key].context_length)
        for key in wanted.keys() - self._models.keys() - self._loading:
            if self._group:
                self._loading.add(key)
                self._group.create_task(self._load(key), name=f"card {key}")

    async def _load(self, key: str) -> None:
        """Fetch one card and build its tokenizer. Retries with backoff while the model is served."""
        wait = CARD_RETRY_BACKOFF_S[0]
        try:
            while entry := self._entries().get(key):
                try:
                    self._models[key] = await self._fetch(entry)
                except (PenstockError, OSError) as error:
                    log.warning("model_card_failed", model=key, worker=entry.worker_address, error=str(error))
                    await asyncio.sleep(wait)
                    wait = min(2 * wait, CARD_RETRY_BACKOFF_S[1])
                else:
                    log.info("model_ready", model=entry.model, card_digest=entry.card_digest)
                    return
        finally:
            self._loading.discard(key)
            self._notify_changed()

    async def _fetch(self, entry: CatalogEntry) -> LoadedModel:
        """Raises PenstockError, also if the worker at the address serves another card by now."""
        async with self._dialer.channel(entry.worker_address, "worker", entry.worker_id) as to_worker:
            try:
                response = await WorkerServiceStub(to_worker).GetModelCard(
                    GetModelCardRequest(), timeout=CARD_FETCH_TIMEOUT_S
                )
            except grpc.aio.AioRpcError as error:
                raise error_from_rpc(error) from error
        check_message(response, check_of(response.DESCRIPTOR))
        card = response.card
        if (card.name, card.digest) != (entry.model, entry.card_digest):
            raise Unavailable(f"the worker serves {model_key(card.name, card.digest)}", reason="MODEL_REPLACED")
        model = await self._pools.run(len(card.tokenizer_json_zlib), partial(load_model, card))
        return model.with_context(entry.context_length)
