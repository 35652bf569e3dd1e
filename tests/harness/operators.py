"""Listeners of operators for tests: a unix socket in a folder of its own."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.chassis.operators.listeners import OperatorListeners


@contextmanager
def admin_socket() -> Iterator[str]:
    """Yield `unix:PATH` for the block, below /tmp, because the folders of tests are too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="pk-", dir="/tmp") as folder:
        yield f"unix:{folder}/admin"


@contextmanager
def operators_at_socket(**settings) -> Iterator[OperatorListeners]:
    with admin_socket() as listen:
        yield OperatorListeners(admin_listen=listen, **settings)
