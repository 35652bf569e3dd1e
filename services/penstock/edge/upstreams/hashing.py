"""Hashes of requests that must agree at every edge: queue shard, KV blocks, answer and poison fingerprints."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

from penstock.chassis.prefix_depths import MAX_DEPTH, NAMED_DEPTHS
from penstock.edge.lifecycle.output import GenerationPlan
from penstock.edge.request.spec import ChatInput, Prompt, TextInput, TokenInput
from penstock.mesh.forms import form_message
from penstock.v1.inference_pb2 import Sampling


def shard_for(shards: Iterable[str], model: str, tenant_id: str) -> str | None:
    """Return the shard of a tenant's tickets for a model. None if no shard is given.

    Rendezvous hashing: if a shard is removed, only its own tenants move, and they spread over the others.
    Source: Thaler and Ravishankar 1998, Using name-based mappings to increase hit rates.
    """
    key = f"{model}\0{tenant_id}".encode()
    return max(shards, key=lambda shard: (_score(shard, key), shard), default=None)


def _score(shard: str, key: bytes) -> bytes:
    return blake2b(key, digest_size=8, key=blake2b(shard.encode(), digest_size=32).digest()).digest()


BLOCK_HASH_BYTES = 16  # bytes


def block_hashes(token_ids: Sequence[int], block_size: int, salt: bytes) -> list[int]:
    """Return the 64-bit hashes, chained and salted, of the full KV blocks at `PREFIX_DEPTHS`. Empty without a salt.

    A worker reports the hashes of its cached blocks to its scheduler, so engines must compute the same values.
    """
    hashes: list[int] = []
    if not salt or not block_size:
        return hashes
    name = blake2b(salt, digest_size=BLOCK_HASH_BYTES).digest()
    for depth in range(1, min(len(token_ids) // block_size, MAX_DEPTH) + 1):
        block = array("q", token_ids[(depth - 1) * block_size : depth * block_size]).tobytes()
        name = blake2b(name + block, digest_size=BLOCK_HASH_BYTES).digest()
        if depth in NAMED_DEPTHS:
            hashes.append(int.from_bytes(name[:8], "little"))
    return hashes


ANSWER_FINGERPRINT_BYTES = 16
POISON_FINGERPRINT_BITS = 64


def answer_fingerprint(caller: str, prompt: Prompt, plan: GenerationPlan) -> bytes:
    """Return a keyed digest of every input that determines an answer's tokens. The key prevents guesses of prompts.

    The digest excludes values that may differ between requests of one answer: length, stop strings and resumed tokens.
    It covers the prompt as it was sent, because another version of the model may tokenize it differently.
    """
    digest = blake2b(digest_size=ANSWER_FINGERPRINT_BYTES, key=blake2b(caller.encode()).digest())
    settings = plan.model.encode(), bytes([plan.ignore_eos]), plan.sampling.SerializeToString(deterministic=True)
    for part in (*settings, *_parts_of(prompt), *_parts_of_result(plan)):
        digest.update(len(part).to_bytes(4, "little") + part)
    return digest.digest()


def _parts_of(prompt: Prompt) -> Iterator[bytes]:
    match prompt:
        case TextInput(text):
            yield from (b"text", text.encode(errors="surrogatepass"))
        case ChatInput(messages, tools):
            yield b"chat"
            for message in messages:
                yield message.role.encode(errors="surrogatepass")
                yield message.content.encode(errors="surrogatepass")
                if not message.is_plain:
                    rest = message.tool_calls, message.tool_call_id, message.name, message.reasoning
                    yield b"rest" + repr(rest).encode(errors="surrogatepass")
            if tools:
                yield b"tools" + repr((tools, prompt.tool_choice, prompt.parallel_tool_calls)).encode(
                    errors="surrogatepass"
                )
        case TokenInput(ids):
            yield from (b"ids", array("I", ids).tobytes())


def _parts_of_result(plan: GenerationPlan) -> Iterator[bytes]:
    if plan.form:
        yield form_message(plan.form).SerializeToString(deterministic=True)
    if plan.embedding_size:
        yield b"embedding"


def poison_fingerprint(salt: bytes, plan: GenerationPlan) -> int:
    """Return a 64-bit digest, never 0, by which a request that crashes engines is recognized when it is sent again.

    It is keyed by the tenant's salt. It excludes values that differ when a client repeats a request: a drawn seed and
    the tokens emitted so far.
    """
    sampling = Sampling()
    sampling.CopyFrom(plan.sampling)
    sampling.ClearField("seed")
    digest = blake2b(digest_size=POISON_FINGERPRINT_BITS // 8, key=salt, person=b"crash")
    settings = plan.model.encode(), bytes([plan.ignore_eos]), sampling.SerializeToString(deterministic=True)
    for part in (*settings, *_parts_of_result(plan)):
        digest.update(len(part).to_bytes(4, "little") + part)
    digest.update(array("I", plan.prompt_ids).tobytes())
    return int.from_bytes(digest.digest(), "little") or 1
