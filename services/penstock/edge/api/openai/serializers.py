"""The serializer of a response, by endpoint and by the format of its output."""

from penstock.edge.api.openai.chat import ChatSerializer
from penstock.edge.api.openai.choices import ChoiceSerializer
from penstock.edge.api.openai.common import ApiRequest, NumberedSerializer
from penstock.edge.api.openai.completions import CompletionSerializer
from penstock.edge.api.openai.responses.response import ResponsesSerializer
from penstock.edge.api.openai.responses.structured import StructuredResponsesSerializer
from penstock.edge.api.openai.structured_chat import StructuredChatSerializer
from penstock.edge.output.answer import OutputFormat
from penstock.edge.text.token_text import DescribeToken, no_text


def chat_serializer(
    request: ApiRequest, *, created: int, output: OutputFormat, describe: DescribeToken = no_text
) -> ChoiceSerializer:
    if output.is_plain:
        return ChatSerializer(request, created=created, describe=describe)
    return StructuredChatSerializer(request, output, created=created, describe=describe)


def responses_serializer(
    request: ApiRequest, *, created: int, output: OutputFormat, describe: DescribeToken = no_text
) -> NumberedSerializer:
    if output.is_plain:
        return ResponsesSerializer(request, created=created, describe=describe)
    return StructuredResponsesSerializer(request, output, created=created)


def completion_serializer(
    request: ApiRequest, *, created: int, output: OutputFormat, describe: DescribeToken = no_text
) -> ChoiceSerializer:
    """Return the serializer of a completion, whose text is passed on as it is."""
    assert output.is_plain, "only conversations have an output that is divided"
    return CompletionSerializer(request, created=created, describe=describe)
