"""A file with the operators' state of regions, which all replicas of routing on a shared volume read and write."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from penstock.routing.regions.state_store import StoredText


@dataclass(frozen=True, slots=True)
class StateFile:
    """A file without versions: of two replicas that write at the same time, the later one wins."""

    path: Path

    def read(self) -> StoredText:
        try:
            return StoredText(self.path.read_text())
        except FileNotFoundError:
            return StoredText(None)

    def write(self, text: str, version: str) -> None:
        """Replace the file at once, so that no reader sees a part of it."""
        with tempfile.NamedTemporaryFile(
            "w", dir=self.path.parent, prefix=f".{self.path.name}.", delete=False
        ) as replacement:
            try:
                replacement.write(text)
                replacement.flush()
                os.fsync(replacement.fileno())
                Path(replacement.name).chmod(0o644)
                Path(replacement.name).replace(self.path)
            except OSError:
                Path(replacement.name).unlink(missing_ok=True)
                raise

    def __str__(self) -> str:
        return str(self.path)
