"""The certificates of one local mesh: an authority of its own, a leaf for each process and one for operators."""

from datetime import timedelta
from pathlib import Path

from penstock.certificates.authority import Authority
from penstock.local_mesh.paths import CERTIFICATES_FOLDER, secrets_folder
from penstock.local_mesh.plan import OPERATOR, TRUST_DOMAIN, MeshPlan, ProcessSpec
from penstock.routing.secrets import secret_files

VALIDITY = timedelta(days=30)


def new_authority() -> Authority:
    return Authority.create(TRUST_DOMAIN, valid=VALIDITY)


def make_certificates(plan: MeshPlan, folder: Path, authority: Authority) -> None:
    """Write the certificates that `plan` names. The authority's key is kept beside them, to issue further ones."""
    certificates = folder / CERTIFICATES_FOLDER
    certificates.mkdir(mode=0o700)
    authority.save(certificates)
    for spec in plan.processes:
        _issue_certificate(certificates, authority, spec)
        if spec.tier == "envoy":
            _write_secrets(folder, spec.name)
    authority.issue_to(certificates, OPERATOR, OPERATOR, OPERATOR, valid=VALIDITY)


def rotate_certificates(plan: MeshPlan, folder: Path) -> None:
    """Replace the certificate of every process of a running mesh, as an issuer would before it expires."""
    certificates = folder / CERTIFICATES_FOLDER
    authority = Authority.load(certificates)
    for spec in plan.processes:
        _issue_certificate(certificates, authority, spec)


def _issue_certificate(certificates: Path, authority: Authority, spec: ProcessSpec) -> None:
    authority.issue_to(certificates, spec.name, spec.tier, spec.instance_id, valid=VALIDITY)


def _write_secrets(folder: Path, envoy: str) -> None:
    secrets, certificates = secrets_folder(folder, envoy), folder / CERTIFICATES_FOLDER
    secrets.mkdir()
    files = secret_files(certificates / f"{envoy}.pem", certificates / f"{envoy}.key", certificates / "ca.pem")
    for name, text in files.items():
        (secrets / name).write_text(text)
