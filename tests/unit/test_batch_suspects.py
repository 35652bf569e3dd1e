"""Lines that were lost again and again: fewer of them run together the more often they were lost."""

import pytest

from penstock.batch.runner.suspects import FIRST_SUSPECT, Suspects


def joined(suspects, lost_runs, edge="edge"):
    """Add suspects until no more may join; return their number."""
    count = 0
    while suspects.may_join(edge, lost_runs):
        suspects.add(edge, lost_runs)
        count += 1
    return count


@pytest.mark.parametrize(("lost_runs", "together"), [(2, 16), (3, 4), (4, 1)])
def test_groups_are_smaller_after_each_loss(lost_runs, together):
    suspects = Suspects()
    assert joined(suspects, lost_runs) == together
    assert suspects.may_join("other", lost_runs)
    assert suspects.may_join("edge", FIRST_SUSPECT - 1)
    suspects.remove("edge", lost_runs)
    assert joined(suspects, lost_runs) == 1


def test_the_one_that_was_lost_most_often_decides_for_all():
    suspects = Suspects()
    suspects.add("edge", 2)
    assert not suspects.may_join("edge", 4)
    assert joined(suspects, 3) == 3
    assert not suspects.may_join("edge", 2)
