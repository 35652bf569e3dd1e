"""Options of the limits, budgets and models of tenants and keys, with their parameter types."""

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import click

from penstock.cli.options import FiniteFloat

MAX_UINT32 = 2**32 - 1  # the largest value of a limit of requests
MAX_UINT64 = 2**64 - 1
NANOS = 10**9  # of one unit of the currency
PERIODS = ("day", "month")
UNITS = ("tokens", "money")
LIMITS = (
    "requests_per_minute",
    "input_tokens_per_minute",
    "output_tokens_per_minute",
    "tokens_per_minute",
    "concurrent_requests",
)
_FEW = frozenset({"requests_per_minute", "concurrent_requests"})  # limits of 32 bits


class BudgetOption(NamedTuple):
    """A budget: tokens, or nanos of money, per day or month."""

    period: str
    unit: str
    amount: int


class Money(click.ParamType[int]):
    """An amount in units of the operator's currency, as nanos."""

    name = "amount"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):  # a default, or converted before
            return value
        try:
            nanos = Decimal(value) * NANOS
        except InvalidOperation:
            self.fail(f"{value!r} is not a number", param, ctx)
        if not nanos.is_finite() or nanos < 0 or nanos > MAX_UINT64 or nanos != nanos.to_integral_value():
            self.fail(f"{value} is not an amount of 0 or more with at most 9 decimal places", param, ctx)
        return int(nanos)


class BudgetType(click.ParamType[BudgetOption]):
    """A budget as PERIOD:UNIT=AMOUNT."""

    name = "budget"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> BudgetOption:
        period, _, rest = str(value).partition(":")
        unit, _, amount = rest.partition("=")
        if period not in PERIODS or unit not in UNITS or not amount:
            self.fail(f"{value!r} must be day or month, `:`, tokens or money, `=` and an amount", param, ctx)
        if unit == "money":
            return BudgetOption(period, unit, Money().convert(amount, param, ctx))
        return BudgetOption(period, unit, _whole(click.IntRange(1, MAX_UINT64), amount, param, ctx))


class ModelLimitType(click.ParamType[tuple[str, str, int]]):
    """A limit of one model as MODEL:LIMIT=NUMBER."""

    name = "limit"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str, int]:
        rest, _, number = str(value).rpartition("=")
        model, _, limit = rest.rpartition(":")
        if not model or limit not in LIMITS:
            self.fail(f"{value!r} must be MODEL:LIMIT=NUMBER with a limit of {', '.join(LIMITS)}", param, ctx)
        return model, limit, _whole(limit_range(limit), number, param, ctx)


def _whole(allowed: click.IntRange, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
    return int(allowed(value, param, ctx) or 0)


def limit_range(name: str) -> click.IntRange:
    return click.IntRange(0, MAX_UINT32 if name in _FEW else MAX_UINT64)


def rate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each limit."""
    for name in reversed(LIMITS):
        command = click.option(f"--{name.replace('_', '-')}", type=limit_range(name), default=0, help="0: no limit")(
            command
        )
    return command


def policy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of allowed models, budgets and shadow mode."""
    options = (
        click.option("--allow-model", "allowed_models", multiple=True, metavar="NAME", help="repeatable; or NAME*"),
        click.option(
            "--budget", "budgets", type=BudgetType(), multiple=True, metavar="PERIOD:UNIT=AMOUNT",
            help="repeatable, such as month:money=100 or day:tokens=1000000; UTC",
        ),
        click.option("--soft-share", type=FiniteFloat(0, 1, max_open=True), default=0.0, help="warns from it on"),
        click.option("--shadow", is_flag=True, help="count what limits and budgets would refuse, and refuse nothing"),
    )  # fmt: skip
    for each in reversed(options):
        command = each(command)
    return command


def region_option(command: Callable[..., Any]) -> Callable[..., Any]:
    help_text = "where requests of the tenant may be served; repeatable; without it: in all regions"
    return click.option("--region", "allowed_regions", multiple=True, metavar="NAME", help=help_text)(command)


def model_limit_option(command: Callable[..., Any]) -> Callable[..., Any]:
    help_text = "repeatable, such as m:requests_per_minute=60"
    return click.option(
        "--model-limit", "model_limits", type=ModelLimitType(), multiple=True, metavar="MODEL:LIMIT=N", help=help_text
    )(command)
