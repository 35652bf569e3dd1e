"""Markers in a text that arrives in pieces."""


def held_from(text: str, marker: str) -> int:
    """Return the index from which `text` may be whitespace and the start of `marker`, which it does not contain.

    It is the length of the text if its end can be neither.
    """
    longest = min(len(marker) - 1, len(text))
    if not text[-1:].isspace() and text.rfind(marker[0], len(text) - longest) < 0:  # as most texts are
        return len(text)
    size = next((size for size in range(longest, 0, -1) if text.endswith(marker[:size])), 0)
    return len(text[: len(text) - size].rstrip())
