"""Largest values of the quantities that frames carry. They are harmless, and no mesh needs more.

A sender that adds up values of its peers limits the sum to the bound of the field (`at_most`), so that one peer's value
never makes another peer refuse the sum.
"""

from typing import Final

TOKENS: Final = 1 << 24  # tokens of one sequence: prompt, output, context
TOTAL_TOKENS: Final = 1 << 53  # tokens over tickets, leases or workers; a float holds every integer up to it
COUNT: Final = (1 << 32) - 1  # tickets, leases, slots, workers over a whole model; all that the fields' type holds
WORKERS: Final = 1_000_000.0  # of one model
SLOTS: Final = 1 << 16  # sequences of one worker
KV_BLOCKS: Final = 1 << 26  # of one worker
BLOCK_SIZE: Final = 1 << 16  # tokens
ATTEMPT: Final = 1 << 16
RATE: Final = 1e12  # tokens/s
TOKEN_SECONDS: Final = 1e6  # s that one token adds to a step
VIRTUAL_TOKENS: Final = 1e24
WEIGHT: Final = 1e6  # share of a tenant within its class
ROUTE_WEIGHT: Final = 1_000_000  # share of a target within its route
HOLD_SECONDS: Final = 3_600  # s for which an edge holds a request, and in which a worker loads
HELD_REQUESTS: Final = 100_000  # of one route at one edge
SPAN_S: Final = 366 * 86_400  # s, of every duration
REQUEST_NANOS: Final = 48 * 3600 * 10**9  # ns, time left and age of a request
CLOCK_NANOS: Final = 1 << 62  # ns, reading of a clock
STEPS: Final = 1 << 62  # engine steps
EPOCH: Final = (1 << 63) - 1  # of a partition, a bigint of its database
VOCABULARY: Final = 1 << 24  # token ids
EMBEDDING: Final = 1 << 16  # numbers of one embedding

ID_CHARS: Final = 256  # ids of requests, tickets, leases, reservations, processes
MODEL_NAME_CHARS: Final = 256
MODEL_KEY_CHARS: Final = 400  # name, @ and digest
DIGEST_CHARS: Final = 128
ADDRESS_CHARS: Final = 300
TRACEPARENT_CHARS: Final = 128
BEARER_CHARS: Final = 4_096
DELEGATION_BYTES: Final = 512
SOURCE_CHARS: Final = 64  # of an IP address
REGION_CHARS: Final = 63  # of the name of a region, a DNS label
SCOPE_CHARS: Final = 6 + MODEL_NAME_CHARS  # of limits: `model:` and a name
ROUTE_CHARS: Final = 1 << 16  # definition of a route as JSON
AMOUNT: Final = 1 << 62  # tokens, requests or nanos of a limit, a budget, a price or a total
BUDGET_WARNING_CHARS: Final = 2_048  # of one text for each scope of a request
REASON_CHARS: Final = 1_024
ERROR_CHARS: Final = 65_536
TEMPLATE_CHARS: Final = 1 << 20
TOKENIZER_BYTES: Final = 48 << 20  # compressed
SEALED_CONTENT_BYTES: Final = (16 << 20) + (1 << 16)  # request or output of a stored response: a body, sealed
SEALED_RESUME_BYTES: Final = 1 << 16
SEALED_TOKENS_BYTES: Final = 16 << 20  # of one part of the output
FILE_BYTES: Final = 1 << 62  # of one file of lines or answers
FILE_PART_BYTES: Final = 1 << 20  # of one message
BATCH_LINES: Final = 1 << 40  # lines of one batch
LINE_ID_CHARS: Final = 32
LINE_BYTES: Final = 16 << 20  # body of one line
LINE_PROGRESS_BYTES: Final = 16 << 20
LINE_ANSWER_BYTES: Final = 48 << 20  # below the largest message
HTTP_STATUS: Final = 599
CHAIN_BYTES: Final = 32 << 20  # requests and outputs of one conversation
UNIX_S: Final = 1 << 36  # s, a point in time

# Entries of one frame.
TICKETS: Final = 4_096
LEASES: Final = 1 << 17  # that one worker runs or reports
SERVED: Final = 8_192
NUMBERED: Final = 1 << 17
MODELS: Final = 4_096
POISON_REPORTS: Final = 16_384
STOP_TOKENS: Final = 4_096
PREFIX_BLOCKS: Final = 1 << 22
PREFIX_HASHES: Final = 64  # of one ticket
AVOIDED_WORKERS: Final = 16  # of one ticket
SLOT_RELEASES: Final = 1_024
BACKLOGS: Final = 1_024  # workers of one report
PLACED: Final = 1_024  # prompts of one report
VIRTUAL_TIMES: Final = 4 * MODELS  # one for each class
WINDOWS: Final = 64  # rejection windows beside one rejection
IDENTITY_KEYS: Final = 16
ALLOWED_REGIONS: Final = 16  # of one tenant
ROUTES: Final = 1_024  # of all tenants
ROUTE_TARGETS: Final = 16  # of one route
ROUTE_FALLBACKS: Final = 8  # of one route
CATALOG_ENTRIES: Final = 500  # of one part
SHARES: Final = 1 << 17  # of one partition
USAGE_TOTALS: Final = 500
FRAMES: Final = 1_024  # of one bundle
EXTENDED: Final = 4_096  # stored responses of one call
CLAIMED: Final = 1_024  # stored responses of one result
LISTED_FILES: Final = 1_000  # of one page
LISTED_BATCHES: Final = 100
CHAINED: Final = 1_000  # stored responses of one conversation


def at_most(value: int, bound: int) -> int:
    """Return a total within the range of its field."""
    return min(value, bound)
