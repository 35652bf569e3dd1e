"""The judge of the hostile proof: goodput, first tokens, failures, memory and processes beside an attack."""

import pytest

from penstock.bench.transcript import OK, Transcript
from penstock.proofs.hostile.attacks.attack import AttackReport
from penstock.proofs.hostile.corpus.case import CaseOutcome, HostileCase
from penstock.proofs.hostile.corpus.runner import CorpusReport, run_cases
from penstock.proofs.hostile.judge.phase import (
    TTFT_NOISE_FLOOR_S,
    PhaseFigures,
    PhaseTime,
    failures_by_reason,
    figures_of,
    ttft_bound,
)
from penstock.proofs.hostile.judge.processes import MemoryUse
from penstock.proofs.hostile.judge.verdict import AttackResult, verdict_lines, verdict_notes, void_reason
from penstock.proofs.hostile.ports import Port, PortKind
from penstock.proofs.hostile.proof import CHOICES, HostileOptions, label_of
from raw_peers import example_target

MIB = 1 << 20
CALM = PhaseFigures(requests=100, failed=0, failed_streams=0, goodput=400.0, ttft_p99=0.2)
GOOD = PhaseFigures(requests=40, failed=0, failed_streams=0, goodput=390.0, ttft_p99=0.2)


def transcript(started_at, *, arrivals=(), outcome=OK, code="OK", ended_at=None):
    found = Transcript(0, started_at, arrivals=list(arrivals))
    found.end(ended_at or max(arrivals, default=started_at + 0.1), outcome, code)
    return found


def figures(**changed):
    return PhaseFigures(**{name: changed.get(name, getattr(GOOD, name)) for name in GOOD.__dataclass_fields__})


def attack(*, beside=GOOD, before=100, after=100, **given):
    report = AttackReport(
        connections=1, **{name: given.pop(name) for name in ("accepted", "findings") if name in given}
    )
    memory = MemoryUse({"edge-1": before * MIB}, after={"edge-1": after * MIB})
    return AttackResult(label="attack", report=report, figures=beside, memory=memory, **given)


def lines(results, **given):
    found = verdict_lines(CALM, results, **{"tracebacks": 0, "is_whole_corpus": False, **given})
    return {line.figure: line for line in found}


def missed(results, **given):
    return {figure for figure, line in lines(results, **given).items() if not line.is_met}


def test_an_attack_that_harms_nobody_meets_every_goal():
    assert not missed([attack()])
    assert attack().is_met(CALM)


@pytest.mark.parametrize(
    ("result", "figure"),
    [
        (attack(beside=figures(goodput=300.0)), "lowest goodput beside an attack, of calm"),
        (attack(beside=figures(ttft_p99=0.5)), "highest P99 TTFT beside an attack"),
        (attack(beside=figures(failed=1)), "of them failed"),
        (attack(after=111), "attacks after which memory stays above 110 %"),
        (attack(accepted=1), "successes of attacks"),
        (attack(lost=["edge-1"]), "processes lost"),
        (
            attack(findings={"held": 3}, max_findings={"held": 2}),
            "held connections and streams above their goals",
        ),
    ],
)
def test_each_harm_misses_a_goal_of_its_own(result, figure):
    assert missed([attack(), result]) == {figure}
    assert not result.is_met(CALM)
    assert any("MISSED" in note for note in verdict_notes(CALM, [result]))


def test_a_repeated_attack_is_judged_by_its_last_run_except_for_what_it_gained_or_broke():
    slowed = {"beside": figures(goodput=100.0, ttft_p99=9.0), "is_repeated": True}
    assert attack(**slowed).is_slowed(CALM)
    assert not missed([attack(**slowed), attack()])
    assert missed([attack(**slowed, lost=["edge-1"]), attack()]) == {"processes lost"}


def test_memory_within_ten_percent_is_back():
    assert attack(after=110).is_met(CALM)


def test_a_first_token_below_the_noise_of_the_machine_is_not_judged():
    quick = PhaseFigures(requests=100, failed=0, failed_streams=0, goodput=400.0, ttft_p99=0.01)
    assert ttft_bound(quick) == TTFT_NOISE_FLOOR_S
    assert ttft_bound(CALM) == pytest.approx(0.4)


def test_goodput_counts_the_tokens_of_right_answers_within_the_phase():
    phase = PhaseTime("attack", 10.0, 20.0)
    right = transcript(9.0, arrivals=[9.5, 10.5, 11.0])
    cut = transcript(12.0, arrivals=[13.0], outcome="CONNECTION_LOST", code="UNAVAILABLE")
    later = transcript(21.0, arrivals=[22.0])
    found = figures_of([phase], [right, later], [cut])
    assert (found.requests, found.failed, found.failed_streams) == (2, 1, 1)
    assert found.goodput == pytest.approx(0.2)
    assert found.ttft_p99 == pytest.approx(1.0), "the first token of the request that started before is not judged"
    assert failures_by_reason(phase, [right, cut, later]) == {"UNAVAILABLE CONNECTION_LOST": 1}


def test_a_failure_belongs_to_the_phase_in_which_it_happened_and_to_no_other():
    calm, cutting = PhaseTime("calm", 0.0, 10.0), PhaseTime("attack", 10.0, 13.0, settled_at=15.0)
    cut = transcript(9.0, arrivals=[9.5, 11.0], outcome="CONNECTION_LOST", code="UNAVAILABLE")
    cut_later = transcript(12.0, arrivals=[14.0], outcome="CONNECTION_LOST", code="UNAVAILABLE")
    timed_out = {"outcome": "DEADLINE", "code": "DEADLINE_EXCEEDED", "ended_at": 40.0}
    never_begun, stalled = transcript(12.0, **timed_out), transcript(9.0, arrivals=[9.5, 10.1], **timed_out)
    every = [cut, cut_later, never_begun, stalled]
    assert figures_of([calm], every, []).failed == 0
    assert figures_of([cutting], every, []).failed == 4
    assert figures_of([PhaseTime("next attack", 30.0, 50.0)], every, []).failed == 0


def test_calm_phases_are_judged_together():
    phases = [PhaseTime("calm", 0.0, 10.0), PhaseTime("calm", 50.0, 60.0)]
    found = figures_of(phases, [transcript(1.0, arrivals=[2.0]), transcript(51.0, arrivals=[52.0, 53.0])], [])
    assert (found.requests, found.goodput) == (2, pytest.approx(0.15))


def test_a_run_without_a_calm_load_is_void():
    assert void_reason(figures(requests=3), [])
    assert void_reason(figures(requests=100, failed=1), [])
    assert not void_reason(CALM, [attack()])


def test_an_attack_that_could_not_run_makes_the_proof_void():
    failed = attack()
    failed.report.error = "ValueError()"
    assert "ValueError" in void_reason(CALM, [failed])


def test_the_whole_corpus_has_to_have_300_cases():
    report = CorpusReport(cases=299)
    result = AttackResult(label="corpus", report=report, figures=GOOD, memory=MemoryUse({}))
    assert missed([result], is_whole_corpus=True) == {"cases of the corpus"}
    assert not missed([result])


async def test_a_case_that_raises_is_neither_accepted_nor_refused():
    port = Port(PortKind.AUTH, "auth", "127.0.0.1:1")

    async def accepted():
        return CaseOutcome(is_accepted=True, answer="status 0")

    async def fails():
        raise ValueError("the case is wrong")

    cases = [HostileCase(group="g", name=send.__name__, port=port, send=send) for send in (accepted, fails)]
    report = await run_cases(cases)
    assert report.accepted == ["g, auth: accepted (status 0)"]
    assert report.accepted_by_group() == {"g": 1}
    assert "the case is wrong" in report.failed[0]


def test_an_unknown_attack_is_an_error_that_names_the_known_ones():
    with pytest.raises(ValueError, match="rapid-reset"):
        HostileOptions(attacks=("no-such-attack",))


def test_every_attack_is_ordered_on_each_of_its_ports():
    orders = list(HostileOptions().orders(example_target()))
    labels = [label_of(order) for order in orders]
    assert len(set(labels)) == len(labels)
    assert {order.name for order in orders} | {"insiders"} == set(CHOICES)
    assert {"rapid-reset at Envoy", "rapid-reset at edge gRPC", "corpus impersonation"} <= set(labels)


def test_the_time_of_rapid_reset_follows_its_number_of_resets():
    options = HostileOptions(attacks=("rapid-reset",), resets=100_000)
    orders = list(options.orders(example_target()))
    assert {order.count for order in orders} == {100_000}
    assert min(order.seconds for order in orders) >= 100
