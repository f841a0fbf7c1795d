"""The keys of a run, `key.json`: whoever holds them is a member of it.

No process outlives its submission, so that the next one may have others where they were lost.
"""

import os
import stat

from hpcrl.durable.files import unreadable
from hpcrl.durable.records import KeyPair, decode
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import InternalError

LONGEST_BYTES = 4096


def has_key(run: RunDirectory) -> bool:
    """Whether there are keys, damaged or not."""
    return run.key_json.name in run.files.listing(run.root)


def read_key(run: RunDirectory) -> KeyPair:
    """The run's keys. Raises InternalError unless the file is a plain one that only its owner, this user, can read."""
    try:
        descriptor = os.open(run.key_json, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _refuse_shared(run, os.fstat(descriptor))
            data = os.read(descriptor, LONGEST_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InternalError(f"{unreadable(run.key_json, error)}.", advice(run)) from error
    return decode(data, KeyPair, run.key_json, advice(run))


def advice(run: RunDirectory) -> str:
    """What helps where the keys are lost or damaged."""
    return f"Remove what is left of it: `hpcrl resume {run.root}` makes new keys where there are none."


def _refuse_shared(run: RunDirectory, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or mode & 0o077:
        raise InternalError(
            f"{run.key_json} has owner {status.st_uid} and mode {mode:04o}; the key must be a plain file "
            f"of user {os.geteuid()} that nobody else can read.",
            "chmod 600 it, or submit anew if others read it.",
        )
