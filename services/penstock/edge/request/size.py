"""Size of a request: the approximate bytes that its spec holds."""

from penstock.edge.request.spec import ChatInput, Prompt, RequestSpec, TextInput

BYTES_PER_PYTHON_ID = 36  # of a Python int in a tuple, as in `RequestSpec`


def spec_bytes(spec: RequestSpec) -> int:
    return prompt_bytes(spec.input) + BYTES_PER_PYTHON_ID * len(spec.resume_ids)


def prompt_bytes(prompt: Prompt) -> int:
    match prompt:
        case TextInput(text):
            return len(text)
        case ChatInput(messages, tools):
            size = sum(len(message.role) + len(message.content) for message in messages)
            size += sum(len(call.arguments) for message in messages for call in message.tool_calls)
            return size + sum(len(tool.description) + len(tool.parameters) for tool in tools)
        case _:
            return BYTES_PER_PYTHON_ID * len(prompt.ids)
