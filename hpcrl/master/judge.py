"""How an attempt ends, by what its master knows: pure, so that every order of events is a line of a table in a test.

Losses and errors stand in the order in which this process learned of them. Nobody can know more: one death makes its
peers fail too, and clocks of other machines are not believed. What peers tell of a death may come long before the death
itself is noticed, so a collective that broke is no verdict: its group and all agents are asked for a sign of life.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hpcrl.durable.journal import Broken
from hpcrl.errors import ExitCode
from hpcrl.master.allocation import EVERYTHING
from hpcrl.master.control import Stop
from hpcrl.master.ending import Ending
from hpcrl.master.members import LostMember, RaisedError
from hpcrl.wire.messages import BrokenOperation, Failed

SETTLE_S = 0.5
"""How long to collect failures before deciding which was first: one death makes its peers fail too."""

Ask = Literal["ask"]
"""The peers of whoever failed are to give a sign of life, and all agents."""


@dataclass(frozen=True)
class Situation:
    """What the master knows when it asks whether its attempt has ended. `now` is of the clock of losses and errors."""

    now: float
    nodes: int
    replaces_nodes: bool
    """Whether a lost node or master is started again while the others stay."""
    losses: Sequence[LostMember]
    failures: Sequence[RaisedError]
    draining: Mapping[int, str]
    """Node, or EVERYTHING, that is told to go → why."""
    signal: str
    """The signal that this process has caught."""
    stop: Stop
    """What a user has ordered."""
    worker_log: Callable[[int], str] = "worker-{}".format
    """Rank → what its log is called."""
    roll_called: bool = False
    """Whether these were asked for a sign of life. Who owes one for too long is a loss."""
    all_answered: bool = True
    broken_before: Collection[Broken] = ()
    """What broke in attempts before this one while everybody was alive."""
    finished: str = ""
    """Why there is nothing more to do, once all is saved."""
    hands_over: Ending | None = None
    """How the attempt ends once its open steps are finished: for one with further nodes, or with a changed script."""
    at_work: bool = False
    """Whether open steps or calls in flight are still waited for before the attempt ends as it was told to."""

    @property
    def finishes(self) -> bool:
        """Whether the open steps may still be finished: only a user wants an end, and in good order."""
        return self.stop == "finish" and not self.signal and not self.draining

    @property
    def told_to_go(self) -> str:
        """Who wants this attempt to end, in words; empty while nobody does."""
        if self.stop:
            return "asked to by `hpcrl stop` or Ctrl-C" + (f" ({self.stop})" if self.stop != "finish" else "")
        if self.signal:
            return f"the master got {self.signal}"
        whats = [("the run" if node == EVERYTHING else f"node {node}", why) for node, why in self.draining.items()]
        return ", ".join(f"{what} is to go: {why}" for what, why in whats)


def judge(known: Situation) -> Ending | Ask | None:
    """How the attempt has ended; None while it has not, or while others may still tell why."""
    if known.finished:
        return Ending("done", ExitCode.DONE, known.finished)
    if broken := _broken(known):
        return broken
    return None if known.at_work else _told_to_go(known)


def is_replaced(ending: Ending, known: Situation) -> bool:
    """Whether only the master's process has to go, and another comes: then the agents stay, and wait for it."""
    alone = EVERYTHING in known.draining or bool(known.signal)
    nodes_stay = len(known.draining.keys() - {EVERYTHING}) < known.nodes
    return ending.state == "preempted" and known.replaces_nodes and alone and nodes_stay


def _broken(known: Situation) -> Ending | Ask | None:
    """A loss (next attempt) or an error of code (end), after others had time to tell what came first."""
    if known.losses:
        loss = known.losses[0]
        reason = f"{loss.who}: {loss.how}" + (f" ({loss.log})" if loss.log else "")
        return Ending("lost", ExitCode.REQUEUE, reason, who=loss.who)
    told = [failure.told for failure in known.failures]
    # Who finds its shards damaged leaves its peers waiting, so that something breaks for them too.
    raised = next((error for error in told if error.exit_code != ExitCode.REQUEUE), None)
    damaged = next((error for error in told if error.damaged), None)
    if raised is None and damaged is None and any(error.broken for error in told):
        if not known.roll_called:
            return "ask"
        if not known.all_answered:
            return None
    if not told or known.now - known.failures[0].learned < SETTLE_S:
        return None
    if raised is None and damaged is not None:
        reason = f"worker-{damaged.rank}, {damaged.what}: {damaged.error}"
        return Ending("lost", ExitCode.REQUEUE, reason, who=f"worker-{damaged.rank}", nature="disk")
    if raised is None:
        return _disconnected(known, told)
    reason = f"worker-{raised.rank}, {raised.what}: {raised.error} ({known.worker_log(raised.rank)})"
    who = f"worker-{raised.rank}"
    return Ending("failed", ExitCode(raised.exit_code), reason, raised, who=who, nature=raised.nature)


def _disconnected(known: Situation, told: Sequence[Failed]) -> Ending:
    """Everybody is alive, and something between them broke: a loss the first time, an error of its own the second."""
    broke = {_line(error.what, error.broken): error for error in told if error.broken is not None}
    again = next((error for line, error in broke.items() if line in known.broken_before), None)
    if again is None:
        who = f"worker-{told[0].rank}"
        reason = f"{who}, {told[0].what}: {told[0].error}"
        nature = "communication" if broke else told[0].nature
        return Ending("lost", ExitCode.REQUEUE, reason, broken=tuple(broke), who=who, nature=nature)
    reason = f"worker-{again.rank}, {again.what}, for the second time while all were alive: {again.error}"
    at = f"worker-{again.rank}"
    reason = f"{reason} ({known.worker_log(again.rank)})"
    return Ending("failed", ExitCode.INTERNAL, reason, again, who=at, nature="communication")


def _line(what: str, broken: BrokenOperation) -> Broken:
    return Broken(what, broken.group, broken.operation, broken.number)


def _told_to_go(known: Situation) -> Ending | None:
    """The ending that was asked for: by a user (never requeued) or by the system (requeue).

    Where only some nodes are to go, and others come in their place, those that stay begin the next attempt. Where none
    come, all nodes are one job, and who takes one of them takes all.
    """
    why = known.told_to_go
    if not why:
        return known.hands_over
    if known.stop:
        return Ending("stopped", ExitCode.NEVER_REQUEUE, why, asked=True)
    whole = EVERYTHING in known.draining or len(known.draining) == known.nodes
    if known.signal or whole or not known.replaces_nodes:
        return Ending("preempted", ExitCode.REQUEUE, why, asked=True)
    return Ending("lost", ExitCode.REQUEUE, why, asked=True, leaving=tuple(known.draining))
