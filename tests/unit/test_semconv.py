"""Conventional names are written in one module; instruments have buckets and labels that operators can read."""

import ast
import importlib
import re
import runpy
import subprocess

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from paths import REPO
from penstock.chassis.observability import semconv
from penstock.chassis.observability.series import Kind, Series
from prometheus import needs_prometheus

PACKAGE = REPO / "services" / "penstock"
ALL_SERIES = [
    each for series in runpy.run_path(str(REPO / "tools" / "gen_metric_docs"))["TIERS"].values() for each in series
]


def names() -> dict[str, str]:
    return {name: value for name, value in vars(semconv).items() if name.isupper() and isinstance(value, str)}


def sources() -> list:
    return [path for path in PACKAGE.rglob("*.py") if path.name != "semconv.py" and "_pb2" not in path.name]


def nodes_in(path, kind) -> list:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kind)]


def words_in(path) -> set[str]:
    return set(re.findall(r"[A-Z_]+", path.read_text()))


def strings_in(path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_no_other_module_spells_a_conventional_name():
    conventional = {name for name in names().values() if name.startswith(("gen_ai.", "rpc.", "error.", "service."))}
    spelt = {str(path): found for path in sources() if (found := strings_in(path) & conventional)}
    assert spelt == {}


def test_each_name_is_given_once():
    assert len(set(names().values())) == len(names())


def test_a_series_is_defined_once():
    names = [each.name for each in ALL_SERIES]
    assert len(names) > 80
    assert len(set(names)) == len(names)
    assert len({each.prometheus_name for each in ALL_SERIES}) == len(names)


def test_a_series_is_listed_and_recorded_by_its_tier():
    for path in PACKAGE.rglob("series.py"):
        module = importlib.import_module(f"penstock.{path.parent.relative_to(PACKAGE)}.series".replace("/", "."))
        defined = {each for each in vars(module).values() if isinstance(each, Series)}
        assert defined == set(module.SERIES)
        names = {name for name, value in vars(module).items() if isinstance(value, Series)}
        tier = PACKAGE if path.parent.name == "observability" else path.parent
        used = {word for other in tier.rglob("*.py") if other != path for word in words_in(other)}
        assert names <= used


@needs_prometheus
def test_the_names_of_series_keep_the_rules_of_prometheus():
    registry = CollectorRegistry()
    for each in ALL_SERIES:
        names = (each.family, each.meaning, each.prometheus_labels)
        if each.kind is Kind.HISTOGRAM:
            instrument = Histogram(*names, buckets=each.buckets, registry=registry)
        else:
            instrument = {Kind.COUNTER: Counter, Kind.GAUGE: Gauge}[each.kind](*names, registry=registry)
        if each.labels:
            instrument.labels(*each.labels)
    text = generate_latest(registry)
    checked = subprocess.run(["promtool", "check", "metrics"], check=False, input=text, capture_output=True)
    assert (checked.returncode, checked.stderr.decode()) == (0, "")


def test_a_histogram_has_increasing_bounds_in_its_unit_and_no_other_series_has_any():
    for each in ALL_SERIES:
        assert sorted(set(each.buckets)) == list(each.buckets)
        assert bool(each.buckets) == (each.kind is Kind.HISTOGRAM), each.name


def test_the_names_and_labels_of_series_are_valid_and_words():
    for each in ALL_SERIES:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", each.prometheus_name)
        assert "priority" not in each.labels, "the class of a request is a word, in the label `class`"
        assert each.meaning.endswith("."), each.name


def test_the_priority_of_a_request_is_a_word_in_every_label_and_span():
    labels = {
        f"{path.name}:{key.lineno}": ast.unparse(value)
        for path in sources()
        for each in nodes_in(path, ast.Dict)
        for key, value in zip(each.keys, each.values, strict=True)
        if key and ast.unparse(key) == "semconv.PENSTOCK_PRIORITY"
    }
    assert len(labels) >= 1
    assert {at: value for at, value in labels.items() if "_name(" not in value} == {}
