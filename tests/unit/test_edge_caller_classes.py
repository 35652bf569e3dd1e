"""The cache of a session's caller classes."""

from penstock.edge.admission.filter import CALLER_CLASS_TTL_S, CallerClass, CallerClassCache
from penstock.edge.admission.rejection_cache import TrafficClass

ANNA = CallerClass(TrafficClass("anna", "m", 2), "key-1", 512)
BATCH = CallerClass(TrafficClass("anna", "m", 3), "key-1", 512)


def asking(answers):
    """Return a function that computes caller classes, and its calls."""
    asked = []

    def work_out():
        asked.append(None)
        return answers[len(asked) - 1]

    return work_out, asked


def test_a_caller_class_is_cached_for_its_ttl():
    found = CallerClassCache()
    work_out, asked = asking([ANNA, BATCH])
    told = [
        found.find(0, "m", at, work_out) for at in (10.0, 10.0 + 0.9 * CALLER_CLASS_TTL_S, 10.0 + CALLER_CLASS_TTL_S)
    ]
    assert (told, len(asked)) == ([ANNA, ANNA, BATCH], 2)


def test_caller_classes_are_separate_by_priority_and_model():
    found = CallerClassCache()
    work_out, asked = asking([ANNA, BATCH, ANNA])
    assert [found.find(*each, 10.0, work_out) for each in ((0, "m"), (3, "m"), (0, ""))] == [ANNA, BATCH, ANNA]
    assert len(asked) == 3


def test_an_unknown_caller_is_not_cached():
    found = CallerClassCache()
    work_out, asked = asking([None, ANNA])
    assert [found.find(0, "m", 10.0, work_out) for _ in range(2)] == [None, ANNA]
    assert len(asked) == 2
