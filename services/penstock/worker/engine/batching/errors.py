"""Errors that reject a sequence. The caller can correct each of them, so each names its numbers."""

from penstock.chassis.errors import InvalidArgument
from penstock.mesh.embeddings import EMBEDDING_UNSUPPORTED
from penstock.worker.engine.interface import SequenceSpec


class PromptTooLong(InvalidArgument):
    """Prompt and output do not fit, even if the worker is empty."""

    default_reason = "PROMPT_TOO_LONG"


class StartInvalid(InvalidArgument):
    """The sequence has invalid fields, or its id is in use."""

    default_reason = "START_INVALID"


class EmbeddingUnsupported(InvalidArgument):
    """The engine computes no embeddings."""

    default_reason = EMBEDDING_UNSUPPORTED


def exceeds_context(prompt: int, output: int, context: int) -> PromptTooLong:
    return PromptTooLong(
        f"{prompt} prompt tokens and up to {output} output tokens exceed the context of {context} tokens; "
        "shorten the prompt or request fewer output tokens",
        field="token_ids",
        metadata={"prompt_tokens": str(prompt), "max_output_tokens": str(output), "context_length": str(context)},
    )


def exceeds_pool(prompt: int, output: int, needed: int, blocks: int) -> PromptTooLong:
    return PromptTooLong(
        f"{prompt} prompt tokens and up to {output} output tokens need {needed} KV blocks and the worker has {blocks}; "
        "shorten the prompt, request fewer output tokens, or give the worker more KV memory",
        field="token_ids",
        metadata={"prompt_tokens": str(prompt), "kv_blocks_needed": str(needed), "kv_blocks": str(blocks)},
    )


def check_spec(spec: SequenceSpec, *, context_length: int, blocks: int, block_size: int) -> None:
    """Raise StartInvalid or PromptTooLong for a sequence that can never run in this context (tokens) and pool."""
    prompt, output = len(spec.token_ids), spec.max_output_tokens
    if not 0 <= spec.emitted < prompt:
        raise StartInvalid(f"emitted is {spec.emitted} of {prompt} token ids; at least one must be of the prompt")
    if output < 1:
        raise StartInvalid(f"max_output_tokens is {output}; it must be at least 1")
    if prompt + output > context_length:
        raise exceeds_context(prompt, output, context_length)
    needed = -(-(prompt + output) // block_size)
    if needed > blocks:
        raise exceeds_pool(prompt, output, needed, blocks)
