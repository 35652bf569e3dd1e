"""Division of a file into chunks of lines. Pure: the content comes in pieces."""

from dataclasses import dataclass, field

CHUNK_LINES = 256
CHUNK_BYTES = 4 << 20  # from which a chunk takes no further line, so that one of long lines fits in memory
LINE_BYTES = 8 << 20  # of one line; a longer one is an error, and in no chunk


@dataclass(slots=True)
class FileDivision:
    """Feed it the content in order, then call `finish`. Lines that are empty or blank are no lines, also at the end.

    A chunk is its first line, its number of lines, and the offset and length of its bytes. Of a line that is too long,
    no more than `LINE_BYTES` are in memory.
    """

    chunks: list[tuple[int, int, int, int]] = field(default_factory=list)
    too_long: list[int] = field(default_factory=list)  # numbers of lines, from 0
    lines: int = 0
    _offset: int = 0  # of the lines that are divided, in the file
    _line: bytes = b""  # the begin of the present line; empty once it is too long
    _length: int = 0  # of that begin, in the file
    _begin: int = 0  # of the present chunk
    _first_line: int = 0  # of the present chunk

    def feed(self, content: bytes) -> None:
        *ends, begin = content.split(b"\n")
        for end in ends:
            self._extend(end)
            self._end_line(1)
        self._extend(begin)

    def finish(self) -> None:
        """Take the last line, which may have no line break, and close the last chunk."""
        self._end_line(0)
        self._close()

    def _extend(self, content: bytes) -> None:
        self._length += len(content)
        self._line = self._line + content if self._length <= LINE_BYTES else b""

    def _end_line(self, break_length: int) -> None:
        line, length = self._line, self._length
        self._line, self._length = b"", 0
        if length > LINE_BYTES:
            self._close()
            self.too_long.append(self.lines)
            self.lines += 1
            self._offset += length + break_length
            self._begin, self._first_line = self._offset, self.lines
            return
        self._offset += length + break_length
        if line.strip():
            self.lines += 1
        if self.lines - self._first_line >= CHUNK_LINES or self._offset - self._begin >= CHUNK_BYTES:
            self._close()

    def _close(self) -> None:
        if count := self.lines - self._first_line:
            self.chunks.append((self._first_line, count, self._begin, self._offset - self._begin))
        self._begin, self._first_line = self._offset, self.lines


def lines_in(content: bytes) -> list[bytes]:
    """Return the lines of a chunk's bytes, as `FileDivision` counts them."""
    return [line.rstrip(b"\r") for line in content.split(b"\n") if line.strip()]
