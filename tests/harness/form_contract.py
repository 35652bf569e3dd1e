"""The part of every engine's contract on forms of an output: valid, exact after a resume, and harmless to others.

An engine whose model has no end id enforces no form, and then `Subject.card` is None.
"""

import json
import re

import jsonschema

from engine_subject import PROMPT, SAMPLED, raised_error, tokens_of
from penstock.mesh.forms import FORM_UNSUPPORTED, Choices, JsonSchema, Lark, Regex
from penstock.worker.engine.batching.errors import StartInvalid
from penstock.worker.engine.interface import FinishReason, SamplingParams

MAX_TOKENS = 200
SEEDS = 4
SCHEMAS = (
    {"type": "integer", "minimum": -5, "maximum": 999},
    {"type": "array", "items": {"enum": ["open", "shut", None]}, "minItems": 2, "maxItems": 4},
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "on": {"type": "boolean"}, "at": {"const": 7}},
        "required": ["name", "on"],
        "additionalProperties": False,
    },
    {"anyOf": [{"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}, {"type": "number", "maximum": 1}]},
)
PATTERNS = (
    (Regex("[A-Z]{2}-[0-9]{3}"), r"[A-Z]{2}-[0-9]{3}"),
    (Choices(("open", "closed", "größe")), "open|closed|größe"),
    (Lark('start: "f(" NUMBER ("," NUMBER)? ")"\nNUMBER: /[0-9]{1,3}/'), r"f\([0-9]{1,3}(,[0-9]{1,3})?\)"),
)
INVALID = JsonSchema('{"type": "array", "uniqueItems": true}')
TOO_LARGE = Lark("start: " + " ".join(f"r{number}" for number in range(9_000)))
GROWING = Regex("(a{1,1000}){1000}")  # compiles, and becomes too complex after a few tokens


def add_formed(subject, form, **fields):
    return subject.add(constraint=form, **{"ignore_eos": False, "max_output_tokens": MAX_TOKENS} | fields)


def texts_of(subject, results):
    """The texts of all sequences that have ended by themselves, by sequence."""
    ended = [done.seq_id for each in results for done in each.finished if done.reason is FinishReason.STOP]
    return {seq_id: subject.decoded(tokens_of(results, seq_id)[:-1]) for seq_id in ended}


def every_output_has_its_form(subject):
    if not subject.card:
        return
    schemas = {
        add_formed(subject, JsonSchema(json.dumps(schema)), sampling=SAMPLED, seed=seed): schema
        for schema in SCHEMAS
        for seed in range(SEEDS)
    }
    patterns = {
        add_formed(subject, form, sampling=SAMPLED, seed=seed): pattern
        for form, pattern in PATTERNS
        for seed in range(SEEDS)
    }
    texts = texts_of(subject, subject.run_to_end())
    assert texts.keys() == schemas.keys() | patterns.keys()
    for seq_id, schema in schemas.items():
        jsonschema.Draft202012Validator(schema).validate(json.loads(texts[seq_id]))
    for seq_id, pattern in patterns.items():
        assert re.fullmatch(pattern, texts[seq_id])


def a_resumed_output_keeps_its_form(subject):
    """A greedy text continues identically. A sampled one does if draws resume, and is valid in any case."""
    if not subject.card:
        return
    for schema in SCHEMAS:
        form = JsonSchema(json.dumps(schema))
        for sampling in (SamplingParams(), SamplingParams(frequency_penalty=0.5), SAMPLED):
            [whole] = run_each(subject, [((), MAX_TOKENS)], form, sampling)
            cuts = range(1, len(whole), max(1, len(whole) // 4))
            rests = run_each(subject, [(whole[:cut], MAX_TOKENS - cut) for cut in cuts], form, sampling)
            for cut, rest in zip(cuts, rests, strict=True):
                if subject.resumes_draws or sampling is not SAMPLED:
                    assert rest == whole[cut:]
                text = subject.decoded([*whole[:cut], *rest[:-1]])
                jsonschema.Draft202012Validator(schema).validate(json.loads(text))


def run_each(subject, runs, form, sampling):
    """The tokens of runs of one request, each given as the tokens that earlier runs emitted and its own limit."""
    ids = [
        add_formed(
            subject,
            form,
            prompt=[*PROMPT, *known],
            emitted=len(known),
            max_output_tokens=limit,
            seed=5,
            sampling=sampling,
        )
        for known, limit in runs
    ]
    results = subject.run_to_end()
    return [tokens_of(results, seq_id) for seq_id in ids]


def forms_change_no_other_output(subject):
    if not subject.card:
        return
    alone = subject.text(max_output_tokens=30)
    free = subject.add(max_output_tokens=30)
    for schema in SCHEMAS[:2]:
        add_formed(subject, JsonSchema(json.dumps(schema)))
    assert tokens_of(subject.run_to_end(), free) == alone


def a_form_that_cannot_be_enforced_is_rejected_alone(subject):
    if not subject.card:
        return
    idle = subject.engine.capacity()
    forbidden = [*PROMPT, 60, 61]
    hostile = [add_formed(subject, form) for form in (INVALID, TOO_LARGE, GROWING)]
    hostile.append(add_formed(subject, Regex("a{5}"), prompt=forbidden, emitted=2))
    free, formed = subject.add(max_output_tokens=30), add_formed(subject, Regex("b{5}"))
    results = subject.run_to_end()
    rejected = {each.seq_id: each for result in results for each in result.rejected}
    assert sorted(rejected) == hostile
    assert {each.reason for each in rejected.values()} == {FORM_UNSUPPORTED}
    assert "uniqueItems" in rejected[hostile[0]].message
    assert {done.seq_id for each in results for done in each.finished} == {free, formed}
    assert len(tokens_of(results, free)) == 30
    assert texts_of(subject, results) == {formed: "bbbbb"}
    after = subject.engine.capacity()
    assert (after.blocks_free, after.slots_free, after.blocks_promised) == (idle.blocks_free, idle.slots_free, 0)


def a_form_is_cancelled_while_it_compiles_and_while_it_runs(subject):
    if not subject.card:
        return
    idle = subject.engine.capacity()
    compiling = add_formed(subject, Regex("[ab]{150}"))
    assert subject.engine.cancel(compiling)
    assert not subject.engine.cancel(compiling)
    running, results = add_formed(subject, Regex("[ab]{150}")), []
    while len(tokens_of(results, running)) < 3:
        results.append(subject.engine.step())
    assert subject.engine.cancel(running)
    results += subject.run_to_end()
    receipts = {each.seq_id: each for result in results for each in result.cancelled}
    assert {seq_id: each.output_tokens for seq_id, each in receipts.items()} == {compiling: 0, running: 3}
    assert (receipts[compiling].blocks_freed, receipts[running].blocks_freed >= 1) == (0, True)
    assert subject.engine.capacity().blocks_free == idle.blocks_free


def a_form_without_an_end_is_refused(subject):
    if not subject.card:
        return
    raised_error(lambda: add_formed(subject, Regex("a"), ignore_eos=True), StartInvalid)
    assert not subject.engine.has_work


FORM_CONTRACT = (
    every_output_has_its_form,
    a_resumed_output_keeps_its_form,
    forms_change_no_other_output,
    a_form_that_cannot_be_enforced_is_rejected_alone,
    a_form_is_cancelled_while_it_compiles_and_while_it_runs,
    a_form_without_an_end_is_refused,
)
