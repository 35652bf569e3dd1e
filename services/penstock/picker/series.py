"""Series of the endpoint picker, which owns the requests of a gateway until their endpoint is chosen."""

from penstock.chassis.observability.series import CLASS, MODEL, REASON, WAIT_BUCKETS, counter, gauge, histogram

PICK_BUCKETS = (0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)

PICKS = counter("penstock.picker.picks", "{request}", "Requests that got an endpoint.", MODEL, CLASS)
REJECTIONS = counter("penstock.picker.rejections", "{request}", "Requests that got none.", CLASS, REASON)
WAIT = histogram(
    "penstock.picker.wait", "Time that requests waited for a slot of an endpoint.", CLASS, buckets=WAIT_BUCKETS
)
PICK_DURATION = histogram(
    "penstock.picker.pick", "Time to read a request and to choose, without the wait.", buckets=PICK_BUCKETS
)
PROMPT_TOKENS = counter(
    "penstock.picker.prompt_tokens",
    "{token}",
    "Estimated prompt tokens of requests with an endpoint: cached (expected in its prefix cache) or new.",
    "source",
)
RESPONSES = counter(
    "penstock.picker.responses",
    "{response}",
    "Requests with an endpoint that ended: complete, or cut (the client or the endpoint disconnected).",
    "outcome",
)
MOVES = counter("penstock.picker.moves", "{request}", "Requests that another endpoint served than the first choice.")
WAITING = gauge("penstock.picker.waiting", "{request}", "Requests that wait for a slot.")
HELD = gauge("penstock.picker.slots_held", "{request}", "Slots that requests hold.")
SLOTS = gauge("penstock.picker.slots", "{request}", "Slots of usable endpoints, without those of other users.")
ENDPOINTS = gauge("penstock.picker.endpoints", "{endpoint}", "Endpoints: pending, ready, degraded or down.", "state")
SCRAPE_FAILURES = counter("penstock.picker.scrape_failures", "{scrape}", "Scrapes without a load.")

SERIES = (
    PICKS,
    REJECTIONS,
    WAIT,
    PICK_DURATION,
    PROMPT_TOKENS,
    RESPONSES,
    MOVES,
    WAITING,
    HELD,
    SLOTS,
    ENDPOINTS,
    SCRAPE_FAILURES,
)
