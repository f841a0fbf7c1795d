"""Waiting for the agents of all nodes: how long, what is done about those that are missing, and when it is given up.

Decides; the master's loop listens meanwhile. Who only waits for a turn in a queue may try for ever; any other reason is
tried again a few times, because what is wrong with a node may be right when it is queued the next time. Where the run
may have one number of nodes or another, it begins with those that are there once there is no more to wait for.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpcrl.config.cluster import ClusterConfig
from hpcrl.durable.records import Verdict
from hpcrl.durable.recovery import RecoveryPlan
from hpcrl.errors import ExitCode
from hpcrl.events import NodesChanged
from hpcrl.master.allocation import AllocationWatch
from hpcrl.master.ending import Ending
from hpcrl.master.meeting_point import MeetingPoint
from hpcrl.master.members import Members
from hpcrl.master.node_check import check_nodes, fit_nodes, nodes_named
from hpcrl.placement.plan import WorkerPlan

FAILED_RENDEZVOUS_LIMIT = 5
"""How often nodes may fail to come, one time after another, before the run gives up."""
RUNNING_LOOK_EVERY_S = 60.0
"""How often it is asked about missing nodes while the run does without them."""
LOOK_S = 1.0
"""How often it is looked for what agents have left."""


@dataclass(frozen=True)
class Muster:
    """Who is there when it is asked whether an attempt may begin. `wanted`: as many as the run had last, at first as
    many as it may have; `coming`: how many more may still come; `waited_s`: for how long they have been waited for."""

    here: int
    least: int
    wanted: int
    coming: int
    waited_s: float
    patience_s: float


def may_begin(known: Muster) -> bool:
    """With all that were wanted; or with enough, once nobody else comes, or was waited for long enough."""
    if known.here >= known.wanted:
        return True
    return known.here >= known.least and (known.coming == 0 or known.waited_s >= known.patience_s)


class NodeWait:
    """One master's, for all of its attempts. `is_complete` is asked in a loop, `given_up` while it says no."""

    def __init__(
        self,
        point: MeetingPoint,
        cluster: ClusterConfig,
        replaces_nodes: bool,
        members: Members,
        watch: AllocationWatch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._point = point
        self._cluster = cluster
        self.replaces_nodes = replaces_nodes
        self._members = members
        self._watch = watch
        self._clock = clock
        self._address = ""
        self._was_complete = self._had_some = False
        self._wanted = members.nodes
        self._since: float | None = None
        self._enough_since: float | None = None
        self._left: dict[int, Verdict] = {}
        self._next_look = 0.0

    def begin(self, attempt: int, address: str) -> None:
        """Tell all nodes where the master of this attempt listens. The time that some have been missing runs on."""
        self._address = address
        self._point.open(attempt, address)

    def is_complete(self) -> bool:
        """Whether the attempt may begin with the nodes that are there."""
        here, now, missing = len(self._members.agents), self._clock(), self._members.missing
        if here < self._wanted and self._since is None:
            self._since = now
        if here < self._cluster.least_nodes:
            self._enough_since = None
        elif self._enough_since is None:
            self._enough_since = now
        begun = self._since if self._was_complete else self._enough_since
        waited_s = 0.0 if begun is None else now - begun
        patience_s = self._replace_s if self._was_complete else self._cluster.patience_s
        coming = len(missing) - len(self._hopeless(missing))
        if not may_begin(Muster(here, self._cluster.least_nodes, self._wanted, coming, waited_s, patience_s)):
            return False
        self._since, self._enough_since = None, None
        self._had_some, self._was_complete = self._was_complete, True
        if not missing:
            self._watch.found_all()
        return True

    def seats(self) -> tuple[int, ...]:
        """The nodes that the attempt has: those that are there and can have workers. Where these are too few, all, so
        that it is said what is wrong with them."""
        here = sorted(self._members.agents)
        fit = [
            node for node, wrong in fit_nodes({node: self._members.hosts[node] for node in here}).items() if not wrong
        ]
        chosen = fit if len(fit) >= self._cluster.least_nodes else here
        self._wanted = len(chosen)
        return tuple(chosen)

    def changed(self, seats: Sequence[int], recovery: RecoveryPlan) -> NodesChanged | None:
        """How an attempt on these nodes differs from the newest one before it that had some; None where their number is
        the same, or always was. Reads that one's plan."""
        before = self._point.nodes_before() if self._cluster.is_elastic else None
        if before is None or len(before) == len(seats):
            return None
        cut = 0 if recovery.checkpoint is None else recovery.checkpoint.step
        why = self._why_changed(sorted(set(before) - set(seats)), sorted(set(seats) - set(before)))
        return NodesChanged(len(before), len(seats), max([cut, *recovery.closed]), why)

    def _why_changed(self, left: Sequence[int], came: Sequence[int]) -> str:
        said = [f"{nodes_named(came)} joined"] if came else []
        if left and not self._had_some:  # it is the first attempt of this master: it has lost none
            said.append(f"{nodes_named(left)} did not come again")
        elif left:
            limit = f"replaced within cluster.replace_timeout_s = {self._cluster.replace_timeout_s:g}"
            within = limit if self.replaces_nodes else "replaced, because nobody starts nodes again here"
            said.append(f"{nodes_named(left)} {'were' if len(left) > 1 else 'was'} lost and not {within}")
        return "; ".join(said)

    @property
    def is_elastic(self) -> bool:
        """Whether the run may have one number of nodes or another."""
        return self._cluster.is_elastic

    def poll(self) -> None:
        """While an attempt runs: have missing nodes seen to that could still join."""
        if missing := self._members.missing:
            self._watch.poll(missing, RUNNING_LOOK_EVERY_S)

    def given_up(self) -> Ending | None:
        """Whether those that are missing are waited for no longer; if they are, they are seen to."""
        missing = self._members.missing
        self._look_for_notices(missing)
        self._watch.poll(missing, waits_s=self._waits_s)
        least, here = self._cluster.least_nodes, len(self._members.agents)
        if here + len(missing) - len(self._hopeless(missing)) < least:
            return self._too_few(missing)
        if here < least and self._since is not None and self._clock() - self._since > self._limit_s:
            why = self._why_incomplete(missing)
            return Ending("queued", ExitCode.REQUEUE, why) if self._watch.only_queue(missing) else self._in_vain(why)
        return None

    @property
    def _waits_s(self) -> float | None:
        """For how long those that are missing are still waited for; None where nobody is."""
        if len(self._members.agents) < self._cluster.least_nodes or self._was_complete:
            since, limit_s = self._since, self._limit_s
        else:
            since, limit_s = self._enough_since, self._cluster.patience_s
        return None if since is None else max(0.0, since + limit_s - self._clock())

    def _too_few(self, missing: Mapping[int, tuple[int, int] | None]) -> Ending:
        """So many never come that the run cannot have its least number of nodes."""
        if gone := {node: what for node, what in self._watch.gone.items() if node in missing}:
            said = "; ".join(f"node {node}: {what}" for node, what in gone.items())
            return Ending("failed", ExitCode.NEVER_REQUEUE, f"{said}. {self._advice}")
        left = [verdict for node, verdict in self._left.items() if node in missing]
        final = [verdict for verdict in left if verdict.exit_code != ExitCode.REQUEUE]
        if final:
            why = "; ".join(verdict.reason for verdict in final)
            return Ending("failed", ExitCode(final[0].exit_code), why, traceback=final[0].traceback or "")
        if left and not self.replaces_nodes:
            return self._in_vain("; ".join(verdict.reason for verdict in left))
        ended = [what for node, what in self._watch.ended.items() if node in missing]
        return self._in_vain(f"{'; '.join(ended)}. {self._advice}")

    def _look_for_notices(self, missing: Mapping[int, tuple[int, int] | None]) -> None:
        """An agent that has ended with an error of its own, and that nobody starts again, is not waited for."""
        if self._clock() >= self._next_look:
            self._next_look = self._clock() + LOOK_S
            found = self._point.notices()
            known = {node: found[node] for node in missing if node in found}
            self._left = {n: left.verdict for n, left in known.items() if left.incarnation >= (missing[n] or (0, 0))}

    def _hopeless(self, missing: Collection[int]) -> set[int]:
        """Missing nodes that do not come any more in this submission."""
        left = {
            node
            for node, verdict in self._left.items()
            if verdict.exit_code != ExitCode.REQUEUE or not self.replaces_nodes
        }
        return {*left, *self._watch.gone, *self._watch.ended} & set(missing)

    def unfit(self, workers: Iterable[WorkerPlan]) -> Ending | None:
        """Refuse nodes and devices that workers cannot do with, before anybody loads a model."""
        workers = tuple(workers)
        hosts = {node: self._members.hosts[node] for node in {worker.node for worker in workers}}
        code, why = check_nodes(hosts, workers)
        if code == ExitCode.DONE:
            return None
        return self._in_vain(why) if code == ExitCode.REQUEUE else Ending("failed", code, why)

    def _in_vain(self, why: str) -> Ending:
        """What another turn may cure, but not for ever."""
        times = 1 + self._point.failed()
        if times < FAILED_RENDEZVOUS_LIMIT:
            return Ending("incomplete", ExitCode.REQUEUE, why)
        return Ending("failed", ExitCode.NEVER_REQUEUE, f"for the {times}th time in a row and no more: {why}")

    @property
    def _replace_s(self) -> float:
        """How long to wait for a node in the place of another. Where none comes, the lost one's agent may still live,
        and looks for its master for so long."""
        return self._cluster.replace_timeout_s if self.replaces_nodes else self._cluster.orphan_timeout_s

    @property
    def _limit_s(self) -> float:
        """How long to wait where there are too few nodes: at first, later for one that was lost."""
        return self._replace_s if self._was_complete else self._cluster.start_timeout_s

    def _why_incomplete(self, missing: Collection[int]) -> str:
        most, nodes, patience_s = self._members.nodes, self._cluster.nodes, self._limit_s
        if self._was_complete and not self.replaces_nodes:
            left = f"{most - len(missing)} of {nodes} nodes are left, missing: {list(missing)}"
            silent = f"nothing was heard of them within cluster.orphan_timeout_s = {patience_s:g} s"
            return f"{left}; {silent}, and nobody starts them again here. {self._advice}"
        said = [f"{most - len(missing)} of {nodes} nodes came within {patience_s:g} s, missing: {list(missing)}"]
        said += [f"node {node}: {absence.what}" for node, absence in self._watch.absences.items()]
        said += [verdict.reason for node, verdict in self._left.items() if node in missing]
        if len(missing) < most:
            said.append(f"the others were held for {patience_s:g} s and are let go")
        if unreachable := sorted(self._point.announced() & set(missing)):
            said.append(f"{unreachable} started but could not connect to {self._address}: is a firewall between?")
        advice = f"Raise cluster.{'replace' if self._was_complete else 'start'}_timeout_s"
        if self.replaces_nodes:
            advice += "; cluster.topology hetjob or colocated starts all nodes together"
        return f"{'; '.join(said)}. {advice}. {self._advice}"

    @property
    def _advice(self) -> str:
        return f"`hpcrl resume {self._point.root}` sends all jobs anew; with --nodes N, on so many nodes."
