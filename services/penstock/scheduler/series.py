"""Series of the scheduler, which owns the workers, their capacity and the placements."""

from penstock.chassis.observability.series import MODEL, REASON, counter, gauge, histogram

PLACEMENT_BUCKETS = (0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)

WORKERS = gauge("penstock.scheduler.workers", "{worker}", "Workers that are attached to this scheduler.", MODEL)
SLOTS = gauge("penstock.scheduler.slots", "{sequence}", "Slots of these workers.", MODEL)
RUNNING = gauge("penstock.scheduler.running", "{sequence}", "Sequences in their engines, waiting ones too.", MODEL)
AVAILABLE_LEASES = gauge(
    "penstock.scheduler.available_leases", "{lease}", "Leases that these workers can take now.", MODEL
)
LEASES = gauge("penstock.scheduler.leases", "{lease}", "Leases of these workers that have not ended.", MODEL)
UNSTARTED_LEASES = gauge("penstock.scheduler.unstarted_leases", "{lease}", "Leases that no edge has started yet.")
KV_PROMISED = gauge("penstock.scheduler.kv_blocks_promised", "{block}", "KV blocks that the leases may grow to.", MODEL)
KV_TOTAL = gauge("penstock.scheduler.kv_blocks", "{block}", "KV blocks of these workers.", MODEL)
TOKENS_PER_SECOND = gauge(
    "penstock.scheduler.tokens_per_second", "{token}/s", "Recent rate of these workers while they are busy.", MODEL
)
CREDIT = gauge("penstock.scheduler.credit", "{ticket}", "Credit that queue shards hold.", MODEL)
QUEUES = gauge("penstock.scheduler.queues", "{stream}", "Connected queue shards.")
PLACEMENTS = counter("penstock.scheduler.placements", "{ticket}", "Tickets that were leased.", MODEL)
PROMPT_TOKENS = counter(
    "penstock.scheduler.prompt_tokens",
    "{token}",
    "Prompt tokens of these tickets: cached (expected in the prefix cache of the chosen worker) or new.",
    MODEL,
    "source",
)
DECLINES = counter(
    "penstock.scheduler.declines", "{ticket}", "Offers that were declined: NO_CAPACITY or NO_WORKER.", REASON
)
PLACEMENT_DURATION = histogram("penstock.scheduler.placement", "Time to choose a worker.", buckets=PLACEMENT_BUCKETS)
LEASES_EXPIRED = counter(
    "penstock.scheduler.leases_expired", "{lease}", "Leases that were revoked because no edge started them in time."
)
LEASES_PREEMPTED = counter(
    "penstock.scheduler.leases_preempted",
    "{lease}",
    "Running leases of batch tickets that were revoked for tickets of other classes.",
)
WORKER_CHANGES = counter(
    "penstock.scheduler.worker_changes",
    "{worker}",
    "Workers that attached, detached (drained, moved or without an engine) or were lost.",
    MODEL,
    "change",
)

SERIES = (
    WORKERS,
    SLOTS,
    RUNNING,
    AVAILABLE_LEASES,
    LEASES,
    UNSTARTED_LEASES,
    KV_PROMISED,
    KV_TOTAL,
    TOKENS_PER_SECOND,
    CREDIT,
    QUEUES,
    PLACEMENTS,
    PROMPT_TOKENS,
    DECLINES,
    PLACEMENT_DURATION,
    LEASES_EXPIRED,
    LEASES_PREEMPTED,
    WORKER_CHANGES,
)
