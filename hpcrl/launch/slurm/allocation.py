"""What a run's master asks of Slurm while it runs: when the allocations end, and what becomes of missing nodes.

Elements that Slurm has, running or queued, are left alone. One that has ended is treated as its batch script would have
treated it (`requeue`), and a successor is sent once for each incarnation, whoever thinks of it first.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcrl.durable.attempts import progress_of
from hpcrl.durable.rundir import RunDirectory
from hpcrl.launch.slurm.commands import Slurm, SlurmError, SlurmUnavailableError
from hpcrl.launch.slurm.exits import place_of, record_exit
from hpcrl.launch.slurm.jobs import ENDED, Queued, State
from hpcrl.launch.slurm.requeue import Cause, Ended, Never, cause_of_state, decide
from hpcrl.launch.slurm.submission import read_intent, send_successor, successor_is_under_way
from hpcrl.master.allocation import EVERYTHING, Absence

TIMEOUT_S = 20.0
"""A master that leaves waits for no answer, and one that stays asks again."""
WAITING = (State.PENDING, State.REQUEUED, State.HELD)
ANNOUNCED_S = 120.0
"""For so long a successor that a batch script has announced may be on its way; then nobody sends it any more."""
_FOR_GOOD = frozenset(
    {
        *("JobHeldUser", "JobHeldAdmin", "DependencyNeverSatisfied", "BadConstraints", "InvalidAccount", "InvalidQOS"),
        *("AccountNotAllowed", "QOSNotAllowed", "PartitionNodeLimit", "PartitionTimeLimit"),
    }
)
"""Reasons for which a job waits until a person does something."""


class End(NamedTuple):
    """The last end of an element's job: `number` is its own id."""

    job: str
    number: int
    restarts: int
    state: State
    partition: str = ""


class SlurmAllocation:
    """The jobs of one submission. Its methods take as long as Slurm's commands do; one thread at a time calls each."""

    def __init__(self, run_dir: Path, nonce: str, slurm: Slurm | None = None) -> None:
        self._run = RunDirectory(run_dir)
        self._nonce = nonce
        self._slurm = slurm or Slurm(timeout_s=TIMEOUT_S)
        self._under_way: dict[str, float] = {}
        self._progress: str | None = None
        self._by_hand: list[Queued] | None = None

    def ends(self) -> dict[int, float]:
        """Node → seconds since 1970 at which its job's time is over; EVERYTHING for the job that has the master."""
        workers = {int(job) for job in self._arrays()}
        found: dict[int, float] = {}
        for job, end in self._slurm.end_times(self._run.jobs_of(self._nonce)).items():
            node = job.element if job.job in workers and job.element is not None else EVERYTHING
            found[node] = min(end, found.get(node, end))
        return found

    def replace_missing(self, missing: Mapping[int, tuple[int, int] | None]) -> dict[int, Absence]:
        """Send successors for those of the missing nodes → (job, restarts) of their last agents that need one.

        Returns what is known of each; nothing where nodes are not jobs of their own.
        """
        arrays = self._arrays()
        if not arrays or not missing:
            return {}
        queued = self._slurm.squeue(arrays)
        self._progress = self._by_hand = None
        return {
            node: self._find_or_replace(node, last, [each for each in queued if each.id.element == node])
            for node, last in sorted(missing.items())
        }

    def release(self, nodes: Collection[int]) -> None:
        """Cancel the elements of these nodes that wait in the queue, each by its own id."""
        arrays = self._arrays()
        queued = self._slurm.squeue(arrays) if arrays and nodes else ()
        waiting = [str(it.id) for it in queued if it.id.element in nodes and it.state.state in WAITING]
        if waiting:
            self._slurm.scancel(waiting)

    def _find_or_replace(self, node: int, last: tuple[int, int] | None, seen: Sequence[Queued]) -> Absence:
        alive = [each for each in seen if each.state.is_alive]
        if alive:
            return _waits(max(alive, key=lambda each: each.number))
        end = self._end(node, last, seen)
        if end is None:
            return Absence("silent", "Slurm knows no job of it")
        if end.state not in ENDED and end.state is not State.UNKNOWN:
            return Absence("silent", f"job {end.job} is {end.state.value} by the accounting; squeue does not know it")
        if by_hand := self._sent_by_hand(node):
            return _waits(by_hand)
        if end.state is State.CANCELLED:
            return Absence("gone", f"job {end.job} was cancelled")
        written = Ended(cause_of_state(end.state), None, time.time(), self._how_far())
        place = place_of("workers", node)
        ended, before = record_exit(self._run, self._nonce, place, end.number, end.restarts, written)
        if ended.cause in (Cause.DONE, Cause.LEFT_TO_SLURM):
            # Slurm's own word is better: srun says 0 of a step whose node has failed.
            ended = written
        decision = decide(ended, before, rules=read_intent(self._run, self._nonce).rules_of("workers", end.partition))
        if isinstance(decision, Never):
            return Absence("gone", f"job {end.job} is not started again: {decision.reason}")
        return self._replace(node, end, decision.delay_s)

    def _sent_by_hand(self, node: int) -> Queued | None:
        """A job of this submission that nobody has written down: it does so itself when it begins."""
        if self._by_hand is None:
            mark = read_intent(self._run, self._nonce).comments["workers"]
            self._by_hand = [each for each in self._slurm.squeue() if f"{each.comment} ".startswith(f"{mark} ")]
        return next((each for each in self._by_hand if each.id.element == node and each.state.is_alive), None)

    def _how_far(self) -> str:
        """The run's progress, read once for all nodes of a look."""
        if self._progress is None:
            self._progress = progress_of(self._run)
        return self._progress

    def _end(self, node: int, last: tuple[int, int] | None, seen: Sequence[Queued]) -> End | None:
        """How the element's newest job ended, by the controller, else by the accounting, else by what was heard."""
        if seen:
            newest = max(seen, key=lambda each: each.number)
            restarts = self._restarts(newest, last)
            return End(str(newest.id), newest.number, restarts, newest.state.state, newest.partition)
        try:
            known = self._slurm.sacct(self._arrays())
        except SlurmUnavailableError:
            known = {}
        found = max((job for job in known if job.element == node), default=None)
        if found is not None:
            *earlier, newest_record = known[found]
            return End(str(found), newest_record.number, len(earlier), newest_record.state.state)
        return None if last is None else End(str(last[0]), *last, State.UNKNOWN)

    def _restarts(self, newest: Queued, last: tuple[int, int] | None) -> int:
        """By the controller; an incarnation that died before its agent said hello is known to nobody else."""
        heard = last[1] if last is not None and last[0] == newest.number else 0
        try:
            restarts = self._slurm.show_job(newest.id).get("Restarts", "")
        except SlurmError as error:
            if isinstance(error, SlurmUnavailableError) and error.missing != "scontrol":
                raise
            return heard
        return max(heard, int(restarts) if restarts.isdecimal() else 0)

    def _replace(self, node: int, end: End, delay_s: float) -> Absence:
        of = f"{end.number}.{end.restarts}"
        late = False
        if successor_is_under_way(self._run, self._nonce, of):
            late = time.monotonic() - self._under_way.setdefault(of, time.monotonic()) > ANNOUNCED_S
        job = send_successor(self._run, self._slurm, self._nonce, "workers", of, node, delay_s, again=late)
        if job is None:
            return Absence("queued", f"a successor of job {end.job} is on its way")
        return Absence("queued", f"job {job} was sent in the place of {end.job}")

    def _arrays(self) -> list[str]:
        """The jobs whose elements are nodes."""
        return self._run.jobs_named(self._nonce, "workers")


def _waits(queued: Queued) -> Absence:
    """Of a job that has, or will have, processes."""
    state, reason = queued.state.state, queued.reason
    said = f"job {queued.id} is {queued.state.word.lower()}" + (f" ({reason})" if reason else "")
    # A prolog that failed leaves "launch failed requeued held".
    if state is State.HELD or (state is State.PENDING and (reason in _FOR_GOOD or "held" in reason.lower())):
        return Absence("held", said)
    return Absence("queued" if state in (State.PENDING, State.REQUEUED, State.STARTING) else "silent", said)
