"""Sending the jobs of a submission, each exactly once, whatever happens to sbatch's answer or to this process.

Before anything is sent, the scripts and an intent are on disk; each job carries the submission's nonce in its comment.
An answer that got lost is looked up by that comment, and so is what a killed `hpcrl submit` may have left behind.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from hpcrl.durable.files import AlreadyPublishedError
from hpcrl.durable.rundir import RunDirectory, Submission
from hpcrl.launch.slurm.commands import AmbiguousError, Slurm, SlurmError
from hpcrl.launch.slurm.executor import ScriptExecutor
from hpcrl.launch.slurm.render import Script
from hpcrl.launch.slurm.requeue import Facts

SETTLE_S = (3.0, 10.0, 20.0)
"""When to look for a job that may have been taken; a controller that loses answers is slow in showing jobs too."""


class Intent(msgspec.Struct, frozen=True):
    """`submission/<nonce>/intent.json`: what is about to be sent, where. `comments`: script → the mark of its job."""

    nonce: str
    topology: str
    comments: dict[str, str]
    facts: Facts
    time: float


def script_path(run: RunDirectory, nonce: str, name: str) -> Path:
    return run.submitit_folder(nonce) / f"{name}.sbatch"


def write_intent(run: RunDirectory, nonce: str, topology: str, scripts: Sequence[Script], facts: Facts) -> Intent:
    """Put all that will be sent on disk. `sbatch submission/<nonce>/NAME.sbatch` sends a script again by hand."""
    for script in scripts:
        run.files.publish(script_path(run, nonce, script.name), script.text.encode(), "script")
    intent = Intent(nonce, topology, {script.name: script.comment for script in scripts}, facts, time.time())
    run.files.publish(run.submitit_folder(nonce) / "intent.json", msgspec.json.encode(intent), "intent")
    return intent


def read_intent(run: RunDirectory, nonce: str) -> Intent:
    return msgspec.json.decode(run.files.read(run.submitit_folder(nonce) / "intent.json"), type=Intent)


def read_intents(run: RunDirectory) -> list[Intent]:
    """All intents, oldest first, whether they were carried out or not."""
    folders = [name for name in run.files.listing(run.submission) if (run.submission / name).is_dir()]
    found = [name for name in folders if "intent.json" in run.files.listing(run.submission / name)]
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

    Of a submission that is not whole, nothing goes on: what was sent is cancelled.
    """
    known = {submission.nonce for submission in run.submissions()}
    for intent in read_intents(run):
        if intent.nonce in known:
            continue
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


def _look(slurm: Slurm, comment: str, sleep: Callable[[float], None]) -> str | None:
    """The job with this comment, as soon as it is seen; None if it is not for half a minute."""
    for pause_s in SETTLE_S:
        sleep(pause_s)
        if found := slurm.find_by_comment(comment):
            return found[0]
    return None


def send_successor(
    run: RunDirectory, slurm: Slurm, nonce: str, name: str, of: str, options: Sequence[str]
) -> str | None:
    """Send another job in the place of the incarnation `of`; None if somebody has done so before."""
    marker = run.submitit_folder(nonce) / f"successor-of-{of}.json"
    try:
        run.files.publish(marker, b"{}", "successor")
    except AlreadyPublishedError:
        return None
    try:
        job = ScriptExecutor(script_path(run, nonce, name), slurm, options).send().job_id
    except SlurmError as error:
        # Only where it may be queued all the same must nobody send it again.
        if not isinstance(error, AmbiguousError):
            run.files.unlink(marker, "successor")
        raise
    run.record_successor(nonce, name, job)
    return job
