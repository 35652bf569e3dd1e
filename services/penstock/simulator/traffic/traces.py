"""Public traces as demand: Azure's CSV, Mooncake's JSON lines, ServeGen's folders. Files may be gzipped.

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
from penstock.simulator.traffic.demand import Ask, Demand, Phased, Traced
from penstock.simulator.traffic.lengths import Empirical
from penstock.simulator.traffic.shared_prefixes import Beginning

SERVEGEN_WINDOW = 600.0  # s
MICROSECONDS = len("2023-11-16 18:15:46.680590")  # of an Azure time, which has one digit more
CLIENT = re.compile(r"chunk-(\d+)-trace\.csv$")


class TraceError(Exception):
    """A trace cannot be read; the message names its file and what is the matter."""


@contextmanager
def readable(path: Path, kind: str) -> Iterator[None]:
    """Raises TraceError for whatever goes wrong while the trace at `path` is read: the file is somebody else's."""
    try:
        yield
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
    except KeyError as error:
        raise TraceError(f"{path} is no {kind} trace: it has no {error}") from error
    except (ValueError, TypeError, LookupError, AttributeError, SyntaxError, EOFError, zlib.error) as error:
        raise TraceError(f"{path} is no {kind} trace: {error}") from error


def azure(path: Path) -> Traced:
    with _opened(path) as lines:
        rows = [
            (datetime.fromisoformat(row["TIMESTAMP"][:MICROSECONDS]), row["ContextTokens"], row["GeneratedTokens"])
            for row in csv.DictReader(lines)
        ]
    begin = min((at for at, _, _ in rows), default=None)
    asks = [Ask((at - begin).total_seconds(), _tokens(prompt), _tokens(output)) for at, prompt, output in rows if begin]
    return _traced(sorted(asks))


def mooncake(path: Path) -> Traced:
    with _opened(path) as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    asks = [
        Ask(
            row["timestamp"] / 1e3,
            _tokens(row["input_length"]),
            _tokens(row["output_length"]),
            Beginning(tuple(row.get("hash_ids", ()))),
        )
        for row in rows
    ]
    return _traced(sorted(asks, key=lambda ask: ask.at))


def servegen(folder: Path, *, start: float, clients: int) -> Mapping[str, Demand]:
    """Return the demand of the busiest clients from `start` s of the recording on, by client number."""
    found = {match[1]: path for path in sorted(folder.iterdir()) if (match := CLIENT.search(path.name))}
    windows = {number: _windows(path, start) for number, path in found.items()}
    busiest = sorted(windows, key=lambda number: (-sum(each.rate for each in windows[number]), int(number)))
    found_phases = ((number, _phases(folder, number, start)) for number in busiest)
    chosen = dict(islice(((number, phases) for number, phases in found_phases if phases), clients))
    if not chosen:
        message = f"nobody's arrivals and lengths are there from {start:g} s on"
        raise ValueError(message)
    return {number: Phased(Renewal(windows[number]), phases) for number, phases in chosen.items()}


def _windows(path: Path, start: float) -> list[RenewalWindow]:
    with path.open(encoding="utf-8") as lines:
        rows = [row for row in csv.reader(lines) if float(row[0]) + SERVEGEN_WINDOW > start]
    return [
        RenewalWindow(
            start=max(0.0, float(at) - start),
            end=float(at) + SERVEGEN_WINDOW - start,
            rate=float(rate),
            family=family.lower(),
            shape=float(shape) if family else 1.0,
        )
        for at, rate, _cv, family, shape, _scale in rows
    ]


def _phases(folder: Path, number: str, start: float) -> list[tuple[float, Empirical, Empirical]]:
    """Return the lengths from `start` on; none where they were not published or the client was never there."""
    path = folder / f"chunk-{number}-dataset.json"
    recorded = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    lengths = [(float(at), _shares(row["input_tokens"]), _shares(row["output_tokens"])) for at, row in recorded.items()]
    phases = sorted((each for each in lengths if each[1] and each[2]), key=lambda each: each[0])
    begun = sum(at <= start for at, *_ in phases)
    return [(at - start, Empirical(prompt), Empirical(output)) for at, prompt, output in phases[max(0, begun - 1) :]]


def _shares(text: str) -> dict[int, float]:
    """Read a Python dict literal; as a literal, for the file is somebody else's."""
    return {int(tokens): float(share) for tokens, share in ast.literal_eval(text).items()}


def _traced(asks: list[Ask]) -> Traced:
    if not asks:
        message = "it has no requests"
        raise ValueError(message)
    return Traced(asks)


def _tokens(value: object) -> int:
    return max(1, int(str(value)))


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")
