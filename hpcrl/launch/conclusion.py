"""What is said when the jobs of a submission have ended: its verdict, or what they left in the place of one."""

import os
import sys
from pathlib import Path

from hpcrl.durable.records import Submission, Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.foreign import plain
from hpcrl.inspect.hints import what_next
from hpcrl.inspect.lines import last_lines
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.terminal import show
from hpcrl.inspect.views.summary import summary

LAST_BYTES = 4096
"""Of what a process printed before it ended without a verdict."""


def conclude(run: RunDirectory, submission: Submission) -> int:
    """Say how it ended and what to do next; returns the exit code."""
    verdict = run.verdict_of(submission.nonce)
    if verdict is None:
        return _without_verdict(run, submission)
    if verdict.exit_code == ExitCode.DONE:
        show(summary(RunReader(run)))
    else:
        print(describe(run, verdict), file=sys.stderr)
    return verdict.exit_code


def describe(run: RunDirectory, verdict: Verdict) -> str:
    said = [
        f"{run.root}: {verdict.state}: {verdict.reason}",
        # What the user is to correct is in the reason, with the lines of the user's code; the logs have the rest.
        (verdict.traceback or "") if verdict.exit_code == ExitCode.INTERNAL else "",
        what_next(run.root, verdict.state),
    ]
    return "\n".join(plain(text) for text in said if text)


def _without_verdict(run: RunDirectory, submission: Submission) -> int:
    """A verdict is missing because the disk took none, because the process broke, or because it was killed."""
    trouble, printed = _trouble(run.root), _last_words(run, submission)
    if not trouble and not printed:
        reason = f"The master of {run.root} ended without a word (killed?)."
        print(f"{plain(reason)} {what_next(run.root, 'killed')}", file=sys.stderr)
        return int(ExitCode.REQUEUE)
    reason = f"The master of {run.root} ended without a verdict{trouble}."
    print("\n".join([plain(reason), *printed, what_next(run.root, "failed")]), file=sys.stderr)
    return int(ExitCode.INTERNAL)


def _trouble(root: Path) -> str:
    """Why a verdict could not be written, if it can be seen from here."""
    try:
        disk = os.statvfs(root)
    except OSError as error:
        return f": its directory cannot be read, {error.strerror}"
    if disk.f_flag & os.ST_RDONLY:
        return ": its disk is read-only"
    return "" if disk.f_bavail and disk.f_favail else ": its disk is full"


def _last_words(run: RunDirectory, submission: Submission) -> list[str]:
    """What the master's job printed on stderr last."""
    master = submission.jobs.get("master", submission.jobs.get("run"))
    folder = run.submitit_folder(submission.nonce)
    for name in (f"{master}_0_log.err", f"master-{master}.err", f"run-{master}.err"):
        lines, _ = last_lines(folder / name, LAST_BYTES)
        if lines:
            return [plain(line) for line in lines]
    return []
