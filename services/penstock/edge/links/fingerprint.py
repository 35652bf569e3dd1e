"""What makes two requests parts of one answer, as far as auth may know: it sees no prompt and no token."""

from array import array
from hashlib import blake2b

from penstock.edge.flight.plan import Plan

BYTES = 16


def fingerprint(bearer: str, plan: Plan) -> bytes:
    """Digest of all that an answer's tokens are a function of; keyed, so that nobody can try prompts against it.

    What is left out may differ between parts of one answer: its length, its stop strings, what has come so far.
    """
    digest = blake2b(digest_size=BYTES, key=blake2b(bearer.encode()).digest())
    for part in (plan.model.encode(), bytes([plan.ignore_eos]), plan.sampling.SerializeToString(deterministic=True)):
        digest.update(len(part).to_bytes(4, "little") + part)
    digest.update(array("I", plan.prompt_ids).tobytes())
    return digest.digest()
