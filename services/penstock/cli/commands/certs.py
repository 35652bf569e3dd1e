"""Commands that make and show certificates, for clusters without an issuer of their own."""

from pathlib import Path
from typing import Any

import click

from penstock.cli.options import json_option

MAX_DAYS = 36_500


@click.group()
def certs() -> None:
    """Certificates of processes: make an authority, issue, show."""


@certs.command("ca")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="folder for ca.pem, ca.key"
)
@click.option("--trust-domain", default="penstock.local", show_default=True, metavar="DOMAIN")
@click.option("--days", type=click.IntRange(1, MAX_DAYS), default=3_650, show_default=True)
def make_authority(out: Path, trust_domain: str, days: int) -> None:
    """Make a certificate authority for one mesh."""
    from penstock.cli import certificates

    certificates.make_authority(out, trust_domain, days)


@certs.command("issue")
@click.argument("tier")
@click.argument("instance")
@click.option("--dns", "dns_names", multiple=True, metavar="NAME", help="a further DNS name, repeatable")
@click.option("--ca", "authority", type=click.Path(file_okay=False, path_type=Path), required=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="folder for the files")
@click.option("--days", type=click.IntRange(1, MAX_DAYS), default=30, show_default=True)
def issue(**given: Any) -> None:
    """Issue the certificate of process INSTANCE of TIER: INSTANCE.pem, INSTANCE.key and ca.pem."""
    from penstock.cli import certificates

    certificates.issue(certificates.IssueOptions(**given))


@certs.command("show")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def show(file: Path, as_json: bool) -> None:
    """Show the identity, the names and the validity of the certificate in FILE."""
    from penstock.cli import certificates

    certificates.show(file, as_json=as_json)


CERTIFICATE_COMMANDS = (certs,)
