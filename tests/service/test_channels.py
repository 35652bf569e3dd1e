"""Sets of peers that follow their addresses."""

import asyncio

from penstock.chassis import channels
from penstock.chassis.channels import AddressWatch, PeerSet, resolve


async def test_an_address_needs_no_lookup_and_a_name_gives_all_its_addresses():
    assert await resolve("127.0.0.1:7003") == ["127.0.0.1:7003"]
    assert "127.0.0.1:7003" in await resolve("dns:///localhost:7003")


async def test_a_peer_runs_while_its_address_is_present(monkeypatch):
    present, events = [["a:1", "b:1"], ["b:1", "c:1"]], asyncio.Queue()

    async def names(_target):
        return present[0]

    async def open_peer(address):
        events.put_nowait(f"open {address}")
        try:
            await asyncio.Event().wait()
        finally:
            events.put_nowait(f"close {address}")

    monkeypatch.setattr(channels, "resolve", names)
    peers = PeerSet(["dns:///peers:1"], open_peer, interval_s=0.01)
    running = asyncio.create_task(peers.run())
    assert {await events.get(), await events.get()} == {"open a:1", "open b:1"}
    present.pop(0)
    assert {await events.get(), await events.get()} == {"close a:1", "open c:1"}
    assert peers.addresses == {"b:1", "c:1"}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert {await events.get(), await events.get()} == {"close b:1", "close c:1"}


async def test_a_name_that_cannot_be_looked_up_keeps_its_former_addresses(monkeypatch):
    answers = [["a:1"], OSError("no such name"), ["b:1"]]

    async def names(_target):
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(channels, "resolve", names)
    watch = aiter(AddressWatch(["dns:///peers:1"], interval_s=0.001))
    assert await anext(watch) == {"a:1"}
    assert await anext(watch) == {"b:1"}
    await watch.aclose()
