"""Metrics of requests: each request is counted once, with its tokens and its times."""

import math
from types import SimpleNamespace
from uuid import uuid4

import pytest

from penstock.chassis.observability.metrics import REGISTRY
from penstock.edge.lifecycle.observability.request_metrics import record_answer_resumed, record_ended, record_refused
from penstock.edge.series import REQUEST_DURATION, REQUESTS, RESUMES, TIME_PER_OUTPUT_TOKEN, TIME_TO_FIRST_TOKEN, TOKENS
from penstock.v1.inference_pb2 import PRIORITY_BATCH


@pytest.fixture
def model():
    """A model whose series no other test has."""
    return f"model {uuid4().hex}"


def ended(model, **changes):
    facts = {
        "identity": SimpleNamespace(tenant_id="acme", priority=PRIORITY_BATCH),
        "model": model,
        "outcome": "stop",
        "worker_id": "w1",
        "attempt": 1,
        "arrived_at": 10.0,
        "first_token_at": 10.5,
        "last_token_at": 11.5,
        "output_tokens": 11,
        "cached_prompt_tokens": 16,
        "charged_prompt_tokens": 40,
    }
    return SimpleNamespace(**facts | changes)


def value(series, suffix="", **labels):
    name = f"{series.family}{suffix}" if suffix else series.prometheus_name
    return REGISTRY.get_sample_value(name, labels)


def total(series, model, suffix=""):
    """Return the sum over all label sets of a model."""
    name = f"{series.family}{suffix}" if suffix else series.prometheus_name
    families = (family for family in REGISTRY.collect() if family.name == series.family)
    samples = (sample for family in families for sample in family.samples if sample.name == name)
    return sum(sample.value for sample in samples if model in sample.labels.values())


CALLER = {"class": "batch", "tenant": "acme"}


def test_an_answer_counts_once_with_its_tokens_and_times(model):
    record_ended(ended(model), "chat", "", 12.0)
    assert value(REQUESTS, model=model, **CALLER, outcome="stop", reason="") == 1
    assert total(REQUESTS, model) == 1
    tokens = {kind: value(TOKENS, model=model, **CALLER, type=kind) for kind in ("input", "cached_input", "output")}
    assert tokens == {"input": 24, "cached_input": 16, "output": 11}
    assert total(REQUEST_DURATION, model, "_sum") == pytest.approx(2.0)
    assert total(TIME_TO_FIRST_TOKEN, model, "_sum") == pytest.approx(0.5)
    assert total(TIME_PER_OUTPUT_TOKEN, model, "_sum") == pytest.approx(0.1)


def test_a_failed_request_has_a_reason_and_no_time_of_a_first_token(model):
    record_ended(ended(model, outcome="failed"), "chat", "DEADLINE_EXCEEDED", 12.0)
    assert value(REQUESTS, model=model, **CALLER, outcome="failed", reason="DEADLINE_EXCEEDED") == 1
    assert total(REQUEST_DURATION, model, "_count") == 1
    assert total(TIME_TO_FIRST_TOKEN, model, "_count") == 0
    assert total(TOKENS, model) == 51, "it ran, and its tokens were computed"


def test_a_request_that_never_ran_has_no_tokens(model):
    never = {"worker_id": "", "first_token_at": math.nan, "last_token_at": math.nan, "output_tokens": 0}
    record_ended(ended(model, outcome="shed", **never), "chat", "QUEUE_FULL", 12.0)
    assert total(REQUESTS, model) == 1
    assert total(TOKENS, model) == 0


def test_a_request_that_was_refused_before_it_was_active_counts_once(model):
    record_refused(model, PRIORITY_BATCH, "acme", "EDGE_FULL")
    assert value(REQUESTS, model=model, **CALLER, outcome="shed", reason="EDGE_FULL") == 1
    assert total(REQUESTS, model) == 1


def test_runs_that_were_lost_and_answers_that_were_resumed_are_counted_apart(model):
    record_ended(ended(model, attempt=3), "chat", "", 12.0)
    record_answer_resumed(model)
    assert value(RESUMES, model=model, kind="run") == 2
    assert value(RESUMES, model=model, kind="answer") == 1


def test_cached_tokens_are_at_most_those_charged(model):
    record_ended(ended(model, cached_prompt_tokens=16, charged_prompt_tokens=0), "chat", "", 12.0)  # a further choice
    assert value(TOKENS, model=model, **CALLER, type="input") == 0
    assert value(TOKENS, model=model, **CALLER, type="cached_input") == 0
