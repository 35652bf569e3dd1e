"""What makes two requests parts of one answer, as far as auth may know: it sees no prompt and no token."""

from array import array
from hashlib import blake2b

from penstock.edge.lifecycle.plan import GenerationPlan
from penstock.v1.inference_pb2 import Sampling

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
