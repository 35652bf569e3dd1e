"""Brings what the edge directory sees before the proxies, for as long as the process lives."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from penstock.routing.board import SnapshotBoard
from penstock.routing.directory import EdgeDirectory
from penstock.routing.edge import BadEdge, Edge
from penstock.routing.resources import Front, front_snapshot

log = structlog.get_logger()


@dataclass(slots=True)
class Rollout:
    """Knows the edges in force. A list that cannot be read changes nothing."""

    front: Front
    directory: EdgeDirectory
    board: SnapshotBoard
    edges: frozenset[Edge]

    @classmethod
    async def begin(cls, front: Front, directory: EdgeDirectory) -> "Rollout":
        """Raises BadEdge or OSError where there is no list of edges to begin with."""
        edges = frozenset(await directory.look())
        log.info("edges_found", edges=_names(edges))
        return cls(front, directory, SnapshotBoard(front_snapshot(front, edges)), edges)

    async def follow(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            try:
                await self.advance()
            except (BadEdge, OSError) as error:
                log.error("edges_refused", error=str(error), kept=len(self.edges))  # noqa: TRY400  # no stack: a typo

    async def advance(self) -> None:
        """Look once; publish if the edges are others than before."""
        edges = frozenset(await self.directory.look())
        if edges == self.edges:
            return
        snapshot = await asyncio.to_thread(front_snapshot, self.front, edges)  # 0.1 s for a thousand edges
        log.info("edges_changed", added=_names(edges - self.edges), removed=_names(self.edges - edges))
        self.edges = edges
        self.board.publish(snapshot)

    def figures(self) -> dict[str, float]:
        return {
            "edges": len(self.edges),
            "edges_draining": sum(edge.is_draining for edge in self.edges),
            "xds_streams": len(self.board.bells),
        }


def _names(edges: Iterable[Edge]) -> list[str]:
    return [str(edge.grpc) for edge in sorted(edges)]
