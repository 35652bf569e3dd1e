"""Proofs of auth and of a long load, short: its store is away, its replicas die, and nothing is left at the end."""

from scorecards import assert_nothing_lost, proved


async def test_the_disk_of_auth_is_full_and_known_callers_are_served_and_charged_once(tiny_model):
    mesh = ("--edges", "1", "--queues", "1", "--schedulers", "1", "--workers", "1")
    card, lines = await proved("disk", tiny_model, *mesh, "--seconds", "3")
    assert_nothing_lost(card, lines)
    assert lines["requests served while the disk was full"]["measured"] > 4


async def test_replicas_of_auth_and_edges_die_and_limits_and_ledger_stay_exact(tiny_model):
    mesh = ("--queues", "1", "--schedulers", "1", "--workers", "1")
    card, lines = await proved("quota", tiny_model, *mesh, "--kills", "3", "--every", "1", "--streams", "32")
    assert_nothing_lost(card, lines)
    assert lines["cancelled by their clients"]["measured"] > 0
    assert lines["deaths of a replica of auth"]["measured"] > 0
    assert lines["tickets compared with the engines"]["measured"] > 30


async def test_postgres_is_away_and_known_callers_are_served_and_charged_once(tiny_model):
    mesh = ("--edges", "1", "--queues", "1", "--schedulers", "1", "--workers", "1")
    card, lines = await proved("database", tiny_model, *mesh, "--seconds", "3")
    assert_nothing_lost(card, lines)
    assert lines["answers while the database was away"]["measured"] > 0
    assert lines["strangers refused while the database was away"]["measured"] > 1


async def test_a_soak_samples_every_process_and_leaves_no_residue(tiny_model):
    mesh = ("--edges", "1", "--queues", "1", "--schedulers", "1", "--workers", "1")
    card, lines = await proved("soak", tiny_model, *mesh, "--requests", "200")
    assert lines["of them cancelled by their clients"]["measured"] > 0
    assert not [line for line in card["lines"] if line["goal"] == "0" and not line["is_met"]], card["notes"]
    assert lines["memory of all processes at the end"]["measured"] > 100
    assert len(card["notes"]) == 5, "one line for each process"
