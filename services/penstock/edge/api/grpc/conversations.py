"""Conversation of a message: its turns, tools and calls as values of the edge."""

from collections.abc import Mapping
from types import MappingProxyType

from penstock.chassis.errors import InvalidArgument
from penstock.edge.request import limits
from penstock.edge.request.spec import ChatInput, Message
from penstock.edge.request.tools import AUTO, Tool, ToolCall, ToolChoice, ToolMode
from penstock.v1 import inference_pb2 as pb

_MODES: Mapping["pb.ToolMode.ValueType", ToolMode] = MappingProxyType(
    {
        pb.TOOL_MODE_UNSPECIFIED: ToolMode.AUTO,
        pb.TOOL_MODE_AUTO: ToolMode.AUTO,
        pb.TOOL_MODE_NONE: ToolMode.NONE,
        pb.TOOL_MODE_REQUIRED: ToolMode.REQUIRED,
        pb.TOOL_MODE_NAMED: ToolMode.NAMED,
    }
)


def chat_of(chat: pb.Chat) -> ChatInput:
    """Return the conversation of a message. Raises InvalidArgument for too many calls, and for an unknown mode."""
    return ChatInput(
        tuple([_message(turn) for turn in chat.messages]),
        tuple([Tool(each.name, each.description, each.parameters, each.strict) for each in chat.tools]),
        _choice(chat.tool_choice) if chat.HasField("tool_choice") else AUTO,
        chat.parallel_tool_calls if chat.HasField("parallel_tool_calls") else True,
    )


def _message(turn: pb.Message) -> Message:
    if len(turn.tool_calls) > limits.TOOL_CALLS:  # before they are copied
        raise InvalidArgument(
            f"input has a message with {len(turn.tool_calls)} tool calls; at most {limits.TOOL_CALLS} are allowed",
            field="input",
        )
    calls = tuple([ToolCall(each.id, each.name, each.arguments) for each in turn.tool_calls])
    return Message(turn.role, turn.content, calls, turn.tool_call_id, turn.name, turn.reasoning)


def _choice(choice: pb.ToolChoice) -> ToolChoice:
    if choice.mode not in _MODES:
        allowed = ", ".join(pb.ToolMode.keys())
        raise InvalidArgument(
            f"chat.tool_choice.mode is {choice.mode}; allowed are {allowed}", field="chat.tool_choice.mode"
        )
    return ToolChoice(_MODES[choice.mode], choice.name)
