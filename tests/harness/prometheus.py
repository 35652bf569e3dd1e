"""A real Prometheus (Debian's package) that scrapes the processes of a mesh, and queries of its HTTP API."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from free_ports import free_port
from penstock.chassis.observability.deferred import DEFERRAL_S

PROGRAM = shutil.which("prometheus")
SCRAPE_INTERVAL_S = 1
START_TIMEOUT_S = 20.0

needs_prometheus = pytest.mark.skipif(PROGRAM is None, reason="Debian's package `prometheus` is not installed")


@dataclass
class Prometheus:
    """A running server."""

    http: httpx.AsyncClient

    async def query(self, expression: str, at: float | None = None) -> list[dict[str, Any]]:
        """Return the result of an instant query: a list of `metric` and `value`."""
        moment = {} if at is None else {"time": f"{at:.3f}"}
        answer = await self.http.get("/api/v1/query", params={"query": expression, **moment})
        found: list[dict[str, Any]] = answer.raise_for_status().json()["data"]["result"]
        return found

    async def value(self, expression: str, at: float | None = None) -> float:
        """Return the value of a query with one result; 0.0 without a result."""
        found = await self.query(expression, at)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else 0.0

    async def exemplars(self, expression: str) -> list[dict[str, Any]]:
        now = time.time()
        range_ = {"start": f"{now - 3_600:.3f}", "end": f"{now:.3f}"}
        answer = await self.http.get("/api/v1/query_exemplars", params={"query": expression, **range_})
        return [each for series in answer.raise_for_status().json()["data"] for each in series["exemplars"]]

    async def targets(self) -> list[dict[str, Any]]:
        answer = await self.http.get("/api/v1/targets")
        found: list[dict[str, Any]] = answer.raise_for_status().json()["data"]["activeTargets"]
        return found

    async def scrape_errors(self) -> dict[str, str]:
        """Return the last error of each target by job; empty if it was scraped."""
        return {each["labels"]["job"]: each["lastError"] for each in await self.targets()}

    async def wait_targets(self, jobs: Iterable[str]) -> None:
        """Wait for the first scrape of each job, which Prometheus begins some seconds after its start."""
        async with asyncio.timeout(START_TIMEOUT_S):
            while await self.scrape_errors() != dict.fromkeys(jobs, ""):  # noqa: ASYNC110  # of another process
                await asyncio.sleep(0.2)

    async def scraped(self) -> float:
        """Wait until each target was scraped after the deferred calls of now, and return the time."""
        due = time.time() + 2 * DEFERRAL_S
        async with asyncio.timeout(START_TIMEOUT_S):
            while await self._oldest_scrape() <= due:  # noqa: ASYNC110  # of another process
                await asyncio.sleep(0.2)
        await asyncio.sleep(SCRAPE_INTERVAL_S)  # for the scrapes that have begun to end
        return time.time()

    async def _oldest_scrape(self) -> float:
        """Return the Unix time of the last scrape of the target that was scraped first."""
        return min(datetime.fromisoformat(each["lastScrape"]).timestamp() for each in await self.targets())


@asynccontextmanager
async def running_prometheus(
    folder, targets: dict[str, str], *, rules: Path | None = None
) -> AsyncIterator[Prometheus]:
    """Run a server that scrapes `targets`, host:port by job, and evaluates the rules of a file if there is one."""
    jobs = [{"job_name": name, "static_configs": [{"targets": [target]}]} for name, target in targets.items()]
    settings = {"global": {"scrape_interval": f"{SCRAPE_INTERVAL_S}s"}, "scrape_configs": jobs}
    settings |= {"rule_files": [str(rules)] if rules else []}
    configuration = folder / "prometheus.yml"
    configuration.write_text(yaml.safe_dump(settings))
    address = f"127.0.0.1:{free_port()}"
    options = ("--enable-feature=exemplar-storage", "--log.level=warn")
    process = await asyncio.create_subprocess_exec(
        str(PROGRAM),
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        *options,
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}") as http:
            await wait_ready(http)
            server = Prometheus(http)
            await server.wait_targets(targets)
            yield server
    finally:
        process.terminate()
        await process.wait()


async def wait_ready(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            try:
                if (await http.get("/-/ready")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)
