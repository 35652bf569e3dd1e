"""Series of the queue, which owns the wait of tickets and their rejection for load."""

from penstock.chassis.observability.series import (
    CLASS,
    COARSE_WAIT_BUCKETS,
    MODEL,
    REASON,
    TENANT,
    WAIT_BUCKETS,
    counter,
    gauge,
    histogram,
)

DEPTH = gauge("penstock.queue.depth", "{ticket}", "Tickets that wait at the shard.", MODEL, CLASS, TENANT)
TOKENS = gauge("penstock.queue.tokens", "{token}", "Prompt and output tokens of waiting tickets.", MODEL, CLASS, TENANT)
WAIT = histogram(
    "penstock.queue.wait",
    "From the arrival of a ticket at the shard to its lease. The count is that of leases.",
    MODEL,
    CLASS,
    buckets=WAIT_BUCKETS,
)
TENANT_WAIT = histogram(
    "penstock.queue.tenant_wait", "The same wait, by tenant, in coarse buckets.", TENANT, buckets=COARSE_WAIT_BUCKETS
)
PREDICTED_WAIT = histogram(
    "penstock.queue.predicted_wait",
    "Wait that was predicted at the arrival, of leased tickets.",
    MODEL,
    CLASS,
    buckets=WAIT_BUCKETS,
)
WAIT_ERROR = histogram(
    "penstock.queue.wait_error",
    "Difference between wait and prediction, of leased tickets that waited: late (longer than predicted) or early.",
    MODEL,
    "direction",
    buckets=COARSE_WAIT_BUCKETS,
)
SHED = counter(
    "penstock.queue.shed", "{ticket}", "Tickets that were rejected, evicted or expired.", MODEL, CLASS, TENANT, REASON
)
OFFERED = gauge("penstock.queue.offered", "{ticket}", "Tickets offered to schedulers that have not answered.")
RUNNING = gauge("penstock.queue.running", "{ticket}", "Leased tickets whose end no scheduler has reported.")
CREDIT = gauge("penstock.queue.credit", "{ticket}", "Tickets that schedulers would take at once.", MODEL)
TOKENS_PER_SECOND = gauge(
    "penstock.queue.tokens_per_second",
    "{token}/s",
    "Tokens per second that the workers of a model serve when busy.",
    MODEL,
)
PEERS = gauge("penstock.queue.peers", "{stream}", "Connected edges and schedulers.", "peer")

SERIES = (
    DEPTH,
    TOKENS,
    WAIT,
    TENANT_WAIT,
    PREDICTED_WAIT,
    WAIT_ERROR,
    SHED,
    OFFERED,
    RUNNING,
    CREDIT,
    TOKENS_PER_SECOND,
    PEERS,
)
