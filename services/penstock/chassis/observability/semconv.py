"""All OpenTelemetry names of this project, in one place, because the conventions for RPC and GenAI still change.

RPC names follow the release candidate; `gen_ai.*` names follow the Development state of the GenAI conventions. A name
without a convention is our own and begins with `penstock.`; none is added to `gen_ai.*`. Our own metrics are in the
modules `series` of the tiers.
"""

from typing import Final

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

# Resource
SERVICE_NAME: Final = "service.name"
SERVICE_NAMESPACE: Final = "service.namespace"
SERVICE_INSTANCE_ID: Final = "service.instance.id"
SERVICE_VERSION: Final = "service.version"

# RPC spans and metrics
RPC_SYSTEM_NAME: Final = "rpc.system.name"
RPC_METHOD: Final = "rpc.method"  # fully qualified, no leading slash
RPC_RESPONSE_STATUS_CODE: Final = "rpc.response.status_code"  # as text: OK, DEADLINE_EXCEEDED
ERROR_TYPE: Final = "error.type"
RPC_SERVER_CALL_DURATION: Final = "rpc.server.call.duration"  # s
RPC_CLIENT_CALL_DURATION: Final = "rpc.client.call.duration"  # s
RPC_DURATION_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

# HTTP server metric, stable; it uses the buckets of RPC
HTTP_REQUEST_METHOD: Final = "http.request.method"
HTTP_RESPONSE_STATUS_CODE: Final = "http.response.status_code"
HTTP_ROUTE: Final = "http.route"
HTTP_SERVER_REQUEST_DURATION: Final = "http.server.request.duration"  # s

# GenAI attributes
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
GEN_AI_PROVIDER_NAME: Final = "gen_ai.provider.name"
GEN_AI_CONVERSATION_ID: Final = "gen_ai.conversation.id"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
GEN_AI_REQUEST_TOP_P: Final = "gen_ai.request.top_p"
GEN_AI_REQUEST_TOP_K: Final = "gen_ai.request.top_k"
GEN_AI_REQUEST_CHOICE_COUNT: Final = "gen_ai.request.choice.count"
GEN_AI_REQUEST_SEED: Final = "gen_ai.request.seed"
GEN_AI_REQUEST_STOP_SEQUENCES: Final = "gen_ai.request.stop_sequences"
GEN_AI_REQUEST_STREAM: Final = "gen_ai.request.stream"
GEN_AI_RESPONSE_ID: Final = "gen_ai.response.id"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"  # s
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"

# GenAI server metrics, all in s
GEN_AI_SERVER_REQUEST_DURATION: Final = "gen_ai.server.request.duration"
GEN_AI_SERVER_TIME_TO_FIRST_TOKEN: Final = "gen_ai.server.time_to_first_token"  # noqa: S105  # a metric, no secret
GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN: Final = "gen_ai.server.time_per_output_token"  # noqa: S105  # as above
REQUEST_DURATION_BUCKETS: Final = (
    *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64),
    *(1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
TIME_TO_FIRST_TOKEN_BUCKETS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
    *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 30.0, 60.0),  # beyond the convention: requests may wait as long
)
TIME_PER_OUTPUT_TOKEN_BUCKETS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)

# Values of the conventions
PROVIDER: Final = "penstock"
FINISH_REASONS: Final = frozenset({"stop", "length"})

# Our own spans, in the order of one request. Their parent is the span of the request, `{operation} {model}`.
SPAN_TOKENIZE: Final = "edge.tokenize"
SPAN_ADMISSION: Final = "edge.admission"
SPAN_AUTH_RESERVE: Final = "auth.reserve"
SPAN_QUEUE_WAIT: Final = "queue.wait"
SPAN_PLACEMENT: Final = "scheduler.place"
SPAN_RUN: Final = "edge.run"  # one of several runs of a request, as the edge sees it, from its lease to its end
SPAN_DISPATCH: Final = "network.dispatch"  # from the lease to the arrival of the run at its worker
SPAN_WORKER_WAIT: Final = "worker.wait"
SPAN_WORKER_PREFILL: Final = "worker.prefill"
SPAN_WORKER_DECODE: Final = "worker.decode"

# Our own events
EVENT_FIRST_TOKEN: Final = "first_token"  # noqa: S105  # an event, no secret
EVENT_CANCEL_ACKNOWLEDGED: Final = "cancel_acknowledged"
EVENT_PREEMPTED: Final = "preempted"

# Our own attributes
PENSTOCK_REQUEST_ID: Final = "penstock.request_id"
PENSTOCK_TICKET_ID: Final = "penstock.ticket_id"
PENSTOCK_LEASE_ID: Final = "penstock.lease_id"
PENSTOCK_TENANT_ID: Final = "penstock.tenant_id"
PENSTOCK_KEY_ID: Final = "penstock.key_id"
PENSTOCK_PRIORITY: Final = "penstock.priority"
PENSTOCK_ATTEMPT: Final = "penstock.attempt"
PENSTOCK_WORKER_ID: Final = "penstock.worker_id"
PENSTOCK_KV_BLOCKS_FREED: Final = "penstock.kv_blocks_freed"  # by one cancel
PENSTOCK_OUTCOME: Final = "penstock.outcome"  # stop, length, cancelled, shed or failed
PENSTOCK_REASON: Final = "penstock.reason"  # reason of a PenstockError
PENSTOCK_REJECTED_BY: Final = "penstock.rejected_by"  # tier that rejected the request
PENSTOCK_AUTH_FALLBACK: Final = "penstock.auth_fallback"  # admitted by the edge itself while auth is unreachable
