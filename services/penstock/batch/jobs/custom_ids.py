"""Repeated ids: the lines of a file with the custom_id of an earlier line, in 16 bytes of memory for each line. Pure.

Ids count as equal if their digests of 88 bits are equal: among 10 million different ids, that happens once in 10**12
files, and a file made for it harms its own batch alone. A file of more lines is looked at in parts, each of which has
the ids of some digests.
"""

from hashlib import blake2b

LINES_PER_PART = 1_000_000  # about
DIGEST_BYTES = 11
NUMBER_BYTES = 5
ENTRY_BYTES = DIGEST_BYTES + NUMBER_BYTES
BUCKETS = 256  # by the first byte of the digest; one is sorted at a time


class RepeatedIds:
    """The ids of one part of `parts`."""

    def __init__(self, part: int, parts: int) -> None:
        self._part, self._parts = part, parts
        self._buckets = [bytearray() for _ in range(BUCKETS)]

    def add(self, number: int, custom_id: str) -> None:
        """Add the id of a line. Lines are added in order."""
        digest = blake2b(custom_id.encode(), digest_size=DIGEST_BYTES).digest()
        if int.from_bytes(digest[1:5], "big") % self._parts == self._part:
            self._buckets[digest[0]] += digest + number.to_bytes(NUMBER_BYTES, "big")

    def repeated(self) -> list[int]:
        """Return the numbers of the lines whose id an earlier line has, in order."""
        found: list[int] = []
        for bucket in self._buckets:
            entries = bytes(bucket)
            former = b""
            for entry in sorted(entries[at : at + ENTRY_BYTES] for at in range(0, len(entries), ENTRY_BYTES)):
                digest = entry[:DIGEST_BYTES]
                if digest == former:
                    found.append(int.from_bytes(entry[DIGEST_BYTES:], "big"))
                former = digest
        return sorted(found)
