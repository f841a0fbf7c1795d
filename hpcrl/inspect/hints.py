"""What a user does next about a run that has ended. Resuming is advised only where it does not repeat the error."""

from pathlib import Path

from hpcrl.foreign import plain

RESUMABLE = ("stopped", "preempted", "queued", "incomplete", "killed")
"""States in which nothing has to be changed before the run is resumed."""


def what_next(root: Path, state: str, cause_next: str = "") -> str:
    """A sentence or two; "" for a run that is done, or that goes on. A run that is running refuses to be resumed.

    `cause_next`: the command that the cause of its end asks for.
    """
    run = plain(str(root))
    resume = cause_next if cause_next.startswith("hpcrl resume") else f"hpcrl resume {run}"
    if state in RESUMABLE:
        return f"Nothing that was finished is lost. Resume it: hpcrl resume {run}"
    if state == "failed":
        return f"Read on with: hpcrl logs {run}. When the cause is gone: {resume}"
    if state == "submitted":
        return f"If none begins, start it again: hpcrl resume {run}"
    return ""
