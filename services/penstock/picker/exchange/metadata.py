"""Dynamic metadata of the protocol: the subset that a proxy allows, and the endpoint that served."""

from google.protobuf.struct_pb2 import Struct, Value

from penstock.chassis.errors import InvalidArgument
from penstock.ext_proc.external_processor_pb2 import Metadata

NAMESPACE = "envoy.lb"
DESTINATION = "x-gateway-destination-endpoint"  # of the request header and of the metadata
SERVED = "x-gateway-destination-endpoint-served"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET = "x-gateway-destination-endpoint-subset"
MAX_SUBSET = 4_096  # endpoints


class SubsetTooLarge(InvalidArgument):
    """A proxy names more endpoints than a fleet has."""


def subset_of(metadata: Metadata) -> frozenset[str] | None:
    """Return the endpoints that a request may go to; None if the proxy does not limit them.

    The value is a list, or a text with commas as proxies copy it from a header. Any other value allows no endpoint.
    Raises SubsetTooLarge.
    """
    value = _value(metadata, SUBSET_NAMESPACE, SUBSET)
    if value is None:
        return None
    texts = [each.string_value for each in value.list_value.values] or [value.string_value]
    endpoints = frozenset(part for text in texts for each in text.split(",") if (part := each.strip()))
    if len(endpoints) > MAX_SUBSET:
        raise SubsetTooLarge(f"the subset has {len(endpoints)} endpoints; the limit is {MAX_SUBSET}")
    return endpoints


def served_of(metadata: Metadata) -> str:
    """Return the endpoint whose response the proxy received; empty if the proxy does not report it."""
    value = _value(metadata, NAMESPACE, SERVED)
    return value.string_value if value is not None else ""


def destination_metadata(destinations: str) -> Struct:
    metadata = Struct()
    metadata.fields[NAMESPACE].struct_value.fields[DESTINATION].string_value = destinations
    return metadata


def _value(metadata: Metadata, namespace: str, key: str) -> Value | None:
    if namespace not in metadata.filter_metadata:
        return None
    fields = metadata.filter_metadata[namespace].fields
    return fields.get(key)
