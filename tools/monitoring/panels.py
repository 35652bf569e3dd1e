"""Grafana's JSON of dashboards and panels, as few fields as Grafana 10 and later need."""

from dataclasses import dataclass, field
from typing import Any

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA_VERSION = 39
COLUMNS, WIDTH, HEIGHT = 2, 12, 8
STAT_WIDTH, STAT_HEIGHT = 6, 4


@dataclass(frozen=True)
class Panel:
    """One picture. `queries`: expression by legend. `kind` is timeseries or stat."""

    title: str
    unit: str  # of Grafana: s, short, percentunit, bytes, reqps
    queries: dict[str, str]
    kind: str = "timeseries"
    meaning: str = ""

    def json(self, number: int, place: dict[str, int]) -> dict[str, Any]:
        targets = [
            {"refId": chr(ord("A") + index), "datasource": DATASOURCE, "expr": expression, "legendFormat": legend}
            for index, (legend, expression) in enumerate(self.queries.items())
        ]
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.meaning,
            "datasource": DATASOURCE,
            "gridPos": place,
            "fieldConfig": {"defaults": {"unit": self.unit, "min": 0}, "overrides": []},
            "targets": targets,
        }


@dataclass(frozen=True)
class Dashboard:
    """One page. `variables`: name of a label of `penstock_edge_requests_total` to choose, by its title."""

    uid: str
    title: str
    panels: tuple[Panel, ...]
    variables: tuple[str, ...] = field(default=())

    def json(self) -> dict[str, Any]:
        return {
            "uid": self.uid,
            "title": self.title,
            "tags": ["penstock"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": True,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "",
            "links": [
                {
                    "type": "dashboards",
                    "title": "Penstock",
                    "tags": ["penstock"],
                    "asDropdown": True,
                    "includeVars": True,
                    "keepTime": True,
                }
            ],
            "templating": {"list": [_datasource_variable(), *map(_label_variable, self.variables)]},
            "panels": list(self._placed()),
        }

    def _placed(self) -> list[dict[str, Any]]:
        """Stats are in rows of four at the top, graphs in rows of two below."""
        stats = [each for each in self.panels if each.kind == "stat"]
        graphs = [each for each in self.panels if each.kind != "stat"]
        top = -(-len(stats) // 4) * STAT_HEIGHT
        places = [_place(index, 4, STAT_WIDTH, STAT_HEIGHT, 0) for index in range(len(stats))]
        places += [_place(index, COLUMNS, WIDTH, HEIGHT, top) for index in range(len(graphs))]
        return [
            each.json(number, place)
            for number, (each, place) in enumerate(zip([*stats, *graphs], places, strict=True), start=1)
        ]


def _place(index: int, columns: int, width: int, height: int, top: int) -> dict[str, int]:
    return {"x": index % columns * width, "y": top + index // columns * height, "w": width, "h": height}


def _datasource_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _label_variable(label: str) -> dict[str, Any]:
    query = f"label_values(penstock_edge_requests_total, {label})"
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": label},
        "refresh": 2,
        "sort": 1,
    }
