"""Back-up and restore of the files of a SQLite store: ledger, stored responses, secrets and the audit log."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from penstock.auth.store.responses.sqlite import SUFFIX as RESPONSES
from penstock.auth.store.sqlite.connection import connect_reader, locked_store

DATABASES = ("", RESPONSES)  # suffixes after the path of the store
SECRETS = (".pepper", ".mesh-secret")
AUDIT_LOG = ".audit.jsonl"
JOURNALS = ("-wal", "-shm")
FORMER = ".former"  # of files that a restore replaces


class BackupError(Exception):
    """Nothing was saved or restored. The message says what to do."""


def save(store: Path, folder: Path) -> list[Path]:
    """Write a copy of the store to the new folder `folder`, and return its files. Auth may run meanwhile.

    Each database is copied as of one moment, which is not the same for both. The folder appears once it is complete,
    and is readable by the user of the process alone: who has the secrets can check keys. Raises BackupError.
    """
    if not store.exists():
        raise BackupError(f"there is no store {store}")
    if folder.exists():
        raise BackupError(f"{folder} exists; name a new folder")
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700, parents=True)
    for suffix in DATABASES:
        source = _with_suffix(store, suffix)
        if source.exists():
            _copy_database(source, partial / source.name)
    for suffix in (*SECRETS, AUDIT_LOG):
        source = _with_suffix(store, suffix)
        if source.exists():
            _copy_file(source, partial / source.name)
    partial.rename(folder)
    return sorted(folder.iterdir())


def restore(store: Path, folder: Path) -> list[Path]:
    """Replace the files of the store by those of `folder`, and return them. Auth must have ended.

    The replaced files stay beside the new ones, with `.former` after their names. An audit log that is there stays,
    because it is never older than the copy. Raises BackupError before the first file is replaced.
    """
    saved = {suffix: folder / f"{store.name}{suffix}" for suffix in (*DATABASES, *SECRETS, AUDIT_LOG)}
    saved = {suffix: path for suffix, path in saved.items() if path.exists()}
    if "" not in saved:
        raise BackupError(f"{folder} has no copy of {store.name}")
    if _with_suffix(store, AUDIT_LOG).exists():
        saved.pop(AUDIT_LOG, None)
    for suffix in saved:
        former = _with_suffix(store, suffix + FORMER)
        if former.exists():
            raise BackupError(f"{former} is of an earlier restore; move it away first")
    try:
        lock = locked_store(str(store), timeout=1.0)
    except sqlite3.OperationalError as error:
        raise BackupError(f"{store} is in use ({error}); end auth first") from error
    with closing(lock):
        for suffix in DATABASES:
            if suffix in saved:
                _check(saved[suffix])
        return [_replace(saved[suffix], _with_suffix(store, suffix)) for suffix in saved]


def _with_suffix(store: Path, suffix: str) -> Path:
    return store.with_name(store.name + suffix)


def _copy_database(source: Path, target: Path) -> None:
    try:
        with closing(connect_reader(str(source))) as reader, closing(sqlite3.connect(target)) as copy:
            reader.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, which can be read on a read-only medium as well
    except sqlite3.Error as error:
        raise BackupError(f"cannot copy {source} ({error})") from error
    target.chmod(0o600)
    _check(target)


def _check(path: Path) -> None:
    """Read the whole database. Raises BackupError if it is damaged."""
    try:
        with closing(connect_reader(str(path))) as reader:
            found = reader.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        found = str(error)
    if found != "ok":
        raise BackupError(f"{path} is damaged ({found}); take another copy")


def _replace(source: Path, target: Path) -> Path:
    """Put a copy of `source` at `target`. A journal of the former database must not be applied to the new one."""
    new = _with_suffix(target, ".restoring")
    _copy_file(source, new)
    for suffix in ("", *JOURNALS):
        former = _with_suffix(target, suffix)
        if former.exists():
            former.rename(_with_suffix(target, FORMER + suffix))
    new.rename(target)
    return target


def _copy_file(source: Path, target: Path) -> None:
    """Copy a file and write it to the disk, readable by this user alone."""
    target.unlink(missing_ok=True)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with source.open("rb") as reading, os.fdopen(descriptor, "wb") as writing:
        shutil.copyfileobj(reading, writing)
        writing.flush()
        os.fsync(writing.fileno())
