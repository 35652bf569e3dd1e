"""Digest of a model's weights, by which the mesh distinguishes two models of one name.

Every byte of the files is hashed. A sample of blocks would be faster, but would miss a change of a few tensors, such as
a merged adapter or a corrected layer, and would then mix the two models. A file is hashed in chunks on all cores, about
1 GB/s each, and its digest is cached in the user's cache folder under its path, size, and times of the last change of
content and of status. The second time cannot be set by a program, so that a file which is replaced under its former
size and modification time, as by an image layer or `cp -p`, is hashed again.

The digest covers the content and, in a folder, the names of the files, but neither paths nor times. Equal files on two
hosts have equal digests.
"""

import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import structlog

from penstock.worker.engine.machine.cpu_limits import available_cores
from penstock.worker.engine.model_card import ModelCard

DIGEST_BYTES = 16
CHUNK_BYTES = 16 << 20
READ_BYTES = 1 << 20
# Files of a Hugging Face folder that determine its output. Tokenizer and template are part of the model card.
FOLDER_PATTERNS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "config.json")

log = structlog.get_logger()


def identified(card: ModelCard, path: Path, **output_settings: str) -> ModelCard:
    """Return the card with the digest of the weights at `path` and the settings that change the output."""
    return replace(card, weights_digest=weights_digest(path), output_settings=tuple(sorted(output_settings.items())))


def weights_digest(path: Path) -> str:
    """Return the digest of a weights file, or of all weights and the configuration in a folder. Raises OSError."""
    if not path.is_dir():
        return _cached_digest(path)
    files = sorted({file for pattern in FOLDER_PATTERNS for file in path.glob(pattern)})
    return _join(f"{file.name} {_cached_digest(file)}".encode() for file in files)


def _cached_digest(path: Path) -> str:
    path = path.resolve()
    stat = path.stat()
    state: list[str | int] = [str(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
    entry = _cache_folder() / f"{_join([os.fsencode(path)])}.json"
    if digest := _read_entry(entry, state):
        return digest
    digest = file_digest(path, stat.st_size)
    _write_entry(entry, {"file": state, "digest": digest})
    return digest


def file_digest(path: Path, size: int) -> str:
    """Hash a file in chunks, in parallel, and return the digest of the chunks' digests."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with ThreadPoolExecutor(available_cores()) as pool:
            return _join(pool.map(lambda at: _chunk_digest(descriptor, at), range(0, size, CHUNK_BYTES)))
    finally:
        os.close(descriptor)


def _chunk_digest(descriptor: int, offset: int) -> bytes:
    digest, end = blake2b(digest_size=DIGEST_BYTES), offset + CHUNK_BYTES
    while offset < end and (block := os.pread(descriptor, min(READ_BYTES, end - offset), offset)):
        digest.update(block)
        offset += len(block)
    return digest.digest()


def _join(parts: Iterable[bytes]) -> str:
    digest = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(4, "little") + part)
    return digest.hexdigest()


def _read_entry(entry: Path, state: list[str | int]) -> str:
    """Return the cached digest of a file in this state; empty if there is none."""
    try:
        cached = json.loads(entry.read_bytes())
        return str(cached["digest"]) if cached["file"] == state else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _write_entry(entry: Path, content: dict[str, object]) -> None:
    """Write an entry in one step, as several workers may start at once. Without a cache, each start hashes again."""
    temporary = entry.with_suffix(f".{os.getpid()}")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(entry)
    except OSError as error:
        log.info("weights_digest_not_cached", folder=str(entry.parent), error=str(error))


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / "digests"
