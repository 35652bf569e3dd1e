"""Writes the files of rules and dashboards."""

import json
from pathlib import Path
from typing import Any

import yaml

from monitoring.dashboards import DASHBOARDS
from monitoring.rules import prometheus_rule, rules

REPO = Path(__file__).resolve().parents[2]
FOLDER = REPO / "deploy" / "monitoring"
OPERATOR_RULES = REPO / "deploy" / "k8s" / "components" / "monitoring" / "rules.yaml"
NOTICE = "# Made by tools/gen_monitoring. Do not edit.\n"


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def files() -> dict[Path, str]:
    """Return the content of each file by its path."""
    found = {FOLDER / "rules.yaml": _yaml(rules()), OPERATOR_RULES: _yaml(prometheus_rule())}
    for each in DASHBOARDS:
        found[FOLDER / "dashboards" / f"{each.uid}.json"] = json.dumps(each.json(), indent=2) + "\n"
    return found


def _yaml(content: dict[str, Any]) -> str:
    return NOTICE + yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=1_000)


def main() -> None:
    for path, content in files().items():
        path.write_text(content, encoding="utf-8")
