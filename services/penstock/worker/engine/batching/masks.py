"""Token masks: the tokens that an output constraint allows next. Knows no logits and no tensors.

A mask is a function of the output so far, so a preempted or resumed sequence keeps its constraint. A new kind of
constraint is a class in `interface.OutputConstraint` and a builder in `_MASK_BUILDERS`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from penstock.worker.engine.batching.errors import StartInvalid
from penstock.worker.engine.interface import AllowedChoices, AllowedTokens, OutputConstraint

if TYPE_CHECKING:  # the simulator, which runs batches, needs no numpy
    import numpy as np
    from numpy.typing import NDArray


# Ids, ascending, or a flag for each id of the vocabulary.
Allowed: TypeAlias = "Sequence[int] | NDArray[np.bool_]"


class TokenMask(Protocol):
    def allowed(self, output: Sequence[int]) -> "Allowed | None":
        """Return the ids that may follow `output` (of earlier runs, too), at least one; None: any id."""


@dataclass(frozen=True, slots=True)
class FixedMask:
    token_ids: Sequence[int]  # ascending

    def allowed(self, output: Sequence[int]) -> Sequence[int]:
        return self.token_ids


@dataclass(slots=True)
class _Node:
    """A node of the trie: a prefix of choices."""

    children: dict[int, "_Node"] = field(default_factory=dict)
    is_choice: bool = False


class ChoiceMask:
    """A trie over the choices. An end id may follow a whole choice, and must if no longer choice begins with it."""

    def __init__(self, choices: Sequence[Sequence[int]], end_ids: frozenset[int]) -> None:
        self._root = _Node()
        self._end_ids = end_ids
        for choice in choices:
            node = self._root
            for token in choice:
                node = node.children.setdefault(token, _Node())
            node.is_choice = True

    def allowed(self, output: Sequence[int]) -> Sequence[int]:
        node = self._root
        for token in output:
            if token not in node.children:  # an earlier run did not have this constraint
                return sorted(self._end_ids)
            node = node.children[token]
        return sorted(node.children.keys() | self._end_ids) if node.is_choice else sorted(node.children)


def build_mask(constraint: OutputConstraint, end_ids: frozenset[int]) -> TokenMask:
    """Build the mask of a constraint. Raises StartInvalid for a constraint that no output satisfies."""
    if type(constraint) not in _MASK_BUILDERS:
        raise StartInvalid(f"a {type(constraint).__name__} has no mask; add a builder to _MASK_BUILDERS")
    return _MASK_BUILDERS[type(constraint)](constraint, end_ids)


def _fixed_mask(constraint: AllowedTokens, end_ids: frozenset[int]) -> FixedMask:
    if not constraint.token_ids:
        raise StartInvalid("no token is allowed; allow at least one, or omit the list to allow all")
    return FixedMask(sorted(constraint.token_ids | end_ids))


def _choice_mask(constraint: AllowedChoices, end_ids: frozenset[int]) -> ChoiceMask:
    if not constraint.choices or not all(constraint.choices):
        raise StartInvalid("a choice is empty, or there is no choice; give each choice at least one token")
    if not end_ids:
        raise StartInvalid("no id can end a choice; do not ignore the model's end ids, or give stop ids")
    return ChoiceMask(constraint.choices, end_ids)


_MASK_BUILDERS: dict[type, Callable[[Any, frozenset[int]], TokenMask]] = {
    AllowedTokens: _fixed_mask,
    AllowedChoices: _choice_mask,
}
