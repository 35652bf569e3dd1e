"""Faults of a mesh that last for a block: a process that stands still, a full disk, a database that is away."""

import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import psutil

from penstock.local_mesh.postgres import LocalPostgres
from penstock.local_mesh.processes import ChildProcess

MAX_FILE_BYTES = 1  # of a process whose disk is full: no write succeeds
OTHER_DATABASE = "template1"  # from which the database of the mesh is closed


@contextmanager
def suspended(child: ChildProcess) -> Iterator[psutil.Process]:
    """Stop the process and its children with SIGSTOP during the block; they continue after it."""
    process = psutil.Process(child.process.pid)
    pids = [process.pid, *(each.pid for each in process.children(recursive=True))]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield process
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def full_disk(children: Sequence[ChildProcess]) -> Iterator[None]:
    """Let every write that would enlarge a file fail in these processes during the block (RLIMIT_FSIZE)."""
    processes = [psutil.Process(each.process.pid) for each in children]
    usual = [each.rlimit(psutil.RLIMIT_FSIZE) for each in processes]
    for process, (_, hard) in zip(processes, usual, strict=True):
        process.rlimit(psutil.RLIMIT_FSIZE, (MAX_FILE_BYTES, hard))
    try:
        yield
    finally:
        for process, limits in zip(processes, usual, strict=True):
            process.rlimit(psutil.RLIMIT_FSIZE, limits)


@asynccontextmanager
async def postgres_away(postgres: LocalPostgres) -> AsyncIterator[None]:
    """End all connections to the database of the mesh, and refuse new ones during the block."""
    import psycopg  # a package of auth, which other proofs do not need

    async with await psycopg.AsyncConnection.connect(postgres.url(OTHER_DATABASE), autocommit=True) as connection:
        await connection.execute("ALTER DATABASE postgres ALLOW_CONNECTIONS false")
        await connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'postgres'")
        try:
            yield
        finally:
            await connection.execute("ALTER DATABASE postgres ALLOW_CONNECTIONS true")
