"""What agents do for their master behind the work, and what becomes of it: typed structs, producer → consumer above.

A chore that is done twice leaves what it leaves when it is done once, so that whatever was not heard of is asked again.
"""

import msgspec

from hpcrl.durable.files import FileRef
from hpcrl.durable.journal import Ids
from hpcrl.durable.spills import SpillRef
from hpcrl.errors import Nature


# ── master → agent ────────────────────────────────────────────────────────────────────────────────────────────────────
class MadePart(msgspec.Struct, frozen=True):
    """Where the rows are that one part of a call has made."""

    call: str
    part: int
    spill: SpillRef


class KeepStep(msgspec.Struct, frozen=True, tag=True):
    """Of a closed step, make the archive of the samples that stay (data set → ids), if any do, and one file of all its
    parts where it `merges`. `shown` is what its train steps have shown."""

    attempt: int
    step: int
    stay: dict[str, Ids]
    parts: tuple[MadePart, ...]
    shown: tuple[FileRef, ...]
    merges: bool


class RemoveParts(msgspec.Struct, frozen=True, tag=True):
    """Remove the parts of a step, of which the journal names the merged file."""

    attempt: int
    step: int


# ── agent → master ────────────────────────────────────────────────────────────────────────────────────────────────────
class ChoreDone(msgspec.Struct, frozen=True, tag=True):
    """All of it is on the disk. None is what there was nothing to make of, or what had not to be made."""

    attempt: int
    step: int
    archive: FileRef | None = None
    merged: FileRef | None = None


class ChoreFailed(msgspec.Struct, frozen=True, tag=True):
    """It raised, or who did it ended; `elsewhere`: another node may do better. `damage`: how a file that was to be read
    is not what was published."""

    attempt: int
    step: int
    error: str
    exit_code: int
    damage: str = ""
    elsewhere: bool = False
    nature: Nature = ""


Chore = KeepStep | RemoveParts
ChoreReport = ChoreDone | ChoreFailed
