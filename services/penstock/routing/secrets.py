"""Files from which a proxy reads its certificate and the mesh's authorities, and the names of both.

A proxy reads a file of this module once. It names the files in PEM, which the proxy reads again whenever a file in
their folder is replaced, so that a new certificate needs neither a restart nor this control plane.
"""

import json
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]

IDENTITY: Final = "identity"  # certificate and key of the proxy
AUTHORITIES: Final = "authorities"  # that sign the certificates of the mesh
SECRET_TYPE: Final = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"  # noqa: S105  # a type


def secret_file(name: str) -> str:
    return f"{name}.json"


def secret_files(certificate: Path, key: Path, authorities: Path) -> dict[str, str]:
    """Return the content of each file by name. Paths are as the proxy sees them."""
    pair = {
        "certificate_chain": {"filename": str(certificate)},
        "private_key": {"filename": str(key)},
        "watched_directory": {"path": str(certificate.parent)},
    }
    trusted = {"trusted_ca": {"filename": str(authorities)}, "watched_directory": {"path": str(authorities.parent)}}
    return {
        secret_file(IDENTITY): _resources({"name": IDENTITY, "tls_certificate": pair}),
        secret_file(AUTHORITIES): _resources({"name": AUTHORITIES, "validation_context": trusted}),
    }


def _resources(secret: Json) -> str:
    return json.dumps({"resources": [{"@type": SECRET_TYPE, **secret}]}, indent=1)


def secret_config(folder: str, name: str) -> Json:
    """Return a reference to a secret whose file is in `folder`, in the JSON form of Envoy."""
    source = {"path_config_source": {"path": f"{folder}/{secret_file(name)}"}, "resource_api_version": "V3"}
    return {"name": name, "sds_config": source}
