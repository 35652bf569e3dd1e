"""Paths of the files and sockets of a local mesh, in its folder."""

from pathlib import Path

from penstock.chassis.security.certificates import CertificatePaths

CERTIFICATES_FOLDER = "certs"


def certificate_paths(folder: Path, name: str) -> CertificatePaths:
    """Return the files of the process `name` of the mesh in `folder`."""
    certificates = folder / CERTIFICATES_FOLDER
    return CertificatePaths(certificates / f"{name}.pem", certificates / f"{name}.key", certificates / "ca.pem")


def secrets_folder(folder: Path, envoy: str) -> Path:
    """Return the folder of the secrets of one Envoy."""
    return folder / CERTIFICATES_FOLDER / f"{envoy}.secrets"


def health_socket(folder: Path, name: str) -> Path:
    """Return the path of the socket for probes of a process that shares its address."""
    return folder / f"{name}.health"


def admin_socket(folder: Path, name: str) -> Path:
    """Return the path of a process's Admin socket."""
    return folder / f"{name}.admin"
