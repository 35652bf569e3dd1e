"""Rules and dashboards: as generated, of series and labels that exist, and alerts that fire and end."""

import json
import re
import runpy
import shutil
import subprocess
from dataclasses import fields

import pytest
import yaml

from documents import blocks
from manifests import OVERLAYS, render_overlay
from monitoring.command import FOLDER, files
from monitoring.dashboards import DASHBOARDS
from monitoring.rules import FAULTS, rules
from monitoring.slo import CALLER_REASONS, LOAD_REASONS, MISSING_REASONS, OBJECTIVES, TARGETS
from paths import REPO
from penstock.chassis.observability.semconv import TIME_TO_FIRST_TOKEN_BUCKETS
from penstock.chassis.observability.series import Kind
from penstock.queue.config import QueueConfig

RUNBOOKS = REPO / "docs" / "operations" / "alerts.md"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="Debian's package `prometheus` is not installed")

ALL_SERIES = [
    each for tier in runpy.run_path(str(REPO / "tools" / "gen_metric_docs"))["TIERS"].values() for each in tier
]
SCRAPE_LABELS = {"job", "instance"}
# Labels of each name that a query may select.
LABELS = {"up": SCRAPE_LABELS, "envoy_cluster_membership_healthy": SCRAPE_LABELS | {"envoy_cluster_name"}}
for _each in ALL_SERIES:
    _labels = SCRAPE_LABELS | set(_each.prometheus_labels)
    if _each.kind is Kind.HISTOGRAM:
        LABELS |= {f"{_each.family}_{suffix}": _labels for suffix in ("sum", "count")}
        LABELS[f"{_each.family}_bucket"] = _labels | {"le"}
    else:
        LABELS[_each.prometheus_name] = _labels
RECORDED = {rule["record"] for group in rules()["groups"] for rule in group["rules"] if "record" in rule}
LABELS |= {name: {"model", "class"} for name in RECORDED}
PANELS = {f"{each.uid}: {panel.title}": panel for each in DASHBOARDS for panel in each.panels}
RULES = [rule for group in rules()["groups"] for rule in group["rules"]]

WORDS = {"sum", "max", "count", "rate", "increase", "histogram_quantile", "label_replace", "vector", "time"}
WORDS |= {"by", "on", "or", "and"}
STRING = re.compile(r'"[^"]*"')
NAME = re.compile(r"(?<![\w.:$])[a-zA-Z_:][\w:]*")
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}")
GROUPING = re.compile(r"\b(?:by|on) \(([^)]*)\)")
RANGE = re.compile(r"\[[^]]*\]")


def faults_of(expression):
    """Yield the names and labels in an expression that no process exports. A label must be one of all its series."""
    bare = RANGE.sub("", STRING.sub('""', expression))
    for name, matchers in SELECTOR.findall(bare):
        yield from (f"{name}: {label}" for label in set(NAME.findall(matchers)) - LABELS.get(name, set()))
    grouped = {label for labels in GROUPING.findall(bare) for label in re.split(", *", labels) if label}
    names = set(NAME.findall(GROUPING.sub("", SELECTOR.sub(r"\1", bare)))) - WORDS
    for name in names:
        known = LABELS.get(name)
        if known is None:
            yield name
        elif "label_replace" not in bare:
            yield from (f"{name}: {label}" for label in grouped - known)


def legend_labels(legend):
    return set(re.findall(r"\{\{(\w+)\}\}", legend))


def run_promtool(*arguments):
    return subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False, timeout=90)


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_a_file_is_as_generated(path):
    assert path.read_text(encoding="utf-8") == files()[path], "run tools/gen_monitoring"


@pytest.mark.parametrize(
    "expression",
    [
        "sum(penstock_edge_request_total)",
        'up{pod="a"}',
        "sum by (tenant) (penstock_queue_wait_seconds_count)",
        "foo:rate5m",
    ],
)
def test_the_check_of_names_finds_a_series_or_a_label_that_does_not_exist(expression):
    assert list(faults_of(expression))


@pytest.mark.parametrize("panel", PANELS.values(), ids=PANELS)
def test_a_panel_names_series_and_labels_that_exist(panel):
    for legend, expression in panel.queries.items():
        assert list(faults_of(expression)) == []
        assert legend_labels(legend) <= set(NAME.findall(expression)) | {"instance"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("record") or rule["alert"])
def test_a_rule_names_series_and_labels_that_exist(rule):
    assert list(faults_of(rule["expr"])) == []


@pytest.mark.parametrize("path", sorted((FOLDER / "dashboards").glob("*.json")), ids=lambda path: path.stem)
def test_a_dashboard_can_be_imported_into_any_grafana(path):
    dashboard = json.loads(path.read_text(encoding="utf-8"))
    assert "id" not in dashboard  # Grafana's own number
    assert dashboard["uid"] == path.stem
    assert {"title", "schemaVersion", "panels", "templating", "time"} <= dashboard.keys()
    source = dashboard["templating"]["list"][0]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    numbers = [each["id"] for each in dashboard["panels"]]
    assert numbers == sorted(set(numbers))
    taken = set()
    for panel in dashboard["panels"]:
        for each in (panel, *panel["targets"]):
            assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken
        taken |= cells
    variables = {each["name"] for each in dashboard["templating"]["list"]} | {"__rate_interval"}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard["panels"]))) <= variables


def test_dashboards_have_titles_and_uids_of_their_own_and_there_is_one_for_each_tier():
    uids = {each.uid for each in DASHBOARDS}
    assert len(uids) == len(DASHBOARDS) == len({each.title for each in DASHBOARDS})
    pages = ("overview", "auth", "batch", "edge", "picker", "queue", "routing", "scheduler", "worker", "tenant")
    assert uids == {f"penstock-{each}" for each in pages}
    maps = [each for each in render_overlay(OVERLAYS / "autoscaled") if each["kind"] == "ConfigMap"]
    found = {
        name for each in maps for name in each["data"] if each["metadata"].get("labels", {}).get("grafana_dashboard")
    }
    assert found == {f"{uid}.json" for uid in uids}


def sections(document):
    """Return the text below each heading of the third level, by anchor."""
    _, *parts = re.split(r"^### ", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {title.lower().replace(" ", "-"): text for title, _, text in (part.partition("\n") for part in parts)}


@pytest.mark.parametrize("name", sorted({rule["alert"] for rule in RULES if "alert" in rule}))
def test_every_alert_has_a_runbook_that_says_what_to_check_and_to_do(name):
    for rule in (each for each in RULES if each.get("alert") == name):
        path, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert path == str(RUNBOOKS.relative_to(REPO))
        text = sections(RUNBOOKS)[anchor]
        assert f"`{name}`" in text
        assert re.findall(r"^\*\*([^*]+)\.\*\*", text, re.MULTILINE) == ["Means", "Users see", "Check", "Do", "Clears"]
        assert {"```promql", "```console cluster"} <= set(re.findall(r"^ *(```[a-z ]+)$", text, re.MULTILINE))
        assert rule["labels"]["severity"] in {"page", "ticket"}


@pytest.mark.parametrize("block", blocks("promql"), ids=str)
def test_a_query_of_the_documents_names_series_and_labels_that_exist(block):
    for line in block.text.splitlines():
        assert list(faults_of(line)) == []


def test_targets_are_the_defaults_of_the_queue_and_bounds_of_buckets():
    of_queue = {each.name: each.default for each in fields(QueueConfig)}
    defaults = {name: of_queue[f"ttft_{name}"] for name in TARGETS}
    assert {name: float(bound) for name, bound in TARGETS.items()} == defaults
    assert set(defaults.values()) <= set(TIME_TO_FIRST_TOKEN_BUCKETS)


def test_reasons_are_those_of_the_api():
    reasons = {*CALLER_REASONS, *MISSING_REASONS, *LOAD_REASONS}
    assert not reasons - set(re.findall(r"`([A-Z_]+)`", (REPO / "docs" / "api.md").read_text(encoding="utf-8")))
    assert not set(LOAD_REASONS) & set(MISSING_REASONS)


def test_every_alert_has_a_test():
    tested = {path.stem: path.read_text(encoding="utf-8") for path in (FOLDER / "rule_tests").glob("*.yaml")}
    for each in (*OBJECTIVES, *FAULTS):
        assert each.alert in tested["objectives" if each in OBJECTIVES else "faults"]


@needs_promtool
def test_rules_and_queries_are_valid(tmp_path):
    queries = [expression for panel in PANELS.values() for expression in panel.queries.values()]
    recorded = [
        {"record": f"panel:{number}", "expr": each.replace("$__rate_interval", "1m")}
        for number, each in enumerate(queries)
    ]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    checked = run_promtool("check", "rules", str(FOLDER / "rules.yaml"), str(path))
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_promtool
@pytest.mark.parametrize("path", sorted((FOLDER / "rule_tests").glob("*.yaml")), ids=lambda path: path.stem)
def test_alerts_fire_and_end(path):
    ran = run_promtool("test", "rules", str(path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
