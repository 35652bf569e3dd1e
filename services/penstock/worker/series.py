"""Series of the worker, which owns runs, steps, the batch and the KV pool of its engine."""

from penstock.chassis.observability import semconv
from penstock.chassis.observability.series import MODEL, counter, gauge, histogram

RUNS = counter(
    "penstock.worker.runs",
    "{run}",
    "Runs that ended, by outcome: stop, length, cancelled or the reason of an error. A resumed answer has several.",
    MODEL,
    "outcome",
)
RUN_DURATION = histogram(
    "penstock.worker.run_duration",
    "From the start of a run to its last token.",
    MODEL,
    buckets=semconv.REQUEST_DURATION_BUCKETS,
)
TIME_TO_FIRST_TOKEN = histogram(
    "penstock.worker.time_to_first_token",
    "From the start of a run to its first token: the wait in the engine and the prefill.",
    MODEL,
    buckets=semconv.TIME_TO_FIRST_TOKEN_BUCKETS,
)
TIME_PER_OUTPUT_TOKEN = histogram(
    "penstock.worker.time_per_output_token",
    "Mean time between the tokens of a run, after the first.",
    MODEL,
    buckets=semconv.TIME_PER_OUTPUT_TOKEN_BUCKETS,
)
CANCEL_LATENCY = histogram(
    "penstock.cancel.engine_latency",
    "From the cancel at the worker to the step that freed its KV blocks.",
    MODEL,
    buckets=semconv.TIME_TO_FIRST_TOKEN_BUCKETS,
)
CANCEL_WASTED = counter(
    "penstock.cancel.wasted_tokens", "{token}", "Tokens computed after the cancel reached the engine.", MODEL
)
CANCELS = counter("penstock.worker.cancels", "{run}", "Cancels of edges.", MODEL)
TOKENS = counter(
    "penstock.worker.tokens",
    "{token}",
    "Tokens by what they cost: prefill (computed, again after a preemption), decode (made) or cached (found in the "
    "prefix cache at admission).",
    MODEL,
    "type",
)
PREFIX_QUERIES = counter(
    "penstock.worker.prefix_query_tokens", "{token}", "Prompt tokens of admitted runs, cached or not.", MODEL
)
PREEMPTIONS = counter(
    "penstock.worker.preemptions",
    "{run}",
    "Runs that left the batch for want of KV blocks, to be computed again.",
    MODEL,
)
STEPS = counter("penstock.worker.steps", "{step}", "Steps of the engine that computed tokens.", MODEL)
STEP_SECONDS = counter("penstock.worker.step_time", "s", "Time of these steps, in which the engine was busy.", MODEL)
STEP_TIME = gauge("penstock.worker.step_time_recent", "s", "Time of a step, smoothed over about 10 steps.", MODEL)
RUNNING = gauge("penstock.worker.running", "{sequence}", "Sequences in the batch.", MODEL)
WAITING = gauge("penstock.worker.waiting", "{sequence}", "Sequences in the engine that wait for the batch.", MODEL)
SLOTS = gauge("penstock.worker.slots", "{sequence}", "Most sequences in the batch; 0 without an engine.", MODEL)
KV_USED = gauge("penstock.kv.blocks_used", "{block}", "KV blocks in use, without those that are only cached.", MODEL)
KV_CACHED = gauge("penstock.kv.blocks_cached", "{block}", "Free KV blocks whose content is in the prefix cache.", MODEL)
KV_TOTAL = gauge("penstock.kv.blocks", "{block}", "KV blocks of the pool; 0 without an engine.", MODEL)
PREFILL_BACKLOG = gauge(
    "penstock.worker.prefill_backlog", "{token}", "Prompt tokens in the engine that are not computed.", MODEL
)
ATTACHED = gauge("penstock.worker.attached", "{flag}", "1 while the worker is attached to a scheduler.", MODEL)
ENGINE_READY = gauge("penstock.worker.engine_ready", "{flag}", "1 while the engine runs.", MODEL)
ENGINE_RESTARTS = counter("penstock.worker.engine_restarts", "{start}", "Starts of an engine after the first.", MODEL)
LOAD_SECONDS = gauge("penstock.worker.load_time", "s", "From the last start of the engine until it was ready.", MODEL)
QUARANTINED = gauge("penstock.worker.quarantined", "{run}", "Runs that may have crashed the engine.", MODEL)

SERIES = (
    RUNS,
    RUN_DURATION,
    TIME_TO_FIRST_TOKEN,
    TIME_PER_OUTPUT_TOKEN,
    CANCEL_LATENCY,
    CANCEL_WASTED,
    CANCELS,
    TOKENS,
    PREFIX_QUERIES,
    PREEMPTIONS,
    STEPS,
    STEP_SECONDS,
    STEP_TIME,
    RUNNING,
    WAITING,
    SLOTS,
    KV_USED,
    KV_CACHED,
    KV_TOTAL,
    PREFILL_BACKLOG,
    ATTACHED,
    ENGINE_READY,
    ENGINE_RESTARTS,
    LOAD_SECONDS,
    QUARANTINED,
)
