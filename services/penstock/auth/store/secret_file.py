"""Secret files: secrets that are created at the first start, readable only by the user of the process."""

import os
import secrets
from pathlib import Path

from penstock.chassis.database.location import MEMORY

SECRET_BYTES = 32


def load_or_create_secret(path: str, name: str) -> bytes:
    """Return the secret in `<path>.<name>`, created on first use. For a store in memory it is not saved."""
    if path == MEMORY:
        return secrets.token_bytes(SECRET_BYTES)
    file_path = Path(f"{path}.{name}")
    try:
        descriptor = os.open(file_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read(file_path)
    secret = secrets.token_bytes(SECRET_BYTES)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret.hex())
        file.flush()
        os.fsync(file.fileno())
    return secret


def _read(path: Path) -> bytes:
    """Read a secret. Raises ValueError if the file is truncated or readable by others, so that auth does not start."""
    if path.stat().st_mode & 0o077:
        raise ValueError(f"{path} holds a secret and is readable by others; run chmod 600 on it")
    found = bytes.fromhex(path.read_text())
    if len(found) != SECRET_BYTES:
        raise ValueError(f"{path} must hold {2 * SECRET_BYTES} hex digits; restore it from a backup")
    return found
