"""Responses with several choices, each serialized by itself: several answers to a prompt, or a list of prompts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import orjson

from penstock.chassis.errors import PenstockError
from penstock.edge.api.openai.common import AnyDelta, ApiRequest, Json, ResponseSerializer, usage_of
from penstock.v1.inference_pb2 import Accepted, Delta, Finished, Usage


class ChoiceSerializer(ResponseSerializer, Protocol):
    """Serializes one choice of a response."""

    def close(self, usage: Json) -> bytes:
        """Return the end of a stream, after the last of its choices."""


NewSerializer = Callable[[ApiRequest], ChoiceSerializer]


class ChoicesSerializer:
    """Serializes the stream of a response with several choices."""

    def __init__(self, request: ApiRequest, new_serializer: NewSerializer) -> None:
        self._choices = [new_serializer(each) for each in choice_requests(request)]
        self._finished: list[Finished] = []

    @property
    def is_complete(self) -> bool:
        return len(self._finished) == len(self._choices)

    def begin(self, accepted: Sequence[Accepted]) -> bytes:
        """`accepted`: of each choice."""
        return b"".join([choice.begin(each) for choice, each in zip(self._choices, accepted, strict=True)])

    def delta(self, delta: Delta) -> bytes:
        return self._choices[delta.choice].delta(delta)

    def finish(self, finished: Finished) -> bytes:
        """Return the end of one choice, and after the last one that of the stream."""
        self._finished.append(finished)
        last = self._choices[finished.choice].finish(finished)
        return last + self._choices[0].close(_total_usage(self._finished)) if self.is_complete else last

    def fail(self, error: PenstockError) -> bytes:
        return self._choices[0].fail(error)


@dataclass(slots=True, eq=False)
class WholeChoice:
    """The events of one choice of a response that is sent as a whole."""

    deltas: list[AnyDelta] = field(default_factory=list)
    finished: Finished = field(default_factory=Finished)

    @property
    def text(self) -> str:
        return "".join([delta.text for delta in self.deltas])

    @property
    def mean_logprob(self) -> float:
        logprobs = [logprob for delta in self.deltas for logprob in delta.logprobs]
        return sum(logprobs) / max(1, len(logprobs))


def whole_response(
    request: ApiRequest, new_serializer: NewSerializer, accepted: Accepted, choices: Sequence[WholeChoice]
) -> bytes:
    """Return the body of a response: that of its first choice, with all choices that are returned.

    `choices`: all that were generated, prompt after prompt. All count in the usage.
    """
    returned = _best(choices, request.spec.n, request.answers)
    bodies = []
    for each, own in zip(returned, choice_requests(request), strict=True):
        serializer = new_serializer(own)
        if own.spec.logprobs:
            for delta in each.deltas:
                serializer.collect_logprobs(delta)
        bodies.append(orjson.loads(serializer.whole(accepted, each.text, each.finished)))
    found = [choice for body in bodies for choice in body["choices"]]
    usage = _total_usage([each.finished for each in choices])
    return orjson.dumps(bodies[0] | {"choices": found, "usage": usage})


def choice_requests(request: ApiRequest) -> list[ApiRequest]:
    """Return the request of each choice that is returned, prompt after prompt."""
    inputs = [each for each in request.inputs or (request.spec.input,) for _ in range(request.answers)]
    return [
        replace(request, spec=replace(request.spec, input=each), choice=index, is_one_of_several=True)
        for index, each in enumerate(inputs)
    ]


def _best(choices: Sequence[WholeChoice], generated: int, answers: int) -> list[WholeChoice]:
    """Return the `answers` choices of each prompt with the highest mean log probability per token, the best first."""
    if answers == generated:
        return list(choices)
    found: list[WholeChoice] = []
    for first in range(0, len(choices), generated):
        of_prompt = choices[first : first + generated]
        found += sorted(of_prompt, key=lambda choice: -choice.mean_logprob)[:answers]
    return found


def _total_usage(finished: Sequence[Finished]) -> Json:
    """Return the usage of all choices. That of each further choice of a prompt is without the prompt."""
    total = Usage()
    for each in finished:
        total.prompt_tokens += each.usage.prompt_tokens
        total.output_tokens += each.usage.output_tokens
        total.cached_prompt_tokens += each.usage.cached_prompt_tokens
    return usage_of(Finished(usage=total))
