"""Schemas of objects: those of Kubernetes by kubernetes-validate, those of custom resources from `crds/`."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate

from manifest_check.objects import WORKLOAD_KINDS, Object, title

FOLDER = Path(__file__).with_name("crds")
KUBERNETES = "1.37"  # the newest schemas that kubernetes-validate has
_WITHOUT_SPEC = {"ClusterRole", "ClusterRoleBinding", "ConfigMap", "Namespace", "PriorityClass", "Role", "RoleBinding"}
_WITHOUT_SPEC |= {"Secret", "ServiceAccount", "StorageClass"}
_POD_SPEC = ("spec", "template", "spec", "containers")
_KEPT = {"x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"}
_DROPPED = {"description", "default", "example"}


def schema_faults(each: Object) -> list[str]:
    """Return each violation of the schema of an object, or that there is no schema.

    kubernetes-validate reports the first violation of an object only.
    """
    if missing := [name for name in ("apiVersion", "kind", "metadata") if not each.get(name)]:
        return [f"an object has no {' and no '.join(missing)}"]
    violations = _violations(json.dumps(each)) or [*_missing(each), *_empty_entries(each)]
    return [f"{title(each)}: {text}" for text in violations]


def _missing(each: Object) -> list[str]:
    """Fields that the schemas of Kubernetes call optional, although an API server requires them."""
    path = _POD_SPEC if each["kind"] in WORKLOAD_KINDS else () if each["kind"] in _WITHOUT_SPEC else ("spec",)
    paths = [("metadata", "name"), path]
    return [f"{'.'.join(path)} is missing" for path in paths if not _has(each, path)]


def _empty_entries(value: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Entries of lists that are null, which the schemas of Kubernetes allow and an API server refuses."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        if each is None:
            yield f"{'.'.join((*path, str(key)))} is empty"
        yield from _empty_entries(each, (*path, str(key)))


def _has(found: Any, path: tuple[str, ...]) -> bool:
    return not path or bool(found.get(path[0]) is not None and _has(found[path[0]], path[1:]))


@cache  # overlays share most of their objects
def _violations(text: str) -> tuple[str, ...]:
    each = json.loads(text)
    if schema := _custom_schemas().get((each["apiVersion"], each["kind"])):
        return tuple(_describe(error) for error in jsonschema.Draft202012Validator(schema).iter_errors(each))
    try:
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return (_describe(error),)
    except kubernetes_validate.SchemaNotFoundError:
        return (f"Kubernetes {KUBERNETES} has no {each['apiVersion']} {each['kind']}, and crds/ has no schema of it",)
    return ()


def _describe(error: jsonschema.ValidationError) -> str:
    return f"{'.'.join(str(each) for each in error.absolute_path) or 'the object'}: {error.message}"


@cache
def _custom_schemas() -> dict[tuple[str, str], Object]:
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))]
    return {(file["apiVersion"], file["kind"]): _closed(file["schema"]) for file in files}


def reduced_schema(schema: Any) -> Any:
    """Return the schema of a CustomResourceDefinition without descriptions, defaults and CEL rules."""
    if isinstance(schema, list):
        return [reduced_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return dict(_reduced_items(schema))


def _reduced_items(schema: Object) -> Iterator[tuple[str, Any]]:
    for key, value in schema.items():
        if key == "properties":
            yield key, {name: reduced_schema(each) for name, each in value.items()}
        elif key not in _DROPPED and (key in _KEPT or not key.startswith("x-kubernetes-")):
            yield key, reduced_schema(value)


def _closed(schema: Any, *, is_metadata: bool = False) -> Any:
    """Return a schema that refuses unknown fields, as an API server does with strict field validation."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {
        key: {name: _closed(each, is_metadata=name == "metadata") for name, each in value.items()}
        if key == "properties"
        else _closed(value)
        for key, value in schema.items()
    }
    is_open = is_metadata or schema.get("x-kubernetes-preserve-unknown-fields")
    if "properties" in schema and "additionalProperties" not in schema and not is_open:
        closed["additionalProperties"] = False
    return closed
