"""Which end of a job is followed by which act; of what cause an exit is. Properties over all histories."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launch.slurm.test_site import site_of

from hpcrl.launch.slurm.jobs import State
from hpcrl.launch.slurm.requeue import (
    BENIGN,
    FINAL,
    Budget,
    Cause,
    Ended,
    Facts,
    Never,
    Requeue,
    Successor,
    cause_of,
    decide,
    delay_of,
    facts_of,
)


def ends(*causes: Cause, apart_s: float = 60.0) -> list[Ended]:
    return [Ended(cause, None, apart_s * number) for number, cause in enumerate(causes)]


ANY_END = st.builds(Ended, st.sampled_from(Cause), st.none() | st.integers(-15, 255), st.floats(0, 1e6))
HISTORY = st.lists(ANY_END, max_size=30).map(lambda found: sorted(found, key=lambda each: each.when))
FACTS = st.builds(Facts, st.booleans(), st.booleans())


@pytest.mark.parametrize("cause", [Cause.PREEMPTED, Cause.TIME_LIMIT])
def test_what_is_nobodys_fault_is_repeated_at_once_and_for_ever(cause: Cause) -> None:
    *before, last = ends(*[cause] * 500)
    decision = decide(last, before)
    assert isinstance(decision, Requeue)
    assert decision.delay_s == 0


@pytest.mark.parametrize(
    ("cause", "allowed"),
    [
        (Cause.NODE_FAILURE, 10), (Cause.KILLED, 5), (Cause.OUT_OF_MEMORY, 1), (Cause.USER_ERROR, 0),
        (Cause.INTERNAL_ERROR, 0), (Cause.CANCELLED, 0), (Cause.STOPPED, 0), (Cause.DONE, 0),
    ],
)  # fmt: skip
def test_a_cause_may_happen_so_often(cause: Cause, allowed: int) -> None:
    for times in range(allowed + 3):
        *before, last = ends(*[cause] * (times + 1))
        assert isinstance(decide(last, before), Requeue if times < allowed else Never), times


def test_lost_peers_are_waited_for_longer_each_time_and_for_ever() -> None:
    delays = []
    for times in range(1, 12):
        *before, last = ends(*[Cause.LOST_PEERS] * times)
        decision = decide(last, before)
        assert isinstance(decision, Requeue)
        delays.append(decision.delay_s)
    assert delays == [0, 15, 30, 60, 120, 240, 480, 960, 1800, 1800, 1800]


def test_a_preemption_between_ends_the_waiting() -> None:
    *before, last = ends(Cause.KILLED, Cause.KILLED, Cause.PREEMPTED, Cause.KILLED)
    assert delay_of(last, before, Budget()) == 0


def test_a_calm_between_ends_the_waiting_but_not_the_counting() -> None:
    *before, last = ends(*[Cause.KILLED] * 5, apart_s=7200)
    assert delay_of(last, before, Budget()) == 0
    *before, last = ends(*[Cause.KILLED] * 6, apart_s=7200)
    assert isinstance(decide(last, before), Never)


def test_other_causes_do_not_use_up_a_budget() -> None:
    *before, last = ends(*[Cause.PREEMPTED] * 50, *[Cause.NODE_FAILURE] * 9, Cause.KILLED)
    assert isinstance(decide(last, before), Requeue)


def test_a_preempted_job_has_a_successor_where_preemption_cancels() -> None:
    facts = Facts(preemption_cancels=True)
    assert isinstance(decide(Ended(Cause.PREEMPTED, 76, 0.0), [], facts=facts), Successor)
    assert isinstance(decide(Ended(Cause.TIME_LIMIT, 75, 0.0), [], facts=facts), Requeue)


@pytest.mark.parametrize("cause", [Cause.PREEMPTED, Cause.TIME_LIMIT, Cause.NODE_FAILURE, Cause.LOST_PEERS])
def test_where_requeueing_is_forbidden_each_job_has_a_successor(cause: Cause) -> None:
    assert isinstance(decide(Ended(cause, 75, 0.0), [], facts=Facts(requeue_allowed=False)), Successor)


@pytest.mark.parametrize(
    ("version", "partition", "facts"),
    [
        ("22.05", "low", Facts(True, False)),
        ("22.05", "cancels", Facts(True, True)),
        ("22.05", None, Facts(True, False)),
        ("24.11", "gpu", Facts(False, True)),
        ("25.05", "cpu", Facts(True, False)),
    ],
)
def test_the_facts_are_the_sites(version: str, partition: str | None, facts: Facts) -> None:
    assert facts_of(site_of(version), partition) == facts


@given(ANY_END, HISTORY, FACTS)
def test_every_end_has_a_decision_with_one_sentence(ended: Ended, history: list[Ended], facts: Facts) -> None:
    decision = decide(ended, history, facts=facts)
    assert decision.reason.endswith(".")
    assert decision.reason[0].isupper()
    assert "\n" not in decision.reason


@given(ANY_END, HISTORY, FACTS)
def test_what_is_final_is_final(ended: Ended, history: list[Ended], facts: Facts) -> None:
    budget = Budget(times=dict.fromkeys(Cause))
    assert isinstance(decide(ended, history, budget, facts), Never) == (ended.cause in FINAL)


@given(st.lists(ANY_END, max_size=60), FACTS)
def test_no_cause_is_repeated_more_often_than_its_budget(found: list[Ended], facts: Facts) -> None:
    """However a run's ends follow each other, until one of them is left."""
    budget, repeated = Budget(), dict.fromkeys(Cause, 0)
    found.sort(key=lambda each: each.when)
    for number, ended in enumerate(found):
        if isinstance(decide(ended, found[:number], budget, facts), Never):
            break
        repeated[ended.cause] += 1
    for cause, times in repeated.items():
        allowed = budget.times.get(cause, 0)
        assert allowed is None or times <= allowed


@given(ANY_END, HISTORY)
def test_a_delay_is_bounded_and_only_for_what_came_again_and_is_not_benign(ended: Ended, history: list[Ended]) -> None:
    budget = Budget()
    delay_s = delay_of(ended, history, budget)
    if ended.cause in BENIGN or not history or history[-1].cause is not ended.cause:
        assert delay_s == 0
    else:
        assert delay_s == 0 or budget.first_delay_s <= delay_s <= budget.longest_delay_s


@given(ANY_END, HISTORY)
def test_one_more_of_the_same_never_waits_shorter(ended: Ended, history: list[Ended]) -> None:
    before = [each for each in history if each.when <= ended.when]
    again = Ended(ended.cause, None, ended.when + 1)
    assert delay_of(again, [*before, ended], Budget()) >= delay_of(ended, before, Budget())


@given(ANY_END, HISTORY, FACTS)
def test_the_site_changes_how_and_never_whether(ended: Ended, history: list[Ended], facts: Facts) -> None:
    there, here = decide(ended, history), decide(ended, history, facts=facts)
    assert isinstance(there, Never) == isinstance(here, Never)
    if not isinstance(there, Never) and not isinstance(here, Never):
        assert there.delay_s == here.delay_s
        forbidden = not facts.requeue_allowed or (facts.preemption_cancels and ended.cause is Cause.PREEMPTED)
        assert isinstance(here, Successor) == forbidden


def test_the_reason_says_how_often_and_how_often_is_allowed() -> None:
    *before, last = [Ended(Cause.NODE_FAILURE, 137, 60.0 * number) for number in range(11)]
    assert decide(last, before).reason == "A node failed (exit code 137): for the 11th time, 10 are allowed."


def test_the_reason_of_a_users_error_says_that_it_is_final() -> None:
    assert decide(Ended(Cause.USER_ERROR, 66, 0.0), []).reason == (
        "The configuration, the data or the user's code is at fault (exit code 66): this is never tried again."
    )


CAUSES = [
    # exit code, verdict, signals, Slurm's state
    (0, "done", (), None, Cause.DONE),
    (0, "done", ("TERM",), State.PREEMPTED, Cause.DONE),
    (75, "done", ("TERM",), State.PREEMPTED, Cause.DONE),
    (75, "stopped", (), None, Cause.STOPPED),
    (93, "failed", (), None, Cause.STOPPED),
    (93, "superseded", (), State.NODE_FAIL, Cause.STOPPED),
    (64, None, (), None, Cause.USER_ERROR),
    (65, "failed", (), None, Cause.USER_ERROR),
    (66, "failed", ("TERM",), State.CANCELLED, Cause.USER_ERROR),
    (70, "failed", (), None, Cause.INTERNAL_ERROR),
    (75, "preempted", ("TERM",), State.PREEMPTED, Cause.PREEMPTED),
    (75, "preempted", ("TERM",), State.REQUEUED, Cause.PREEMPTED),
    (75, "preempted", ("CONT", "TERM"), State.ENDING, Cause.PREEMPTED),
    (75, "preempted", ("TERM",), State.CANCELLED, Cause.CANCELLED),
    (75, "preempted", ("USR2",), State.RUNNING, Cause.TIME_LIMIT),
    (75, "preempted", ("USR2",), State.PREEMPTED, Cause.PREEMPTED),
    (75, "preempted", ("USR2", "TERM"), State.TIMEOUT, Cause.TIME_LIMIT),
    (75, "lost", (), State.RUNNING, Cause.LOST_PEERS),
    (75, None, (), None, Cause.LOST_PEERS),
    (76, None, (), None, Cause.PREEMPTED),
    (137, None, (), None, Cause.KILLED),
    (137, None, (), State.OUT_OF_MEMORY, Cause.OUT_OF_MEMORY),
    (-9, None, (), State.RUNNING, Cause.KILLED),
    (137, None, ("TERM",), State.PREEMPTED, Cause.PREEMPTED),
    (139, None, (), State.FAILED, Cause.KILLED),
    (None, None, (), State.NODE_FAIL, Cause.NODE_FAILURE),
    (None, None, (), State.BOOT_FAIL, Cause.NODE_FAILURE),
    (None, None, (), State.TIMEOUT, Cause.TIME_LIMIT),
    (None, None, (), None, Cause.KILLED),
    (None, "done", (), State.NODE_FAIL, Cause.DONE),
    (1, None, (), State.FAILED, Cause.KILLED),
    (127, None, (), None, Cause.INTERNAL_ERROR),
]


@pytest.mark.parametrize(("exit_code", "verdict", "signals", "state", "cause"), CAUSES)
def test_the_cause_of_an_end(
    exit_code: int | None, verdict: str | None, signals: tuple[str, ...], state: State | None, cause: Cause
) -> None:
    assert cause_of(exit_code, verdict, frozenset(signals), state) is cause


@given(
    st.none() | st.integers(-64, 255),
    st.none() | st.sampled_from(["done", "stopped", "failed", "lost", "preempted", "superseded"]),
    st.frozensets(st.sampled_from(["TERM", "USR1", "USR2", "CONT"])),
    st.none() | st.sampled_from(State),
)
def test_every_end_has_a_cause_and_no_error_is_repeated(
    exit_code: int | None, verdict: str | None, signals: frozenset[str], state: State | None
) -> None:
    cause = cause_of(exit_code, verdict, signals, state)
    decision = decide(Ended(cause, exit_code, 0.0), [])
    if exit_code in (0, 64, 65, 66, 70, 93):
        assert isinstance(decision, Never)
