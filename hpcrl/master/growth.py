"""Whether a run takes further nodes in: what is known, a pure decision, and what keeps both between attempts.

A node without a place in the attempt is *spare*: its agent is connected and warm. It joins at a closed step, if what
that saves until the run or its allocation is over is more than what a new attempt costs.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from hpcrl.config.cluster import ClusterConfig
from hpcrl.durable.attempts import grown_at
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.events import Event, GrowthWeighed, NodeLeaving, NodesChanged
from hpcrl.master.node_check import fit_nodes, nodes_named
from hpcrl.master.reactor import Reactor
from hpcrl.placement.node_counts import in_words
from hpcrl.placement.step_times import expected_ratio
from hpcrl.progress import Progress, ShardSaved


@dataclass(frozen=True)
class Prospect:
    """What is known when it is asked whether spare nodes join now."""

    nodes: int
    spare: int
    """How many could join."""
    since_grown_s: float
    grow_every_s: float
    step_s: float | None
    """What a step has taken in this attempt; None before the first has closed."""
    ratio: float | None
    """How long a step will take with them, as a share of that; None while it is being reckoned."""
    left_s: float
    """Until the run is over, or its allocation."""
    cost_s: float
    """What a checkpoint and the start of an attempt have taken."""


@dataclass(frozen=True)
class Decision:
    """`waits`: what they wait for, in words without times, which change; `why` has those too."""

    joins: bool
    waits: str
    why: str


def grows(known: Prospect) -> Decision | None:
    """Whether the spare nodes join, and why, or why not yet; None where there are none."""
    if not known.spare:
        return None
    if known.step_s is None:
        return _not_yet("no step of this attempt has closed yet")
    wait_s = known.grow_every_s - known.since_grown_s
    if wait_s > 0:
        limit = f"the run grew, or was to grow, less than cluster.grow_every_s = {known.grow_every_s:g} s ago"
        return _not_yet(limit, f"{limit}; {math.ceil(wait_s)} s are left")
    if known.ratio is None:
        return _not_yet("what it would save is being reckoned")
    gain_s, more = known.left_s * (1 - known.ratio), known.nodes + known.spare
    if gain_s <= known.cost_s:
        saves = f"{max(0.0, gain_s):.0f} s of the {known.left_s:.0f} s that are left"
        why = (
            f"on {in_words(more)} the run would save about {saves}, and a new attempt costs about {known.cost_s:.0f} s"
        )
        return _not_yet("it would not pay", f"it would not pay: {why}")
    saved = "" if math.isinf(gain_s) else f", which saves about {gain_s:.0f} s for about {known.cost_s:.0f} s"
    return Decision(True, "", f"the open steps are finished first, then the run continues on {in_words(more)}{saved}")


def _not_yet(waits: str, why: str = "") -> Decision:
    return Decision(False, waits, why or waits)


def since_grown_s(run: RunDirectory, cluster: ClusterConfig, now: float) -> float:
    """How long ago it grew, by the attempts that it has; `now` is in seconds since 1970. As another host's clock may be
    ahead, never less than nothing."""
    grown = grown_at(run) if cluster.is_elastic else None
    return math.inf if grown is None else max(0.0, now - grown)


class Growth:
    """Of one master: when it grew or was to, what its attempts cost to start, what is expected of more nodes."""

    def __init__(
        self,
        experiment: Any,
        beside: Callable[[Callable[[], float]], Future[float]],
        clock: Callable[[], float] = time.monotonic,
        grown_s: float = math.inf,
    ) -> None:
        """`grown_s`: how long ago the run grew under an earlier master."""
        self._experiment = experiment
        self._cluster: ClusterConfig = experiment.cluster
        self._beside = beside
        self._clock = clock
        self._grown = clock() - grown_s
        self._start_s = 0.0
        self._save_s = 0.0
        self._ratios: dict[tuple[int, int], Future[float]] = {}

    def started(self, seconds: float) -> None:
        """The newest attempt took so long from its nodes to its ready workers."""
        self._start_s = seconds

    def follow(self, progress: Progress) -> None:
        """A checkpoint takes as long as its slowest shard."""
        if isinstance(progress, ShardSaved):
            self._save_s = max(self._save_s, progress.seconds)

    def changed(self, nodes: NodesChanged) -> None:
        """The attempt that begins has another number of nodes than the last."""
        if nodes.nodes > nodes.before:
            self._grown = self._clock()

    def handed_over(self) -> None:
        """An attempt has ended so that the run can grow, whoever is still there when the next one begins."""
        self._grown = self._clock()

    def decide(self, nodes: int, spare: int, step_s: float | None, left_s: float) -> Decision | None:
        """Whether so many spare nodes join those of the attempt now."""
        if not spare:
            return None
        return grows(
            Prospect(
                nodes=nodes,
                spare=spare,
                since_grown_s=self._clock() - self._grown,
                grow_every_s=self._cluster.grow_every_s,
                step_s=step_s,
                ratio=self._ratio(nodes, nodes + spare),
                left_s=left_s,
                cost_s=self._start_s + self._save_s,
            )
        )

    def _ratio(self, before: int, after: int) -> float | None:
        """Reckoned once for each pair, behind the work."""
        pair = before, after
        if pair not in self._ratios:
            self._ratios[pair] = self._beside(lambda: expected_ratio(self._experiment, before, after))
        return self._ratios[pair].result() if self._ratios[pair].done() else None


class Joining:
    """The spare nodes of one attempt: checked, weighed and told of. `order` says why it ends so that they can join."""

    def __init__(self, growth: Growth, reactor: Reactor, note: Callable[[Event], None]) -> None:
        self.order = ""
        self._growth = growth
        self._reactor = reactor
        self._note = note
        self._told: tuple[tuple[int, ...], str] = (), ""

    def weigh(self, step_s: float | None, left_s: float, keeps_order: bool = False) -> None:
        """`left_s` is how long the run will take on the nodes that it has, if its allocation does not end before;
        `keeps_order` whether no further step may open once the open ones are being finished."""
        members = self._reactor.members
        if self.order and not keeps_order:
            self._withdraw_if_gone()
        if self.order or members.seats is None or not members.spare:
            return
        self._send_away_unfit(sorted(members.seats), members.spare)
        spare = tuple(members.spare)
        decision = self._growth.decide(len(members.seats), len(spare), step_s, left_s)
        if decision is None:
            return
        if (spare, decision.waits) != self._told:
            self._told = spare, decision.waits
            self._note(GrowthWeighed(spare, decision.joins, decision.why))
        if decision.joins:
            self.order = f"{nodes_named(spare)} can join: {decision.why}"

    def _withdraw_if_gone(self) -> None:
        """The order, once one of its nodes is gone: steps open again, and those that are left are weighed anew."""
        ordered, spare = self._told[0], tuple(self._reactor.members.spare)
        if gone := [node for node in ordered if node not in spare]:
            self.order, self._told = "", ((), "")
            self._note(GrowthWeighed(spare, False, f"{nodes_named(gone)} left before the open steps were finished"))

    def _send_away_unfit(self, seats: list[int], spare: list[int]) -> None:
        """What no attempt could use is let go, and not started again."""
        hosts = self._reactor.members.hosts
        for node, wrong in fit_nodes({node: hosts[node] for node in (*seats, *spare) if node in hosts}).items():
            if wrong and node in spare:
                self._note(NodeLeaving(node, wrong))
                self._reactor.let_go(node, ExitCode.NEVER_REQUEUE)
