"""Which order a shard keeps, put together from its settings."""

from dataclasses import dataclass
from enum import StrEnum

from penstock.queue.policies.classes import Classes
from penstock.queue.policies.line import Line, Together
from penstock.queue.policies.ranks import EarliestDeadline, Rank, TokenAware, Within, fifo
from penstock.queue.policies.tenants import FairTenants


class Between(StrEnum):
    """What decides between tenants of one class."""

    FAIR = "fair"  # virtual token counters
    NONE = "none"  # one line for all


@dataclass(frozen=True, slots=True)
class Choice:
    """Makes the order of each model."""

    between: Between = Between.FAIR
    within: Within = Within.FIFO
    class_floor: float = 0.05  # of the tokens served while a lower class waits that are its own
    burst: float = 0.0  # weighted tokens; tenants come apart by as much, and a quiet one waits little less
    ageing_rate: float = 200.0  # tokens per s, for token_aware
    ageing_bound: float = 10.0  # s, for token_aware
    default_deadline: float = 30.0  # s, for deadline

    def __call__(self) -> Classes:
        return Classes(self._new_line, self.class_floor)

    def _new_line(self) -> Line:
        return FairTenants(self._rank, self.burst) if self.between is Between.FAIR else Together(self._rank)

    @property
    def _rank(self) -> Rank:
        match self.within:
            case Within.TOKEN_AWARE:
                return TokenAware(self.ageing_rate, self.ageing_bound)
            case Within.DEADLINE:
                return EarliestDeadline(self.default_deadline)
            case _:
                return fifo
