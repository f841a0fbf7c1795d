"""Why an attempt ended, as lines of text: for `why`, for `status`, and for whoever waits for a run."""

import re
from pathlib import Path

from hpcrl.foreign import plain
from hpcrl.inspect.views.why import Cause
from hpcrl.inspect.words import counted

INDENT = 10
RAISED = re.compile(r"[A-Z][\w.]*(?::|$)")
"""A line that names an exception, with or without words."""


def cause_lines(cause: Cause, traceback: bool = False) -> list[str]:
    """The verdict first; the user's own frames once; all frames where they are asked for."""
    who = " in ".join(part for part in (cause.who, cause.where) if part)
    head = f"{cause.verdict} ({cause.confidence})" + (f": {who}" if who else "")
    lines = _named("cause", head)
    lines += _named("", cause.said.rstrip())
    if cause.frames:
        lines += _named("", cause.frames.rstrip())
    lines += _named("edit", to_edit(cause))
    if traceback and cause.traceback:
        lines += _named("", cause.traceback.rstrip())
    lines += _named(
        "evidence", "\n".join(f"{it.file}{f':{it.line}' if it.line else ''}  {it.text}" for it in cause.evidence)
    )
    lines += _named("folded", folded(cause))
    return lines + _named("next", cause.next)


def to_edit(cause: Cause) -> str:
    """The user's own line, and that the run has executed a copy of it."""
    if cause.edit is None:
        return ""
    text = f": {cause.edit.text}" if cause.edit.text else ""
    return (
        f"{cause.edit.file}, line {cause.edit.line}{text}\n(the run has executed a copy of it; leave the copy as it is)"
    )


def in_a_line(cause: Cause) -> str:
    """The verdict, who, and the first line of what happened."""
    who = f"{cause.who}, " if cause.who and cause.who not in cause.said else ""
    return plain(f"{cause.verdict}: {who}{cause.said.partition(chr(10))[0]}")


def error_of(cause: Cause) -> str:
    """The error of the user's code that began it, and its line; empty where none did."""
    if cause.edit is None:
        return ""
    raised = [line for line in cause.said.splitlines() if RAISED.match(line)]
    return f"{raised[-1] if raised else ''} ({Path(cause.edit.file).name}, line {cause.edit.line})".strip()


def folded(cause: Cause) -> str:
    """What followed from it."""
    parts = []
    if cause.folded.failures:
        parts.append(f"{counted(cause.folded.failures, 'worker')} whose calls failed with it")
    if cause.folded.ends:
        parts.append(f"{counted(cause.folded.ends, 'other')} that ended after it")
    return ", ".join(parts)


def _named(name: str, text: str) -> list[str]:
    """The name stands before the first line; none where there is no text."""
    if not text:
        return []
    first, *others = text.split("\n")
    return [f"{name:<{INDENT - 1}}{first}", *(f"{'':<{INDENT - 1}}{line}" for line in others)]
