"""Cause: one sentence that says why a request ended as it did, or what took most of its time. Pure."""

from collections.abc import Callable, Mapping

from penstock.edge.explain.record import NANOS_PER_S, RequestFacts

STAGE_TEXTS: Mapping[tuple[str, str], str] = {
    ("envoy", "proxy"): "it took {} through the proxy and from there to this edge",
    ("edge", "receive"): "its body and its caller's identity took {} to arrive",
    ("edge", "tokenize"): "its prompt took {} to tokenize",
    ("auth", "admission"): "auth took {} to reserve its tokens",
    ("scheduler", "placement"): "the scheduler took {} to place it",
    ("network", "dispatch"): "the way from its lease to the worker and back took {}",
    ("worker", "wait"): "it waited {} in the batch of its worker",
    ("worker", "lost run"): "runs that were lost took {}",
    ("edge", "finish"): "its end took {} at this edge after the last token",
}
REASON_TEXTS: Mapping[str, str] = {
    "QUEUE_FULL": "the queue of its model is full",
    "QUEUE_TOKENS_FULL": "the queue of its model holds as many tokens as it may",
    "EVICTED": "it was evicted from the full queue by a request of a higher class or of a tenant with a smaller share",
    "OVERLOADED": "its first token would have come too late for its class or its deadline",
    "EDGE_FULL": "this edge held as many requests or bytes as it may",
    "NO_WORKER": "no worker served its model",
    "MODEL_UNKNOWN": "no worker and no declared model has that name",
    "MODEL_REPLACED": "its model was replaced, and no worker has the version that began the answer",
    "AUTH_LOST": "auth could not be reached",
    "QUEUE_LOST": "no shard of the queue could be reached",
    "ATTEMPTS_EXHAUSTED": "each of its runs was lost with its worker",
    "CLIENT_TOO_SLOW": "its client did not read the answer as fast as it was generated",
    "ENGINE_CRASHED": "a worker found that it crashes the engine",
    "SUSPECT": "a worker tests whether it crashes the engine",
    "CONTEXT_TOO_LONG": "prompt and output exceed the context of its model",
}
QUOTA_REASONS = ("QUOTA_EXCEEDED", "BUDGET_EXCEEDED", "RATE_LIMITED")


def cause_of(facts: RequestFacts) -> str:
    """Return the cause as one sentence."""
    if facts.outcome == "cancelled":
        text = f"Its client cancelled it after {seconds(facts.total)}{_mostly(facts)}"
    elif facts.reason == "DEADLINE":
        text = f"Its deadline passed after {seconds(facts.total)}{_mostly(facts)}"
    elif facts.reason in QUOTA_REASONS:
        text = f"Tenant {facts.tenant_id} is over a limit or a budget ({facts.reason})"
    elif facts.reason:
        text = _failure(facts)
    elif facts.lost_runs:  # however long they took
        text = f"It lost {_lost_runs(facts)}, and went on at {facts.worker_id}{_mostly(facts)}"
    else:
        text = _mostly(facts).removeprefix("; ") or "it took no time that is measured"
    return f"{text[0].upper()}{text[1:]}."


def _failure(facts: RequestFacts) -> str:
    who = f"The {facts.rejected_by} rejected it" if facts.rejected_by else "It failed"
    known = REASON_TEXTS.get(facts.reason, "")
    text = f"{who}: {known} ({facts.reason})" if known else f"{who} ({facts.reason})"
    return f"{text}; it had lost {_lost_runs(facts)}" if facts.lost_runs else text


def _mostly(facts: RequestFacts) -> str:
    """Say what took most of the time, as the end of a sentence; empty if nothing was measured."""
    spent: dict[tuple[str, str], int] = {}
    for part in facts.parts:
        spent[part.tier, part.name] = spent.get((part.tier, part.name), 0) + part.nanos
    if not spent:
        return ""
    stage = max(spent, key=lambda each: spent[each])
    length = spent[stage] / NANOS_PER_S
    special = PART_CAUSES.get(stage)
    tier, name = stage
    text = STAGE_TEXTS.get(stage, f"the {name} of {tier} took {{}}").format(seconds(length))
    return f"; {special(facts, length) if special else text}"


def _queued(facts: RequestFacts, length: float) -> str:
    queue = facts.queue
    ahead = queue.tickets_ahead
    behind = f"behind {ahead} request{'s' * (ahead != 1)}" if ahead else "in the queue with no request ahead"
    text = f"it waited {seconds(length)} {behind}"
    if ahead and queue.busiest_tenant_id:
        tenant = "its own tenant" if queue.busiest_tenant_id == facts.tenant_id else queue.busiest_tenant_id
        text = f"{text}, while {tenant} had {queue.busiest_tickets} waiting"
    if queue.slots:
        text = f"{text}; its class had {queue.class_running} of {queue.slots} slots"
    if queue.predicted_wait is not None:
        text = f"{text}; {seconds(queue.predicted_wait)} were predicted"
    return text


def _held(facts: RequestFacts, length: float) -> str:
    return f"it was held {seconds(length)} until a worker served {facts.model or 'its model'}, which had none"


def _prefilled(facts: RequestFacts, length: float) -> str:
    cached = f", of which {facts.cached_prompt_tokens} were cached," if facts.cached_prompt_tokens else ""
    return f"its prompt of {facts.prompt_tokens} tokens{cached} took {seconds(length)} to compute"


def _decoded(facts: RequestFacts, length: float) -> str:
    text = f"its answer of {facts.output_tokens} tokens took {seconds(length)} to generate"
    steps = facts.output_tokens - 1
    return f"{text}, {seconds(length / steps)} each" if steps > 0 else text


PART_CAUSES: Mapping[tuple[str, str], Callable[[RequestFacts, float], str]] = {
    ("queue", "wait"): _queued,
    ("edge", "hold"): _held,
    ("worker", "prefill"): _prefilled,
    ("worker", "decode"): _decoded,
}


def _lost_runs(facts: RequestFacts) -> str:
    """Name the lost runs, such as `a run of 12 tokens at worker-1 after 1.20 s`."""
    latest = facts.lost_runs[-1]
    which = "a run" if len(facts.lost_runs) == 1 else f"{len(facts.lost_runs)} runs, the latest"
    return f"{which} of {latest.output_tokens} tokens at {latest.worker_id} after {seconds(latest.nanos / NANOS_PER_S)}"


def seconds(length: float) -> str:
    """Return a length of time with its unit: 3.1 s, 12.4 ms, 80 µs."""
    if length >= 1.0:
        return f"{length:.1f} s"
    return f"{length * 1e3:.1f} ms" if length >= 1e-3 else f"{length * 1e6:.0f} µs"
