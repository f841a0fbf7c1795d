"""A run's settings for who only looks at it."""

from typing import Any

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import InternalError


def shown_settings(run: RunDirectory) -> dict[str, Any]:
    """The newest. Of a copy of a run without its code, the code is where the user has it."""
    try:
        return run.configuration()
    except InternalError:
        return run.read_settings(run.versions()[-1]).experiment
