"""Rules of Prometheus: recorded rates, alerts on objectives, and alerts on faults of a tier."""

from dataclasses import dataclass
from typing import Any

from monitoring.slo import FAST, OBJECTIVES, SLOW, Burn, Objective, recorded

RUNBOOKS = "docs/operations/alerts.md"
INTERVAL = "30s"


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
        expression='up{job=~"(auth|batch|edge|queue|routing|scheduler|worker).*"} == 0',
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
