"""Who said what, in which order → how the attempt ends."""

from typing import Any, Literal

import pytest

from hpcrl.durable.journal import Broken
from hpcrl.errors import ExitCode
from hpcrl.master.allocation import EVERYTHING
from hpcrl.master.ending import Ending
from hpcrl.master.judge import SETTLE_S, Situation, is_replaced, judge
from hpcrl.master.members import LostMember, Members, RaisedError
from hpcrl.wire.messages import BrokenOperation, Failed, WorkerExited

NOW = 100.0
LATER = 100.0 + SETTLE_S
CALL = "step 3 actor_gen, part 0"


def situation(**known: Any) -> Situation:
    """Two nodes, which are replaced when they are lost; all is well."""
    nothing: dict[str, Any] = {"losses": (), "failures": (), "draining": {}, "signal": "", "stop": ""}
    return Situation(**{"now": NOW, "nodes": 2, "replaces_nodes": True} | nothing | known)


def lost(who: str, at: float = NOW, how: str = "silent for 9 s", log: str | None = None) -> LostMember:
    return LostMember(at, who, how, log)


def raised(rank: int, at: float = NOW, code: ExitCode = ExitCode.USER_CODE) -> RaisedError:
    return RaisedError(at, Failed(rank, CALL, "boom", "Traceback", int(code), 1.7e9))


def spoilt(rank: int, at: float = NOW) -> RaisedError:
    return RaisedError(at, Failed(rank, CALL, "other bits", "", int(ExitCode.REQUEUE), 1.7e9, damaged="other bits"))


def bereaved(rank: int, at: float = NOW, number: int = 7) -> RaisedError:
    """Its collective broke: a peer is gone, or the way to it."""
    broken = BrokenOperation((0, 1), "all-to-all", number, rank)
    return RaisedError(at, Failed(rank, CALL, "boom", "Traceback", int(ExitCode.REQUEUE), 1.7e9, broken))


def cut_off(rank: int, at: float = NOW) -> RaisedError:
    """A message to it got lost."""
    return raised(rank, at, ExitCode.REQUEUE)


def broken(number: int, what: str = CALL) -> Broken:
    """What an attempt before this one wrote down."""
    return Broken(what, (0, 1), "all-to-all", number)


ASKED = {"roll_called": True, "all_answered": False}
ANSWERED = {"roll_called": True, "all_answered": True}
Verdict = tuple[str, int, str] | Literal["ask"] | None


def summary(ending: Ending | Literal["ask"] | None) -> Verdict:
    return (ending.state, ending.exit_code, ending.reason) if isinstance(ending, Ending) else ending


BROKEN: dict[str, tuple[dict[str, Any], Verdict]] = {
    "nobody said anything": ({}, None),
    "a worker died": (
        {"losses": [lost("worker-1", how="killed by SIGKILL", log="logs/worker-1.err")]},
        ("lost", 75, "worker-1: killed by SIGKILL (logs/worker-1.err)"),
    ),
    "of two that were lost, the first is named": (
        {"losses": [lost("agent-1"), lost("worker-2", NOW + 0.1)], "now": LATER},
        ("lost", 75, "agent-1: silent for 9 s"),
    ),
    "who loads a damaged checkpoint leaves its peers waiting, and nobody else is asked": (
        {"failures": [bereaved(0), spoilt(1)], "now": LATER, "broken_before": [broken(7)]},
        ("lost", 75, f"worker-1, {CALL}: other bits"),
    ),
    "an error waits for what others say": ({"failures": [raised(0)], "now": LATER - 0.01}, None),
    "an error that nobody explains ends the run": (
        {"failures": [raised(0)], "now": LATER},
        ("failed", 66, f"worker-0, {CALL}: boom (worker-0)"),
    ),
    "of two errors, the first is named": (
        {"failures": [raised(1, code=ExitCode.DATA), raised(0, NOW + 0.1)], "now": LATER},
        ("failed", 65, f"worker-1, {CALL}: boom (worker-1)"),
    ),
    "a broken collective: everybody is asked at once": ({"failures": [bereaved(0)]}, "ask"),
    "a broken collective, while answers come": ({"failures": [bereaved(0)], "now": LATER + 2.0, **ASKED}, None),
    "a broken collective, and all answered, waits for what others say": (
        {"failures": [bereaved(0)], "now": LATER - 0.01, **ANSWERED},
        None,
    ),
    "a broken collective, and somebody gave no sign of life": (
        {"failures": [bereaved(0)], "losses": [lost("agent-1", LATER + 3.0)], "now": LATER + 3.0, **ASKED},
        ("lost", 75, "agent-1: silent for 9 s"),
    ),
    "a broken collective, and then its peer's death": (
        {"failures": [bereaved(0)], "losses": [lost("worker-1", NOW + 0.1, "killed by SIGKILL")]},
        ("lost", 75, "worker-1: killed by SIGKILL"),
    ),
    "a broken collective, and then the error that broke it": (
        {"failures": [bereaved(0), raised(1, NOW + 0.1)], "now": LATER},
        ("failed", 66, f"worker-1, {CALL}: boom (worker-1)"),
    ),
    "the error that broke it comes while answers do": (
        {"failures": [bereaved(0), raised(1, LATER + 1.0, ExitCode.INTERNAL)], "now": LATER + 1.0, **ASKED},
        ("failed", 70, f"worker-1, {CALL}: boom (worker-1)"),
    ),
    "the error that broke it comes first, and nobody needs to be asked": (
        {"failures": [raised(1), bereaved(0, NOW + 0.1)], "now": LATER - 0.01},
        None,
    ),
    "the error that broke it came first": (
        {"failures": [raised(1), bereaved(0, NOW + 0.1)], "now": LATER},
        ("failed", 66, f"worker-1, {CALL}: boom (worker-1)"),
    ),
    "the error that broke it is too late by its own clock, but the first counts": (
        {"failures": [bereaved(0), raised(1, LATER)], "now": LATER},
        ("failed", 66, f"worker-1, {CALL}: boom (worker-1)"),
    ),
    "everybody is alive, and what broke did so for the first time": (
        {"failures": [bereaved(1), bereaved(0)], "now": LATER, **ANSWERED},
        ("lost", 75, f"worker-1, {CALL}: boom"),
    ),
    "everybody is alive, and something else broke before": (
        {"failures": [bereaved(1)], "now": LATER, "broken_before": [broken(6), broken(7, "starting")], **ANSWERED},
        ("lost", 75, f"worker-1, {CALL}: boom"),
    ),
    "everybody is alive, and it broke before": (
        {"failures": [bereaved(1)], "now": LATER, "broken_before": [broken(6), broken(7)], **ANSWERED},
        ("failed", 70, f"worker-1, {CALL}, for the second time while all were alive: boom (worker-1)"),
    ),
    "everybody is alive, and what another worker was in broke before": (
        {"failures": [bereaved(1, number=8), bereaved(0)], "now": LATER, "broken_before": [broken(7)], **ANSWERED},
        ("failed", 70, f"worker-0, {CALL}, for the second time while all were alive: boom (worker-0)"),
    ),
    "it broke before, but now somebody is gone": (
        {"failures": [bereaved(1)], "losses": [lost("worker-0")], "now": LATER, "broken_before": [broken(7)]},
        ("lost", 75, "worker-0: silent for 9 s"),
    ),
    "a message that got lost is nobody's error": (
        {"failures": [cut_off(1)], "now": LATER},
        ("lost", 75, f"worker-1, {CALL}: boom"),
    ),
    "an error, and then a death, begin another attempt at once": (
        {"failures": [raised(0)], "losses": [lost("worker-1", NOW + 0.1)]},
        ("lost", 75, "worker-1: silent for 9 s"),
    ),
    "a death, and then an error": (
        {"losses": [lost("worker-1")], "failures": [raised(0, NOW + 0.1)], "now": LATER},
        ("lost", 75, "worker-1: silent for 9 s"),
    ),
}

DRAIN = "asked to by `hpcrl stop` or Ctrl-C (drain)"
ENDS = "its allocation ends soon, and actor_gen takes 90 s"
TOLD: dict[str, tuple[dict[str, Any], Verdict]] = {
    "a user asked": ({"stop": "drain"}, ("stopped", 93, DRAIN)),
    "a user asked for it now": ({"stop": "now"}, ("stopped", 93, "asked to by `hpcrl stop` or Ctrl-C (now)")),
    "a user asked for a good end": ({"stop": "finish"}, ("stopped", 93, "asked to by `hpcrl stop` or Ctrl-C")),
    "open steps are waited for": ({"stop": "finish", "at_work": True}, None),
    "a user counts for more than a signal": ({"stop": "drain", "signal": "SIGTERM"}, ("stopped", 93, DRAIN)),
    "a user counts for more than a node": ({"stop": "drain", "draining": {0: "got SIGTERM"}}, ("stopped", 93, DRAIN)),
    "the master was told": ({"signal": "SIGUSR1"}, ("preempted", 75, "the master got SIGUSR1")),
    "the master and a node were told": (
        {"signal": "SIGUSR1", "draining": {0: "got SIGTERM"}},
        ("preempted", 75, "the master got SIGUSR1"),
    ),
    "one node of two goes, and another comes": (
        {"draining": {1: "got SIGTERM"}},
        ("lost", 75, "node 1 is to go: got SIGTERM"),
    ),
    "one node of two goes, and none comes": (
        {"draining": {1: "got SIGTERM"}, "replaces_nodes": False},
        ("preempted", 75, "node 1 is to go: got SIGTERM"),
    ),
    "all nodes go": (
        {"draining": {1: "got SIGTERM", 0: "got SIGUSR2"}},
        ("preempted", 75, "node 1 is to go: got SIGTERM, node 0 is to go: got SIGUSR2"),
    ),
    "the whole allocation ends": ({"draining": {EVERYTHING: ENDS}}, ("preempted", 75, f"the run is to go: {ENDS}")),
    "calls in flight are waited for": ({"stop": "drain", "at_work": True}, None),
}

ORDERS: dict[str, tuple[dict[str, Any], Verdict]] = {
    "all is done": ({"finished": "step 9 was the last"}, ("done", 0, "step 9 was the last")),
    "all is done, and somebody died": (
        {"finished": "step 9 was the last", "losses": [lost("worker-0")]},
        ("done", 0, "step 9 was the last"),
    ),
    "all is done, and it was told to go": (
        {"finished": "step 9 was the last", "stop": "drain", "signal": "SIGTERM"},
        ("done", 0, "step 9 was the last"),
    ),
    "somebody died while calls in flight were waited for": (
        {"losses": [lost("worker-0")], "signal": "SIGTERM", "at_work": True},
        ("lost", 75, "worker-0: silent for 9 s"),
    ),
    "somebody died, and a user asked": (
        {"losses": [lost("worker-0")], "stop": "drain"},
        ("lost", 75, "worker-0: silent for 9 s"),
    ),
    "code raised, and a user asked": (
        {"failures": [raised(0)], "stop": "drain", "now": LATER},
        ("failed", 66, f"worker-0, {CALL}: boom (worker-0)"),
    ),
    "code raised just now, and a user asked for it now": (
        {"failures": [raised(0)], "stop": "now"},
        ("stopped", 93, "asked to by `hpcrl stop` or Ctrl-C (now)"),
    ),
}


@pytest.mark.parametrize("case", [*BROKEN, *TOLD, *ORDERS])
def test_an_attempt_ends_as_the_table_says(case: str) -> None:
    known, expected = (BROKEN | TOLD | ORDERS)[case]
    assert summary(judge(situation(**known))) == expected


def test_only_an_ending_that_was_asked_for_says_so_and_names_the_nodes_that_leave() -> None:
    verdicts = {case: judge(situation(**known)) for case, (known, _) in (BROKEN | TOLD | ORDERS).items()}
    endings = {case: verdict for case, verdict in verdicts.items() if isinstance(verdict, Ending)}
    asked = {case for case, ending in endings.items() if ending.asked}
    assert asked == {case for case, (_, end) in TOLD.items() if end} | {
        "code raised just now, and a user asked for it now"
    }
    leaving = {case: ending.leaving for case, ending in endings.items() if ending.leaving}
    assert leaving == {"one node of two goes, and another comes": (1,)}


def test_what_broke_while_all_were_alive_is_written_down_for_the_next_attempt_and_nothing_else_is() -> None:
    verdicts = {case: judge(situation(**known)) for case, (known, _) in (BROKEN | TOLD | ORDERS).items()}
    found = {case: verdict.broken for case, verdict in verdicts.items() if isinstance(verdict, Ending)}
    assert {case: lines for case, lines in found.items() if lines} == {
        "everybody is alive, and what broke did so for the first time": (broken(7),),
        "everybody is alive, and something else broke before": (broken(7),),
    }


def test_a_failure_is_handed_on_with_its_traceback_and_its_log_is_named() -> None:
    error = raised(1)
    ending = judge(situation(failures=[error], now=LATER, worker_log="attempts/004/logs/worker-{}.jsonl".format))
    assert isinstance(ending, Ending) and ending.failure is error.told
    assert ending.reason.endswith("(attempts/004/logs/worker-1.jsonl)")


@pytest.mark.parametrize(
    ("code", "state"), [(None, "lost"), (1, "lost"), (75, "lost"), (64, "failed"), (66, "failed"), (70, "failed")]
)
def test_a_worker_that_exited_is_lost_unless_its_code_says_that_another_attempt_would_not_cure_it(
    code: int | None, state: str
) -> None:
    members = Members(nodes=1, lost_after_s=9.0, clock=lambda: NOW)
    members.exited(WorkerExited(0, 1, f"exit code {code}", code, "logs/worker-1.err"))
    ending = judge(situation(losses=members.losses, failures=members.failures, now=LATER))
    assert isinstance(ending, Ending) and ending.state == state and "logs/worker-1.err" in ending.reason


@pytest.mark.parametrize(
    ("known", "stay"),
    [
        ({"signal": "SIGTERM"}, True),
        ({"signal": "SIGTERM", "replaces_nodes": False}, False),
        ({"signal": "SIGTERM", "draining": {0: "got SIGTERM"}}, True),
        ({"signal": "SIGTERM", "draining": {0: "got SIGTERM", 1: "got SIGTERM"}}, False),
        ({"draining": {EVERYTHING: ENDS}}, True),
        ({"draining": {EVERYTHING: ENDS, 0: ENDS, 1: ENDS}}, False),
        ({"draining": {0: "got SIGTERM", 1: "got SIGTERM"}}, False),
        ({"stop": "drain", "signal": "SIGTERM"}, False),
        ({"losses": [lost("worker-0")], "signal": "SIGTERM"}, False),
    ],
)
def test_agents_stay_where_the_master_alone_goes_and_another_comes(known: dict[str, Any], stay: bool) -> None:
    at_end = situation(**known)
    ending = judge(at_end)
    assert isinstance(ending, Ending) and is_replaced(ending, at_end) == stay


@pytest.mark.parametrize(
    ("known", "finishes"),
    [
        ({"stop": "finish"}, True),
        ({"stop": "drain"}, False),
        ({"stop": "finish", "signal": "SIGTERM"}, False),
        ({"stop": "finish", "draining": {0: "got SIGTERM"}}, False),
    ],
)
def test_open_steps_are_finished_for_a_user_as_long_as_nobody_else_wants_an_end(
    known: dict[str, Any], finishes: bool
) -> None:
    assert situation(**known).finishes is finishes
