"""Offer of another region as a request of this edge: its plan, its spec and the identity of its tenant. Pure."""

from array import array

from penstock.chassis.errors import InvalidArgument
from penstock.edge.lifecycle.output import GenerationPlan
from penstock.edge.models.loaded_model import LoadedModel
from penstock.edge.request.spec import RequestSpec, TokenInput
from penstock.edge.text.detokenizer import TextDelta
from penstock.mesh.forms import form_from
from penstock.mesh.v1.admission_pb2 import Identity
from penstock.mesh.v1.region_pb2 import GuestOffer

NO_DELTA = TextDelta("")


class NoText:
    """Detokenizer of a guest, whose home region converts the tokens to text."""

    def push(self, token_id: int) -> TextDelta:  # the interface of detokenizers
        return NO_DELTA

    def flush(self) -> str:
        return ""

    def new(self) -> "NoText":
        return self


NO_TEXT = NoText()


def plan_of(offer: GuestOffer, model: LoadedModel) -> GenerationPlan:
    """Raises InvalidArgument / GUEST_INVALID."""
    prompt_tokens, tokens = len(offer.token_ids) - offer.emitted, len(offer.token_ids)
    if prompt_tokens < 1 or offer.max_output_tokens < 1 or tokens + offer.max_output_tokens > model.context_length:
        text = f"{tokens} tokens, {offer.emitted} of the answer, and {offer.max_output_tokens} to generate"
        raise _invalid(f"{text} do not fit the context of {model.context_length}", "token_ids")
    if max(offer.token_ids) >= model.vocabulary_size:
        raise _invalid(f"a token id is not in the vocabulary of {model.vocabulary_size}", "token_ids")
    form = form_from(offer.form) if offer.HasField("form") else None
    if offer.HasField("form") and (form is None or not model.enforces_forms):
        raise _invalid("the workers of this region do not enforce the form", "form")
    if not offer.priority or not offer.weight > 0:
        raise _invalid("a guest has a class and a weight", "priority")
    return GenerationPlan(
        model=model.name,
        prompt_ids=array("I", offer.token_ids[:prompt_tokens]),
        max_output_tokens=offer.emitted + offer.max_output_tokens,
        sampling=offer.sampling,
        detokenizer=NO_TEXT,
        resumed_ids=array("I", offer.token_ids[prompt_tokens:]),
        eos_ids=frozenset() if offer.ignore_eos else model.eos_ids,
        ignore_eos=offer.ignore_eos,
        block_size=model.block_size,
        model_version=model.digest,
        form=form,
    )


def spec_of(offer: GuestOffer, model: LoadedModel) -> RequestSpec:
    """The prompt stays in the plan alone."""
    return RequestSpec(
        request_id=offer.request_id,
        model=model.name,
        input=TokenInput(()),
        logprobs=offer.sampling.logprobs,
        top_logprobs=offer.sampling.top_logprobs,
        priority=offer.priority,
        answer_id=offer.request_id,
        is_first_run=not offer.may_have_run,
        model_version=model.digest,
    )


def identity_of(offer: GuestOffer) -> Identity:
    return Identity(
        tenant_id=offer.tenant_id, priority=offer.priority, weight=offer.weight, cache_salt=offer.cache_salt
    )


def _invalid(text: str, field: str) -> InvalidArgument:
    return InvalidArgument(text, field=field, reason="GUEST_INVALID")
