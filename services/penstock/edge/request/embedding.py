"""A call for embeddings: its inputs, common to all APIs. `validate_call` checks the public limits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.chassis.errors import InvalidArgument
from penstock.edge.request import limits
from penstock.edge.request.spec import RequestSpec, TextInput, TokenInput
from penstock.edge.request.validation import input_violations, validate
from penstock.v1.failure_pb2 import FieldViolation
from penstock.v1.inference_pb2 import Priority


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingCall:
    """Inputs that are embedded by one version of a model."""

    request_id: str
    model: str  # empty: the only served model
    inputs: tuple[TextInput | TokenInput, ...]
    dimensions: int | None = None  # numbers of each vector; None: as many as the model has
    timeout_s: float | None = None  # s from arrival to the last vector; None: the edge's default
    priority: Priority.ValueType = Priority.PRIORITY_UNSPECIFIED
    answer_id: str = ""  # chosen by the caller; empty: each request names its own
    is_first_run: bool = False  # of `answer_id`

    def spec_of(self, index: int, model: str, model_version: str) -> RequestSpec:
        """Return the request for one input. Queue and quota count the one token that each run may make at most."""
        return RequestSpec(
            request_id=self.request_id,
            model=model,
            input=self.inputs[index],
            temperature=0.0,
            seed=0,
            max_output_tokens=1,
            timeout_s=self.timeout_s,
            priority=self.priority,
            model_version=model_version,
            embeds=True,
            answer_id=f"{self.answer_id}-{index}" if self.answer_id else "",
            is_first_run=self.is_first_run,
        )


def validate_call(call: EmbeddingCall, field_names: Mapping[str, str]) -> None:
    """Raise InvalidArgument with the violations. `field_names` maps fields of the call to names of the caller's API."""
    found = [(field_names.get(field, field) + index, wrong) for field, index, wrong in _violations(call)]
    if found:
        raise InvalidArgument(
            "; ".join(f"{field} {wrong}" for field, wrong in found),
            field_violations=[FieldViolation(field=field, description=wrong) for field, wrong in found],
        )
    validate(call.spec_of(0, call.model, ""), field_names)


def _violations(call: EmbeddingCall) -> Iterator[tuple[str, str, str]]:
    """Yield field, index and what is wrong; of the inputs, only the first wrong one."""
    if not 1 <= len(call.inputs) <= limits.EMBEDDING_INPUTS:
        yield "inputs", "", f"has {len(call.inputs)} inputs; allowed are 1 to {limits.EMBEDDING_INPUTS}"
    if call.dimensions is not None and call.dimensions < 1:
        yield "dimensions", "", f"is {call.dimensions}; it must be at least 1"
    for index, prompt in enumerate(call.inputs):
        for _, wrong in input_violations(prompt):
            yield "inputs", f"[{index}]", wrong
            return
