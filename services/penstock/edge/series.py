"""Series of the edge, which owns requests, their tokens and their times as the caller sees them."""

from penstock.chassis.observability import semconv
from penstock.chassis.observability.series import CLASS, MODEL, REASON, TENANT, counter, gauge, histogram

REQUESTS = counter(
    "penstock.edge.requests",
    "{request}",
    "Requests that ended, each once: answers, and requests refused for load or for want of a worker. Outcome is stop, "
    "length, cancelled, shed or failed; reason is that of the error. Each choice of an answer is a request. Malformed "
    "calls and those of unknown callers are in the durations of calls.",
    MODEL,
    CLASS,
    TENANT,
    "outcome",
    REASON,
)
TOKENS = counter(
    "penstock.edge.tokens",
    "{token}",
    "Tokens of requests that ran: input (prompt tokens that were computed), cached_input (found in a prefix cache) and "
    "output. The three add up.",
    MODEL,
    CLASS,
    TENANT,
    "type",
)
REQUEST_DURATION = histogram(
    semconv.GEN_AI_SERVER_REQUEST_DURATION,
    "From arrival at the edge to the end of the answer.",
    semconv.GEN_AI_OPERATION_NAME,
    semconv.GEN_AI_PROVIDER_NAME,
    semconv.GEN_AI_REQUEST_MODEL,
    CLASS,
    semconv.ERROR_TYPE,
    buckets=semconv.REQUEST_DURATION_BUCKETS,
)
TIME_TO_FIRST_TOKEN = histogram(
    semconv.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN,
    "From arrival at the edge to the first token, of answers that did not fail.",
    semconv.GEN_AI_OPERATION_NAME,
    semconv.GEN_AI_PROVIDER_NAME,
    semconv.GEN_AI_REQUEST_MODEL,
    CLASS,
    TENANT,
    buckets=semconv.TIME_TO_FIRST_TOKEN_BUCKETS,
)
TIME_PER_OUTPUT_TOKEN = histogram(
    semconv.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN,
    "Mean time between the tokens of an answer, after the first.",
    semconv.GEN_AI_OPERATION_NAME,
    semconv.GEN_AI_PROVIDER_NAME,
    semconv.GEN_AI_REQUEST_MODEL,
    CLASS,
    buckets=semconv.TIME_PER_OUTPUT_TOKEN_BUCKETS,
)
LINES = counter(
    "penstock.edge.lines",
    "{line}",
    "Lines of batches that ended here, by verdict: answered, refused, later, lost or stop.",
    "verdict",
)
CANCEL_ACKNOWLEDGED = histogram(
    "penstock.cancel.acknowledged",
    "From a client's cancel to the receipt of its worker, of requests that ran.",
    buckets=semconv.TIME_TO_FIRST_TOKEN_BUCKETS,
)
RESUMES = counter(
    "penstock.edge.resumes",
    "{run}",
    "Continued answers: run (at another worker, as the first was lost or drained) or answer (by its client, here).",
    MODEL,
    "kind",
)
REJECTED = counter(
    "penstock.edge.rejected",
    "{request}",
    "Requests refused for load, by the tier that decided: the queue, or the edge because the queue has just refused a "
    "similar one. One that another region runs instead is counted as well.",
    CLASS,
    REASON,
    "tier",
)
SPILL_OFFERS = counter(
    "penstock.edge.spill_offers",
    "{offer}",
    "Requests that the queue rejected and that were offered to another region, by outcome: started, LOST (with the "
    "stream, also after the start), UNANSWERED, or the reason of the region's rejection.",
    "region",
    "outcome",
)
SPILLED = gauge("penstock.edge.spilled", "{request}", "Requests of this region that another region has.", "region")
GUEST_OFFERS = counter(
    "penstock.edge.guest_offers",
    "{offer}",
    "Requests of other regions that were offered to this edge, by outcome: started, or the reason of the rejection.",
    "outcome",
)
GUESTS = gauge("penstock.edge.guests", "{request}", "Requests of other regions that wait or run here.")
REFUSED_CALLS = counter(
    "penstock.edge.refused_calls",
    "{call}",
    "Connections and calls that ended before a request was read, for a limit toward callers.",
    REASON,
)
FALLBACK_DECISIONS = counter(
    "penstock.auth_fallback.decisions",
    "{request}",
    "Decisions while auth was unreachable: admitted, exhausted (the grant), unknown (the caller), delegated (a line of"
    " a batch) or over (the period).",
    "outcome",
)
FALLBACK_ACTIVE = gauge(
    "penstock.auth_fallback.active", "{flag}", "1 while an owner of partitions of auth is unreachable."
)
ACTIVE = gauge("penstock.edge.active", "{request}", "Requests that have not ended, by state.", "state")
HELD_BYTES = gauge("penstock.edge.memory_held", "By", "Bytes of prompts and of output that clients have not read.")
MAX_HELD_BYTES = gauge("penstock.edge.memory_limit", "By", "Limit of these bytes.")
SLOW_READERS_ENDED = counter(
    "penstock.edge.slow_readers_ended", "{request}", "Answers ended because their clients did not read."
)
HTTP_CONNECTIONS = gauge("penstock.edge.http_connections", "{connection}", "HTTP connections of clients and proxies.")
LINKS = gauge("penstock.edge.links", "{stream}", "Connected streams to processes of a tier.", "peer")
RESERVATIONS_OPEN = gauge(
    "penstock.edge.reservations_open", "{reservation}", "Reservations whose settlement auth has not confirmed."
)
HTTP_DURATION = histogram(
    semconv.HTTP_SERVER_REQUEST_DURATION,
    "Duration of HTTP requests, to the last byte of the response.",
    semconv.HTTP_REQUEST_METHOD,
    semconv.HTTP_ROUTE,
    semconv.HTTP_RESPONSE_STATUS_CODE,
    semconv.ERROR_TYPE,
    buckets=semconv.RPC_DURATION_BUCKETS,
)

SERIES = (
    REQUESTS,
    TOKENS,
    REQUEST_DURATION,
    TIME_TO_FIRST_TOKEN,
    TIME_PER_OUTPUT_TOKEN,
    LINES,
    CANCEL_ACKNOWLEDGED,
    RESUMES,
    REJECTED,
    SPILL_OFFERS,
    SPILLED,
    GUEST_OFFERS,
    GUESTS,
    REFUSED_CALLS,
    FALLBACK_DECISIONS,
    FALLBACK_ACTIVE,
    ACTIVE,
    HELD_BYTES,
    MAX_HELD_BYTES,
    SLOW_READERS_ENDED,
    HTTP_CONNECTIONS,
    LINKS,
    RESERVATIONS_OPEN,
    HTTP_DURATION,
)
