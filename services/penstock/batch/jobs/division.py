"""Division of a file into chunks of lines. Pure: the content comes in pieces."""

from dataclasses import dataclass, field

CHUNK_LINES = 256
CHUNK_BYTES = 4 << 20  # from which a chunk takes no further line, so that one of long lines fits in memory
LINE_BYTES = 8 << 20  # of one line; a longer one makes its file unusable


class LineTooLong(ValueError):
    """A line of the file is longer than a request may be."""


@dataclass(slots=True)
class FileDivision:
    """Feed it the content in order, then call `finish`. Lines that are empty or blank are no lines, also at the end.

    A chunk is its first line, its number of lines, and the offset and length of its bytes.
    """

    chunks: list[tuple[int, int, int, int]] = field(default_factory=list)
    lines: int = 0
    _offset: int = 0  # of the bytes that are divided, in the file
    _rest: bytes = b""  # the begin of a line
    _begin: int = 0  # of the present chunk
    _first_line: int = 0  # of the present chunk

    def feed(self, content: bytes) -> None:
        """Raises LineTooLong."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            self._add(line, len(line) + 1)
        self._check(self._rest)

    def finish(self) -> None:
        """Take the last line, which may have no line break, and close the last chunk."""
        self._add(self._rest, len(self._rest))
        self._rest = b""
        self._close()

    def _add(self, line: bytes, length: int) -> None:
        self._check(line)
        self._offset += length
        if line.strip():
            self.lines += 1
        if self.lines - self._first_line >= CHUNK_LINES or self._offset - self._begin >= CHUNK_BYTES:
            self._close()

    def _close(self) -> None:
        if count := self.lines - self._first_line:
            self.chunks.append((self._first_line, count, self._begin, self._offset - self._begin))
        self._begin, self._first_line = self._offset, self.lines

    def _check(self, line: bytes) -> None:
        if len(line) > LINE_BYTES:
            raise LineTooLong(f"line {self.lines + 1} has more than {LINE_BYTES} bytes")


def lines_in(content: bytes) -> list[bytes]:
    """Return the lines of a chunk's bytes, as `FileDivision` counts them."""
    return [line.rstrip(b"\r") for line in content.split(b"\n") if line.strip()]
