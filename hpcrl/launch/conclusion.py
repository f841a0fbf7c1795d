"""What is said when the jobs of a submission have ended: its verdict, or what they left in the place of one."""

import sys

from hpcrl.durable.records import Submission, Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.foreign import plain
from hpcrl.inspect.alive import disk_trouble
from hpcrl.inspect.cause_text import cause_lines
from hpcrl.inspect.hints import what_next
from hpcrl.inspect.job_ends import CODES
from hpcrl.inspect.lines import last_lines
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.terminal import show
from hpcrl.inspect.views.summary import summary
from hpcrl.inspect.views.why import newest_cause

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
    """Why it ended, as `hpcrl inspect RUN why` tells it."""
    cause = newest_cause(run)
    if cause is None:
        said = [f"{run.root}: {verdict.state}: {verdict.reason}", what_next(run.root, verdict.state)]
    else:
        said = [f"{run.root}: {verdict.state}", *cause_lines(cause), what_next(run.root, verdict.state, cause.next)]
    return "\n".join(plain(text) for text in said if text)


def _without_verdict(run: RunDirectory, submission: Submission) -> int:
    """A verdict is missing because the disk took none, because the process broke, or because it was killed."""
    cause = newest_cause(run)
    if cause is not None and cause.attempt is None:
        text = [f"{run.root} ended before it had begun.", *cause_lines(cause)]
        print("\n".join(map(plain, text)), file=sys.stderr)
        return int(next((code for code, kind in CODES.items() if kind == cause.kind), ExitCode.REQUEUE))
    trouble, printed = disk_trouble(run.root), _last_words(run, submission)
    if not trouble and not printed:
        reason = f"The master of {run.root} ended without a word (killed?)."
        print(f"{plain(reason)} {what_next(run.root, 'killed')}", file=sys.stderr)
        return int(ExitCode.REQUEUE)
    reason = f"The master of {run.root} ended without a verdict{f': {trouble}' if trouble else ''}."
    print("\n".join([plain(reason), *printed, what_next(run.root, "failed")]), file=sys.stderr)
    return int(ExitCode.INTERNAL)


def _last_words(run: RunDirectory, submission: Submission) -> list[str]:
    """What the master's job printed on stderr last."""
    master = submission.jobs.get("master", submission.jobs.get("run"))
    folder = run.submitit_folder(submission.nonce)
    for name in (f"{master}_0_log.err", f"master-{master}.err", f"run-{master}.err"):
        lines, _ = last_lines(folder / name, LAST_BYTES)
        if lines:
            return [plain(line) for line in lines]
    return []
