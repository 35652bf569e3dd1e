"""Chat template of a model: renders a conversation to the text of the prompt."""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from penstock.chassis.errors import InvalidArgument
from penstock.edge.output.formats import reasoning_format_of, tool_format_of
from penstock.edge.request import limits
from penstock.edge.request.spec import Message
from penstock.edge.request.tools import Tool
from penstock.edge.text.errors import ModelTextUnusable, TemplateRefused
from penstock.edge.text.escaping import Escape, escaped_tool, escaped_turn
from penstock.edge.text.tool_prompt import Turn, plain_turns, to_json, tool_variable, turn_variables

_TOOLS = re.compile(r"\btools\b")  # the variable of templates that render tools themselves

# For a model without a chat format, which continues a plain transcript.
DEFAULT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


class ChatTemplate:
    """Renders templates in jinja2 with the settings of Hugging Face, for which model authors write them.

    A template is a program that comes with a model, so it runs in a sandbox: it cannot access Python's internals,
    change its arguments, or loop over a huge range. Rendering has no state, so threads may share an instance.
    """

    __slots__ = ("_bos_token", "_eos_token", "_knows_tools", "_template", "opens_reasoning", "reasoning", "tool_format")

    def __init__(self, source: str = "", *, bos_token: str = "", eos_token: str = "") -> None:
        """Parse a template. An empty `source` means a plain transcript. Raises ModelTextUnusable."""
        try:
            self._template = _ENVIRONMENT.from_string(source or DEFAULT_TEMPLATE)
        except (TemplateError, RecursionError) as error:
            raise ModelTextUnusable(f"the model's chat template does not parse: {error}") from error
        self._bos_token, self._eos_token = bos_token, eos_token
        self._knows_tools = _TOOLS.search(source) is not None
        self.tool_format = tool_format_of(source)
        self.reasoning = reasoning_format_of(source)
        self.opens_reasoning = self.reasoning is not None and self._ends_with(self.reasoning.begin)

    def render(
        self,
        messages: Sequence[Message],
        now: datetime,
        *,
        tools: Sequence[Tool] = (),
        escape: Escape = str,
        add_generation_prompt: bool = True,
    ) -> str:
        """Return the text of the conversation up to the assistant's next turn. Raises TemplateRefused.

        `escape` is applied to all texts of the caller. A template that knows no tools gets their descriptions, calls
        and results as plain text.
        """
        tools = [escaped_tool(tool, escape) for tool in tools]
        chunks = self._template.generate(
            messages=self._turns(messages, tools, escape),
            add_generation_prompt=add_generation_prompt,
            bos_token=self._bos_token,
            eos_token=self._eos_token,
            strftime_now=now.strftime,
            **({"tools": [tool_variable(tool) for tool in tools]} if tools and self._knows_tools else {}),
        )
        try:
            return _joined(chunks)
        except InvalidArgument:
            raise
        except Exception as error:  # a template is a program and may raise any error
            raise TemplateRefused(
                f"the model's chat template failed on these messages ({error}); other roles may work, "
                "or render the prompt yourself and send it as text",
                field="messages",
            ) from error

    def _turns(self, messages: Sequence[Message], tools: Sequence[Tool], escape: Escape) -> list[Turn]:
        if not tools and all(message.is_plain for message in messages):
            return [{"role": escape(message.role), "content": escape(message.content)} for message in messages]
        escaped = [escaped_turn(message, escape) for message in messages]
        if self._knows_tools:
            return turn_variables(escaped, has_short_ids=self.tool_format.has_short_ids)
        return plain_turns(escaped, tools)

    def _ends_with(self, marker: str) -> bool:
        """Return whether the text of a short conversation ends with `marker`, so that the answer begins behind it."""
        try:
            return self.render((Message("user", "hi"),), datetime.now(UTC)).rstrip().endswith(marker)
        except TemplateRefused:
            return False


def _joined(chunks: Iterable[str]) -> str:
    parts, size = [], 0
    for chunk in chunks:
        size += len(chunk)
        if size > limits.RENDERED_BYTES:
            raise TemplateRefused(
                f"the chat template renders these messages to more than {limits.RENDERED_BYTES} characters; send fewer",
                field="messages",
            )
        parts.append(chunk)
    return "".join(parts)


class _GenerationBlock(Extension):
    """The block `{% generation %}` marks the assistant's text for training. It has no effect here."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefused(
        f"the model's chat template rejects these messages: {message}; change their roles or order", field="messages"
    )


def _environment() -> ImmutableSandboxedEnvironment:
    # Without HTML escapes, because the output goes to a tokenizer.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


_ENVIRONMENT = _environment()
