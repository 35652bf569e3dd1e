"""Public limits of a request. The edge rejects values beyond them.

Bytes are of UTF-8. The limits of a model (context, vocabulary) come with its card.
"""

# Of one HTTP body or gRPC message. Text at its own limit fits even if JSON escapes its characters.
BODY_BYTES = 16 << 20
FILE_BYTES = 4 << 30  # of one uploaded file
HEAD_BYTES = 64 << 10  # request line and headers of one HTTP request
HEADERS = 256  # of one HTTP request
BODY_BUDGET_BYTES = 256 << 20  # of all HTTP bodies that are being read together
BODY_READ_TIMEOUT_S = 30.0  # s without further bytes in the middle of an HTTP body
BODY_GRACE_S = 10.0  # s after which a body must have arrived at the least rate, from its first read on
BODY_BYTES_PER_S = 1024  # least rate of an HTTP body after the grace
# Of the structure of a JSON body. A prompt of the most token ids, or the most messages of many parts, is within them.
JSON_DEPTH = 64
JSON_CONTAINERS = 64 << 10  # lists and objects
JSON_STRINGS = 256 << 10  # names of members included
JSON_ELEMENTS = (1 << 20) + (128 << 10)  # commas between elements of lists and members of objects
TEXT_BYTES = 4 << 20  # raw text, or all contents of a conversation together
RENDERED_BYTES = 8 << 20  # of a conversation after the chat template
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
METADATA_PAIRS = 16  # that a caller attaches to a response and receives back
METADATA_KEY_CHARS = 64
METADATA_VALUE_CHARS = 512
CHOICES = 128  # answers per call, over all of its prompts
TOP_LOGPROBS = 20  # likeliest tokens at each position
LOGIT_BIASES = 300  # token ids
LOGIT_BIAS = 100.0  # either sign
TOOLS = 128
TOOL_NAME_CHARS = 64
TOOL_CALL_ID_CHARS = 128
TOOL_SCHEMA_BYTES = 256 << 10  # of all tools of a request together
TOOL_CALLS = 128  # of one earlier message, or of an answer; further ones in an answer stay text
EMBEDDING_INPUTS = 2_048  # of one call
EMBEDDING_NUMBERS = 4_000_000  # of all vectors of one call, as a gRPC message has at most 16 MiB
