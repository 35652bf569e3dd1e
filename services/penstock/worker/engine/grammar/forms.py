"""Sequences whose output has a form: their grammars compile in one thread, and others compute their masks.

No step of other sequences waits for a grammar, and a mask is computed while the model computes the logits.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from penstock.mesh.form_grammar import FormUnsupported
from penstock.mesh.forms import FORM_UNSUPPORTED, Form
from penstock.worker.engine.batching.errors import StartInvalid
from penstock.worker.engine.batching.masks import TokenMask
from penstock.worker.engine.grammar.compiler import GrammarCompiler
from penstock.worker.engine.grammar.mask import GrammarMask
from penstock.worker.engine.interface import SequenceCancelled, SequenceRejected, SequenceSpec, StepResult

MAX_WAIT_S = 0.005  # of an engine without other work; it receives messages between two waits


class MaskedSequence(Protocol):
    """The used part of an engine's own record of a sequence that runs."""

    @property
    def spec(self) -> SequenceSpec: ...

    @property
    def mask(self) -> TokenMask | None: ...

    @property
    def output(self) -> Sequence[int]: ...  # the ids after the prompt, of earlier runs, too


@dataclass(frozen=True, slots=True)
class _Pending:
    spec: SequenceSpec
    mask: "Future[GrammarMask | FormUnsupported]"


class FormSequences:
    """Sequences before and while they run. `compiler`: of the model; None rejects every form."""

    def __init__(self, compiler: GrammarCompiler | None, mask_threads: int = 1) -> None:
        self._compiler = compiler
        self._mask_threads = mask_threads
        self._compiling = ThreadPoolExecutor(1, "grammar")
        self._computing = ThreadPoolExecutor(mask_threads, "mask")
        self._pending: dict[int, _Pending] = {}  # by seq_id, in order of arrival
        self._cancelled: list[SequenceCancelled] = []
        self._rejected: list[SequenceRejected] = []

    @property
    def has_work(self) -> bool:
        return bool(self._pending or self._cancelled or self._rejected)

    @staticmethod
    def handles(spec: SequenceSpec) -> bool:
        return isinstance(spec.constraint, Form)

    def add(self, spec: SequenceSpec, end_ids: frozenset[int]) -> None:
        """Begin to compile the form of a sequence. Raises StartInvalid if none is possible, or no id can end it."""
        if self._compiler is None:
            raise StartInvalid("this engine enforces no form of an output; leave the form out")
        if not end_ids:
            raise StartInvalid("no id can end an output with a form; do not ignore the model's end ids")
        self._pending[spec.seq_id] = _Pending(
            spec, self._compiling.submit(_mask_or_error, self._compiler, spec, end_ids)
        )

    def cancel(self, seq_id: int) -> bool:
        """Forget a sequence that does not run yet. Return whether there was one."""
        if (pending := self._pending.pop(seq_id, None)) is None:
            return False
        pending.mask.cancel()
        self._cancelled.append(SequenceCancelled(seq_id, 0, 0))
        return True

    def wait(self) -> None:
        """Wait until a sequence can run, for at most `MAX_WAIT_S`."""
        wait([each.mask for each in self._pending.values()][:1], MAX_WAIT_S)

    def pop_compiled(self) -> Iterator[tuple[SequenceSpec, GrammarMask]]:
        """Yield the sequences that can run, in order of arrival."""
        for seq_id, pending in list(self._pending.items()):
            if not pending.mask.done():
                return
            del self._pending[seq_id]
            mask = pending.mask.result()
            if isinstance(mask, GrammarMask):
                yield pending.spec, mask
            else:
                self.reject(seq_id, FORM_UNSUPPORTED, str(mask))

    @contextmanager
    def masking(self, sequences: Iterable[MaskedSequence]) -> Iterator[None]:
        """Compute the masks of the sequences' next ids in threads during the block."""
        masked = [each for each in sequences if isinstance(each.mask, GrammarMask)]
        parts = [part for first in range(self._mask_threads) if (part := masked[first :: self._mask_threads])]
        jobs = [self._computing.submit(_prepare, part) for part in parts]
        yield
        for job in jobs:
            job.result()

    def reject(self, seq_id: int, reason: str, message: str) -> None:
        """Report a compiled sequence that the engine has released, or did not take, with the next `report`."""
        self._rejected.append(SequenceRejected(seq_id, reason, message))

    def report(self, sampled: Iterable[MaskedSequence], result: StepResult) -> StepResult:
        """Add what happened to sequences with forms.

        `sampled`: sequences that got a token in this step. One whose grammar failed has just ended, and is rejected.
        """
        for sequence in sampled:
            if isinstance(sequence.mask, GrammarMask) and (error := sequence.mask.error):
                self.reject(sequence.spec.seq_id, FORM_UNSUPPORTED, str(error))
        rejected = {each.seq_id for each in self._rejected}
        if rejected:
            result.finished = [each for each in result.finished if each.seq_id not in rejected]
        result.rejected, self._rejected = self._rejected, []
        result.cancelled += self._cancelled
        self._cancelled = []
        return result


def _mask_or_error(
    compiler: GrammarCompiler, spec: SequenceSpec, end_ids: frozenset[int]
) -> GrammarMask | FormUnsupported:
    assert isinstance(spec.constraint, Form)
    try:
        mask = compiler.mask(spec.constraint, end_ids)
    except FormUnsupported as error:
        return error
    mask.prepare(spec.token_ids[len(spec.token_ids) - spec.emitted :])
    return mask.error or mask


def _prepare(sequences: list[MaskedSequence]) -> None:
    for sequence in sequences:
        assert isinstance(sequence.mask, GrammarMask)
        sequence.mask.prepare(sequence.output)
