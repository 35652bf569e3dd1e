"""Compiles forms to matchers of llguidance, and keeps those that were used last."""

from collections import OrderedDict

from llguidance import LLMatcher, LLTokenizer

from penstock.mesh.form_grammar import FormUnsupported, grammar_of, limits
from penstock.mesh.forms import Form
from penstock.worker.engine.grammar.mask import GrammarMask
from penstock.worker.engine.model_card import ModelCard

CACHED_GRAMMARS = 64  # a compiled one of a large schema takes some MB


class GrammarCompiler:
    """Makes the masks of one model's sequences. For one thread."""

    def __init__(self, card: ModelCard) -> None:
        self._card = card
        self._tokenizer: LLTokenizer | None = None  # built with the first form, as few models get any
        self._matchers: OrderedDict[Form, LLMatcher] = OrderedDict()

    def mask(self, form: Form, end_ids: frozenset[int]) -> GrammarMask:
        """Return a new mask. Raises FormUnsupported. A new form takes up to 0.3 s, without the interpreter lock."""
        matcher = self._matchers.get(form) or self._compile(form)
        self._matchers.move_to_end(form)
        return GrammarMask(matcher.deep_copy(), end_ids, self._card.eos_ids[0], self._card.vocab_size)

    def _compile(self, form: Form) -> LLMatcher:
        card = self._card
        if self._tokenizer is None:
            self._tokenizer = LLTokenizer(card.tokenizer_json, n_vocab=card.vocab_size, eos_token=list(card.eos_ids))
        matcher = LLMatcher(self._tokenizer, grammar_of(form), limits=limits(), log_level=0)
        if matcher.is_error():
            raise FormUnsupported(matcher.get_error())
        self._matchers[form] = matcher
        if len(self._matchers) > CACHED_GRAMMARS:
            self._matchers.popitem(last=False)
        return matcher
