"""The directory of a GGUF file: its metadata, and the offset of each tensor. Knows no model and loads no numpy.

The public reader makes several numpy views of each string, which takes 2 s for a vocabulary of 49,152 tokens and its
merges; this module takes 0.05 s. Source: the GGUF specification, versions 2 and 3, little-endian.
"""

import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

from penstock.worker.engine.loaders.errors import ModelUnsupported

_MAGIC = b"GGUF"
_VERSIONS = {2, 3}
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_DEFAULT_ALIGNMENT_BYTES = 32  # of a file that names none
_LENGTH = struct.Struct("<Q")


class StoredTensor(NamedTuple):
    """One tensor in the file."""

    name: str
    shape: tuple[int, ...]  # outermost dimension first
    kind: int  # ggml's number of the encoding of its values
    offset: int  # bytes from the start of the file


class GgufFile:
    """A mapped GGUF file. The constructor raises ModelUnsupported for a file that is damaged or not GGUF."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            if file.read(4) != _MAGIC:
                raise ModelUnsupported(f"{path.name} is no GGUF file: it does not begin with {_MAGIC.decode()}")
            # Private pages, because torch requires writable memory and the file must not change.
            self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._offset = len(_MAGIC)
        try:
            self.fields, self.tensors = self._read()
        except (struct.error, KeyError, UnicodeDecodeError) as error:
            raise ModelUnsupported(f"{path.name} is truncated or damaged; download it again ({error!r})") from error

    def get(self, key: str, default: Any = None) -> Any:
        return self.fields.get(key, default)

    def require(self, key: str) -> Any:
        if key not in self.fields:
            raise ModelUnsupported(f"{self.path.name} has no metadata {key}")
        return self.fields[key]

    def _read(self) -> tuple[dict[str, Any], list[StoredTensor]]:
        version = self._scalar("I")
        if version not in _VERSIONS:
            text = f"{self.path.name} has GGUF version {version}; 2 and 3, little-endian, are supported"
            raise ModelUnsupported(text)
        tensors, pairs = self._scalar("Q"), self._scalar("Q")
        fields = {self._string(): self._value(self._scalar("I")) for _ in range(pairs)}
        found = [self._tensor() for _ in range(tensors)]
        alignment = fields.get("general.alignment", _DEFAULT_ALIGNMENT_BYTES)
        data = -(-self._offset // alignment) * alignment
        return fields, [each._replace(offset=data + each.offset) for each in found]

    def _tensor(self) -> StoredTensor:
        name = self._string()
        dimensions = [self._scalar("Q") for _ in range(self._scalar("I"))]
        kind, offset = self._scalar("I"), self._scalar("Q")
        return StoredTensor(name, tuple(reversed(dimensions)), kind, offset)

    def _scalar(self, code: str) -> Any:
        (value,) = self._scalars(code, 1)
        return value

    def _scalars(self, code: str, count: int) -> tuple[Any, ...]:
        layout = f"<{count}{code}"
        values = struct.unpack_from(layout, self.bytes, self._offset)
        self._offset += struct.calcsize(layout)
        return values

    def _string(self) -> str:
        return self._strings(1)[0]

    def _strings(self, count: int) -> list[str]:
        data, at, strings = self.bytes, self._offset, []
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(data, at)
            end = at + 8 + length
            strings.append(data[at + 8 : end].decode())
            at = end
        self._offset = at
        return strings

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(_SCALARS[kind])
        inner, count = self._scalar("I"), self._scalar("Q")
        if inner == _STRING:
            return self._strings(count)
        if inner == _ARRAY:
            return [self._value(inner) for _ in range(count)]
        return list(self._scalars(_SCALARS[inner], count))
