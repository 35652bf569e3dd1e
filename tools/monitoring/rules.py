"""Rules of Prometheus: recorded rates, alerts on objectives, and alerts on faults of a tier."""

from dataclasses import dataclass
from typing import Any

from monitoring.slo import FAST, OBJECTIVES, SLOW, Burn, Objective, recorded

RUNBOOKS = "docs/operations/alerts.md"
INTERVAL = "30s"
UNANSWERED = 'penstock_edge_spill_offers_total{outcome=~"UNANSWERED|LOST"}'


@dataclass(frozen=True)
class Fault:
    """An alert on a state that an operator has to end. `held`: the least time that it lasts."""

    alert: str
    severity: str
    expression: str
    held: str
    runbook: str
    summary: str


FAULTS = (
    Fault(
        alert="PenstockProcessDown",
        severity="page",
        expression='up{job=~"(auth|batch|edge|picker|queue|routing|scheduler|worker).*"} == 0',
        held="1m",
        runbook="a-process-is-down",
        summary="{{ $labels.instance }} of {{ $labels.job }} does not answer scrapes",
    ),
    Fault(
        alert="PenstockWorkersLost",
        severity="ticket",
        expression='sum by (model) (increase(penstock_scheduler_worker_changes_total{change="lost"}[5m])) > 0',
        held="0s",
        runbook="workers-are-lost",
        summary="Workers of {{ $labels.model }} ended without a drain",
    ),
    Fault(
        alert="PenstockAuthUnreachable",
        severity="page",
        expression="count(penstock_auth_fallback_active == 1) > 0",
        held="30s",
        runbook="auth-is-unreachable",
        summary="{{ $value }} edges admit requests without auth",
    ),
    Fault(
        alert="PenstockAuthStoreUnavailable",
        severity="page",
        expression="penstock_auth_store_available == 0",
        held="30s",
        runbook="the-store-of-auth-is-unavailable",
        summary="{{ $labels.instance }} cannot commit to the store of auth",
    ),
    Fault(
        alert="PenstockRegionNotFollowing",
        severity="page",
        expression="penstock_auth_home_unfollowed_seconds > 300",
        held="0s",
        runbook="a-region-does-not-follow-its-home",
        summary="{{ $labels.instance }} has not followed its home region for {{ $value | humanizeDuration }}",
    ),
    Fault(
        alert="PenstockUsageUnconfirmed",
        severity="ticket",
        expression=(
            "penstock_auth_usage_lag_seconds > 600 and on (job, instance) penstock_auth_home_unfollowed_seconds == 0"
        ),
        held="1m",
        runbook="usage-does-not-reach-the-home-region",
        summary="{{ $labels.instance }} has usage of {{ $value | humanizeDuration }} ago that its home lacks",
    ),
    Fault(
        alert="PenstockAuthDiskFull",
        severity="ticket",
        expression="penstock_auth_disk_used_ratio > 0.9",
        held="1m",
        runbook="the-disk-of-auth-is-full",
        summary="The volume of {{ $labels.instance }} is {{ $value | humanizePercentage }} full",
    ),
    Fault(
        alert="PenstockBatchStoreUnavailable",
        severity="ticket",
        expression="penstock_batch_store_available == 0",
        held="1m",
        runbook="the-store-of-batches-is-unavailable",
        summary="{{ $labels.instance }} cannot use the store of batches",
    ),
    Fault(
        alert="PenstockBatchDiskFull",
        severity="ticket",
        expression="penstock_batch_disk_used_ratio > 0.9",
        held="1m",
        runbook="the-disk-of-batches-is-full",
        summary="The volume of {{ $labels.instance }} is {{ $value | humanizePercentage }} full",
    ),
    Fault(
        alert="PenstockRegionDrained",
        severity="ticket",
        expression="max by (region) (penstock_routing_region_drained_ratio) == 1",
        held="1h",
        runbook="a-region-is-drained",
        summary="An operator has drained the region {{ $labels.region }} more than an hour ago",
    ),
    Fault(
        alert="PenstockRegionUnreachable",
        severity="ticket",
        # Of Envoy, which has a cluster for each other region.
        expression=(
            'max by (envoy_cluster_name) (envoy_cluster_membership_healthy{envoy_cluster_name=~"region_.*"}) == 0'
        ),
        held="5m",
        runbook="a-region-is-unreachable",
        summary="No proxy finds the region door of {{ $labels.envoy_cluster_name }} healthy",
    ),
    Fault(
        alert="PenstockSpillUnanswered",
        severity="ticket",
        # Single requests are lost with each edge that ends.
        expression=(
            f"sum by (region) (increase({UNANSWERED}[5m])) >= 10\n"
            f"and sum by (region) (increase({UNANSWERED}[5m]))"
            " / sum by (region) (increase(penstock_edge_spill_offers_total[5m])) > 0.1"
        ),
        held="2m",
        runbook="a-region-does-not-answer-offers",
        summary="{{ $value | humanize }} requests that were offered to {{ $labels.region }} in 5 minutes got no answer",
    ),
    Fault(
        alert="PenstockPickerWithoutEndpoints",
        severity="page",
        expression='sum by (job, instance) (penstock_picker_endpoints{state=~"ready|degraded"}) == 0',
        held="30s",
        runbook="the-endpoint-picker-has-no-endpoint",
        summary="{{ $labels.instance }} has no usable server, and refuses every request",
    ),
    Fault(
        alert="PenstockCertificateExpires",
        severity="ticket",
        expression="penstock_certificate_expiry_seconds - time() < 7 * 86400",
        held="1m",
        runbook="a-certificate-expires",
        summary="{{ $labels.certificate }} of {{ $labels.instance }} ends in {{ $value | humanizeDuration }}",
    ),
    Fault(
        alert="PenstockRoutesRefused",
        severity="page",
        expression='sum by (type) (increase(penstock_xds_requests_total{kind="NACK"}[5m])) > 0',
        held="0s",
        runbook="proxies-refuse-their-routes",
        summary="Proxies refuse a configuration of {{ $labels.type }}",
    ),
)


def rules() -> dict[str, Any]:
    """Return the content of a file of rules."""
    rates = [{"record": name, "expr": expression} for name, expression in recorded().items()]
    burns = [_burn_alert(each, burn) for each in OBJECTIVES for burn in (FAST, SLOW)]
    # One group evaluates its rules in order, so that alerts read rates of the same moment.
    groups = {"penstock-objectives": [*rates, *burns], "penstock-faults": list(map(_fault_alert, FAULTS))}
    return {"groups": [{"name": name, "interval": INTERVAL, "rules": content} for name, content in groups.items()]}


def prometheus_rule() -> dict[str, Any]:
    """Return the object of the Prometheus operator with the same rules."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "penstock"},
        "spec": rules(),
    }


def _burn_alert(objective: Objective, burn: Burn) -> dict[str, Any]:
    return _alert(
        objective.alert,
        burn.expression(objective.bad, objective.total),
        burn.severity,
        objective.runbook,
        f"{objective.summary}: {{{{ $value | humanizePercentage }}}} in {burn.long}. {burn.effect}",
    )


def _fault_alert(fault: Fault) -> dict[str, Any]:
    made = _alert(fault.alert, fault.expression, fault.severity, fault.runbook, fault.summary)
    return {"alert": made.pop("alert"), "expr": made.pop("expr"), "for": fault.held, **made}


def _alert(name: str, expression: str, severity: str, runbook: str, summary: str) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expression,
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "runbook": f"{RUNBOOKS}#{runbook}"},
    }
