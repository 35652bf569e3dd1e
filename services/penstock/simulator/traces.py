"""Public traces as demand: Azure's CSV, Mooncake's JSON lines, ServeGen's folders. Files may be gzipped.

Formats: Azure/AzurePublicDataset (AzureLLMInferenceTrace), kvcache-ai/Mooncake (FAST25-release/traces),
alibaba/ServeGen (data/*/<model>: chunk-N-trace.csv and chunk-N-dataset.json for client N).
"""

import ast
import csv
import gzip
import json
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import IO

from penstock.simulator.arrivals import Renewal, RenewalWindow
from penstock.simulator.demand import Ask, Demand, Phased, Traced
from penstock.simulator.lengths import Empirical

SERVEGEN_WINDOW = 600.0  # s
MICROSECONDS = len("2023-11-16 18:15:46.680590")  # of an Azure time, which has one digit more
CLIENT = re.compile(r"chunk-(\d+)-trace\.csv$")


def azure(path: Path) -> Traced:
    with _opened(path) as lines:
        rows = [
            (datetime.fromisoformat(row["TIMESTAMP"][:MICROSECONDS]), row["ContextTokens"], row["GeneratedTokens"])
            for row in csv.DictReader(lines)
        ]
    begin = min(at for at, _, _ in rows)
    asks = [Ask((at - begin).total_seconds(), _tokens(prompt), _tokens(output)) for at, prompt, output in rows]
    return Traced(sorted(asks))


def mooncake(path: Path) -> Traced:
    with _opened(path) as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    asks = [Ask(row["timestamp"] / 1e3, _tokens(row["input_length"]), _tokens(row["output_length"])) for row in rows]
    return Traced(sorted(asks))


def servegen(folder: Path, *, start: float, clients: int) -> Mapping[str, Demand]:
    """Return the demand of the busiest clients from `start` s of the recording on, by client number."""
    found = {match[1]: path for path in sorted(folder.iterdir()) if (match := CLIENT.search(path.name))}
    windows = {number: _windows(path, start) for number, path in found.items()}
    busiest = sorted(windows, key=lambda number: (-sum(each.rate for each in windows[number]), int(number)))
    chosen = [number for number in busiest if (folder / f"chunk-{number}-dataset.json").is_file()][:clients]
    return {number: Phased(Renewal(windows[number]), _phases(folder, number, start)) for number in chosen}


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
    recorded = json.loads((folder / f"chunk-{number}-dataset.json").read_text(encoding="utf-8"))
    phases = [
        (float(at) - start, Empirical(_shares(row["input_tokens"])), Empirical(_shares(row["output_tokens"])))
        for at, row in sorted(recorded.items(), key=lambda item: float(item[0]))
    ]
    begun = [place for place, phase in enumerate(phases) if phase[0] <= 0]
    return phases[begun[-1] if begun else 0 :]


def _shares(text: str) -> dict[int, float]:
    """Read a Python dict literal; as a literal, for the file is somebody else's."""
    return {int(tokens): float(share) for tokens, share in ast.literal_eval(text).items()}


def _tokens(value: object) -> int:
    return max(1, int(str(value)))


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")
