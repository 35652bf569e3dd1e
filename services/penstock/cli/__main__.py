"""The `penstock` command line: parses arguments, runs one command and reports errors as one line with an exit code."""

import sys

import click

from penstock.chassis.errors import PenstockError
from penstock.cli.commands.admin import ADMIN_COMMANDS
from penstock.cli.commands.audit import audit
from penstock.cli.commands.batch import batch
from penstock.cli.commands.certs import CERTIFICATE_COMMANDS
from penstock.cli.commands.measure import MEASURE_COMMANDS
from penstock.cli.commands.run import RUN_COMMANDS
from penstock.cli.commands.usage import USAGE_COMMANDS


@click.group(context_settings={"max_content_width": 120})
@click.version_option(package_name="penstock")
def cli() -> None:
    """Serve large language models through a mesh of five gRPC tiers."""


for each in (*RUN_COMMANDS, *MEASURE_COMMANDS, *ADMIN_COMMANDS, *USAGE_COMMANDS, *CERTIFICATE_COMMANDS, audit, batch):
    cli.add_command(each)


def main() -> None:
    """Entry point. A failure prints one line that says what to do, with exit code 1 (2 for wrong usage)."""
    from penstock.chassis.config import ConfigError
    from penstock.chassis.observability.logs import configure_logs
    from penstock.local_mesh.processes import ChildFailedError

    configure_logs("error")  # the tiers log to files
    try:
        cli()
    except PenstockError as error:
        names_retry = error.retry_after is None or "retry in" in str(error)
        retry = "" if names_retry else f" (retry in {error.retry_after:.1f} s)"
        hint = " The process at that address is of another tier." if error.reason == "UNIMPLEMENTED" else ""
        sys.exit(f"penstock: {error.code.name} / {error.reason}: {error}{retry}{hint}")
    except (ConfigError, ChildFailedError, TimeoutError, OSError) as error:
        sys.exit(f"penstock: {error or type(error).__name__}")
    except ModuleNotFoundError as error:
        if (error.name or "penstock").startswith("penstock"):
            raise
        sys.exit(f"penstock: this command needs the Python package {error.name}; install penstock[all]")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
