"""Expressions of PromQL and the simple panels from which dashboards are made."""

from monitoring.panels import Panel
from monitoring.slo import BUDGET, OBJECTIVES, Objective


def rate(series: str, labels: str = "", matchers: str = "") -> str:
    """Return the summed rate of a counter by labels; 0 if there is no such series yet."""
    selected = f"{series}{{{matchers}}}" if matchers else series
    by = f" by ({labels})" if labels else ""
    return f"sum{by} (rate({selected}[$__rate_interval])) or on() vector(0)"


def waiting(labels: str = "", matchers: str = "") -> str:
    """Return the number of tickets that wait; 0 if none has waited yet."""
    return f"{total('penstock_queue_depth', labels, matchers)} or on() vector(0)"


def total(series: str, labels: str = "", matchers: str = "") -> str:
    """Return the sum of a gauge by labels."""
    selected = f"{series}{{{matchers}}}" if matchers else series
    return f"sum by ({labels}) ({selected})" if labels else f"sum({selected})"


def quantiles(
    series: str, labels: str = "", matchers: str = "", of: tuple[float, ...] = (0.5, 0.95, 0.99)
) -> dict[str, str]:
    """Return the expression of each quantile of a histogram by its legend."""
    selected = f"{series}_bucket{{{matchers}}}" if matchers else f"{series}_bucket"
    by = f"le, {labels}" if labels else "le"
    legend = "".join(f" {{{{{each}}}}}" for each in labels.split(", ") if each)
    return {
        f"P{100 * each:g}{legend}": f"histogram_quantile({each}, sum by ({by}) (rate({selected}[$__rate_interval])))"
        for each in of
    }


def panel(title: str, unit: str, legend: str, expression: str, meaning: str = "") -> Panel:
    return Panel(title, unit, {legend: expression}, meaning=meaning)


def stat(title: str, unit: str, expression: str, meaning: str = "") -> Panel:
    return Panel(title, unit, {title: expression}, "stat", meaning)


def burn() -> Panel:
    """1 spends the budget of an objective exactly; the pages are at 14.4, the tickets at 6."""
    queries = {f"{each.alert} {{{{class}}}}": _burn_rate(each) for each in OBJECTIVES}
    return Panel("Burn rate of budgets, 1 h", "short", queries, meaning="Pages at 14.4, tickets at 6 over 6 h.")


def _burn_rate(objective: Objective) -> str:
    share = f"{objective.bad}:rate1h / {objective.total}:rate1h"
    return f"max by (class) ({share}) / {BUDGET} or on() vector(0)"
