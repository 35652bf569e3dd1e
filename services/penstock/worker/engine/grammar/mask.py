"""The mask of one sequence whose output has a form: a function of its tokens, so that resumed text goes on exactly."""

from collections.abc import Sequence
from threading import Lock

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from penstock.mesh.form_grammar import FormUnsupported

Flags = NDArray[np.bool_]  # [vocab_size]: whether the id may follow


class GrammarMask:
    """Satisfies `TokenMask`. `prepare` may run in another thread beside `allowed`, which then waits for it.

    A grammar that becomes too complex sets `error`, and then only an id that ends the run is allowed.
    """

    def __init__(self, matcher: LLMatcher, end_ids: frozenset[int], grammar_end_id: int, vocab_size: int) -> None:
        self.error: FormUnsupported | None = None
        self._matcher = matcher
        self._end_ids = sorted(end_ids)
        self._grammar_end_id = grammar_end_id  # the id that the grammar allows where the output may end
        self._vocab_size = vocab_size
        self._consumed = 0  # tokens of the output
        self._flags: Flags | None = None  # after `_consumed` tokens
        self._preparing = Lock()

    def allowed(self, output: Sequence[int]) -> Flags:
        self.prepare(output)
        assert self._flags is not None
        return self._flags

    def prepare(self, output: Sequence[int]) -> None:
        """Compute the mask of the id that follows `output`, which begins with the output of the last call."""
        with self._preparing:
            self._advance(output)

    def _advance(self, output: Sequence[int]) -> None:
        if self._flags is not None and self._consumed == len(output):
            return None
        new = list(output[self._consumed :])
        if new and not self._matcher.consume_tokens(new):
            return self._fail(len(output))
        flags = self._unpacked(self._matcher.compute_bitmask())
        if self._matcher.is_error():
            return self._fail(len(output))
        if flags[self._grammar_end_id]:
            flags[self._end_ids] = True
        self._flags, self._consumed = flags, len(output)
        return None

    def _fail(self, consumed: int) -> None:
        self.error = self.error or FormUnsupported(self._matcher.get_error())
        flags = np.zeros(self._vocab_size, dtype=np.bool_)
        flags[self._end_ids] = True
        self._flags, self._consumed = flags, consumed

    def _unpacked(self, bits: bytes) -> Flags:
        return np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=self._vocab_size, bitorder="little").view(
            np.bool_
        )
