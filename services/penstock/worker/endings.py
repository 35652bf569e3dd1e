"""What is told of runs that are over. Pure."""

from penstock.worker import refusals
from penstock.worker.effects import Effect, LeasesReleased, Outcome
from penstock.worker.engine.interface import Cancelled, Finished
from penstock.worker.run import Ending, Run


def outcome_of(run: Run, outcome: Finished | Cancelled) -> Outcome:
    """What a run's edge hears when the engine is done with it.

    The last tokens of a run that was to end were held back, so it has not finished, whatever the engine says.
    """
    if run.ending is Ending.DEADLINE:
        return refusals.too_late()
    if run.ending is Ending.REVOKED:
        return refusals.lease_revoked(run.lease_id)
    if run.ending and isinstance(outcome, Finished):  # it freed its blocks by itself, before the cancel got there
        return Cancelled(run.seq_id, outcome.output_tokens, 0)
    return outcome


def told_at_once(effects: list[Effect]) -> list[Effect]:
    """One frame tells the scheduler all leases that ended together."""
    released = [effect for effect in effects if isinstance(effect, LeasesReleased)]
    if not released:
        return effects
    others = [effect for effect in effects if not isinstance(effect, LeasesReleased)]
    lease_ids = tuple(each for effect in released for each in effect.lease_ids)
    return [*others, LeasesReleased(lease_ids, tuple(each for effect in released for each in effect.served))]
