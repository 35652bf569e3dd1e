"""Required and named tools on the real engine: every draw makes valid calls."""

import functools
import json
import tempfile
from pathlib import Path

import pytest

from penstock.edge.output.answer import parse_answer
from penstock.edge.request.spec import ChatInput, Message
from penstock.edge.request.tools import Tool, ToolChoice, ToolMode
from penstock.edge.text.codec import codec_from
from penstock.mesh.form_grammar import check_form
from penstock.worker.engine.interface import FinishReason, SamplingParams, SequenceSpec
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.torch.build import build_torch_engine
from tiny_cards import tiny_card
from tiny_model import write_tiny_model

DRAWS = 500
TOGETHER = 32
MAX_TOKENS = 4_000  # 16 calls fit
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
    },
    "required": ["city", "unit"],
}
TOOLS = (Tool("get_weather", "Of a city.", json.dumps(SCHEMA), strict=True), Tool("stop"))


@pytest.fixture(scope="module")
def engine():
    with tempfile.TemporaryDirectory() as kept:
        folder = write_tiny_model(Path(kept) / "tiny", context=4_096)
        options = EngineOptions(model=str(folder), threads=1, slots=TOGETHER, kv_blocks=9_000)
        yield build_torch_engine(options)[0]


@functools.cache
def codec():
    return codec_from(tiny_card())


def texts_of(engine, chat):
    """The text of each draw."""
    form = codec().enforced_form(chat, None, can_enforce=True)
    check_form(form)
    waiting, tokens, reasons = list(range(DRAWS)), {}, {}
    while waiting or engine.has_work:
        while waiting and len(tokens) - len(reasons) < TOGETHER:
            seed = waiting.pop()
            tokens[seed] = []
            sampling = SamplingParams(temperature=1.0)
            engine.add(
                SequenceSpec(
                    seq_id=seed,
                    token_ids=[40, 41, 42],
                    max_output_tokens=MAX_TOKENS,
                    sampling=sampling,
                    seed=seed,
                    constraint=form,
                )
            )
        step = engine.step()
        for seq_id, token in zip(step.seq_ids, step.tokens, strict=True):
            tokens[seq_id].append(token)
        reasons |= {each.seq_id: each.reason for each in step.finished}
    assert set(reasons.values()) == {FinishReason.STOP}
    return [codec().tokenizer.vocabulary.bytes_of(ids).decode() for ids in tokens.values()]


def is_valid(call):
    arguments = json.loads(call.arguments)
    if call.name == "stop":
        return arguments == {}
    return (
        {"city", "unit"} <= arguments.keys() <= SCHEMA["properties"].keys()
        and len(arguments["city"]) <= 8
        and arguments["unit"] in ("C", "F")
        and 1 <= arguments.get("days", 1) <= 14
    )


@pytest.mark.parametrize(
    ("choice", "parallel", "most"),
    [
        (ToolChoice(ToolMode.REQUIRED), True, 16),
        (ToolChoice(ToolMode.REQUIRED), False, 1),
        (ToolChoice(ToolMode.NAMED, "get_weather"), True, 1),
    ],
    ids=["required", "required-one", "named"],
)
def test_every_draw_makes_valid_calls(engine, choice, parallel, most):
    chat = ChatInput((Message("user", "hi"),), TOOLS, choice, parallel_tool_calls=parallel)
    output = codec().output_format(chat, None)
    for text in texts_of(engine, chat):
        found = parse_answer(output, text, "a1")
        assert found.text == ""
        assert 1 <= len(found.calls) <= most
        assert all(map(is_valid, found.calls))
        assert choice.name in ("", found.calls[0].name)
