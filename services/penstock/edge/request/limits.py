"""The caps of a request, all in one place: what the public contract promises and what the edge refuses beyond.

Bytes are of UTF-8. A model's own limits (context, vocabulary) come with its card and are not here.
"""

BODY_BYTES = 16 << 20  # one HTTP body or gRPC message; text at its cap fits even when JSON escapes blow it up
BODY_BUDGET_BYTES = 256 << 20  # HTTP bodies being read, all together
BODY_READ_TIMEOUT_S = 30.0  # s, in the middle of an HTTP body
TEXT_BYTES = 4 << 20  # raw text, or all contents of a conversation together
RENDERED_BYTES = 8 << 20  # what a chat template may make of them
MODEL_NAME_BYTES = 256
REQUEST_ID_CHARS = 128
MESSAGES = 4096
ROLE_BYTES = 64
PROMPT_TOKENS = 1 << 20  # ids sent as a prompt
OUTPUT_TOKENS = 1 << 20
STOP_STRINGS = 16
STOP_BYTES = 256  # each
TEMPERATURE = 2.0
TOP_K = 1024
PENALTY = 2.0  # presence and frequency, either sign
REPETITION_PENALTY = 2.0
TIMEOUT_S = 86_400.0  # s; a day
METADATA_PAIRS = 16  # what a caller attaches to a response and gets back
METADATA_KEY_CHARS = 64
METADATA_VALUE_CHARS = 512
CHOICES = 1  # answers per request
