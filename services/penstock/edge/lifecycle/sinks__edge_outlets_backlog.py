"""What one client has not read yet of its answer."""

from penstock.edge.lifecycle.effects import Emit


class ResponseBuffer:
    """Pieces of an answer, run together into one when they are taken. Whoever adds to it looks at `size`."""

    def __init__(self) -> None:
        self._deltas: list[Emit] = []
        self.size_bytes = 0  # bytes, about

    def __bool__(self) -> bool:
        return self.size_bytes > 0

    def add(self, piece: Emit) -> None:
        self._deltas.append(piece)
        self.size_bytes += 4 * len(piece.token_ids) + len(piece.text)

    def pop(self) -> Emit:
        """Return all of it as one piece, but for text after the last token: that is taken next.

        A client that has all tokens is sent that text again, and can only pass it by as a piece of its own.
        """
        pieces, self._deltas, self.size_bytes = self._deltas, [], 0
        if len(pieces) > 1 and not pieces[-1].token_ids:
            self.add(pieces.pop())
        if len(pieces) == 1:
            return pieces[0]
        return Emit(
            "".join(piece.text for piece in pieces),
            [token_id for piece in pieces for token_id in piece.token_ids],
            pieces[0].first_index,
            [logprob for piece in pieces for logprob in piece.logprobs],
        )
