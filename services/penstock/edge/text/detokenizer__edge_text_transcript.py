"""The text of one answer: ids in, text that may be shown out, and where a stop string ends it."""

from collections.abc import Sequence

from penstock.edge.lifecycle.plan import TextDelta
from penstock.edge.text.detokenizer__edge_text_detokenizer import Detokenizer
from penstock.edge.text.stops import StopStrings
from penstock.edge.text.vocabulary import Vocabulary


class StoppingDetokenizer:
    """Detokenizer and stop strings in one. To resume, push the tokens emitted before and drop their text."""

    __slots__ = ("_detokenizer", "_stops")

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str] = (), *, begins_text: bool = True) -> None:
        self._detokenizer = Detokenizer(vocabulary, begins_text=begins_text)
        self._stops = StopStrings(stops)

    def push(self, token_id: int) -> TextDelta:
        safe, stop = self._stops.feed(self._detokenizer.feed((token_id,)))
        return TextDelta(safe, stop or "")

    def flush(self) -> str:
        safe, _ = self._stops.feed(self._detokenizer.flush())
        return safe + self._stops.flush()
