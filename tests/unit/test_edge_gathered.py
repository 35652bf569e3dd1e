"""What one client's leaving costs auth is said at once; what a crowd's costs is said together."""

from clockwork import Clockwork
from penstock.edge.links.gathered import PAUSE, Gathered


def gathering():
    said, clockwork = [], Clockwork()
    return said, clockwork, Gathered(lambda frame: said.append((clockwork.now, frame)), clockwork)


def test_one_alone_is_said_at_once():
    said, clockwork, gathered = gathering()
    gathered.put("a")
    assert said == [(0.0, "a")]
    while clockwork.fire():
        pass
    gathered.put("b")
    assert said == [(0.0, "a"), (PAUSE, "b")]


def test_those_that_follow_closely_are_said_together_and_in_order():
    said, clockwork, gathered = gathering()
    for frame in "abcd":
        gathered.put(frame)
    clockwork.fire()
    gathered.put("e")
    clockwork.fire()
    assert said == [(0.0, "a"), *((PAUSE, each) for each in "bcd"), (2 * PAUSE, "e")]
    clockwork.fire()
    assert not clockwork.fire()


def test_what_must_not_be_overtaken_is_said_when_asked_and_once():
    said, clockwork, gathered = gathering()
    for frame in "abc":
        gathered.put(frame)
    gathered.release()
    assert [frame for _, frame in said] == ["a", "b", "c"]
    while clockwork.fire():
        pass
    assert len(said) == 3


def test_what_was_said_by_other_means_is_not_said_again():
    said, clockwork, gathered = gathering()
    gathered.put("a")
    gathered.put("b")
    gathered.forget()
    while clockwork.fire():
        pass
    assert said == [(0.0, "a")]


def test_nothing_comes_once_it_is_closed():
    said, clockwork, gathered = gathering()
    gathered.put("a")
    gathered.put("b")
    gathered.close()
    assert not clockwork.fire()
    assert said == [(0.0, "a")]
