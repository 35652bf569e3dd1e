"""Secrets that were not given: made once, and kept where only this user can read them."""

import os
import secrets
from pathlib import Path

SECRET_BYTES = 32


def load_or_create_secret(store: str, name: str) -> bytes:
    """The secret in `<store>.<name>`, made on first use. For a store in memory it lives as long as that does."""
    if store == ":memory:":
        return secrets.token_bytes(SECRET_BYTES)
    path = Path(f"{store}.{name}")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read(path)
    made = secrets.token_bytes(SECRET_BYTES)
    with os.fdopen(descriptor, "w") as file:
        file.write(made.hex())
        file.flush()
        os.fsync(file.fileno())
    return made


def _read(path: Path) -> bytes:
    """Raises ValueError for a file that is cut short or open to others: better no start than keys that fail."""
    if path.stat().st_mode & 0o077:
        raise ValueError(f"{path} holds a secret and others may read it; chmod 600 it")
    found = bytes.fromhex(path.read_text())
    if len(found) != SECRET_BYTES:
        raise ValueError(f"{path} must hold {2 * SECRET_BYTES} hex digits; restore it from a backup")
    return found
