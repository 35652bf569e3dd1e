"""A loaded model: its card and its tokenizer, and its description for callers."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from penstock.chassis.errors import InvalidArgument
from penstock.edge.request.spec import Message
from penstock.edge.text.codec import TextCodec, codec_from
from penstock.mesh.model_key import model_key
from penstock.mesh.v1.ticket_pb2 import CatalogEntry
from penstock.mesh.v1.worker_pb2 import ModelCard
from penstock.v1.inference_pb2 import Model as ModelMessage
from penstock.v1.inference_pb2 import ModelVersion

PROBE = (Message("user", "hi"),)
PROBE_RENDERINGS = 3  # the first is slower than later ones
MAX_INLINE_RENDER_S = 0.0002  # of CPU


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
    enforces_forms: bool = False  # whether workers enforce a form of the output
    embedding_size: int = 0  # numbers of an embedding; 0: workers compute none
    renders_inline: bool = False  # whether its template renders a short conversation fast enough for the event loop

    @property
    def key(self) -> str:
        return model_key(self.name, self.digest)

    def with_context(self, context_length: int) -> "LoadedModel":
        """Return the model with the context that workers accept; 0: as it is."""
        return replace(self, context_length=context_length) if context_length not in (0, self.context_length) else self


def weight_of(entry: CatalogEntry) -> int:
    """Return the capacity by which requests are divided between versions; at least 1."""
    return max(1, entry.slots_hint or entry.workers_hint)


def model_message(model: LoadedModel, versions: Mapping[str, CatalogEntry]) -> ModelMessage:
    largest_first = sorted(versions.values(), key=lambda entry: (-entry.workers_hint, entry.card_digest))
    return ModelMessage(
        name=model.name,
        context_length=model.context_length,
        vocabulary_size=model.vocabulary_size,
        workers_hint=sum(entry.workers_hint for entry in largest_first),
        versions=[ModelVersion(version=each.card_digest, workers_hint=each.workers_hint) for each in largest_first],
    )


def load_model(card: ModelCard) -> LoadedModel:
    """Build a model from its card. Raises ModelTextUnusable. Takes up to 1 s: call it in a thread."""
    codec = codec_from(card)
    return LoadedModel(
        name=card.name,
        digest=card.digest,
        context_length=card.context_length,
        vocabulary_size=card.vocabulary_size,
        eos_ids=frozenset(card.eos_token_ids),
        block_size=card.block_size,
        codec=codec,
        enforces_forms=card.enforces_forms,
        embedding_size=card.embedding_size,
        renders_inline=_render_time(codec) <= MAX_INLINE_RENDER_S,
    )


def _render_time(codec: TextCodec) -> float:
    """Return the CPU time in s of rendering a short conversation. Infinite if the template rejects it."""
    times, now = [], datetime.now(UTC)
    for _ in range(PROBE_RENDERINGS):
        begun = time.thread_time()
        try:
            codec.template.render(PROBE, now)
        except InvalidArgument:
            return math.inf
        times.append(time.thread_time() - begun)
    return min(times)
