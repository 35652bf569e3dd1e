"""Reads the ledger of one region, after its auth has ended."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from penstock.proofs.checks.ledger import LedgerCharge
from penstock.proofs.checks.quota import LedgerEntry
from penstock.proofs.regions.judge import RegionCharge

STORE = "auth.sqlite"
_CHARGES = """
    SELECT reservation_id, request_id, tenant_id, reserved_at, settled_at, reserved_prompt_tokens +
        reserved_output_tokens, prompt_tokens, made_tokens, outcome, output_tokens, worker
    FROM ledger
"""
_TOTALS = "SELECT coalesce(sum(prompt_tokens + output_tokens), 0) FROM hourly_usage WHERE region = ?"


def read_charges(folder: Path) -> list[RegionCharge]:
    with closing(sqlite3.connect(folder / STORE)) as database:
        return [RegionCharge(LedgerEntry(*row[:9]), *row[9:]) for row in database.execute(_CHARGES)]


def read_total_tokens(folder: Path, region: str) -> int:
    """Return the tokens that the totals in one region's store have of a region."""
    with closing(sqlite3.connect(folder / STORE)) as database:
        [(tokens,)] = database.execute(_TOTALS, (region,))
        return int(tokens)


def charges_as_rows(charges: Iterable[RegionCharge]) -> list[LedgerCharge]:
    """Return the rows in the form that `check_charges` compares with transcripts."""
    return [
        LedgerCharge(each.entry.ticket_id, each.entry.prompt_tokens, each.output_tokens, each.entry.outcome)
        for each in charges
    ]
