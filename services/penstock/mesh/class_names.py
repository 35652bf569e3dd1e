"""Names of the priority classes, as operators and labels write them."""

from penstock.v1.inference_pb2 import Priority

PREFIX = "PRIORITY_"
_NAMES: dict[int, str] = {number: name.removeprefix(PREFIX).lower() for name, number in Priority.items()}


CLASSES: dict[str, int] = {name: number for number, name in _NAMES.items() if number}  # number by name


def class_name(priority: int) -> str:
    """Return interactive, standard or batch; `unspecified` for 0."""
    return _NAMES[priority]
