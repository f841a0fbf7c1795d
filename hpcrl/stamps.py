"""Lines that carry their time: what a Slurm job prints as it begins and ends, into a file that all its starts share."""

import re
from datetime import UTC, datetime

_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3})Z hpcrl: ")


def stamped(text: str, when: float) -> str:
    """`2026-11-26T15:27:33.120Z hpcrl: text`. `when` is in seconds since 1970."""
    at = datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds")
    return f"{at.removesuffix('+00:00')}Z hpcrl: {text}"


def time_of(line: str) -> float | None:
    """That a line carries, in seconds since 1970; None where it carries none."""
    if (found := _STAMP.match(line)) is None:
        return None
    try:
        return datetime.fromisoformat(found[1]).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
