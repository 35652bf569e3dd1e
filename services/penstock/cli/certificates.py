"""`penstock certs`: an authority and certificates in files."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from penstock.bench.tables import new_table
from penstock.certificates.authority import CA_FILE, CA_KEY_FILE, Authority, CertificateSummary
from penstock.chassis.config import ConfigError
from penstock.chassis.security.identity import IdentityInvalid
from penstock.cli.tables import stdout_console


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueOptions:
    """The options of `penstock certs issue`."""

    tier: str
    instance: str
    dns_names: tuple[str, ...]
    authority: Path
    out: Path
    days: int


def make_authority(out: Path, trust_domain: str, days: int) -> None:
    """Raises ConfigError if there is an authority already, whose certificates a new one would make useless."""
    if (out / CA_KEY_FILE).exists():
        raise ConfigError(f"{out / CA_KEY_FILE} exists; name another folder with --out, or remove the file")
    try:
        authority = Authority.create(trust_domain, valid=timedelta(days=days))
    except IdentityInvalid as error:
        raise ConfigError(str(error)) from error
    authority.save(out)
    stdout_console.print(f"{out / CA_FILE}\n{out / CA_KEY_FILE} (keep it secret: it signs every certificate)")


def issue(options: IssueOptions) -> None:
    """Raises ConfigError for a wrong tier or instance, or if there is no authority."""
    authority = Authority.load(options.authority)
    try:
        leaf = authority.issue(
            options.tier, options.instance, valid=timedelta(days=options.days), dns_names=options.dns_names
        )
    except IdentityInvalid as error:
        raise ConfigError(str(error)) from error
    paths = leaf.save(options.out, options.instance, authority)
    stdout_console.print(
        f"PENSTOCK_TLS_CERTIFICATE={paths.certificate}\nPENSTOCK_TLS_KEY={paths.key}\n"
        f"PENSTOCK_TLS_CA={paths.authorities}\nPENSTOCK_TRUST_DOMAIN={authority.trust_domain}",
        soft_wrap=True,
    )


def show(file: Path, *, as_json: bool) -> None:
    found = CertificateSummary.read(file)
    days = (found.valid_until - datetime.now(UTC)).total_seconds() / 86_400
    shown = {
        "identity": found.identity,
        "dns_names": ", ".join(found.dns_names),
        "issuer": found.issuer,
        "valid_from": found.valid_from.isoformat(),
        "valid_until": found.valid_until.isoformat(),
        "days_left": round(days, 1),
    }
    if as_json:
        stdout_console.print_json(data={**shown, "dns_names": list(found.dns_names)})
        return
    table = new_table("certificate", str(file))
    for name, value in shown.items():
        table.add_row(name, str(value))
    stdout_console.print(table)
