"""Conventional names are written in one module, so that a change of the conventions is a change of one file."""

import ast

from paths import REPO
from penstock.chassis import semconv

PACKAGE = REPO / "services" / "penstock"


def names() -> dict[str, str]:
    return {name: value for name, value in vars(semconv).items() if name.isupper() and isinstance(value, str)}


def strings_in(path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_no_other_module_spells_a_conventional_name():
    conventional = {name for name in names().values() if name.startswith(("gen_ai.", "rpc.", "error.", "service."))}
    sources = [path for path in PACKAGE.rglob("*.py") if path.name != "semconv.py" and "_pb2" not in path.name]
    spelt = {str(path): found for path in sources if (found := strings_in(path) & conventional)}
    assert spelt == {}


def test_each_name_is_given_once():
    assert len(set(names().values())) == len(names())


def test_buckets_rise():
    buckets = [value for name, value in vars(semconv).items() if name.endswith("_BUCKETS")]
    assert len(buckets) == 4
    assert all(sorted(set(each)) == list(each) for each in buckets)
