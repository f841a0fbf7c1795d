"""Submit and resume a run: makes the run directory, starts its jobs, and waits with the user.

Everything that can be refused is refused before anything is made. After that the run belongs to its jobs: this process
only watches, and may go at any time.
"""

import secrets
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Literal

from hpcrl.config.experiment import ExperimentConfig, to_dict
from hpcrl.data.contents import Contents, Seen
from hpcrl.data.indexes import ScratchIndexes
from hpcrl.data.inputs import fingerprints, input_files
from hpcrl.data.user_code import code_places, collect_code
from hpcrl.durable.code import staged, with_code
from hpcrl.durable.indexes import indexes_to_try, keep_indexes
from hpcrl.durable.keys import has_key
from hpcrl.durable.paths import refuse_unusable
from hpcrl.durable.records import Command, KeyPair, Submission, Verdict
from hpcrl.durable.recovery import plan_next_attempt
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.seen import add_seen
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.foreign import plain
from hpcrl.inspect.progress import Progress
from hpcrl.inspect.queue import MASTERS
from hpcrl.launch.conclusion import conclude
from hpcrl.launch.elastic import describe_elastic
from hpcrl.launch.launcher import Launcher, Launchers, choose, declaration_of, telling_what_was_made
from hpcrl.launch.next_code import NextCode, next_code, refuse_other_roles
from hpcrl.launch.next_inputs import next_inputs
from hpcrl.launch.next_settings import NextSettings, has_extension, lengths, next_settings, refuse_done
from hpcrl.launch.place import new_root
from hpcrl.launch.preflight import check_inputs
from hpcrl.launch.registry import Registry
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.wire.channel import RunKey

WATCH_S = 0.2
SUBMIT_LATER = "Submit it again once it answers; --cluster local runs it on this machine."
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
    with telling_what_was_made("Nothing was made.", SUBMIT_LATER):
        choice = choose(experiment.cluster.type)
        if choice.why:
            print(f"cluster.type = {experiment.cluster.type}: {choice.why}")
        launcher = choice.launcher
        experiment = launcher.prepare(experiment)
    algorithm = algorithm_of(experiment)
    indexes = ScratchIndexes(contents := Contents())
    check_inputs(experiment, root, indexes, launcher=launcher)
    inputs = fingerprints(input_files(experiment, algorithm.rows), contents)
    code = collect_code(code_places(experiment), experiment.code.files)
    run = RunDirectory.create(
        root,
        experiment=to_dict(experiment),
        host=algorithm.host,
        key=_new_keys(),
        inputs=inputs,
        code=code,
    )
    add_seen(run, contents.read)
    keep_indexes(run, indexes.made)
    return start(run, experiment, launcher, wait, {}, version=0)


def _new_keys() -> KeyPair:
    key = RunKey.generate()
    return KeyPair(key.public.decode(), key.secret.decode())


def describe_submission(experiment: ExperimentConfig, run_dir: Path | None) -> str:
    """What `submit` would start; makes and sends nothing."""
    root = new_root(experiment, run_dir)
    choice = choose(experiment.cluster.type)
    check_inputs(experiment, root, ScratchIndexes(), launcher=choice.launcher)
    why = f"cluster.type = {experiment.cluster.type}: {choice.why}\n" if choice.why else ""
    with telling_what_was_made("Nothing was made.", SUBMIT_LATER):
        return why + choice.launcher.describe(experiment, root)


def resume(
    run_dir: Path, wait: bool | None, accept_changed: tuple[str, ...] = (), overrides: Sequence[str] = ()
) -> int:
    """Resume an interrupted run from what it had finished, or extend one that is done.

    `overrides` are the settings that change, like `cluster.nodes=2`; they make the next version of the run's settings.
    """
    run = RunDirectory.open(run_dir)
    if said := _nothing_left(run, overrides):
        print(plain(said))
        return int(ExitCode.DONE)
    refuse_unusable(run.root)
    with telling_what_was_made("Nothing was sent.", _later(run)):
        settings = _settings_to_come(run, overrides)
        experiment = settings.after
        code = next_code(run, experiment, accept_changed)
        accepted, read = _inputs_to_come(run, experiment, code, accept_changed)
        _end_older(run)
    if not has_key(run):
        run.write_key(_new_keys())
        print(f"{run.key_json} was missing: new keys were made.")
    add_seen(run, read)
    version = run.versions()[-1]
    for line in (*settings.describe(), *code.notices()):
        print(plain(line))
    number = code.keep(run)
    accepted |= {name: run.files.name(run.code_copy(number)) for name in code.taken}
    if settings.changes or code.taken:
        version = run.add_settings(settings.written(run.read_settings(version).experiment), number)
    return start(run, experiment, settings.launcher, wait, accepted, version)


def watch_or_resume(run_dir: Path, wait: bool, overrides: Sequence[str]) -> int:
    """Wait for a run that runs or is queued, as whoever submitted it could, or resume it with other settings, unless it
    is done; returns the exit code."""
    run = RunDirectory.open(run_dir)
    if run.done_verdict():  # nobody has to be asked
        return resume(run_dir, wait)
    launchers = Launchers(run)
    with telling_what_was_made("Whether it runs cannot be seen.", _later(run)):
        for launcher in launchers.every():
            launcher.recover(run)
        alive = [each for each in run.submissions() if launchers.of(each).is_alive(run, each)]
    if alive and overrides:
        print(f"{run.root} is under way, and keeps its settings: without {plain(', '.join(overrides))}")
    if not alive:
        return resume(run_dir, wait, overrides=overrides)
    if wait:
        newest = alive[-1]
        _watch(run, experiment_from(run.configuration(newest.nonce)), launchers.of(newest), newest)
        return conclude(run, newest)
    print(f"{run.root} is running or queued")
    return int(ExitCode.DONE)


def _end_older(run: RunDirectory) -> None:
    """End what is left of older submissions, wherever it is. Raises ConfigurationError where a master runs."""
    launchers = Launchers(run)
    for launcher in launchers.every():
        launcher.recover(run)
    for old in run.submissions():
        _refuse_running(run, launchers, old)
        launchers.of(old).end(run, old)


def _refuse_running(run: RunDirectory, launchers: Launchers, submission: Submission) -> None:
    launcher = launchers.of(submission)
    if not launcher.is_alive(run, submission):
        return
    if launcher.accepts_commands(run, submission):
        raise ConfigurationError(
            [f"{run.root} is running."], f"`hpcrl stop {run.root}` ends it, `hpcrl status {run.root}` shows it."
        )
    raise ConfigurationError(
        [f"{run.root} is waiting in the queue, and continues by itself."],
        f"To resume it with other settings, end it first: hpcrl stop {run.root}",
    )


def describe_recovery(
    run_dir: Path, accept_changed: tuple[str, ...] = (), overrides: Sequence[str] = ()
) -> Iterator[str]:
    """What `resume` would change, read, replay and run; changes nothing.

    Raises, once all is said, what `resume` would raise.
    """
    run = RunDirectory.open(run_dir)
    if said := _nothing_left(run, overrides):
        yield said
        return
    refuse_unusable(run.root)
    settings = _settings_to_come(run, overrides)
    after = settings.after
    recovery = plan_next_attempt(run, plan_for(after).changes)
    code = next_code(run, after, accept_changed)
    yield from (*settings.describe(), *code.notices(), *describe_elastic(settings.before, after, recovery))
    yield recovery.describe(run.versions()[-1] + bool(settings.changes or code.taken))
    _inputs_to_come(run, after, code, accept_changed)
    launchers = Launchers(run)
    with telling_what_was_made("Whether it runs cannot be seen.", _later(run)):
        for submission in run.submissions():
            _refuse_running(run, launchers, submission)


def _later(run: RunDirectory) -> str:
    return f"Once it answers: hpcrl resume {run.root}"


def _nothing_left(run: RunDirectory, overrides: Sequence[str]) -> str:
    """Why there is nothing to resume, if there is nothing."""
    done = run.done_verdict()
    if done is None or overrides or has_extension(run, done):
        return ""
    longer = " ".join(f"--{key} N" for key in lengths(experiment_from(run.configuration()).control))
    return f"{run.root} is done: {done.reason}. `hpcrl resume {run.root} {longer}` extends it."


def _settings_to_come(run: RunDirectory, overrides: Sequence[str]) -> NextSettings:
    """Raises ConfigurationError for what is wrong, and where a run that is done has no step more under them."""
    settings = next_settings(run, overrides)
    if done := run.done_verdict():
        refuse_done(run, settings.after, done.reason)
    return settings


def _inputs_to_come(
    run: RunDirectory, experiment: ExperimentConfig, code: NextCode, accepted: tuple[str, ...]
) -> tuple[dict[str, str], list[Seen]]:
    """As `next_inputs`; code that is taken anew makes the rows that are looked at, and is tried like a new run's."""
    known = code.copy.settings
    if code.new is None:
        return next_inputs(run, experiment, accepted, known)
    if "algorithm" in code.taken:
        refuse_other_roles(experiment, code.new)
    with staged(code.new) as folder:
        after = experiment_from(with_code(to_dict(experiment), code.new.settings, folder))
        found = next_inputs(run, after, accepted, known, code.taken)
        check_inputs(after, run.root, indexes_to_try(run), code.new)
    return found


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
    made = f"{run.root} is there; whether all of its jobs were sent is not known."
    with telling_what_was_made(made, f"{_later(run)} finds what was sent, and sends all that is to run."):
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
