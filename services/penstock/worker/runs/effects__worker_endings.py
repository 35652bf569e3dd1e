"""What is told of runs that are over. Pure."""

from penstock.worker.engine.interface import SequenceCancelled, SequenceFinished
from penstock.worker.runs import errors
from penstock.worker.runs.effects__worker_effects import Effect, LeasesReleased, RunOutcome
from penstock.worker.runs.run import Run, StopReason


def outcome_of(run: Run, outcome: SequenceFinished | SequenceCancelled) -> RunOutcome:
    """What a run's edge hears when the engine is done with it.

    The last tokens of a run that was to end were held back, so it has not finished, whatever the engine says.
    """
    if run.stop_reason is StopReason.DEADLINE:
        return errors.deadline_passed()
    if run.stop_reason is StopReason.REVOKED:
        return errors.lease_revoked(run.lease_id)
    if run.stop_reason and isinstance(
        outcome, SequenceFinished
    ):  # it freed its blocks by itself, before the cancel got there
        return SequenceCancelled(run.seq_id, outcome.output_tokens, 0)
    return outcome


def merge_releases(effects: list[Effect]) -> list[Effect]:
    """One frame tells the scheduler all leases that ended together."""
    released = [effect for effect in effects if isinstance(effect, LeasesReleased)]
    if not released:
        return effects
    others = [effect for effect in effects if not isinstance(effect, LeasesReleased)]
    lease_ids = tuple(each for effect in released for each in effect.lease_ids)
    return [*others, LeasesReleased(lease_ids, tuple(each for effect in released for each in effect.progress))]
