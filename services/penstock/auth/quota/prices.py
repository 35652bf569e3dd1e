"""Prices: the cost of requests by model, in nanos (1e-9 units of the operator's currency). All values are integers."""

from collections.abc import Iterable
from typing import NamedTuple

from penstock.v1.inference_pb2 import PRIORITY_BATCH, Priority

DEFAULT_MODEL = "*"  # of the price for models without a price of their own
PRICED_TOKENS = 1_000_000  # tokens that a price is for
FULL_PERCENT = 100  # of a price
_PERCENT_TOKENS = PRICED_TOKENS * FULL_PERCENT
MAX_UNPRICED = 1_000  # models without a price that are remembered


class Price(NamedTuple):
    """The price of a model, in nanos per `PRICED_TOKENS` tokens."""

    model: str
    input_nanos: int
    cached_input_nanos: int  # at most `input_nanos`, so that a cached prompt costs at most its reservation
    output_nanos: int

    def cost(self, prompt_tokens: int, output_tokens: int, cached_tokens: int = 0, percent: int = FULL_PERCENT) -> int:
        """Return the cost in nanos at `percent` of the price, rounded up once.

        `cached_tokens` of the prompt cost the price of cached input.
        """
        cached = min(cached_tokens, prompt_tokens)
        total = (
            (prompt_tokens - cached) * self.input_nanos
            + cached * self.cached_input_nanos
            + output_tokens * self.output_nanos
        )
        return -(-total * percent // _PERCENT_TOKENS)


class PriceList:
    """The prices of all models, and the share of them that requests of class batch pay."""

    def __init__(self, prices: Iterable[Price] = (), *, batch_percent: int = FULL_PERCENT) -> None:
        self._batch_percent = batch_percent  # at most `FULL_PERCENT`, so that `highest_nanos` holds for all requests
        self._prices = {each.model: each for each in prices}
        self._unpriced: dict[str, bool] = {}  # models without a price, and whether they were reported
        self.highest_nanos = 0  # of a token, times `PRICED_TOKENS`
        self._on_changed()

    def __bool__(self) -> bool:
        return bool(self._prices)

    @property
    def all(self) -> list[Price]:
        """Prices by model."""
        return [self._prices[each] for each in sorted(self._prices)]

    @property
    def unpriced_models(self) -> int:
        """Number of models that requests named and that have no price."""
        return len(self._unpriced)

    def put(self, price: Price) -> None:
        self._prices[price.model] = price
        self._on_changed()

    def replace(self, prices: Iterable[Price]) -> None:
        """Set all prices, and delete the others."""
        self._prices = {each.model: each for each in prices}
        self._on_changed()

    def delete(self, model: str) -> None:
        self._prices.pop(model, None)
        self._on_changed()

    def __contains__(self, model: str) -> bool:
        return model in self._prices

    def find(self, model: str) -> Price | None:
        """Return the price of a model, or the default price. A model without either costs nothing and is reported."""
        price = self._prices.get(model) or self._prices.get(DEFAULT_MODEL)
        if price is None and model not in self._unpriced and len(self._unpriced) < MAX_UNPRICED:
            self._unpriced[model] = False
        return price

    def percent_of(self, priority: "Priority.ValueType") -> int:
        """Return the percent of a price that requests of a class pay."""
        return self._batch_percent if priority == PRIORITY_BATCH else FULL_PERCENT

    def pop_unpriced(self) -> list[str]:
        """Return, once each, models without a price."""
        found = [model for model, is_reported in self._unpriced.items() if not is_reported]
        self._unpriced.update(dict.fromkeys(found, True))
        return found

    def _on_changed(self) -> None:
        if DEFAULT_MODEL in self._prices:
            self._unpriced.clear()
        self._unpriced = {model: told for model, told in self._unpriced.items() if model not in self._prices}
        highest = (max(each.input_nanos, each.output_nanos) for each in self._prices.values())
        self.highest_nanos = max(highest, default=0)
