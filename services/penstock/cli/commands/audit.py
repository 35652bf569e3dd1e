"""Commands for audit logs."""

import sys
from datetime import UTC, datetime

import click

from penstock.cli.options import json_option

AUDIT_LOG = click.Path(dir_okay=False, allow_dash=True)


class IsoTime(click.ParamType[datetime]):
    """A date or a time as in ISO 8601, in UTC unless it names a zone."""

    name = "time"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value} is not a time such as 2026-11-25T13:00:00", param, ctx)
        return found if found.tzinfo else found.replace(tzinfo=UTC)


@click.group()
def audit() -> None:
    """Audit logs of operators' actions: verify, show."""


@audit.command("verify")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=AUDIT_LOG)
@click.option("--head", default="", metavar="HASH", help="a hash that a process has logged as `audit_head`")
@json_option
def verify(files: tuple[str, ...], head: str, as_json: bool) -> None:
    """Check that no line of FILE was changed, removed or inserted. Several files are one log, the oldest first.

    Only --head detects that the last lines were removed or changed.
    """
    from penstock.cli import audit as audit_log

    sys.exit(audit_log.verify(files, head, as_json=as_json))


@audit.command("show")
@click.argument("file", type=AUDIT_LOG)
@click.option("--since", type=IsoTime(), metavar="TIME", help="lines from this time on")
@click.option("--actor", default="", help="lines of this actor, such as operator:anna")
@click.option("--action", default="", help="lines of this action or its beginning, such as keys")
@json_option
def show(file: str, since: datetime | None, actor: str, action: str, as_json: bool) -> None:
    """Show the lines of FILE."""
    from penstock.cli import audit as audit_log

    audit_log.show(file, audit_log.AuditFilter(since=since, actor=actor, action=action), as_json=as_json)
