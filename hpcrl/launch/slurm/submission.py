"""Sending the jobs of a submission, each exactly once, whatever happens to sbatch's answer or to this process.

Before anything is sent, the scripts and an intent are on disk; each job carries the submission's nonce in its comment.
An answer that got lost is looked up by that comment, and so is what a killed `hpcrl submit` may have left behind.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from hpcrl.durable.exclusive import AlreadyPublishedError
from hpcrl.durable.records import Submission, decode
from hpcrl.durable.rundir import RunDirectory
from hpcrl.launch.slurm.commands import AmbiguousError, Slurm, SlurmError
from hpcrl.launch.slurm.render import Script, with_note
from hpcrl.launch.slurm.requeue import RequeueRules

SETTLE_S = (3.0, 10.0, 20.0)
"""When to look for a job that may have been taken; a controller that loses answers is slow in showing jobs too."""


class Intent(msgspec.Struct, frozen=True):
    """`submission/<nonce>/intent.json`: what is about to be sent.

    `comments`: script → the mark of its job, behind which stands the user's `note`; `rules`: script → partition → what
    the site does with its jobs there, "" for any other.
    """

    nonce: str
    topology: str
    comments: dict[str, str]
    note: str
    rules: dict[str, dict[str, RequeueRules]]
    time: float

    def rules_of(self, name: str, partition: str) -> RequeueRules:
        """What the site does with the jobs of a script in the partition where one is."""
        rules = self.rules[name]
        return rules.get(partition, rules[""])


def script_path(run: RunDirectory, nonce: str, name: str) -> Path:
    return run.submitit_folder(nonce) / f"{name}.sbatch"


def write_intent(
    run: RunDirectory,
    nonce: str,
    topology: str,
    scripts: Sequence[Script],
    rules: Mapping[str, Mapping[str, RequeueRules]],
) -> Intent:
    """Put all that will be sent on disk. `sbatch submission/<nonce>/NAME.sbatch` sends a script again by hand."""
    for script in scripts:
        run.files.publish(script_path(run, nonce, script.name), script.text.encode(), "script")
    comments = {script.name: script.comment for script in scripts}
    intent = Intent(
        nonce, topology, comments, scripts[0].note, {name: dict(of) for name, of in rules.items()}, time.time()
    )
    run.files.publish(run.submitit_folder(nonce) / "intent.json", msgspec.json.encode(intent), "intent")
    return intent


def read_intent(run: RunDirectory, nonce: str) -> Intent:
    """Raises InternalError where it is damaged: what was sent can then be found by people only."""
    path = run.submitit_folder(nonce) / "intent.json"
    advice = f"Cancel the jobs whose comment has {nonce} (squeue --me --format '%i %k'), and remove it."
    return decode(run.files.read_document(path, advice), Intent, path, advice)


def read_intents(run: RunDirectory) -> list[Intent]:
    """Those that nobody has written down as carried out, oldest first."""
    known = {submission.nonce for submission in run.submissions()}
    folders = [name for name in run.files.listing(run.submission) if (run.submission / name).is_dir()]
    unknown = [name for name in folders if name not in known]
    found = [name for name in unknown if "intent.json" in run.files.listing(run.submission / name)]
    return sorted((read_intent(run, nonce) for nonce in found), key=lambda intent: intent.time)


def send_all(
    run: RunDirectory, slurm: Slurm, intent: Intent, sleep: Callable[[float], None] = time.sleep
) -> Submission:
    """Send the scripts in their order, the workers to begin after the master's job, and write down the ids."""
    jobs: dict[str, int | str] = {}
    for name, comment in intent.comments.items():
        options = [f"--dependency=after:{jobs['master']}"] if name == "workers" else []
        jobs[name] = send_once(slurm, script_path(run, intent.nonce, name), comment, options, sleep)
        run.files.fault(f"submit.{name}")
    run.record_submission(intent.nonce, jobs)
    return next(submission for submission in run.submissions() if submission.nonce == intent.nonce)


def finish_intents(run: RunDirectory, slurm: Slurm) -> None:
    """Write down what a submission that was cut off has sent, so that it is seen, stopped or waited for like any other.

    Of a submission that is not whole nothing is kept: what was sent is cancelled.
    """
    for intent in read_intents(run):
        found = slurm.find_by_comments(intent.comments.values())
        jobs: dict[str, int | str] = {name: found[word][0] for name, word in intent.comments.items() if found[word]}
        if len(jobs) < len(intent.comments):
            slurm.scancel([str(job) for job in jobs.values()])
        if jobs:
            run.record_submission(intent.nonce, jobs)


def send_once(
    slurm: Slurm,
    script: Path,
    comment: str,
    options: Sequence[str] = (),
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """One job, and its id. An answer that got lost is looked up, and only what is not there is sent again.

    Raises AmbiguousError if the second answer got lost too and no job is found.
    """
    # Only who sends a job waits for submitit to load.
    from hpcrl.launch.slurm.executor import ScriptExecutor

    executor = ScriptExecutor(script, slurm, options)
    for again in (True, False):
        try:
            return executor.send().job_id
        except AmbiguousError:
            if found := _look(slurm, comment, sleep):
                return found
            if not again:
                raise
    raise AssertionError("the loop ends by returning or raising")


def _look(
    slurm: Slurm, comment: str, sleep: Callable[[float], None], pauses_s: Sequence[float] = SETTLE_S
) -> str | None:
    """The job with this comment, as soon as it is seen; None if it is not for half a minute."""
    for pause_s in pauses_s:
        sleep(pause_s)
        if found := slurm.find_by_comment(comment):
            return found[0]
    return None


def send_successor(
    run: RunDirectory,
    slurm: Slurm,
    nonce: str,
    name: str,
    of: str,
    element: int | str | None = None,
    delay_s: float = 0.0,
    *,
    again: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Send another job in the place of the incarnation `of`; None if somebody has done so before, or is about to.

    `element` is the one of the array that is meant, `delay_s` how long it is not to start. With `again`, one that was
    announced is sent unless it is found: whoever announced it is not there any more.
    Raises SlurmError where Slurm refuses, or twice leaves open whether it has taken the job, and then shows none.
    """
    marker = _announced(run, nonce, of)
    try:
        run.files.publish(marker, b"", "successor")
    except AlreadyPublishedError:
        if not again:
            return None
    intent = read_intent(run, nonce)
    # Its own mark comes behind the one of all jobs of this name.
    comment = f"{intent.comments[name]} in-place-of-{of}"
    job = _look(slurm, comment, sleep, (0.0,)) if again else None
    if job is None:
        options = [f"--comment={with_note(comment, intent.note)}"]
        options += [] if element is None else [f"--array={element}"]
        options += [f"--begin=now+{round(delay_s)}"] if delay_s else []
        try:
            job = send_once(slurm, script_path(run, nonce, name), comment, options, sleep)
        except SlurmError as error:
            # One that may be queued all the same is looked for before it is sent again.
            if not isinstance(error, AmbiguousError):
                run.files.unlink(marker, "successor")
            raise
    run.record_successor(nonce, name, job)
    # It is there already if whoever announced the job was only slow.
    with contextlib.suppress(AlreadyPublishedError):
        run.files.publish(_sent(marker), job.encode(), "successor")
    return job


def successor_is_under_way(run: RunDirectory, nonce: str, of: str) -> bool:
    """Whether somebody has announced a successor of this incarnation, and not yet said that it is sent."""
    marker = _announced(run, nonce, of)
    names = run.files.listing(marker.parent)
    return marker.name in names and _sent(marker).name not in names


def _announced(run: RunDirectory, nonce: str, of: str) -> Path:
    return run.submitit_folder(nonce) / f"successor-of-{of}.announced"


def _sent(announced: Path) -> Path:
    return announced.with_suffix(".sent")
