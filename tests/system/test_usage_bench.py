"""`penstock usage bench` on a real PostgreSQL, with fewer rows than a month has."""

import json

from command import run_penstock

ROWS = 100_000


async def test_a_month_of_usage_is_read_from_totals_which_equal_the_rows_of_the_settlements():
    code, out, err = await run_penstock(
        "usage", "bench", "--rows", str(ROWS), "--seconds", "2", "--clients", "32", "--json"
    )
    assert code == 0, err
    figures = json.loads(out)
    assert figures["rows"] == ROWS
    assert figures["totals_equal_rows"] is True
    assert figures["settlements"] > 0
    assert figures["month_by_model_s"]["max"] > 0
    assert f"of {ROWS:,} rows" in err  # progress


async def test_a_store_that_is_no_postgresql_is_an_error_that_says_what_to_name():
    code, _, err = await run_penstock("usage", "bench", "--store", "sqlite:///tmp/auth.sqlite")
    assert code == 1
    assert "postgresql://user@host/database" in err
