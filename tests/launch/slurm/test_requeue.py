"""Which end of a job is followed by which act; of what cause an exit is. Properties over all histories."""

from dataclasses import replace

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
    Never,
    Requeue,
    RequeueRules,
    Successor,
    cause_of,
    cause_of_state,
    decide,
    delay_of,
    rules_of,
)


def ends(*causes: Cause) -> list[Ended]:
    """Of a run that gets nowhere."""
    return [Ended(cause, None, 60.0 * number) for number, cause in enumerate(causes)]


ANY_END = st.builds(
    Ended, st.sampled_from(Cause), st.none() | st.integers(-15, 255), st.floats(0, 1e6), st.sampled_from("abc")
)
HISTORY = st.lists(ANY_END, max_size=30).map(lambda found: sorted(found, key=lambda each: each.when))
FACTS = st.builds(RequeueRules, st.booleans(), st.booleans())


@pytest.mark.parametrize("cause", [Cause.PREEMPTED, Cause.DRAINED, Cause.QUEUED])
def test_what_is_nobodys_fault_is_repeated_at_once_and_for_ever(cause: Cause) -> None:
    *before, last = ends(*[cause] * 500)
    decision = decide(last, before)
    assert isinstance(decision, Requeue)
    assert decision.delay_s == 0


@pytest.mark.parametrize(
    ("cause", "allowed"),
    [
        (Cause.TIME_LIMIT, 10), (Cause.LEFT_TO_SLURM, 0),
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


def test_progress_ends_the_waiting_and_the_counting() -> None:
    killed = [Ended(Cause.KILLED, 137, 60.0 * number, f"attempt {number}: 7") for number in range(50)]
    for number, last in enumerate(killed):
        decision = decide(last, killed[:number])
        assert isinstance(decision, Requeue) and decision.delay_s == 0


def test_a_preemption_between_does_not_end_the_counting() -> None:
    *before, last = ends(*[Cause.KILLED, Cause.PREEMPTED] * 5, Cause.KILLED)
    assert isinstance(decide(last, before), Never)


def test_other_causes_do_not_use_up_a_budget() -> None:
    *before, last = ends(*[Cause.PREEMPTED] * 50, *[Cause.NODE_FAILURE] * 9, Cause.KILLED)
    assert isinstance(decide(last, before), Requeue)


def test_a_preempted_job_has_a_successor_where_preemption_cancels() -> None:
    rules = RequeueRules(preemption_cancels=True)
    assert isinstance(decide(Ended(Cause.PREEMPTED, 76, 0.0), [], rules=rules), Successor)
    assert isinstance(decide(Ended(Cause.TIME_LIMIT, 75, 0.0), [], rules=rules), Requeue)


@pytest.mark.parametrize("cause", [Cause.PREEMPTED, Cause.TIME_LIMIT, Cause.NODE_FAILURE, Cause.LOST_PEERS])
def test_where_requeueing_is_forbidden_each_job_has_a_successor(cause: Cause) -> None:
    assert isinstance(decide(Ended(cause, 75, 0.0), [], rules=RequeueRules(requeue_allowed=False)), Successor)


@pytest.mark.parametrize(
    ("version", "partition", "rules"),
    [
        ("22.05", "low", RequeueRules(True, False)),
        ("22.05", "cancels", RequeueRules(True, True)),
        ("22.05", None, RequeueRules(True, False)),
        ("24.11", "gpu", RequeueRules(True, True)),
        ("25.05", "cpu", RequeueRules(True, False)),
    ],
)
def test_the_facts_are_the_sites_and_the_flags(version: str, partition: str | None, rules: RequeueRules) -> None:
    assert rules_of(site_of(version), partition, ["--exclusive"]) == rules
    assert rules_of(site_of(version), partition, ["--no-requeue"]) == replace(rules, requeue_allowed=False)


@given(ANY_END, HISTORY, FACTS)
def test_every_end_has_a_decision_with_one_sentence(ended: Ended, history: list[Ended], rules: RequeueRules) -> None:
    decision = decide(ended, history, rules=rules)
    assert decision.reason.endswith(".")
    assert decision.reason[0].isupper()
    assert "\n" not in decision.reason


@given(ANY_END, HISTORY, FACTS)
def test_what_is_final_is_final(ended: Ended, history: list[Ended], rules: RequeueRules) -> None:
    budget = Budget(times=dict.fromkeys(Cause))
    assert isinstance(decide(ended, history, budget, rules), Never) == (ended.cause in FINAL)


@given(st.lists(ANY_END, max_size=60), FACTS)
def test_no_cause_is_repeated_more_often_than_its_budget(found: list[Ended], rules: RequeueRules) -> None:
    """However a run's ends follow each other, until one of them is left; if it makes no progress."""
    budget, repeated = Budget(), dict.fromkeys(Cause, 0)
    found = [replace(each, progress="") for each in found]
    found.sort(key=lambda each: each.when)
    for number, ended in enumerate(found):
        if isinstance(decide(ended, found[:number], budget, rules), Never):
            break
        repeated[ended.cause] += 1
    for cause, times in repeated.items():
        allowed = budget.times.get(cause, 0)
        assert allowed is None or times <= allowed


@given(ANY_END, HISTORY)
def test_a_delay_is_bounded_and_only_for_what_came_again_and_is_not_benign(ended: Ended, history: list[Ended]) -> None:
    budget = Budget()
    delay_s = delay_of(ended, history, budget)
    again = any((each.cause, each.progress) == (ended.cause, ended.progress) for each in history)
    if ended.cause in BENIGN or not again:
        assert delay_s == 0
    else:
        assert budget.first_delay_s <= delay_s <= budget.longest_delay_s


@given(ANY_END, HISTORY)
def test_one_more_of_the_same_never_waits_shorter(ended: Ended, history: list[Ended]) -> None:
    before = [each for each in history if each.when <= ended.when]
    again = replace(ended, when=ended.when + 1)
    assert delay_of(again, [*before, ended], Budget()) >= delay_of(ended, before, Budget())


@given(ANY_END, HISTORY, FACTS)
def test_the_site_changes_how_and_never_whether(ended: Ended, history: list[Ended], rules: RequeueRules) -> None:
    there, here = decide(ended, history), decide(ended, history, rules=rules)
    assert isinstance(there, Never) == isinstance(here, Never)
    if not isinstance(there, Never) and not isinstance(here, Never):
        assert there.delay_s == here.delay_s
        forbidden = not rules.requeue_allowed or (rules.preemption_cancels and ended.cause is Cause.PREEMPTED)
        assert isinstance(here, Successor) == forbidden


def test_the_reason_says_how_often_and_how_often_is_allowed() -> None:
    *before, last = [Ended(Cause.NODE_FAILURE, 137, 60.0 * number) for number in range(11)]
    assert (
        decide(last, before).reason
        == "A node failed (exit code 137): for the 11th time without progress, 10 are allowed."
    )


def test_the_reason_of_a_users_error_says_that_it_is_final() -> None:
    assert decide(Ended(Cause.USER_ERROR, 66, 0.0), []).reason == (
        "The configuration, the data or the user's code is at fault (exit code 66): this is never tried again."
    )


CAUSES = [
    # exit code, verdict, signals, kills for want of memory
    (0, "done", (), 0, Cause.DONE),
    (75, "done", ("TERM",), 0, Cause.DONE),
    (75, "stopped", (), 0, Cause.STOPPED),
    (93, "failed", (), 0, Cause.STOPPED),
    (93, "superseded", (), 0, Cause.STOPPED),
    (64, None, (), 0, Cause.USER_ERROR),
    (65, "failed", (), 0, Cause.USER_ERROR),
    (66, "failed", ("TERM",), 0, Cause.USER_ERROR),
    (70, "failed", (), 0, Cause.INTERNAL_ERROR),
    (75, "preempted", ("TERM",), 0, Cause.PREEMPTED),
    (75, "preempted", ("CONT", "TERM"), 0, Cause.PREEMPTED),
    (75, "preempted", ("USR2",), 0, Cause.TIME_LIMIT),
    # The step was signalled, the script was not.
    (75, "preempted", (), 0, Cause.DRAINED),
    (76, None, (), 0, Cause.DRAINED),
    (75, "incomplete", (), 0, Cause.LOST_PEERS),
    (75, "queued", (), 0, Cause.QUEUED),
    (75, None, (), 0, Cause.LOST_PEERS),
    (137, None, (), 0, Cause.KILLED),
    (137, None, (), 1, Cause.OUT_OF_MEMORY),
    (-9, None, (), 0, Cause.KILLED),
    (137, None, ("TERM",), 0, Cause.PREEMPTED),
    (139, None, (), 0, Cause.KILLED),
    (None, "done", (), 0, Cause.DONE),
    (1, None, (), 0, Cause.KILLED),
    (127, None, (), 0, Cause.INTERNAL_ERROR),
]


@pytest.mark.parametrize(("exit_code", "verdict", "signals", "oom_kills", "cause"), CAUSES)
def test_the_cause_of_an_end(
    exit_code: int | None, verdict: str | None, signals: tuple[str, ...], oom_kills: int, cause: Cause
) -> None:
    assert cause_of(exit_code, verdict, frozenset(signals), oom_kills) is cause


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        (State.NODE_FAIL, Cause.NODE_FAILURE), (State.BOOT_FAIL, Cause.NODE_FAILURE), (State.TIMEOUT, Cause.TIME_LIMIT),
        (State.PREEMPTED, Cause.PREEMPTED), (State.OUT_OF_MEMORY, Cause.OUT_OF_MEMORY), (State.FAILED, Cause.KILLED),
        (State.CANCELLED, Cause.CANCELLED), (State.UNKNOWN, Cause.KILLED),
    ],
)  # fmt: skip
def test_the_cause_where_only_slurm_knows(state: State, cause: Cause) -> None:
    assert cause_of_state(state) is cause


@given(
    st.none() | st.integers(-64, 255),
    st.none() | st.sampled_from(["done", "stopped", "failed", "lost", "preempted", "superseded", "incomplete"]),
    st.frozensets(st.sampled_from(["TERM", "USR1", "USR2", "CONT"])),
    st.integers(0, 2),
)
def test_every_end_has_a_cause_and_no_error_is_repeated(
    exit_code: int | None, verdict: str | None, signals: frozenset[str], oom_kills: int
) -> None:
    cause = cause_of(exit_code, verdict, signals, oom_kills)
    decision = decide(Ended(cause, exit_code, 0.0), [])
    if exit_code in (0, 64, 65, 66, 70, 93):
        assert isinstance(decision, Never)
