"""Whose chunks are claimed next: tenants alike, batches at risk first, short batches beside long ones."""

from penstock.batch.jobs.claims import RunningBatch, shares


def batch(number, tenant="acme", *, lines=1_000, seconds=1_000.0, pace=10.0, held=0):
    return RunningBatch(number, tenant, lines, seconds, pace, held)


def test_tenants_have_as_many_chunks_at_work_whatever_their_batches_are():
    running = [batch(1), batch(2), batch(3), batch(4, "globex", lines=10), batch(5, "initech", held=3)]
    added = shares(running, 5)
    assert sum(added.values()) == 5
    assert (added[4], added.get(5, 0)) == (2, 0)  # initech has 3
    assert [added.get(each, 0) for each in (1, 2, 3)] == [1, 1, 1]


def test_a_batch_at_risk_goes_first_and_the_most_urgent_one_before():
    calm, late = batch(1, seconds=5_000.0), batch(2, lines=50_000)
    later = batch(3, lines=50_000, seconds=500.0, held=9)
    assert shares([calm, late], 4) == {2: 4}
    assert shares([calm, late, later], 4) == {3: 4}


def test_a_short_batch_need_not_wait_for_a_long_one():
    long = batch(1, lines=1_000_000, seconds=900.0, pace=2_000.0, held=2)
    assert shares([long, batch(2, lines=10)], 3) == {2: 2, 1: 1}


def test_of_batches_alike_the_one_whose_window_ends_first_is_next():
    assert shares([batch(1, seconds=900.0), batch(2, seconds=800.0)], 1) == {2: 1}


def test_a_batch_without_a_result_is_not_at_risk_but_has_its_turn():
    new = batch(1, lines=1_000_000, seconds=10.0, pace=0.0)
    assert not new.is_at_risk
    assert shares([batch(2, held=1), new], 1) == {1: 1}


def test_a_window_that_has_ended_has_a_finite_urgency():
    assert batch(1, seconds=-5.0).urgency == 1_000.0


def test_nothing_is_claimed_without_a_batch():
    assert shares([], 4) == {}
