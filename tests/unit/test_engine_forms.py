"""Outputs with a form on the real engine: valid, equal after a resume, and without harm to other sequences."""

import functools
import json
import random
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from penstock.edge.text.tokenizer import Tokenizer
from penstock.mesh.forms import JSON_OBJECT, Choices, JsonSchema, Lark, Regex
from penstock.worker.engine.batching.errors import StartInvalid
from penstock.worker.engine.interface import FinishReason, SamplingParams, SequenceSpec
from penstock.worker.engine.loaders.load_model import read_checkpoint
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.torch.build import build_torch_engine
from schemas import random_schema, random_schema_with_definitions
from tiny_model import EOS_ID, write_tiny_model

PROMPT = [40, 41, 42]
SCHEMAS, SEEDS, RESUMED = 200, 5, 500
TOGETHER = 32
MAX_TOKENS = 1_000


@functools.cache
def folder():
    kept = tempfile.TemporaryDirectory()
    return kept, write_tiny_model(Path(kept.name) / "tiny", context=2_048)


@functools.cache
def tokenizer():
    return Tokenizer(read_checkpoint(folder()[1], "tiny").card.tokenizer_json)


@pytest.fixture(scope="module")
def engine():
    return build_torch_engine(EngineOptions(model=str(folder()[1]), threads=1, slots=TOGETHER, kv_blocks=4_096))[0]


def spec(seq_id, form, *, seed=0, **fields):
    sampling = SamplingParams(temperature=1.0)
    fields = {"token_ids": PROMPT, "max_output_tokens": MAX_TOKENS, "sampling": sampling, "seed": seed} | fields
    return SequenceSpec(seq_id=seq_id, constraint=form, **fields)


class Outcomes:
    """What has become of the sequences of one engine."""

    def __init__(self):
        self.tokens, self.reasons, self.rejected, self.cancelled = {}, {}, {}, {}

    def record(self, result):
        for seq_id, token in zip(result.seq_ids, result.tokens, strict=True):
            self.tokens.setdefault(seq_id, []).append(token)
        self.reasons |= {each.seq_id: each.reason for each in result.finished}
        self.rejected |= {each.seq_id: each for each in result.rejected}
        self.cancelled |= {each.seq_id: each for each in result.cancelled}

    @property
    def ended(self):
        return len(self.reasons) + len(self.rejected) + len(self.cancelled)

    def text(self, seq_id):
        assert self.reasons[seq_id] is FinishReason.STOP
        ids = self.tokens[seq_id]
        return tokenizer().vocabulary.bytes_of(ids[:-1]).decode()


def run(engine, specs):
    outcomes, waiting = Outcomes(), list(reversed(specs))
    while waiting or engine.has_work:
        while waiting and len(specs) - len(waiting) - outcomes.ended < TOGETHER:
            engine.add(waiting.pop())
        outcomes.record(engine.step())
    return outcomes


def schemas(count):
    rng = random.Random(7)
    return [random_schema(rng) if number % 10 else random_schema_with_definitions(rng) for number in range(count)]


def test_every_output_is_valid_and_goes_on_exactly_after_a_resume(engine):
    made = schemas(SCHEMAS)
    specs = [
        spec(SEEDS * number + seed, JsonSchema(json.dumps(schema)), seed=seed)
        for number, schema in enumerate(made)
        for seed in range(SEEDS)
    ]
    calm = run(engine, specs)
    assert len(calm.reasons) == SCHEMAS * SEEDS
    for seq_id in calm.reasons:
        check = jsonschema.Draft202012Validator(made[seq_id // SEEDS], format_checker=jsonschema.FormatChecker())
        check.validate(json.loads(calm.text(seq_id)))

    rng = random.Random(8)
    resumed = []
    for each in rng.sample(specs, RESUMED):
        emitted = rng.randrange(len(calm.tokens[each.seq_id]))
        known = calm.tokens[each.seq_id][:emitted]
        ids, left = [*PROMPT, *known], MAX_TOKENS - emitted
        resumed.append(replace(each, token_ids=ids, emitted=emitted, max_output_tokens=left))
    after = run(engine, resumed)
    for each in resumed:
        known = list(each.token_ids[len(PROMPT) :])
        assert known + after.tokens[each.seq_id] == calm.tokens[each.seq_id]


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        (Regex("[A-Z]{2}-[0-9]{3}"), r"[A-Z]{2}-[0-9]{3}"),
        (Choices(("open", "closed", "größe")), "open|closed|größe"),
        (Lark('start: "f(" NUMBER ("," NUMBER)? ")"\nNUMBER: /[0-9]{1,3}/'), r"f\([0-9]{1,3}(,[0-9]{1,3})?\)"),
        (JSON_OBJECT, r"(?s)\{.*\}"),
    ],
)
def test_an_output_has_its_form(engine, form, pattern):
    greedy = SamplingParams(temperature=0.0)
    specs = [spec(seed, form, seed=seed, **({"sampling": greedy} if not seed else {})) for seed in range(1, 20)]
    outcomes = run(engine, specs)
    finished = [each for each, reason in outcomes.reasons.items() if reason is FinishReason.STOP]
    assert finished if form is JSON_OBJECT else len(finished) == len(specs)  # an object may be longer than the limit
    for seq_id in finished:
        assert re.fullmatch(pattern, outcomes.text(seq_id))


def test_sequences_without_a_form_are_not_changed_by_those_with_one(engine):
    free = [spec(number, None, seed=number, max_output_tokens=40) for number in range(4)]
    alone = run(engine, free).tokens
    formed = [spec(100 + number, JsonSchema(json.dumps(each)), seed=number) for number, each in enumerate(schemas(12))]
    together = run(engine, [*free, *formed]).tokens
    assert {number: together[number] for number in range(4)} == alone


def test_an_invalid_form_is_rejected_while_others_run(engine):
    schema = JsonSchema('{"type": "array", "uniqueItems": true}')
    outcomes = run(engine, [spec(1, schema), spec(2, None, max_output_tokens=8), spec(3, Regex("a{5}"))])
    assert outcomes.rejected[1].reason == "FORM_UNSUPPORTED"
    assert "uniqueItems" in outcomes.rejected[1].message
    assert outcomes.text(3) == "aaaaa"
    assert len(outcomes.tokens[2]) <= 8
    assert not engine.has_work


def test_a_resume_with_tokens_that_the_form_forbids_is_rejected(engine):
    outcomes = run(engine, [spec(1, Regex("a{5}"), token_ids=[*PROMPT, 60, 61], emitted=2)])
    assert outcomes.rejected[1].reason == "FORM_UNSUPPORTED"
    assert not engine.has_work


def test_a_sequence_is_cancelled_before_and_after_its_form_is_compiled(engine):
    for steps in (0, 3):
        blocks = engine.capacity().blocks_free
        engine.add(spec(1, Regex("[ab]{900}")))
        outcomes = Outcomes()
        while (not steps and not engine.cancel(1)) or (steps and len(outcomes.tokens.get(1, ())) < steps):
            outcomes.record(engine.step())
        assert steps == 0 or engine.cancel(1)
        while engine.has_work:
            outcomes.record(engine.step())
        assert outcomes.cancelled[1].output_tokens == len(outcomes.tokens.get(1, ()))
        assert engine.capacity().blocks_free == blocks


def test_a_form_without_an_end_is_refused(engine):
    with pytest.raises(StartInvalid, match="no id can end"):
        engine.add(spec(1, Regex("a"), ignore_eos=True))
    assert not engine.has_work


def test_further_stop_ids_end_an_output_where_its_form_may_end(engine):
    outcomes = run(engine, [spec(seed, Regex("a{3}"), seed=seed, stop_ids=frozenset({99})) for seed in range(20)])
    assert {ids[-1] for ids in outcomes.tokens.values()} <= {EOS_ID, 0, 99}
    assert all(outcomes.text(seed) == "aaa" for seed in range(20))
