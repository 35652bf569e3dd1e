"""Reads public traces as demand: Azure's CSV, Mooncake's JSON lines, ServeGen's folders. Files may be gzipped.

Formats: Azure/AzurePublicDataset (AzureLLMInferenceTrace), kvcache-ai/Mooncake (FAST25-release/traces),
alibaba/ServeGen (data/*/<model>: chunk-N-trace.csv and chunk-N-dataset.json for client N).
"""

import ast
import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import IO

from penstock.simulator.traffic.arrivals import Renewal, RenewalWindow
from penstock.simulator.traffic.demand import Demand, Empirical, OfferedRequest, PhasedDemand, TraceDemand
from penstock.simulator.traffic.shared_prefixes import SharedPrefix

SERVEGEN_WINDOW_S = 600.0  # s
TIMESTAMP_CHARS = len("2023-11-16 18:15:46.680590")  # Azure's timestamps have one more digit
CLIENT_FILE = re.compile(r"chunk-(\d+)-trace\.csv$")


class TraceError(Exception):
    """A trace cannot be read; the message names the file and the error."""


@contextmanager
def trace_errors(path: Path, kind: str) -> Iterator[None]:
    """Convert every error of the block, which reads the trace at `path`, to TraceError."""
    try:
        yield
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
    except KeyError as error:
        raise TraceError(f"{path} is not a trace in {kind} format: it has no {error}") from error
    except (ValueError, TypeError, LookupError, AttributeError, SyntaxError, EOFError, zlib.error) as error:
        raise TraceError(f"{path} is not a trace in {kind} format: {error}") from error


def read_azure(path: Path) -> TraceDemand:
    with _open_text(path) as lines:
        rows = [
            (datetime.fromisoformat(row["TIMESTAMP"][:TIMESTAMP_CHARS]), row["ContextTokens"], row["GeneratedTokens"])
            for row in csv.DictReader(lines)
        ]
    start = min((at for at, _, _ in rows), default=None)
    requests = [
        OfferedRequest((at - start).total_seconds(), _parse_tokens(prompt), _parse_tokens(output))
        for at, prompt, output in rows
        if start
    ]
    return _trace_demand(sorted(requests))


def read_mooncake(path: Path) -> TraceDemand:
    with _open_text(path) as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    requests = [
        OfferedRequest(
            row["timestamp"] / 1e3,
            _parse_tokens(row["input_length"]),
            _parse_tokens(row["output_length"]),
            SharedPrefix(tuple(row.get("hash_ids", ()))),
        )
        for row in rows
    ]
    return _trace_demand(sorted(requests, key=lambda each: each.at))


def read_servegen(folder: Path, *, start: float, clients: int) -> Mapping[str, Demand]:
    """Return the demand of the busiest clients by client number; the recording is read from `start` s on."""
    paths = {match[1]: path for path in sorted(folder.iterdir()) if (match := CLIENT_FILE.search(path.name))}
    windows = {number: _read_windows(path, start) for number, path in paths.items()}
    busiest = sorted(windows, key=lambda number: (-sum(each.rate for each in windows[number]), int(number)))
    phases_by_client = ((number, _read_phases(folder, number, start)) for number in busiest)
    chosen = dict(islice(((number, phases) for number, phases in phases_by_client if phases), clients))
    if not chosen:
        message = f"no client has arrivals and lengths from {start:g} s on"
        raise ValueError(message)
    return {number: PhasedDemand(Renewal(windows[number]), phases) for number, phases in chosen.items()}


def _read_windows(path: Path, start: float) -> list[RenewalWindow]:
    with path.open(encoding="utf-8") as lines:
        rows = [row for row in csv.reader(lines) if float(row[0]) + SERVEGEN_WINDOW_S > start]
    return [
        RenewalWindow(
            start=max(0.0, float(at) - start),
            end=float(at) + SERVEGEN_WINDOW_S - start,
            rate=float(rate),
            family=family.lower(),
            shape=float(shape) if family else 1.0,
        )
        for at, rate, _cv, family, shape, _scale in rows
    ]


def _read_phases(folder: Path, number: str, start: float) -> list[tuple[float, Empirical, Empirical]]:
    """Return the phases from `start` on; empty if the client's lengths were not published."""
    path = folder / f"chunk-{number}-dataset.json"
    recorded = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    lengths = [
        (float(at), _parse_shares(row["input_tokens"]), _parse_shares(row["output_tokens"]))
        for at, row in recorded.items()
    ]
    phases = sorted((each for each in lengths if each[1] and each[2]), key=lambda each: each[0])
    started = sum(at <= start for at, *_ in phases)
    return [(at - start, Empirical(prompt), Empirical(output)) for at, prompt, output in phases[max(0, started - 1) :]]


def _parse_shares(text: str) -> dict[int, float]:
    """Parse a Python dict literal, without evaluating it, because the file is not trusted."""
    return {int(tokens): float(share) for tokens, share in ast.literal_eval(text).items()}


def _trace_demand(requests: list[OfferedRequest]) -> TraceDemand:
    if not requests:
        message = "it has no requests"
        raise ValueError(message)
    return TraceDemand(requests)


def _parse_tokens(value: object) -> int:
    return max(1, int(str(value)))


def _open_text(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")
