"""The load of a vLLM server, from the text of its Prometheus endpoint."""

import re
from dataclasses import dataclass

WAITING = "vllm:num_requests_waiting"
RUNNING = "vllm:num_requests_running"
KV_USAGE = "vllm:kv_cache_usage_perc"  # a share from 0 to 1, despite its name
FORMER_KV_USAGE = "vllm:gpu_cache_usage_perc"  # before vLLM 0.10
CACHE_CONFIG = "vllm:cache_config_info"

_SAMPLE = re.compile(
    rf"^(?P<name>{WAITING}|{RUNNING}|{KV_USAGE}|{FORMER_KV_USAGE}|{CACHE_CONFIG})"
    r"(?:\{(?P<labels>[^\n]*)\})? (?P<value>\S+)",
    re.MULTILINE,
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
MAX_COUNT = 1 << 20  # requests, and KV blocks times their size beyond any server
MAX_NAME_CHARS = 256


class LoadUnreadable(ValueError):
    """The text has no load of a vLLM server, or one out of range."""


@dataclass(frozen=True, slots=True)
class EndpointLoad:
    """The load of one server, summed over its engines."""

    waiting: int  # requests in the queues of its engines
    running: int  # requests in their batches
    kv_usage: float = 0.0  # share of the KV blocks in use, of the fullest engine
    kv_tokens: int = 0  # tokens of all KV blocks; 0: unknown
    models: frozenset[str] = frozenset()

    @property
    def requests(self) -> int:
        return self.waiting + self.running


def parse_load(text: str) -> EndpointLoad:
    """Return the load in a Prometheus exposition. Raises LoadUnreadable."""
    counts = {WAITING: 0.0, RUNNING: 0.0}
    found: set[str] = set()
    models: set[str] = set()
    kv_usage, kv_tokens = 0.0, 0
    for match in _SAMPLE.finditer(text):
        name, labels = match["name"], dict(_LABEL.findall(match["labels"] or ""))
        found.add(name)
        if name == CACHE_CONFIG:
            kv_tokens += _kv_tokens(labels)
            continue
        value = _number(match["value"])
        if name in counts:
            counts[name] += value
            if model := labels.get("model_name"):
                models.add(model[:MAX_NAME_CHARS])
        else:
            kv_usage = max(kv_usage, min(1.0, value))
    if not counts.keys() <= found:
        raise LoadUnreadable(f"the metrics have no {WAITING} or no {RUNNING}")
    waiting, running = (int(min(MAX_COUNT, value)) for value in counts.values())
    return EndpointLoad(waiting, running, kv_usage, kv_tokens, frozenset(models))


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0.0:  # NaN too
        raise LoadUnreadable(f"{text[:20]!r} is not a number of at least 0")
    return value


def _kv_tokens(labels: dict[str, str]) -> int:
    """Return the tokens that the KV blocks of an engine hold; 0 if it does not state them."""
    blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    if not (blocks.isdecimal() and size.isdecimal() and len(blocks) < 12 and len(size) < 6):
        return 0
    return int(blocks) * int(size)
