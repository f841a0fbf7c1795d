"""Submit, resume and stop a run: makes the run directory, starts its jobs, and waits with the user.

Everything that can be refused is refused before anything is made. After that the run belongs to its jobs: this process
only watches, and may go at any time.
"""

import secrets
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Literal

from hpcrl.config.experiment import ExperimentConfig, to_dict, what_every_run_has
from hpcrl.data.contents import Contents
from hpcrl.data.inputs import fingerprints, input_files
from hpcrl.data.user_code import code_places, collect_code
from hpcrl.durable.paths import refuse_unusable
from hpcrl.durable.records import Command, KeyPair, Submission, Verdict
from hpcrl.durable.recovery import plan_next_attempt
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.seen import add_seen
from hpcrl.errors import ConfigurationError, ExitCode, InternalError
from hpcrl.foreign import plain
from hpcrl.inspect.progress import Progress
from hpcrl.inspect.queue import MASTERS
from hpcrl.launch.conclusion import conclude
from hpcrl.launch.elastic import describe_elastic
from hpcrl.launch.launcher import Launcher, Launchers, UnreachableError, choose, declaration_of
from hpcrl.launch.next_code import next_code
from hpcrl.launch.next_inputs import next_inputs
from hpcrl.launch.next_settings import next_settings, refuse_done
from hpcrl.launch.preflight import check_inputs
from hpcrl.launch.registry import Registry
from hpcrl.placement.plan import make_plan
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.wire.channel import RunKey

WATCH_S = 0.2
LEAVE_S = 20.0
ON_CTRL_C: Sequence[tuple[Literal["finish", "drain", "stop"], str]] = (
    ("finish", "finishing the open steps and saving the last; Ctrl-C again finishes the calls in flight only"),
    ("drain", "finishing the calls in flight; Ctrl-C again stops now"),
    ("stop", "stopping"),
)
"""What the first Ctrl-C orders, the second, and every other."""


def submit(experiment: ExperimentConfig, run_dir: Path | None, wait: bool | None) -> int:
    """Make a run directory and start its jobs; returns the exit code.

    `wait` says whether to stay until the run has ended; None leaves it to who starts the processes.
    """
    root = new_root(experiment, run_dir)
    choice = choose(experiment.cluster.type)
    if choice.why:
        print(f"cluster.type = {experiment.cluster.type}: {choice.why}")
    launcher = choice.launcher
    experiment = launcher.prepare(experiment)
    algorithm = algorithm_of(experiment)
    check_inputs(experiment)
    contents = Contents()
    inputs = fingerprints(input_files(experiment, algorithm.rows), contents)
    code = collect_code(code_places(experiment), experiment.code.files)
    key = RunKey.generate()
    run = RunDirectory.create(
        root,
        experiment=to_dict(experiment),
        host=algorithm.host,
        key=KeyPair(key.public.decode(), key.secret.decode()),
        inputs=inputs,
        code=code,
    )
    add_seen(run, contents.read)
    return start(run, experiment, launcher, wait, {}, version=0)


def describe_submission(experiment: ExperimentConfig, run_dir: Path | None) -> str:
    """What `submit` would start; makes and sends nothing."""
    root = new_root(experiment, run_dir)
    choice = choose(experiment.cluster.type)
    check_inputs(experiment)
    why = f"cluster.type = {experiment.cluster.type}: {choice.why}\n" if choice.why else ""
    return why + choice.launcher.describe(experiment, root)


def new_root(experiment: ExperimentConfig, run_dir: Path | None) -> Path:
    """Where the run is to be. Raises ConfigurationError where no run can be."""
    usual = Path(experiment.run_root) / f"{experiment.name}-{datetime.now():%Y%m%d-%H%M%S}"
    root = (run_dir or usual).absolute()
    refuse_unusable(root)
    return root


def resume(
    run_dir: Path, wait: bool | None, accept_changed: tuple[str, ...] = (), overrides: Sequence[str] = ()
) -> int:
    """Resume an interrupted run from what it had finished, or extend one that is done.

    `overrides` are the settings that change, like `cluster.nodes=2`; they make the next version of the run's settings.
    """
    run = RunDirectory.open(run_dir)
    done = _done_verdict(run)
    if done and not overrides:
        print(plain(_done(run, done)))
        return int(ExitCode.DONE)
    refuse_unusable(run.root)
    settings = next_settings(run, overrides)
    experiment = settings.after
    if done:
        refuse_done(run, experiment, done.reason)
    code = next_code(run, experiment, accept_changed)
    accepted, read = next_inputs(run, experiment, accept_changed, code.copy.settings)
    if code.new is not None:
        check_inputs(experiment, code.new)
    _end_older(run)
    add_seen(run, read)
    version = run.versions()[-1]
    for line in (*settings.describe(), *code.notices()):
        print(plain(line))
    number = code.keep(run)
    accepted |= {name: run.files.name(run.code_copy(number)) for name in code.taken}
    if settings.changes or code.taken:
        version = run.add_settings(settings.written(run.read_settings(version).experiment), number)
    return start(run, experiment, settings.launcher, wait, accepted, version)


def _end_older(run: RunDirectory) -> None:
    """End what is left of older submissions, wherever it is. Raises ConfigurationError where a master runs."""
    launchers = Launchers(run)
    for launcher in launchers.every():
        launcher.recover(run)
    for old in run.submissions():
        _refuse_running(run, launchers, old)
        launchers.of(old).end(run, old)


def _refuse_running(run: RunDirectory, launchers: Launchers, submission: Submission) -> None:
    if launchers.of(submission).is_alive(run, submission):
        raise ConfigurationError(
            [f"{run.root} is running."], f"`hpcrl stop {run.root}` ends it, `hpcrl status {run.root}` shows it."
        )


def describe_recovery(
    run_dir: Path, accept_changed: tuple[str, ...] = (), overrides: Sequence[str] = ()
) -> Iterator[str]:
    """What `resume` would change, read, replay and run; changes nothing.

    Raises, once all is said, what `resume` would raise.
    """
    run = RunDirectory.open(run_dir)
    done = _done_verdict(run)
    if done and not overrides:
        yield _done(run, done)
        return
    settings = next_settings(run, overrides)
    after = settings.after
    if done:
        refuse_done(run, after, done.reason)
    recovery = plan_next_attempt(run, make_plan(after, after.cluster.nodes).train_steps)
    code = next_code(run, after, accept_changed)
    yield from (*settings.describe(), *code.notices(), *describe_elastic(settings.before, after, recovery))
    yield recovery.describe(run.versions()[-1] + bool(settings.changes or code.taken))
    next_inputs(run, after, accept_changed, code.copy.settings)
    if code.new is not None:
        check_inputs(after, code.new)
    launchers = Launchers(run)
    for submission in run.submissions():
        _refuse_running(run, launchers, submission)


def stop(run_dir: Path, now: bool) -> int:
    """Ask a running master to finish the open steps, save the last and end, or to end `now`; waits until it has.

    Ctrl-C leaves the order in force. A master that does not answer in time is ended.
    """
    run = RunDirectory.open(run_dir)
    launchers = Launchers(run)
    running = [submission for submission in run.submissions() if launchers.of(submission).living(run, submission)]
    if not running:
        print(f"nothing of {run.root} is running here.")
        return int(ExitCode.DONE)
    cluster = what_every_run_has(run.configuration()).cluster
    patience_s = cluster.grace_s + cluster.lost_after_s + cluster.orphan_timeout_s + LEAVE_S
    commands = [run.publish_command(Command("stop" if now else "finish", submission.nonce)) for submission in running]
    try:
        for submission in running:
            if not launchers.of(submission).accepts_commands(run, submission):
                launchers.of(submission).end(run, submission)
    except UnreachableError as error:
        return _leave_the_order(run, running, commands, str(error).splitlines()[0], patience_s)
    if not now:
        _await_finish(run, launchers, running, commands, patience_s)
    if not _wait_for_the_end(run, launchers, running, patience_s):
        answered = all(run.read_answer(name) is not None for name in commands)
        late = "its calls did not end" if answered else "it did not answer"
        print(f"{late} in time, so it is ended; nothing that was finished is lost.", file=sys.stderr)
        for submission in running:
            launchers.of(submission).end(run, submission)
        if not _wait_for_the_end(run, launchers, running, LEAVE_S):
            raise InternalError(
                f"the jobs of {run.root} are still there.", f"`hpcrl status {run.root}` shows what they do."
            )
    for submission in running:
        # Jobs that were sent by hand may wait for a master that does not come.
        launchers.of(submission).end(run, submission)
    ends = [verdict.state for each in running if (verdict := run.verdict_of(each.nonce)) is not None]
    if "done" in ends:
        print(f"{run.root} had come to its end: it is done.")
    else:
        print(f"stopped; `hpcrl resume {run.root}` continues from here.")
    return int(ExitCode.DONE)


def _await_finish(
    run: RunDirectory,
    launchers: Launchers,
    submissions: Sequence[Submission],
    commands: Sequence[str],
    patience_s: float,
) -> None:
    """Show what is still to be done, as long as it takes, once the masters have answered; returns when they have ended.

    Nothing is waited for where none answers.
    """
    deadline = time.monotonic() + patience_s
    with Progress(run, experiment_from(run.configuration())) as progress:
        progress.note(f"finishing the open steps and saving the last; `hpcrl stop {run.root} --now` does not wait")
        while any(launchers.of(submission).living(run, submission) for submission in submissions):
            answered = all(run.read_answer(name) is not None for name in commands)
            ended = all(run.verdict_of(submission.nonce) is not None for submission in submissions)
            if ended or (not answered and time.monotonic() > deadline):
                return
            progress.update()
            time.sleep(WATCH_S)


def _leave_the_order(
    run: RunDirectory,
    running: Sequence[Submission],
    commands: Sequence[str],
    said: str,
    patience_s: float,
) -> int:
    """Nobody can be asked for jobs, or cancel them: who reads the order obeys it."""
    print(f"{said}\nThe order to stop is in {run.control}; jobs cannot be seen or cancelled now.", file=sys.stderr)
    began = time.monotonic()
    while any(run.verdict_of(submission.nonce) is None for submission in running):
        heard = any(run.read_answer(name) is not None for name in commands)
        if time.monotonic() - began > (patience_s if heard else LEAVE_S):
            so_far = "Its master finishes what is open." if heard else "No master has answered so far."
            print(
                f"{so_far} One that begins later ends the run, and with it jobs that wait; `hpcrl stop {run.root}` "
                "cancels them once Slurm answers."
            )
            return int(ExitCode.REQUEUE)
        time.sleep(WATCH_S)
    print(f"its master has stopped it; `hpcrl resume {run.root}` continues from here.")
    return int(ExitCode.DONE)


def _wait_for_the_end(
    run: RunDirectory, launchers: Launchers, submissions: Sequence[Submission], patience_s: float
) -> bool:
    """Whether no job of these submissions is left in time."""
    deadline = time.monotonic() + patience_s
    while any(launchers.of(submission).living(run, submission) for submission in submissions):
        if time.monotonic() > deadline:
            return False
        time.sleep(WATCH_S)
    return True


def _done_verdict(run: RunDirectory) -> Verdict | None:
    """How the run ended last, if it is done."""
    verdict = run.newest_verdict()
    return verdict if verdict is not None and verdict.state == "done" else None


def _done(run: RunDirectory, verdict: Verdict) -> str:
    return f"{run.root} is done: {verdict.reason}. `hpcrl resume {run.root} --control.steps N` extends it."


def start(
    run: RunDirectory,
    experiment: ExperimentConfig,
    launcher: Launcher,
    wait: bool | None,
    accepted: Mapping[str, str],
    version: int,
) -> int:
    """Start the jobs of a run that is there; returns the exit code."""
    Registry.of_user().add(run.root)
    nonce = secrets.token_hex(8)
    if accepted:
        run.accept(nonce, accepted)
    if version:
        run.submit_settings(nonce, version)
    submission = launcher.start(run, nonce)
    if not (declaration_of(experiment.cluster.type).waits if wait is None else wait):
        print(f"submitted {run.root}\n  hpcrl status {run.root}\n  hpcrl logs {run.root} --follow")
        return int(ExitCode.DONE)
    _watch(run, experiment, launcher, submission)
    return conclude(run, submission)


def _watch(run: RunDirectory, experiment: ExperimentConfig, launcher: Launcher, submission: Submission) -> None:
    """Show progress until the jobs have ended. Each Ctrl-C ends the run more urgently."""
    interrupts: list[int] = []

    def interrupted(number: int, _frame: FrameType | None) -> None:
        interrupts.append(number)

    before = signal.signal(signal.SIGINT, interrupted)
    obeyed = 0
    try:
        with Progress(run, experiment) as progress:
            while living := launcher.living(run, submission):
                if len(interrupts) > obeyed:
                    obeyed = len(interrupts)
                    word, said = ON_CTRL_C[min(obeyed, len(ON_CTRL_C)) - 1]
                    run.publish_command(Command(word, submission.nonce))
                    progress.note(said)
                if not set(MASTERS) & set(living) and _left_nothing(run.verdict_of(submission.nonce)):
                    launcher.end(run, submission)
                progress.update()
                time.sleep(WATCH_S)
            progress.update()
    finally:
        signal.signal(signal.SIGINT, before)


def _left_nothing(verdict: Verdict | None) -> bool:
    """Whether the master ended without telling its agents, which therefore wait for it."""
    return verdict is None or verdict.attempt is None
