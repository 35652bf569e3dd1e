"""Ranks and prefixes by plain calls, each against the naive way to know the same."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.scheduler.prefixes import PrefixIndex
from penstock.scheduler.ranking import VISITS, Ranking

NAMES = [f"w{number}" for number in range(9)]
puts = st.tuples(st.sampled_from(NAMES), st.integers(0, 4), st.integers(0, 4))
takes = st.sampled_from(NAMES)


@given(changes=st.lists(st.one_of(puts, takes), max_size=40), room=st.integers(0, 4))
def test_a_search_finds_all_that_have_room_least_load_first(changes, room):
    ranking, known = Ranking(), {}
    for change in changes:
        if isinstance(change, tuple):
            name, load, has = change
            ranking.put(name, load, has)
            known[name] = (load, name, has)
        elif known.pop(change, None):
            ranking.remove(change)
    wanted = [name for load, name, has in sorted(known.values()) if has >= room]
    assert list(ranking.search(room)) == wanted
    assert ranking.most_room == max((has for _, _, has in known.values()), default=0)
    assert len(ranking) == len(known)


def test_a_search_ends_after_a_bounded_number_of_steps_with_whoever_has_most_room():
    ranking = Ranking()
    for number in range(4 * VISITS):
        ranking.put(f"low-{number:04}", 0.0, 10)
    ranking.put("roomy", 9.0, 11)
    found = list(ranking.search(5))
    assert len(found) < VISITS
    assert found[-1] == "roomy"


@given(
    changes=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 6), st.booleans()), max_size=20),
    lost=st.sets(st.sampled_from("abc")),
)
def test_the_index_knows_who_holds_how_much_of_a_prompt(changes, lost):
    """A worker's cache holds a chain from its beginning on, at any time."""
    prompt, index, depths = list(range(100, 106)), PrefixIndex(), dict.fromkeys("abc", 0)
    for worker, depth, anew in changes:
        before, now = set(prompt[: depths[worker]]), set(prompt[:depth])
        if anew:
            index.change(worker, now, (), anew=True)
        else:
            index.change(worker, now - before, before - now, anew=False)
        depths[worker] = depth
    for worker in lost:
        index.forget(worker)
        depths[worker] = 0
    deepest = max(depths.values())
    assert set(index.longest(prompt)) == {worker for worker, depth in depths.items() if depth == deepest > 0}
    assert {worker: index.blocks(worker, prompt) for worker in "abc"} == {w: min(d, 6) for w, d in depths.items()}
    assert len(index) == min(deepest, 6)


def test_a_prompt_that_nobody_knows_has_no_holders():
    assert not PrefixIndex().longest([])
    assert not PrefixIndex().longest([1, 2])
    assert PrefixIndex().blocks("w", [1]) == 0
