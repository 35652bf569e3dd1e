"""W3C Trace Context: the traceparent that names a span, and what its parts say.

A traceparent is `version-trace-span-flags` in lower-case hexadecimal. Frames between tiers carry it as text.
"""

import re
from typing import Final

from penstock.chassis.ids import new_span_id, new_trace_id

# Section 3.2 and, for later versions, 3.2.4: neither id is all 0; version ff is invalid; later ones may say more.
_IDS = "(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_TRACEPARENT = re.compile(f"(?:00-{_IDS}|(?!00|ff)[0-9a-f]{{2}}-{_IDS}(?:-.*)?)")
_SAMPLED_DIGITS = frozenset("13579bdf")  # last digit of the flags: bit 0 is set
TRACE_ID: Final = slice(3, 35)
SPAN_ID: Final = slice(36, 52)
_FLAGS_END: Final = 55
SAMPLED, NOT_SAMPLED = "01", "00"


def traceparent_or_empty(text: str) -> str:
    """Return the traceparent of a caller; empty if it is malformed."""
    return text[:_FLAGS_END] if text and _TRACEPARENT.fullmatch(text) else ""


def trace_id_of(traceparent: str) -> str:
    """Return the 32 hex digits of the trace; empty if `traceparent` is malformed."""
    return traceparent_or_empty(traceparent)[TRACE_ID]


def is_sampled(traceparent: str) -> bool:
    """Whether the root of a traceparent's trace is sampled; False if it is empty."""
    return traceparent[_FLAGS_END - 1 : _FLAGS_END] in _SAMPLED_DIGITS


def child_of(parent: str, flags: str) -> str:
    """Return the traceparent of a new span below a valid `parent`, or of the root of a new trace if that is empty."""
    return f"00-{parent[TRACE_ID] or new_trace_id()}-{new_span_id()}-{flags}"
