"""Contents in a folder, which all replicas share if there are several. A content is renamed once it is whole."""

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from penstock.batch.blobs.blobs import NAME, BlobUnavailable

PART_SUFFIX = ".part"  # of a content that is not whole


class FolderBlobs:
    """A folder. Raises BlobUnavailable if it cannot be created."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise BlobUnavailable(f"the folder {folder} cannot be created: {error}") from error

    def create(self, name: str) -> "FolderWriter":
        return FolderWriter(self._path(name))

    def read(self, name: str, offset: int, size: int) -> bytes:
        try:
            with self._path(name).open("rb") as file:
                file.seek(offset)
                return file.read(size)
        except OSError as error:
            raise BlobUnavailable(str(error)) from error

    def delete(self, name: str) -> None:
        try:
            self._path(name).unlink(missing_ok=True)
        except OSError as error:
            raise BlobUnavailable(str(error)) from error

    def names(self, older_than: float) -> Sequence[str]:
        found: list[str] = []
        try:
            for path in self._folder.iterdir():
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    if NAME.fullmatch(path.name) and path.stat().st_mtime < older_than:
                        found.append(path.name)
        except OSError as error:
            raise BlobUnavailable(str(error)) from error
        return found

    def free_bytes(self) -> float:
        try:
            return shutil.disk_usage(self._folder).free
        except OSError as error:
            raise BlobUnavailable(str(error)) from error

    def used_share(self) -> float:
        try:
            usage = shutil.disk_usage(self._folder)
        except OSError as error:
            raise BlobUnavailable(str(error)) from error
        return 1.0 - usage.free / usage.total if usage.total else 0.0

    def delete_parts(self, older_than: float) -> int:
        deleted = 0
        for path in self._folder.glob(f"*{PART_SUFFIX}"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < older_than:
                    path.unlink()
                    deleted += 1
        return deleted

    def _path(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a content")
        return self._folder / name


class FolderWriter:
    """Writes beside the final name, and renames at the commit."""

    def __init__(self, path: Path) -> None:
        self._path, self._part = path, path.with_name(f"{path.name}{PART_SUFFIX}")
        try:
            self._file: BinaryIO | None = self._part.open("wb")
        except OSError as error:
            raise BlobUnavailable(str(error)) from error

    def write(self, content: bytes) -> None:
        assert self._file, "the content is written already"
        try:
            self._file.write(content)
        except OSError as error:
            raise BlobUnavailable(str(error)) from error

    def commit(self) -> None:
        assert self._file, "the content is written already"
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.rename(self._path)
            _flush_folder(self._path.parent)
        except OSError as error:
            raise BlobUnavailable(str(error)) from error
        self._file = None

    def abort(self) -> None:
        if self._file:
            with contextlib.suppress(OSError):
                self._part.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # on a full disk it cannot write what it has kept in memory
                self._file.close()
            self._file = None


def _flush_folder(folder: Path) -> None:
    """Make a rename durable. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
