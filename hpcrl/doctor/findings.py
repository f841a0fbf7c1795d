"""A line of what `hpcrl doctor` says, and how its numbers are written. What it says of what is in the check_* files."""

from enum import StrEnum

import msgspec

from hpcrl.config.cluster import ClusterConfig

CLUSTER = ClusterConfig()
"""Advice is given where a default does not fit."""
SKEW_S = 1.0
"""Clocks that are less apart are taken as one."""


class Severity(StrEnum):
    """How much a finding matters, the least first."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    """One line of the table. `follows` says what to set, or what hpcrl does about it."""

    area: str
    what: str
    value: str
    severity: Severity
    follows: str = ""


def count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def in_short(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"
