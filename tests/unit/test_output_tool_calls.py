import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.edge.output.answer import Answer, AnswerParser, OutputFormat, call_id, parse_answer
from penstock.edge.output.events import CallArguments, CallBroken, CallFinished, CallStarted, ReasoningPart, TextPart
from penstock.edge.output.formats import BRACKETED_THINK, HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, THINK
from penstock.edge.request.tools import ToolCall

NAMES = frozenset({"f", "get_weather"})
FORMATS = [HERMES, LLAMA, MISTRAL, MISTRAL_NAMED]
CALL = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"a": "}\\""}}\n</tool_call>',
    "llama3": '{"name": "f", "parameters": {"a": "}\\""}}',
    "mistral": '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "}\\""}}]',
    "mistral-named": '[TOOL_CALLS]f[ARGS]{"a": "}\\""}',
}


def answer(tool_format, text):
    return parse_answer(OutputFormat(NAMES, tool_format), text, "a1")


def calls_of(found):
    return [(each.name, json.loads(each.arguments)) for each in found.calls]


def merged(output, pieces):
    """The events of a text in pieces; neighbouring texts and arguments are joined."""
    parser = AnswerParser(output)
    events = []
    for event in [each for piece in pieces for each in parser.feed(piece)] + parser.flush():
        last = events[-1] if events else None
        if isinstance(event, TextPart | ReasoningPart) and type(last) is type(event):
            events[-1] = type(event)(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            events[-1] = CallArguments(event.call_index, last.text + event.text)
        else:
            events.append(event)
    return events


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda each: each.name)
def test_a_call_has_its_name_and_its_arguments_as_they_were_written(tool_format):
    assert answer(tool_format, CALL[tool_format.name]) == Answer(
        "", calls=(ToolCall(call_id("a1", 0), "f", '{"a": "}\\""}'),)
    )


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        (HERMES, '<tool_call>{"name":"f","arguments":{}}</tool_call>\n<tool_call>{"name":"f","arguments":{}}'),
        (HERMES, '<tool_call>{"arguments": {}, "name": "f"}\n<tool_call>{"name": "f"}</tool_call>\n'),
        (LLAMA, '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "f", "parameters": {}}'),
        (LLAMA, '{"type": "function", "name": "f", "parameters": {}};{"name": "f", "parameters": "{}"}'),
        (MISTRAL, '[TOOL_CALLS][{"name":"f","arguments":{}},{"name":"f","arguments":{}, "id": "abcdefghi"}]'),
        (MISTRAL_NAMED, "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]f{}"),
        (MISTRAL_NAMED, "[TOOL_CALLS] f[CALL_ID]abcdefghi[ARGS]{} [TOOL_CALLS]f [ARGS] {}"),
    ],
)
def test_an_answer_may_have_several_calls_with_members_in_any_order(tool_format, text):
    found = answer(tool_format, text)
    assert (found.text, calls_of(found)) == ("", [("f", {}), ("f", {})])
    assert found.calls[0].id != found.calls[1].id


def test_text_around_a_call_is_kept_without_the_whitespace_before_the_call():
    found = answer(HERMES, f"Let me see.\n\n{CALL['hermes']}\nDone.\n")
    assert (found.text, len(found.calls)) == ("Let me see.\nDone.", 1)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": <b>}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 1',
        '<tool_call>{"name": "f", "arguments": {a: 1}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        "<tool_call>f(1)</tool_call>",
        " <tool_call> ",
        "<tool_call",
    ],
)
def test_malformed_calls_stay_text(text):
    assert answer(HERMES, f"Hm.{text}") == Answer(f"Hm.{text}")


@pytest.mark.parametrize(
    "text", ['{"answer": 42}', '{"name": "Ann", "parameters": {}} is it', "{", ' {"name": "f"', "a;b", "[1]"]
)
def test_json_that_is_no_call_stays_text_where_calls_need_no_marker(text):
    assert answer(LLAMA, text) == Answer(text)


@pytest.mark.parametrize(
    "text",
    [
        "[TOOL_CALLS]g[ARGS]{}",
        "[TOOL_CALLS]f[ARGS]{a}",
        "[TOOL_CALLS]f[ARGS][1]",
        "[TOOL_CALLS]f[ARGS]",
        "[TOOL_CALLS]" + "f" * 300 + "{}",
    ],
)
def test_malformed_calls_of_a_name_and_arguments_stay_text(text):
    assert answer(MISTRAL_NAMED, f"Hm.{text}") == Answer(f"Hm.{text}")


def test_a_valid_call_after_a_broken_one_is_found():
    broken = '<tool_call>{"name": "f", "arguments": {"a": '
    found = answer(HERMES, broken + CALL["hermes"])
    assert (found.text, len(found.calls)) == (broken, 1)


def test_a_started_call_that_breaks_is_reported_and_its_whole_text_follows():
    text = '<tool_call>{"name": "f", "arguments": {"a": oops}}</tool_call>'
    assert merged(OutputFormat(NAMES, HERMES), [text]) == [
        CallStarted(0, "f"),
        CallArguments(0, '{"a": oops}'),
        CallBroken(0),
        TextPart(text),
    ]


def test_arguments_are_passed_on_as_they_arrive_and_text_only_held_back_if_it_may_begin_a_call():
    parser = AnswerParser(OutputFormat(NAMES, HERMES))
    assert parser.feed("Hi <b") == [TextPart("Hi <b")]
    assert parser.feed(" <tool") == []
    assert parser.feed("box>") == [TextPart(" <toolbox>")]
    assert parser.feed('<tool_call>\n{"name": "get_weather", "arguments": ') == []
    assert parser.feed('{"city"') == [CallStarted(0, "get_weather"), CallArguments(0, '{"city"')]
    assert parser.feed(': "P') == [CallArguments(0, ': "P')]
    assert parser.feed('"}') == [CallArguments(0, '"}')]
    assert parser.feed("}\n</tool") == [CallFinished(0)]
    assert parser.feed("_call>") == parser.flush() == []


def test_one_call_is_found_if_no_parallel_calls_are_allowed():
    output = OutputFormat(NAMES, MISTRAL, max_calls=1)
    text = '[TOOL_CALLS][{"name":"f","arguments":{}},{"name":"f","arguments":{}}]'
    found = parse_answer(output, text, "a1")
    assert (found.text, len(found.calls)) == (',{"name":"f","arguments":{}}]', 1)


def test_ids_of_calls_depend_on_answer_and_index_only():
    assert call_id("a1", 0) == call_id("a1", 0) != call_id("a1", 1) != call_id("a2", 1)
    assert call_id("a1", 0).startswith("call_")


@pytest.mark.parametrize("reasoning", [THINK, BRACKETED_THINK], ids=["think", "bracketed"])
def test_reasoning_is_split_without_the_whitespace_around_its_markers(reasoning):
    text = f"\n{reasoning.begin}\nIt is\n2.\n{reasoning.end}\n\nTwo.\n"
    assert parse_answer(OutputFormat(reasoning=reasoning), text, "") == Answer("Two.\n", "It is\n2.")


def test_reasoning_that_the_prompt_opened_needs_no_marker_and_may_not_end():
    output = OutputFormat(reasoning=THINK, begins_in_reasoning=True)
    assert parse_answer(output, "It is 2.</think>Two.", "") == Answer("Two.", "It is 2.")
    assert parse_answer(output, "It is </th", "") == Answer("", "It is </th")


@pytest.mark.parametrize("text", ["", " \n", "Two.", " <thin", "Two <think>not</think>", "<b></think>"])
def test_an_answer_without_reasoning_is_all_content(text):
    assert parse_answer(OutputFormat(reasoning=THINK), text, "") == Answer(text)


def test_calls_within_reasoning_are_reasoning():
    output = OutputFormat(NAMES, HERMES, reasoning=THINK)
    found = parse_answer(output, f"<think>{CALL['hermes']}</think>{CALL['hermes']}", "")
    assert (found.reasoning, found.text, len(found.calls)) == (CALL["hermes"], "", 1)


PIECES = st.lists(
    st.sampled_from(
        [
            *(
                "<tool_call>",
                "</tool_call>",
                "<think>",
                "</think>",
                "[TOOL_CALLS]",
                "<|python_tag|>",
                "[",
                "]",
                ",",
                ";",
            ),
            *('{"name": "f", "arguments": ', '{"name": "f", "parameters": ', '{"x": "}\\"\\\\"}', "}", "{", '"', "\\"),
            *('"name": "f"', '"arguments": {}', " ", "\n", "a", "é", "<", "<tool", '{"arguments": {}, "name": "f"}'),
            *CALL.values(),
        ]
    ),
    max_size=14,
).map("".join)


@given(text=PIECES, cuts=st.lists(st.integers(0, 120)), tool_format=st.sampled_from(FORMATS), is_open=st.booleans())
@example(text='{"name": "f", "parameters": {"a": <tool_call>', cuts=[], tool_format=LLAMA, is_open=False)
def test_events_do_not_depend_on_how_the_text_is_divided(text, cuts, tool_format, is_open):
    output = OutputFormat(NAMES, tool_format, reasoning=THINK, begins_in_reasoning=is_open)
    bounds = [0, *sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    pieces = [text[begin:end] for begin, end in pairwise(bounds)]
    assert merged(output, pieces) == merged(output, [text]) == merged(output, list(text))


@given(text=PIECES, tool_format=st.sampled_from(FORMATS))
def test_text_without_calls_is_returned_byte_for_byte(text, tool_format):
    found = answer(tool_format, text)
    if not found.calls:
        assert found.text == text
    for call in found.calls:
        assert isinstance(json.loads(call.arguments), dict)


@given(text=st.text(), tool_format=st.sampled_from(FORMATS))
def test_any_other_text_is_content(text, tool_format):
    assert answer(tool_format, text) == Answer(text)
