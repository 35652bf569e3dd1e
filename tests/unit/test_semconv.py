"""Conventional names are written in one module; instruments have buckets and labels that operators can read."""

import ast

from paths import REPO
from penstock.chassis.observability import semconv

PACKAGE = REPO / "services" / "penstock"


def names() -> dict[str, str]:
    return {name: value for name, value in vars(semconv).items() if name.isupper() and isinstance(value, str)}


def sources() -> list:
    return [path for path in PACKAGE.rglob("*.py") if path.name != "semconv.py" and "_pb2" not in path.name]


def nodes_in(path, kind) -> list:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kind)]


def strings_in(path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_no_other_module_spells_a_conventional_name():
    conventional = {name for name in names().values() if name.startswith(("gen_ai.", "rpc.", "error.", "service."))}
    spelt = {str(path): found for path in sources() if (found := strings_in(path) & conventional)}
    assert spelt == {}


def test_each_name_is_given_once():
    assert len(set(names().values())) == len(names())


def test_bucket_bounds_increase():
    buckets = [value for name, value in vars(semconv).items() if name.endswith("_BUCKETS")]
    assert len(buckets) == 5
    assert all(sorted(set(each)) == list(each) for each in buckets)


def test_no_histogram_is_left_on_the_default_buckets():
    """The SDK's default buckets are for milliseconds: all durations below 5 s fall into one of them."""
    made = {
        f"{path.name}:{call.lineno}": {keyword.arg for keyword in call.keywords}
        for path in sources()
        for call in nodes_in(path, ast.Call)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "create_histogram"
    }
    assert len(made) > 5
    assert [at for at, given in made.items() if "explicit_bucket_boundaries_advisory" not in given] == []
    assert [at for at, given in made.items() if "unit" not in given] == []


def test_the_priority_of_a_request_is_a_word_in_every_label_and_span():
    labels = {
        f"{path.name}:{key.lineno}": ast.unparse(value)
        for path in sources()
        for each in nodes_in(path, ast.Dict)
        for key, value in zip(each.keys, each.values, strict=True)
        if key and ast.unparse(key) == "semconv.PENSTOCK_PRIORITY"
    }
    assert len(labels) >= 4
    assert {at: value for at, value in labels.items() if "_name(" not in value} == {}
