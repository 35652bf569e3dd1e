"""Links to edges: one stream to each, and the number of lines that each has."""

from collections.abc import Callable, Sequence

from penstock.batch.runner.held import RunnableLine
from penstock.chassis.channels import PeerSet
from penstock.chassis.durations import set_seconds
from penstock.chassis.security.channels import PLAINTEXT, Dialer
from penstock.chassis.streams.link import Link
from penstock.mesh.v1 import batch_pb2 as pb
from penstock.mesh.v1.batch_pb2_grpc import LineServiceStub
from penstock.v1.stream_pb2 import Hello

MAX_LINE_S = 86_400.0  # s for one line, beside the window of its batch

LineLink = Link[pb.RunRequest, pb.RunResponse]


class EdgeLinks:
    """Sends lines to the edge that has the fewest. Set the callbacks before `run`."""

    def __init__(self, targets: Sequence[str], hello: Hello, *, dialer: Dialer = PLAINTEXT) -> None:
        self._hello = hello
        self._dialer = dialer
        self._peers = PeerSet(targets, self._open)
        self._links: dict[str, LineLink] = {}  # those that are up and do not drain
        self._lines: dict[str, int] = {}
        self.on_running: Callable[[str, int], None] = lambda _edge, _number: None
        self.on_progress: Callable[[str, int, bytes], None] = lambda _edge, _number, _progress: None
        self.on_ended: Callable[[str, pb.LineEnded], None] = lambda _edge, _ended: None
        self.on_lost: Callable[[str], None] = lambda _edge: None
        self.on_up: Callable[[], None] = lambda: None

    @property
    def links_up(self) -> int:
        return len(self._links)

    async def run(self) -> None:
        await self._peers.run()

    def next_edge(self) -> str:
        """Return the edge that receives the next line; empty if none is connected."""
        return min(self._links, key=lambda each: self._lines.get(each, 0), default="")

    def start(self, line: RunnableLine, now: float) -> bool:
        """Send a line to its edge. Return False if the edge is lost, which `on_lost` tells or has told."""
        claimed = line.chunk.claimed
        start = pb.StartLine(
            number=line.handle,
            line_id=line.line_id,
            owner=pb.Owner(tenant_id=claimed.tenant_id, key_id=claimed.key_id, delegation=claimed.delegation),
            endpoint=claimed.endpoint,
            body=line.call.body,
            priority=claimed.priority,
            progress=line.progress,
            may_have_run=line.may_have_run,
        )
        set_seconds(start.timeout, max(1.0, min(MAX_LINE_S, line.chunk.ends_at - now)))
        link = self._links.get(line.edge)
        if link is None or not link.send(pb.RunRequest(start=start)):
            return False
        self._lines[line.edge] = self._lines.get(line.edge, 0) + 1
        return True

    def stop(self, line: RunnableLine) -> None:
        if link := self._links.get(line.edge):
            link.send(pb.RunRequest(stop=pb.StopLine(number=line.handle)))

    async def _open(self, address: str) -> None:
        async with self._dialer.channel(address, "edge") as to_edge:
            link = LineLink(
                f"edge {address}",
                lambda: LineServiceStub(to_edge).Run(),
                pb.RunRequest,
                self._hello,
                on_frame=lambda frame: self._receive(address, frame),
                on_up=lambda _: self._add(address, link),
                on_down=lambda _: self._lose(address),
                check_hello=self._dialer.hello_check("edge"),
            )
            await link.run()

    def _add(self, address: str, link: LineLink) -> None:
        self._links[address], self._lines[address] = link, 0
        self.on_up()

    def _lose(self, address: str) -> None:
        self._links.pop(address, None)
        self._lines.pop(address, None)
        self.on_lost(address)

    def _receive(self, address: str, frame: pb.RunResponse) -> None:
        match frame.WhichOneof("frame"):
            case "running":
                self.on_running(address, frame.running.number)
            case "progress":
                self.on_progress(address, frame.progress.number, frame.progress.progress)
            case "ended":
                self._lines[address] = max(0, self._lines.get(address, 0) - 1)
                self.on_ended(address, frame.ended)
            case "end":
                self._links.pop(address, None)  # the edge has given its lines back, and reads no more
