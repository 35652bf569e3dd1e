"""One sequence in the engine (its tokens, KV blocks and progress), and the plan of a step over sequences."""

from dataclasses import dataclass, field

from penstock.worker.engine.batching.block_pool import chain_hash, root_hash
from penstock.worker.engine.batching.masks import Allowed, TokenMask
from penstock.worker.engine.interface import SequenceSpec, StepResult


@dataclass(slots=True, eq=False)
class Sequence:
    """A sequence, changed by `Batch` alone.

    `ids` are all known tokens. `computed` is the number of them whose K and V are in the pool, or in shared blocks that
    another sequence is computing. A sequence decodes if exactly one is not computed. A preempted sequence has lost its
    KV and prefills its prompt and its output.
    """

    spec: SequenceSpec
    end_ids: frozenset[int]
    mask: TokenMask | None = None
    ids: list[int] = field(init=False)
    prompt_tokens: int = field(init=False)  # tokens of the prompt, without tokens that earlier runs emitted
    max_total_tokens: int = field(init=False)  # maximum number of prompt and output tokens
    table: list[int] = field(default_factory=list)  # block table: KV block of each `block_size` positions
    computed: int = 0  # positions
    shared_blocks: int = 0  # leading blocks found by their hashes at admission
    filled_blocks: int = 0  # number of those known to have their content
    cached_tokens: int | None = None  # tokens of the prompt in shared blocks at first admission; None before it
    block_hashes: list[bytes] = field(default_factory=list)  # of the leading full blocks, for prefix sharing
    published_blocks: int = 0  # leading blocks that other sequences can find with their content

    def __post_init__(self) -> None:
        self.ids = list(self.spec.token_ids)
        self.prompt_tokens = len(self.ids) - self.spec.emitted
        self.max_total_tokens = len(self.ids) + self.spec.max_output_tokens

    def __repr__(self) -> str:
        return f"<Sequence {self.spec.seq_id}: {self.computed}/{len(self.ids)} computed, {self.generated} generated>"

    @property
    def remaining(self) -> int:
        return len(self.ids) - self.computed

    @property
    def generated(self) -> int:
        return len(self.ids) - len(self.spec.token_ids)

    @property
    def output(self) -> list[int]:
        """A copy of the ids after the prompt, of earlier runs, too."""
        return self.ids[self.prompt_tokens :]

    @property
    def allowed(self) -> "Allowed | None":
        """Ids that may follow; None: any."""
        return self.mask.allowed(self.output) if self.mask else None

    @property
    def can_share(self) -> bool:
        return bool(self.spec.cache_salt)

    def hash_blocks(self, count: int, block_size: int) -> list[bytes]:
        """Return the hashes of the first `count` blocks, which are full of known tokens. Each is computed once."""
        for block in range(len(self.block_hashes), count):
            parent = self.block_hashes[-1] if self.block_hashes else root_hash(self.spec.cache_salt)
            self.block_hashes.append(chain_hash(parent, self.ids[block * block_size : (block + 1) * block_size]))
        return self.block_hashes[:count]


@dataclass(slots=True, eq=False)  # not frozen, which would take three times as long to construct
class Slice:
    """The part of one sequence that a step computes: `count` positions from `start`."""

    sequence: Sequence
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def is_last(self) -> bool:
        """Whether all known tokens are computed after this slice."""
        return self.end == len(self.sequence.ids)

    @property
    def is_sampled(self) -> bool:
        return self.is_last and not self.sequence.spec.embeds


@dataclass(slots=True)
class StepPlan:
    decodes: list[Slice]
    prefills: list[Slice]
    result: StepResult  # filled as far as it is known before the computation
    sampled: list[Sequence] = field(init=False)  # sequences that get a token, in the order that `commit` expects
    embedded: list[Sequence] = field(init=False)  # sequences that get their embedding, in that order, too

    def __post_init__(self) -> None:
        # Each decode computes the last known token of its sequence, so each gets a new one.
        prefilled = [part.sequence for part in self.prefills if part.is_sampled]
        self.sampled = [part.sequence for part in self.decodes] + prefilled
        self.embedded = [part.sequence for part in self.prefills if part.is_last and part.sequence.spec.embeds]

    @property
    def slices(self) -> list[Slice]:
        return self.decodes + self.prefills
