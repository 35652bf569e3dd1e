"""Checks of worlds of several regions: residency, offers that are given up, charges of each region, links. Pure."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.faults.checks.checker import NO_TICKETS, LedgerRow, Violation, check_charges
from penstock.faults.world.clients.clients import ClientTranscript
from penstock.mesh.regions import is_region_allowed
from penstock.mesh.v1.region_pb2 import GuestOffer, RegionServiceRunRequest, RegionServiceRunResponse

ENDS = frozenset({"rejected", "finished", "cancelled", "failed"})  # of an offer, as the region answers it


class RegionStream(NamedTuple):
    """A stream of an edge to another region."""

    number: int  # names it among the streams of the world
    home: str  # name of the edge that opened it
    region: str
    is_connected: Callable[[], bool]  # whether both sides have it


@dataclass(eq=False, slots=True)
class OfferRecord:
    """One request that was offered to a region over one stream."""

    stream: RegionStream
    prompt_tokens: int
    ended_at: float = math.inf  # s; when home has cancelled it, or the region has ended it

    @property
    def is_open(self) -> bool:
        return self.ended_at == math.inf and self.stream.is_connected()


@dataclass
class RegionWatch:
    """Checks frames about requests: where their prompts are sent, and that an edge offers each to one region at a time.

    A request is recognized by the length of its prompt.
    """

    allowed: Mapping[int, Collection[str]]  # regions of its tenant, by prompt length; empty: all
    violations: list[Violation] = field(default_factory=list)
    started: int = 0  # offers that a region has admitted
    offers: dict[tuple[int, int], OfferRecord] = field(default_factory=dict)  # by number of the stream, and handle
    overlapping: list[OfferRecord] = field(default_factory=list)  # sent while another offer of the request was open

    def on_start(self, region: str, prompt_tokens: int) -> None:
        """A worker of a region receives a prompt."""
        self._check_residency(region, prompt_tokens, "a worker")

    def on_request_frame(self, at: float, stream: RegionStream, frame: RegionServiceRunRequest) -> None:
        """An edge sends a frame to another region."""
        if frame.WhichOneof("frame") == "cancel":
            self._end(stream.number, frame.cancel.handle, at)
        elif frame.WhichOneof("frame") == "offer":
            self._on_offer(stream, frame.offer)

    def on_response_frame(self, at: float, stream_number: int, frame: RegionServiceRunResponse) -> None:
        kind = frame.WhichOneof("frame")
        self.started += kind == "started"
        if kind in ENDS:
            self._end(stream_number, getattr(frame, kind).handle, at)

    def _on_offer(self, stream: RegionStream, offer: GuestOffer) -> None:
        record = OfferRecord(stream, len(offer.token_ids) - offer.emitted)
        self._check_residency(stream.region, record.prompt_tokens, "an offer")
        request = stream.home, record.prompt_tokens
        if any(each.is_open and (each.stream.home, each.prompt_tokens) == request for each in self.offers.values()):
            self.overlapping.append(record)
        self.offers[stream.number, offer.handle] = record

    def _end(self, stream_number: int, handle: int, at: float) -> None:
        record = self.offers.get((stream_number, handle))
        if record and record.ended_at == math.inf:
            record.ended_at = at

    def _check_residency(self, region: str, prompt_tokens: int, receiver: str) -> None:
        allowed = self.allowed.get(prompt_tokens, ())
        if not is_region_allowed(allowed, region):
            regions = ", ".join(allowed)
            text = f"{prompt_tokens} prompt tokens were sent to {receiver} of {region}, allowed are {regions}"
            self.violations.append(Violation("residency", text))


def check_offers(
    watch: RegionWatch, transcripts: Iterable[ClientTranscript], max_delay_s: float
) -> Iterator[Violation]:
    """Check that an edge offers a request to one region at a time, and cancels it there when it has ended.

    max_delay_s: s that an end at the client may take to be an end in the other region.
    """
    for transcript in transcripts:
        length = len(transcript.request.prompt)
        if transcript.attempts <= 1:
            for stream in (each.stream for each in watch.overlapping if each.prompt_tokens == length):
                text = f"{stream.home} offered {length} prompt tokens to {stream.region} beside another region"
                yield Violation("two_runs", text)
        latest = transcript.ended_at + max_delay_s
        for each in (each for each in watch.offers.values() if each.prompt_tokens == length):
            if each.ended_at > latest and each.stream.is_connected():
                text = f"{each.stream.region} runs {length} prompt tokens after {latest:.3f}"
                yield Violation("guest", text)


def check_spills(started: int, *, must_spill: bool) -> Iterator[Violation]:
    """Check that an overloaded region without faults sends requests away."""
    if must_spill and not started:
        yield Violation("spill", "the first region is overloaded, and no request has left it")


class RegionLedger(NamedTuple):
    """Rows of one tenant in the ledger of one region."""

    region: str
    rows: Sequence[LedgerRow]


def check_region_charges(
    transcripts: Sequence[ClientTranscript],
    ledgers: Sequence[RegionLedger],
    tokens_made: Mapping[int, int],
    *,
    allowed: Collection[str],
    last_tickets: Mapping[int, str] = NO_TICKETS,
    may_have_lost_deferred: bool = False,
) -> Iterator[Violation]:
    """Compare the ledgers of all regions with the transcripts of one tenant's clients.

    A request is charged in the region of the edge that its client called, wherever it ran. An answer that its client
    resumed in another region has charges in both: each region charges what its edges know.

    allowed: regions of the tenant; empty: all. The others: as for `check_charges`.
    """
    lengths = {len(each.request.prompt) for each in transcripts}
    for ledger in ledgers:
        unknown = [row for row in ledger.rows if row.reserved_prompt not in lengths]
        yield from check_charges((), unknown, tokens_made)
    for transcript in transcripts:
        length = len(transcript.request.prompt)
        charged = [RegionLedger(each.region, _of_length(each.rows, length)) for each in ledgers]
        charged = [each for each in charged if each.rows]
        for each in charged:
            if not is_region_allowed(allowed, each.region):
                yield Violation("residency", f"{each.region} has charges for {length} prompt tokens: {each.rows}")
        is_resumed = len(charged) > 1 and transcript.attempts > 1
        if len(charged) > 1 and not is_resumed:
            yield Violation("charge", f"{length} prompt tokens were charged by several regions: {charged}")
        for rows in [each.rows for each in charged] or [()]:
            yield from check_charges(
                [transcript],
                rows,
                tokens_made,
                last_tickets=last_tickets,
                may_have_lost_deferred=may_have_lost_deferred or is_resumed,
            )


def _of_length(rows: Iterable[LedgerRow], prompt_tokens: int) -> list[LedgerRow]:
    return [row for row in rows if row.reserved_prompt == prompt_tokens]


def check_links(figures: Mapping[str, tuple[str, Mapping[str, float]]], others: int) -> Iterator[Violation]:
    """Check that each edge has a stream to each of the `others` regions at rest.

    figures: tier and figures of each process, by its name.
    """
    for name, (tier, values) in figures.items():
        if tier == "edge" and values.get("region_links_up") != others:
            yield Violation("link", f"{name} has {values.get('region_links_up')} of {others} streams to other regions")


def prompt_tokens_of(start: Any) -> int:
    """Return the length of the prompt that a worker receives."""
    return len(start.token_ids) - int(start.emitted)
