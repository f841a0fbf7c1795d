"""The master: begins attempt after attempt, and says how the run ended.

Owns the attempts and the verdict; `Reactor` owns the sockets, `Attempt` how one attempt goes. An attempt ends when the
run is done, somebody is lost, code raised, or it was told to go; after a loss the next one begins here.
"""

import os
import socket
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcrl.config.changes import RunSettings
from hpcrl.config.changes import under as with_places
from hpcrl.config.cluster import Abilities
from hpcrl.dataflow.graph import changes
from hpcrl.durable.attempts import attempts_without_progress, broken_operations
from hpcrl.durable.code import is_same_script
from hpcrl.durable.files import DamagedFileError
from hpcrl.durable.indexes import indexes_of
from hpcrl.durable.records import Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode, HpcrlError, StoppedError, nature_of
from hpcrl.events import AttemptEnded
from hpcrl.foreign import plain
from hpcrl.garbage import seldom_collected
from hpcrl.master.allocation import Allocation, AllocationWatch
from hpcrl.master.attempt import Attempt
from hpcrl.master.attempt_files import SupersededError, begin_attempt, refuse_superseded
from hpcrl.master.control import Control
from hpcrl.master.divergence import ScriptChanged
from hpcrl.master.ending import Ending
from hpcrl.master.graph_driver import GraphDriver
from hpcrl.master.growth import Growth, since_grown_s
from hpcrl.master.judge import is_replaced
from hpcrl.master.meeting_point import RunMeetingPoint
from hpcrl.master.members import Members
from hpcrl.master.node_wait import NodeWait
from hpcrl.master.reactor import Reactor, Sockets
from hpcrl.master.schedule import RunSchedule
from hpcrl.master.script_driver import ScriptDriver
from hpcrl.master.stepping import open_data
from hpcrl.processes import Signals
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.wire.address import Network
from hpcrl.wire.channel import RunKey
from hpcrl.wire.messages import Finish, StartWorkers

FRUITLESS_ATTEMPTS = 3
RELEASE_S = 30.0
"""How long a run that is over waits for an answer of whoever starts its nodes."""
HANDS_OVER = "all that was begun with the script as it was is closed; the changed one continues"
CONTINUES = ("lost", "grown", "changed")
"""Endings after which this process begins the next attempt."""


def run_master(
    run_dir: Path,
    submission: str,
    fault: Callable[[str], None],
    network: Network,
    abilities: Abilities,
    allocation: Allocation | None = None,
    granted: int | None = None,
) -> ExitCode:
    """The master's process, from its first line to its exit code."""
    signals = Signals()
    try:
        fault("master.start")
        run = RunDirectory(run_dir, fault)
        with seldom_collected():
            return Master(run, submission, signals, network, abilities, allocation, granted).serve_run()
    finally:
        signals.close()


class Master:
    """One submission's master."""

    def __init__(
        self,
        run: RunDirectory,
        submission: str,
        signals: Signals,
        network: Network,
        abilities: Abilities,
        allocation: Allocation | None = None,
        granted: int | None = None,
    ) -> None:
        self._run = run
        self._submission = submission
        self._version = run.version_of(submission)
        self._experiment = experiment_from(run.configuration(submission))
        cluster = self._experiment.cluster
        sockets = Sockets(RunKey.of(run), f"master.{submission}.{os.getpid()}", network, signals.fileno())
        members = Members(min(granted or cluster.most_nodes, cluster.most_nodes), cluster.lost_after_s)
        self._reactor = Reactor(sockets, members, signals, Control(run, submission), cluster)
        self._data = self._reactor.in_background(lambda: open_data(self._experiment, indexes_of(run, submission)))
        evaluates = algorithm_of(self._experiment).evaluates(self._experiment)
        self._schedule = RunSchedule(self._experiment.control, evaluates)
        self._watch = AllocationWatch(allocation, self._reactor.note)
        self._nodes = NodeWait(
            RunMeetingPoint(run, submission), cluster, abilities.replaces_nodes, members, self._watch
        )
        grown_s = since_grown_s(run, cluster, time.time())
        self._growth = Growth(self._experiment, self._reactor.in_background, grown_s=grown_s)
        self._last: Attempt | None = None
        self._lost = ""
        self._under: int | None = None
        """The version of the settings whose script is to close what is open, before this submission's continues."""

    def serve_run(self) -> ExitCode:
        """Attempt after attempt until the run has ended; returns the exit code that the agents were told too."""
        over = self._is_over()
        if over is not None:
            return over
        while True:
            ending = self._guarded(self._next_attempt)
            if ending.state not in CONTINUES:
                return self._leave(ending)
            self._lost = ending.reason

    def _is_over(self) -> ExitCode | None:
        """A job can be started again although nobody needs it: the run is done, or this submission was stopped."""
        run, submission = self._run, self._submission
        claims = {number: run.read_claim(number) for number in run.numbers()}
        ours = [number for number, claim in claims.items() if claim is not None and claim.submission == submission]
        verdicts = [run.done(submission), *map(run.read_verdict, ours)]
        for verdict in verdicts:
            if verdict is not None and verdict.state in ("done", "stopped"):
                print(f"nothing to do: {verdict.state}: {verdict.reason}", flush=True)
                return ExitCode(verdict.exit_code)
        return None

    def _next_attempt(self) -> Ending:
        reactor, control = self._reactor, self._experiment.control
        if self._last is not None:
            # What it lost it may have lost because another took the run over, while this process slept.
            refuse_superseded(self._run, self._last.number)
        fruitless = reactor.while_beating(lambda: attempts_without_progress(self._run, self._submission))
        if fruitless >= FRUITLESS_ATTEMPTS:
            last = f", the last: {self._lost}" if self._lost else ""
            reason = f"{FRUITLESS_ATTEMPTS} attempts in a row finished no call{last}; see `hpcrl logs {self._run.root}`"
            return Ending("failed", ExitCode.NEVER_REQUEUE, reason)
        reactor.members.new_attempt()
        broken = reactor.while_beating(lambda: broken_operations(self._run, self._submission))
        under, self._under = self._under, None
        experiment = self._experiment if under is None else self._older(under)
        changing = changes(algorithm_of(experiment).calls(experiment))
        files = reactor.while_beating(
            lambda: begin_attempt(self._run, changing, self._submission, control.keep_checkpoints, control.compact)
        )
        attempt = Attempt(
            files,
            reactor.while_beating(lambda: self._run_settings(files.recovery.older_settings, under)),
            self._data,
            self._schedule,
            reactor,
            self._watch,
            self._nodes,
            self._growth,
            broken_before=broken,
            driver=GraphDriver if algorithm_of(self._experiment).script is None else ScriptDriver,
        )
        reactor.listener = self._last = attempt
        ending = self._guarded(attempt.run, attempt.number)
        told = ending.state, plain(ending.reason), int(ending.exit_code)
        attempt.note(AttemptEnded(*told, ending.who, ending.asked, ending.nature))
        reactor.listener = None
        try:
            reactor.while_beating(files.close)
        except (HpcrlError, OSError) as error:
            # What ended the attempt came first, and says more than a disk that has been full since.
            print(f"attempt {attempt.number} was not closed: {error}", flush=True)
        if ending.state in CONTINUES:
            self._idle(attempt.number)
        return ending

    def _run_settings(self, needed: Collection[int], under: int | None) -> RunSettings:
        """This submission's settings, or older ones, and other versions under which something is executed again."""
        version = self._version if under is None else under
        others = {each: self._older(each) for each in needed if each != version}
        found = RunSettings(self._older(version), version, others)
        if algorithm_of(self._experiment).script is None:
            return found
        copies = {each: self._run.read_code(self._run.read_settings(each).code) for each in (version, *others)}
        unlike = frozenset(each for each in others if not is_same_script(copies[each], copies[version]))
        return replace(found, other_scripts=unlike, until_closed="" if under is None else HANDS_OVER)

    def _older(self, version: int) -> Any:
        """Settings of a version, for where and how this submission runs."""
        if version == self._version:
            return self._experiment
        return with_places(experiment_from(self._run.configuration_of(version)), self._experiment)

    def _idle(self, attempt: int) -> None:
        """End the workers of all nodes until the next attempt has everybody."""
        for node in self._reactor.members.agents:
            self._reactor.send_to_node(node, StartWorkers(attempt, (), over=True))

    def _guarded(self, work: Callable[[], Ending], attempt: int | None = None) -> Ending:
        """What is raised is an ending too; `attempt` is the one that is under way."""
        try:
            return work()
        except (SupersededError, StoppedError) as error:
            return Ending("superseded", ExitCode.NEVER_REQUEUE, str(error))
        except ScriptChanged as error:
            self._under = error.under
            return Ending("changed", ExitCode.REQUEUE, str(error))
        except DamagedFileError as error:
            # The next attempt verifies every file, and makes again what was in this one.
            return Ending("lost", ExitCode.REQUEUE, str(error))
        except (HpcrlError, OSError) as error:
            # A newer attempt removes what is older: this one's errors are then only its way of noticing.
            if attempt is not None and self._run.superseded(attempt):
                return Ending("superseded", ExitCode.NEVER_REQUEUE, str(error))
            code = error.exit_code if isinstance(error, HpcrlError) else ExitCode.INTERNAL
            reason, nature = f"{type(error).__name__}: {error}", nature_of(error)
            return Ending("failed", code, reason, who="master", nature=nature)
        except Exception as error:
            reason = f"the master raised {type(error).__name__}: {error}"
            told, nature = "".join(traceback.format_exception(error)), nature_of(error)
            return Ending("failed", ExitCode.INTERNAL, reason, traceback=told, who="master", nature=nature)

    # ── the verdict ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _leave(self, ending: Ending) -> ExitCode:
        """Write the verdict, tell everybody, close the sockets."""
        # Of two masters of one submission the agents belong to the other, and so does the newest attempt.
        replaced = ending.state == "superseded" and self._is_another_of_ours(self._run.newest_attempt())
        ours = None if self._last is None else self._last.number
        number = ours if replaced else self._run.newest_attempt_of(self._submission)
        print(f"{ending.state}: {ending.reason}", flush=True)
        try:
            if number is not None and self._run.read_verdict(number) is None:
                self._run.publish_verdict(number, _verdict(number, ending))
            elif not replaced and ending.state != "superseded":
                self._run.publish_early_verdict(self._submission, _verdict(None, ending))
        except (HpcrlError, OSError) as error:
            # On a full disk they are to hear it all the same.
            print(f"the verdict was not written: {error}", flush=True)
        comes_back = self._last is not None and is_replaced(ending, self._last.situation())
        if number is not None and (replaced or comes_back):
            self._idle(number)
        elif not replaced:
            self._reactor.send_to_all(Finish(int(ending.exit_code)))
            self._release(ending)
        self._reactor.close()
        return ending.exit_code

    def _release(self, ending: Ending) -> None:
        """Of a run that does not continue, nodes that still wait for their turn are not to have it."""
        if not self._experiment.cluster.is_elastic or ending.exit_code == ExitCode.REQUEUE:
            return
        released, deadline = self._watch.release(self._reactor.members.missing), time.monotonic() + RELEASE_S
        while not released.done() and time.monotonic() < deadline:
            self._reactor.turn()
        if released.done() and (error := released.exception()) is not None:
            print(f"nodes that have not come yet may still wait in the queue: {error}", flush=True)

    def _is_another_of_ours(self, number: int | None) -> bool:
        """Whether another process of this submission has claimed the attempt: the master's job was queued again while
        this process lived on."""
        claim = None if number is None else self._run.read_claim(number)
        here = socket.gethostname(), os.getpid()
        return claim is not None and claim.submission == self._submission and (claim.host, claim.pid) != here


def _verdict(attempt: int | None, ending: Ending) -> Verdict:
    failure = ending.failure
    return Verdict(
        attempt=attempt,
        state=ending.state,
        exit_code=int(ending.exit_code),
        reason=plain(ending.reason),
        worker=None if failure is None else f"worker-{failure.rank}",
        call=None if failure is None else failure.what,
        traceback=plain((ending.traceback if failure is None else failure.traceback) or "") or None,
        time=time.time(),
        nature=ending.nature,
    )
