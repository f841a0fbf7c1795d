"""Where a run comes from. Whoever only looks at runs loads this, and none of what begins a fork."""

from hpcrl.durable.journal import Forked, parse
from hpcrl.durable.rundir import RunDirectory

FORK = "fork"
"""What claims a fork's attempt 0 in the place of a submission."""


def forked_from(run: RunDirectory) -> Forked | None:
    """Where a run comes from; None of one that began from base weights."""
    claim = run.read_claim(0) if 0 in run.numbers() else None
    if claim is None or claim.submission != FORK:
        return None
    events = (event for _, event in parse(run.files.read(run.journal(0))))
    return next((event for event in events if isinstance(event, Forked)), None)
