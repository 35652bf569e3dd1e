"""Runs a short proof by the command `penstock scorecard`."""

import asyncio
import json
import sys

COMMAND = (sys.executable, "-m", "penstock.cli", "scorecard", "--json", "--streams", "4", "--tokens", "24")


async def proved(proof, model, *options):
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--model", model, *options, proof, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await process.communicate()
    assert out, errors.decode()
    (card,) = json.loads(out)
    assert not card["void"], card
    return card, {line["figure"]: line for line in card["lines"]}


def assert_nothing_lost(card, lines):
    exact = [line for line in card["lines"] if line["goal"] in ("0", "100")]
    assert len(exact) >= 10
    assert not [line for line in exact if not line["is_met"]], card["notes"]
    assert lines["requests"]["measured"] > 4
