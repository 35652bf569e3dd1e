"""The response object of `/v1/responses`, as it looks at each point of its life."""

from penstock.chassis.errors import InvalidArgument, Overloaded, PenstockError, QuotaExceeded
from penstock.edge.api.openai.common__edge_openai_answer import Json
from penstock.edge.api.openai.common__edge_openai_request import ApiRequest
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, Accepted, Finished


class ResponseObject:
    """One response: what was asked for, and so far as it is known what came of it.

    An answer cut off by the caller's own `max_output_tokens` is `incomplete`, as the API has it. One cut off by a limit
    that the caller did not set (the context, or this server's default) is `completed` with `incomplete_details` saying
    so: the official client's final-response call fails on anything but a completed one, which nobody expects who
    asked for no limit. Either way the message itself is `incomplete`.
    """

    __slots__ = ("_common", "_limit", "item_id")

    def __init__(self, request: ApiRequest, accepted: Accepted, created: int) -> None:
        spec = request.spec
        self._limit = spec.max_output_tokens
        self.item_id = f"msg_{accepted.request_id}"
        self._common: Json = {
            "id": f"resp_{accepted.request_id}",
            "object": "response",
            "created_at": created,
            "model": accepted.model,
            "instructions": request.instructions,
            "max_output_tokens": self._limit,
            "metadata": request.metadata,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": spec.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": spec.top_p,
            "truncation": "disabled",
            "user": None,
        }

    def in_progress(self) -> Json:
        return self._object("in_progress", [])

    def ended(self, text: str, finished: Finished) -> Json:
        is_cut = finished.reason == FINISH_REASON_LENGTH
        item = self.message("incomplete" if is_cut else "completed", [text_part(text)])
        made = self._object("incomplete" if is_cut and self._limit is not None else "completed", [item])
        details = {"reason": "max_output_tokens"} if is_cut else None
        return made | {"incomplete_details": details, "usage": _usage(finished)}

    def failed(self, text: str, error: PenstockError) -> Json:
        output = [self.message("incomplete", [text_part(text)])] if text else []
        return self._object("failed", output) | {"error": {"code": _error_code(error), "message": error.message}}

    def message(self, status: str, content: list[Json]) -> Json:
        return {"id": self.item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _object(self, status: str, output: list[Json]) -> Json:
        outcome = {"status": status, "output": output, "error": None, "incomplete_details": None, "usage": None}
        return self._common | outcome


def text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(finished: Finished) -> Json:
    spent = finished.usage
    return {
        "input_tokens": spent.prompt_tokens,
        "input_tokens_details": {"cached_tokens": spent.cached_prompt_tokens, "cache_write_tokens": 0},
        "output_tokens": spent.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": spent.prompt_tokens + spent.output_tokens,
    }


def _error_code(error: PenstockError) -> str:
    """The API's own closed list has three that can happen here."""
    if isinstance(error, QuotaExceeded | Overloaded):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, InvalidArgument) else "server_error"
