"""Formats in which models write tool calls and reasoning, and their detection in a chat template."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """Tool calls between markers: JSON objects with a name and arguments, or names followed by their arguments."""

    name: str
    begin: str  # marker before the first call
    end: str = ""  # marker after a call or a list of calls; models omit it at times
    list_open: str = ""  # follows `begin`
    separator: str = ""  # between the calls of one list
    arguments_key: str = "arguments"
    can_begin_bare: bool = False  # whether a call at the start of the answer needs no marker
    arguments_marker: str = ""  # between a name and its arguments, if a call is no JSON object; models omit it at times
    has_short_ids: bool = False  # whether templates demand ids of 9 letters and digits


# Hermes 2 and 3, Qwen 2.5 and 3, and every model whose template has no tools.
HERMES = ToolFormat("hermes", begin="<tool_call>", end="</tool_call>")
# Llama 3.1 and later.
LLAMA = ToolFormat("llama3", begin="<|python_tag|>", separator=";", arguments_key="parameters", can_begin_bare=True)
# Mistral models with tokenizers up to version 7, and later ones.
MISTRAL = ToolFormat("mistral", begin="[TOOL_CALLS]", list_open="[", separator=",", end="]", has_short_ids=True)
MISTRAL_NAMED = ToolFormat("mistral-named", begin="[TOOL_CALLS]", arguments_marker="[ARGS]", has_short_ids=True)
FORMATS = {each.name: each for each in (HERMES, LLAMA, MISTRAL, MISTRAL_NAMED)}


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning before the answer, between two markers."""

    begin: str
    end: str


THINK = ReasoningFormat("<think>", "</think>")
BRACKETED_THINK = ReasoningFormat("[THINK]", "[/THINK]")


def tool_format_of(chat_template: str) -> ToolFormat:
    """Return the format that a template teaches its model; Hermes if it teaches none that is known."""
    if MISTRAL.begin in chat_template:
        return MISTRAL_NAMED if MISTRAL_NAMED.arguments_marker in chat_template else MISTRAL
    if LLAMA.begin in chat_template or ("ipython" in chat_template and '"parameters"' in chat_template):
        return LLAMA
    return HERMES


def reasoning_format_of(chat_template: str) -> ReasoningFormat | None:
    """Return the format of the reasoning that a template removes from earlier turns, or opens; None if it has none."""
    for each in (THINK, BRACKETED_THINK):
        if each.begin in chat_template or each.end in chat_template:
            return each
    return None
