"""Commands for the prices of models."""

from asyncio import run as run_async
from typing import Any

import click

from penstock.cli.limits.options import Money
from penstock.cli.options import json_option, target_option


@click.group()
def prices() -> None:
    """Prices of models, for budgets in money: put, list, delete."""


@prices.command("put")
@click.argument("model")
@click.option("--input", "input_nanos", type=Money(), required=True, help="of 1,000,000 prompt tokens")
@click.option("--cached-input", "cached_input_nanos", type=Money(), help="of prompt tokens in a cache; else as --input")
@click.option("--output", "output_nanos", type=Money(), required=True, help="of 1,000,000 output tokens")
@target_option
@json_option
def put_price(target: str, as_json: bool, **price: Any) -> None:
    """Set the price of MODEL, in units of your currency; `*` for models without a price of their own."""
    from penstock.cli import admin
    from penstock.cli.limits import limits
    from penstock.v1.admin_pb2 import Price

    run_async(limits.put_price(admin.auth_target(target, as_json=as_json), Price(**price)))


@prices.command("list")
@target_option
@json_option
def list_prices(target: str, as_json: bool) -> None:
    """List prices."""
    from penstock.cli import admin
    from penstock.cli.limits import limits

    run_async(limits.list_prices(admin.auth_target(target, as_json=as_json)))


@prices.command("delete")
@click.argument("model")
@target_option
@json_option
def delete_price(model: str, target: str, as_json: bool) -> None:
    """Delete the price of MODEL."""
    from penstock.cli import admin
    from penstock.cli.limits import limits

    run_async(limits.delete_price(admin.auth_target(target, as_json=as_json), model))
