"""Service level objectives: the recorded rates of their events, and alerts on the rate at which a budget is spent.

The windows and factors are those of Google's SRE workbook, chapter "Alerting on SLOs".
"""

from dataclasses import dataclass

OBJECTIVE = 0.999
BUDGET = round(1.0 - OBJECTIVE, 6)
MIN_EVENTS = 10  # in the long window; a quiet mesh raises no alert for one bad request
WINDOWS_S = {"5m": 300, "30m": 1_800, "1h": 3_600, "6h": 21_600}

# Targets of the queue (PENSTOCK_QUEUE_TTFT_INTERACTIVE and PENSTOCK_QUEUE_TTFT_STANDARD), as bounds of buckets.
TARGETS = {"interactive": "10.0", "standard": "60.0"}
# Errors of the caller, which are no errors of the mesh.
CALLER_REASONS = (
    *("INVALID_ARGUMENT", "INPUT_MISSING", "PROMPT_EMPTY", "PROMPT_TOO_LONG", "TOKEN_UNKNOWN", "CHAT_TEMPLATE_REFUSED"),
    *("FORM_UNSUPPORTED", "EMBEDDING_UNSUPPORTED", "MODEL_UNKNOWN", "MODEL_FORBIDDEN", "QUOTA_EXCEEDED"),
    *("BUDGET_EXCEEDED", "KEY_UNKNOWN", "KEY_REVOKED", "KEY_EXPIRED", "TOKEN_INVALID", "TOKEN_EXPIRED"),
    *("REGION_NOT_ALLOWED", "DEADLINE", "CLIENT_TOO_SLOW"),
)
MISSING_REASONS = ("NO_WORKER", "AUTH_LOST", "QUEUE_LOST", "STORE_UNAVAILABLE")  # refused, but not for load
LOAD_REASONS = ("OVERLOADED", "QUEUE_FULL", "QUEUE_TOKENS_FULL", "EVICTED", "EDGE_FULL", "DEADLINE")

_REQUESTS = "penstock_edge_requests_total"
_FIRST_TOKENS = "gen_ai_server_time_to_first_token_seconds"


@dataclass(frozen=True)
class Burn:
    """One alert of an objective: the budget is spent `factor` times as fast as it may be, over two windows."""

    severity: str
    factor: float
    short: str
    long: str
    effect: str

    def expression(self, bad: str, total: str) -> str:
        shares = [f"{bad}:rate{each} / {total}:rate{each} > {self.factor * BUDGET:.4g}" for each in self._windows()]
        if self.short != "5m":  # ends the alert soon after the cause has ended
            shares.append(f"{bad}:rate5m / {total}:rate5m > {BUDGET:.4g}")
        return "\nand ".join([*shares, f"{bad}:rate{self.long} * {WINDOWS_S[self.long]} >= {MIN_EVENTS}"])

    def _windows(self) -> tuple[str, str]:
        return self.long, self.short


FAST = Burn("page", 14.4, "5m", "1h", "At this rate, the budget of 30 days lasts 2 days.")
SLOW = Burn("ticket", 6.0, "30m", "6h", "At this rate, the budget of 30 days lasts 5 days.")


@dataclass(frozen=True)
class Objective:
    """A share of good events. `bad` and `total` name recorded rates; their expressions have `%s` for the window."""

    alert: str
    runbook: str
    summary: str
    bad: str
    bad_expression: str
    total: str
    total_expression: str


def _by_class(expression: str) -> str:
    return f"sum by (model, class) ({expression})"


def _first_tokens(series: str, matchers: str) -> str:
    renamed = f'label_replace(rate({series}{{{matchers}}}[%s]), "model", "$1", "gen_ai_request_model", "(.*)")'
    return _by_class(renamed)


def _late() -> str:
    on_time = [
        _first_tokens(f"{_FIRST_TOKENS}_bucket", f'class="{name}", le="{bound}"') for name, bound in TARGETS.items()
    ]
    return f"{_first_tokens(f'{_FIRST_TOKENS}_count', _CLASSES)}\n- (\n  " + "\n  or ".join(on_time) + "\n)"


_CLASSES = f'class=~"{"|".join(TARGETS)}"'
_MISSING, _LOAD = "|".join(MISSING_REASONS), "|".join(LOAD_REASONS)

OBJECTIVES = (
    Objective(
        alert="PenstockFirstTokensLate",
        runbook="first-tokens-are-late",
        summary="First tokens of {{ $labels.class }} requests for {{ $labels.model }} exceed the target of the class",
        bad="model_class:penstock_late_first_tokens",
        bad_expression=_late(),
        total="model_class:penstock_first_tokens",
        total_expression=_first_tokens(f"{_FIRST_TOKENS}_count", _CLASSES),
    ),
    Objective(
        alert="PenstockRequestsFail",
        runbook="requests-fail",
        summary="{{ $labels.class }} requests for {{ $labels.model }} fail",
        bad="model_class:penstock_errors",
        bad_expression=_by_class(
            f'rate({_REQUESTS}{{outcome="failed", reason!~"{"|".join(CALLER_REASONS)}"}}[%s])\n'
            f'  or rate({_REQUESTS}{{outcome="shed", reason=~"{_MISSING}"}}[%s])'
        ),
        total="model_class:penstock_requests",
        total_expression=_by_class(f"rate({_REQUESTS}[%s])"),
    ),
    Objective(
        alert="PenstockRequestsShed",
        runbook="requests-are-shed",
        summary="{{ $labels.class }} requests for {{ $labels.model }} are refused for load",
        bad="model_class:penstock_sheds",
        bad_expression=_by_class(f'rate({_REQUESTS}{{outcome="shed", {_CLASSES}, reason=~"{_LOAD}"}}[%s])'),
        total="model_class:penstock_requests",
        total_expression=_by_class(f"rate({_REQUESTS}[%s])"),
    ),
)


def recorded() -> dict[str, str]:
    """Return the expression of each recorded rate by its name."""
    pairs = {each.bad: each.bad_expression for each in OBJECTIVES}
    pairs |= {each.total: each.total_expression for each in OBJECTIVES}
    return {
        f"{name}:rate{window}": expression.replace("%s", window)
        for name, expression in pairs.items()
        for window in WINDOWS_S
    }
