"""Which tokens may come next where an answer is held to a form. Knows no logits and no tensors.

A mask is a function of the output so far, so a preempted or resumed answer is held to the very same form. Another kind
of form is a class in `interface.Form` and a builder in `_MASKS`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.worker.engine.batching.errors import StartInvalid
from penstock.worker.engine.interface import AllowedChoices, AllowedTokens, OutputConstraint


class TokenMask(Protocol):
    def allowed(self, output: Sequence[int]) -> Sequence[int] | None:
        """Ids that may follow `output`, which earlier runs' is part of: ascending, at least one; None: any."""


@dataclass(frozen=True, slots=True)
class FixedMask:
    token_ids: Sequence[int]  # ascending

    def allowed(self, output: Sequence[int]) -> Sequence[int]:
        return self.token_ids


@dataclass(slots=True)
class _Node:
    """A beginning of choices, and what each token that goes on leads to."""

    children: dict[int, "_Node"] = field(default_factory=dict)
    is_choice: bool = False


class ChoiceMask:
    """A trie over the choices; after a whole one an end id may come, and must where no longer one begins with it."""

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
            if token not in node.children:  # an earlier run was not held to these choices
                return sorted(self._end_ids)
            node = node.children[token]
        return sorted(node.children.keys() | self._end_ids) if node.is_choice else sorted(node.children)


def build_mask(constraint: OutputConstraint, end_ids: frozenset[int]) -> TokenMask:
    """Raises StartInvalid for a form that nothing can have."""
    if type(constraint) not in _MASK_BUILDERS:
        raise StartInvalid(f"no mask is known for a {type(constraint).__name__}; add one beside the others")
    return _MASK_BUILDERS[type(constraint)](constraint, end_ids)


def _fixed_mask(constraint: AllowedTokens, end_ids: frozenset[int]) -> FixedMask:
    if not constraint.token_ids:
        raise StartInvalid("no token is allowed; allow at least one, or leave the list out to allow all")
    return FixedMask(sorted(constraint.token_ids | end_ids))


def _choice_mask(constraint: AllowedChoices, end_ids: frozenset[int]) -> ChoiceMask:
    if not constraint.choices or not all(constraint.choices):
        raise StartInvalid("a choice is empty, or there is none; give each at least one token")
    if not end_ids:
        raise StartInvalid("nothing can end a choice; do not ignore the model's end ids, or give stop ids")
    return ChoiceMask(constraint.choices, end_ids)


_MASK_BUILDERS: dict[type, Callable[[Any, frozenset[int]], TokenMask]] = {
    AllowedTokens: _fixed_mask,
    AllowedChoices: _choice_mask,
}
