"""Which shard of the queue a ticket belongs to: the same answer at every edge, without a word between them."""

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from penstock.edge.lifecycle.plan import GenerationPlan
from penstock.v1.inference_pb2 import Sampling


def shard_for(shards: Iterable[str], model: str, tenant_id: str) -> str | None:
    """Return the shard of a tenant's tickets for a model; None where there is no shard.

    Rendezvous hashing: when a shard goes, only its own tenants move, and they spread over the others.
    Source: Thaler and Ravishankar 1998, Using name-based mappings to increase hit rates.
    """
    key = f"{model}\0{tenant_id}".encode()
    return max(shards, key=lambda shard: (_score(shard, key), shard), default=None)


def _score(shard: str, key: bytes) -> bytes:
    return blake2b(key, digest_size=8, key=blake2b(shard.encode(), digest_size=32).digest()).digest()


MAX_BLOCK_HASHES = 64
BLOCK_HASH_BYTES = 16  # bytes


def block_hashes(token_ids: Sequence[int], block_size: int, salt: bytes) -> list[int]:
    """Return 64 bits of the name that engines give each leading full KV block, chained and salted; none without a salt.

    A worker tells its scheduler the same of the blocks in its cache, so both must name them alike; a test holds this.
    """
    hashes: list[int] = []
    if not salt or not block_size:
        return hashes
    name = blake2b(salt, digest_size=BLOCK_HASH_BYTES).digest()
    for end in range(block_size, min(len(token_ids), MAX_BLOCK_HASHES * block_size) + 1, block_size):
        block = array("q", token_ids[end - block_size : end]).tobytes()
        name = blake2b(name + block, digest_size=BLOCK_HASH_BYTES).digest()
        hashes.append(int.from_bytes(name[:8], "little"))
    return hashes


ANSWER_FINGERPRINT_BYTES = 16
POISON_FINGERPRINT_BITS = 64


def answer_fingerprint(bearer: str, plan: GenerationPlan) -> bytes:
    """Digest of all that an answer's tokens are a function of; keyed, so that nobody can try prompts against it.

    What is left out may differ between parts of one answer: its length, its stop strings, what has come so far.
    """
    digest = blake2b(digest_size=ANSWER_FINGERPRINT_BYTES, key=blake2b(bearer.encode()).digest())
    for part in (plan.model.encode(), bytes([plan.ignore_eos]), plan.sampling.SerializeToString(deterministic=True)):
        digest.update(len(part).to_bytes(4, "little") + part)
    digest.update(array("I", plan.prompt_ids).tobytes())
    return digest.digest()


def poison_fingerprint(salt: bytes, plan: GenerationPlan) -> int:
    """What two requests of a tenant have in common that would crash an engine alike, of 64 bits and never 0.

    Keyed by the tenant's own salt. What differs when a client sends the same again is left out: the seed that an edge
    draws, and how much has come so far.
    """
    sampling = Sampling()
    sampling.CopyFrom(plan.sampling)
    sampling.ClearField("seed")
    digest = blake2b(digest_size=POISON_FINGERPRINT_BITS // 8, key=salt, person=b"crash")
    for part in (plan.model.encode(), bytes([plan.ignore_eos]), sampling.SerializeToString(deterministic=True)):
        digest.update(len(part).to_bytes(4, "little") + part)
    digest.update(array("I", plan.prompt_ids).tobytes())
    return int.from_bytes(digest.digest(), "little") or 1
