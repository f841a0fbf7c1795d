"""Waiting for the agents of all nodes: how long, what is done about those that are missing, and when it is given up.

Decides; the master's loop listens meanwhile. Who only waits for a turn in a queue may try for ever; any other reason is
tried again a few times, because what is wrong with a node may be right when it is queued the next time.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping

from hpcrl.config.cluster import ClusterConfig
from hpcrl.durable.records import Verdict
from hpcrl.errors import ExitCode
from hpcrl.master.allocation import AllocationWatch
from hpcrl.master.ending import Ending
from hpcrl.master.meeting_point import MeetingPoint
from hpcrl.master.members import Members
from hpcrl.master.node_check import check_nodes
from hpcrl.placement.plan import WorkerPlan

FAILED_RENDEZVOUS_LIMIT = 5
"""How often nodes may fail to come, one time after another, before the run gives up."""
LOOK_S = 1.0
"""How often it is looked for what agents have left."""


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
        self._was_complete = False
        self._since: float | None = None
        self._left: dict[int, Verdict] = {}
        self._next_look = 0.0

    def begin(self, attempt: int, address: str) -> None:
        """Tell all nodes where the master of this attempt listens. The time that some have been missing runs on."""
        self._address = address
        self._point.open(attempt, address)

    def is_complete(self) -> bool:
        if self._members.missing:
            self._since = self._clock() if self._since is None else self._since
            return False
        self._since, self._was_complete = None, True
        self._watch.found_all()
        return True

    def given_up(self) -> Ending | None:
        """Whether those that are missing are waited for no longer; if they are, they are seen to."""
        missing = self._members.missing
        if gone := {node: what for node, what in self._watch.gone.items() if node in missing}:
            said = "; ".join(f"node {node}: {what}" for node, what in gone.items())
            return Ending("failed", ExitCode.NEVER_REQUEUE, f"{said}. {self._advice}")
        if ending := self._left_for_good(missing):
            return ending
        if ended := [what for node, what in self._watch.ended.items() if node in missing]:
            return self._in_vain(f"{'; '.join(ended)}. {self._advice}")
        if self._since is not None and self._clock() - self._since > self._patience_s:
            why = self._why_incomplete(missing)
            return Ending("queued", ExitCode.REQUEUE, why) if self._watch.only_queue(missing) else self._in_vain(why)
        self._watch.poll(missing)
        return None

    def _left_for_good(self, missing: Mapping[int, tuple[int, int] | None]) -> Ending | None:
        """An agent that has ended with an error of its own, and that nobody starts again, is not waited for."""
        if self._clock() >= self._next_look:
            self._next_look = self._clock() + LOOK_S
            found = self._point.notices()
            known = {node: found[node] for node in missing if node in found}
            self._left = {n: left.verdict for n, left in known.items() if left.incarnation >= (missing[n] or (0, 0))}
        left = [verdict for node, verdict in self._left.items() if node in missing]
        final = [verdict for verdict in left if verdict.exit_code != ExitCode.REQUEUE]
        if final:
            why = "; ".join(verdict.reason for verdict in final)
            return Ending("failed", ExitCode(final[0].exit_code), why, traceback=final[0].traceback or "")
        return (
            self._in_vain("; ".join(verdict.reason for verdict in left)) if left and not self.replaces_nodes else None
        )

    def unfit(self, workers: Iterable[WorkerPlan]) -> Ending | None:
        """Refuse nodes and devices that workers cannot do with, before anybody loads a model."""
        hosts = {node: self._members.hosts[node] for node in self._members.agents}
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
    def _patience_s(self) -> float:
        """How long to wait for nodes: all of them at first, later one in the place of another."""
        if not self._was_complete:
            return self._cluster.start_timeout_s
        return self._cluster.replace_timeout_s if self.replaces_nodes else 0.0

    def _why_incomplete(self, missing: Collection[int]) -> str:
        nodes, patience_s = self._members.nodes, self._patience_s
        if patience_s == 0.0:
            left = f"{nodes - len(missing)} of {nodes} nodes are left, missing: {list(missing)}"
            return f"{left}; nobody starts them again here. {self._advice}"
        said = [f"{nodes - len(missing)} of {nodes} nodes came within {patience_s:g} s, missing: {list(missing)}"]
        said += [f"node {node}: {absence.what}" for node, absence in self._watch.absences.items()]
        said += [verdict.reason for node, verdict in self._left.items() if node in missing]
        if len(missing) < nodes:
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
