"""The caller of a gRPC call, from its metadata."""

from typing import Any

from penstock.chassis.security.identity import is_from_proxy
from penstock.edge.request.caller import credential_of, identity_header_of
from penstock.mesh.v1.admission_pb2 import Credential


def caller_in(context: Any) -> tuple[Credential, str]:
    """Return the credential of a caller and the identity header; the latter is empty unless our own proxy sent it."""
    metadata, via_proxy = context.invocation_metadata() or (), is_from_proxy(context)
    header = identity_header_of(metadata) if via_proxy else ""
    return credential_of(metadata, context.peer(), via_proxy=via_proxy), header
