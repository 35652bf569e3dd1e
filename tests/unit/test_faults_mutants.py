"""Fault worlds find each mutant, a bug that is patched into a tier's code, and find nothing without it."""

import pytest

from faults_mutants import HOME_MUTANTS, MUTANTS, PARTITION_MUTANTS, REGION_MUTANTS, RESPONSE_MUTANTS
from penstock.faults.run import run_plan

pytestmark = pytest.mark.usefixtures("_collect_finished_worlds")

# Seeds within which each planted bug is found. Most take one or two; the rarest shows in 1 % of the seeds.
MUTANT_SEED_COUNT = 400
# A seed that found each rare mutant. It is tried first, which saves many worlds as long as it still finds the mutant.
LIKELY_SEEDS = {
    "the_epoch_is_compared_before_the_transaction": 9,
    "the_state_is_read_before_the_partition_is_taken": 126,
    "a_lost_run_is_enqueued_at_the_tail": 20,
    "held_back_text_is_lost": 3,
    "a_resumed_answer_forgets_its_text": 14,
    "a_stalled_client_never_times_out": 12,
    "an_edge_mistakes_its_own_stall_for_an_auth_outage": 45,
    "credit_is_not_returned_with_a_decline": 17,
    "cleared_runs_continue_with_the_next_suspect": 167,
    "a_chunk_starts_lines_without_a_recent_confirmation": 52,
    "a_result_that_is_repeated_is_counted_again": 2,
    "an_edge_is_not_told_that_a_line_may_have_run": 4,
    "a_draining_edge_gives_back_a_line_that_it_has_charged": 5,
    "an_unanswered_offer_is_not_cancelled": 5,
    "a_lost_guest_is_not_continued_at_home": 1,
    "a_lowering_is_confirmed_before_it_is_stored": 23,
    "a_share_is_stored_after_its_partition_has_moved": 3,
    "a_share_is_added_to_the_former_one": 1,
    "a_report_adds_to_the_totals": 2,
    "a_report_is_forgotten_before_it_is_confirmed": 4,
    "a_former_holder_charges_what_the_next_one_charges": 7,
    "a_response_is_charged_before_the_store_has_its_end": 7,
    "a_keeper_ignores_that_its_lease_is_lost": 7,
}
SEEDS_WITHOUT_MUTATION = 6


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found_and_replays_exactly(name):
    mutant = MUTANTS[name]
    likely = LIKELY_SEEDS.get(name, 0)
    seeds = (likely, *(each for each in range(MUTANT_SEED_COUNT) if each != likely))
    with mutant.applied():
        seed = next((seed for seed in seeds if run_plan(mutant.plan(seed)).violations), None)
        assert seed is not None, f"{name} was not found"
        again = [run_plan(mutant.plan(seed)) for _ in range(2)]
    assert again[0].violations == again[1].violations != ()
    assert run_plan(mutant.plan(seed)).violations == ()


# Several mutants of shared limits have the same worlds.
HOME_WORLDS = {MUTANTS[each.__name__].mutate_plan: each for each in HOME_MUTANTS}
MUTANTS_WITH_WORLDS = (*PARTITION_MUTANTS, *RESPONSE_MUTANTS, *REGION_MUTANTS, *HOME_WORLDS.values())


@pytest.mark.parametrize("name", [each.__name__ for each in MUTANTS_WITH_WORLDS])
def test_the_worlds_of_a_mutant_pass_without_its_mutation(name):
    mutant = MUTANTS[name]
    for seed in range(SEEDS_WITHOUT_MUTATION):
        assert run_plan(mutant.plan(seed)).violations == ()
