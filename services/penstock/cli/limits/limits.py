"""`penstock prices` and the limits of `penstock tenants` and `penstock keys`: messages, calls and texts."""

from collections.abc import Iterable
from typing import Any

from google.protobuf.json_format import MessageToDict

from penstock.bench.tables import new_table
from penstock.cli.admin import AdminTarget
from penstock.cli.limits.options import LIMITS, BudgetOption
from penstock.cli.limits.texts import key_texts, money
from penstock.cli.tables import stdout_console
from penstock.v1 import admin_pb2 as pb

_PERIODS = {"day": pb.BUDGET_PERIOD_DAY, "month": pb.BUDGET_PERIOD_MONTH}


# Messages.


def tenant_message(
    *, budgets: Iterable[BudgetOption], model_limits: Iterable[tuple[str, str, int]], **fields: Any
) -> pb.Tenant:
    by_model: dict[str, pb.Limits] = {}
    for model, name, value in model_limits:
        setattr(by_model.setdefault(model, pb.Limits()), name, value)
    return pb.Tenant(
        **fields,
        budgets=[budget_message(each) for each in budgets],
        model_limits=[pb.ModelLimits(model=model, limits=limits) for model, limits in by_model.items()],
    )


def key_limits_message(*, budgets: Iterable[BudgetOption], **fields: Any) -> pb.KeyLimits:
    limits = pb.Limits(**{name: fields.pop(name) for name in LIMITS})
    return pb.KeyLimits(limits=limits, budgets=[budget_message(each) for each in budgets], **fields)


def budget_message(budget: BudgetOption) -> pb.Budget:
    name = "tokens" if budget.unit == "tokens" else "money_nanos"
    return pb.Budget(period=_PERIODS[budget.period], **{name: budget.amount})


# Calls.


async def limit_key(target: AdminTarget, key_id: str, limits: pb.KeyLimits) -> None:
    async with target.stub() as admin:
        request = pb.PutKeyLimitsRequest(key_id=key_id, limits=limits)
        response = await admin.PutKeyLimits(request, metadata=target.metadata)
    if target.as_json:
        stdout_console.print_json(data=MessageToDict(response.key))
        return
    texts = key_texts(response.key, None)
    stdout_console.print(f"{response.key.key_id}: {'; '.join(texts) or 'no limits of its own'}", markup=False)


async def put_price(target: AdminTarget, price: pb.Price) -> None:
    async with target.stub() as admin:
        stored = await admin.PutPrice(pb.PutPriceRequest(price=price), metadata=target.metadata)
    _show_prices(target, [stored.price])


async def list_prices(target: AdminTarget) -> None:
    async with target.stub() as admin:
        response = await admin.ListPrices(pb.ListPricesRequest(), metadata=target.metadata)
    _show_prices(target, list(response.prices))


async def delete_price(target: AdminTarget, model: str) -> None:
    async with target.stub() as admin:
        await admin.DeletePrice(pb.DeletePriceRequest(model=model), metadata=target.metadata)
    if target.as_json:
        stdout_console.print_json(data={"model": model})
        return
    stdout_console.print(f"the price of {model} is deleted", markup=False)


def _show_prices(target: AdminTarget, prices: list[pb.Price]) -> None:
    if target.as_json:
        stdout_console.print_json(data=[MessageToDict(each) for each in prices])
        return
    table = new_table("model", numbers=("input", "cached input", "output"))
    for each in prices:
        table.add_row(each.model, money(each.input_nanos), money(each.cached_input_nanos), money(each.output_nanos))
    stdout_console.print(table)
    stdout_console.print("\nper 1,000,000 tokens")
