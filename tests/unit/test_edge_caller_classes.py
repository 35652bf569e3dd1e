"""The cache of a session's caller classes."""

from penstock.edge.admission.filter import CALLER_CLASS_TTL_S, CallerClass, CallerClassCache
from penstock.edge.admission.rejection_cache import TrafficClass

STANDARD_CLASS = CallerClass(TrafficClass("anna", "m", 2), "key-1", 512)
BATCH_CLASS = CallerClass(TrafficClass("anna", "m", 3), "key-1", 512)


def recording(answers):
    """Return a function that computes caller classes, and its calls."""
    calls = []

    def compute():
        calls.append(None)
        return answers[len(calls) - 1]

    return compute, calls


def test_a_caller_class_is_cached_for_its_ttl():
    cache = CallerClassCache()
    compute, calls = recording([STANDARD_CLASS, BATCH_CLASS])
    found = [
        cache.find(0, "m", at, compute) for at in (10.0, 10.0 + 0.9 * CALLER_CLASS_TTL_S, 10.0 + CALLER_CLASS_TTL_S)
    ]
    assert (found, len(calls)) == ([STANDARD_CLASS, STANDARD_CLASS, BATCH_CLASS], 2)


def test_caller_classes_are_separate_by_priority_and_model():
    cache = CallerClassCache()
    compute, calls = recording([STANDARD_CLASS, BATCH_CLASS, STANDARD_CLASS])
    assert [cache.find(*each, 10.0, compute) for each in ((0, "m"), (3, "m"), (0, ""))] == [
        STANDARD_CLASS,
        BATCH_CLASS,
        STANDARD_CLASS,
    ]
    assert len(calls) == 3


def test_an_unknown_caller_is_not_cached():
    cache = CallerClassCache()
    compute, calls = recording([None, STANDARD_CLASS])
    assert [cache.find(0, "m", 10.0, compute) for _ in range(2)] == [None, STANDARD_CLASS]
    assert len(calls) == 2
