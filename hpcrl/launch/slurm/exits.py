"""How the jobs of a submission ended, one small file per incarnation: what budgets and delays are counted from.

Written by the batch script of the job, by its process where the script was killed, or, for one that nobody wrote of, by
the master or the job's own next start.
"""

from collections.abc import Mapping

import msgspec

from hpcrl.durable.exclusive import AlreadyPublishedError
from hpcrl.durable.rundir import RunDirectory
from hpcrl.launch.slurm.requeue import Ended


def incarnation_of(environ: Mapping[str, str]) -> tuple[int, int]:
    """(job id, restarts): a job that is queued again keeps its id, one sent later has a larger one."""
    return int(environ.get("SLURM_JOB_ID") or 0), int(environ.get("SLURM_RESTART_COUNT") or 0)


def place_of(name: str, element: int | str | None = None) -> str:
    """What all incarnations of a job, and its successors, have in common: `master`, `run`, `workers-3`."""
    return name if element is None else f"{name}-{element}"


def record_exit(
    run: RunDirectory, nonce: str, place: str, number: int, restarts: int, ended: Ended
) -> tuple[Ended, list[Ended]]:
    """Write down this end, unless somebody has; returns it as it was written, and those before it, oldest first.

    `number` is the job's own id, that of an element too; with `restarts` it names the incarnation.
    """
    folder = run.files.directory(run.submitit_folder(nonce) / "exits")
    mine = folder / f"{place}.{number}.{restarts}.json"
    try:
        run.files.publish(mine, msgspec.json.encode(ended), "exit")
    except AlreadyPublishedError:
        ended = _read(run, nonce, mine.name) or ended
    names = sorted(_names(run, nonce, place), key=_incarnation)
    before = (_read(run, nonce, name) for name in names if _incarnation(name) < (number, restarts))
    return ended, [end for end in before if end is not None]


def _incarnation(name: str) -> tuple[int, int]:
    """Job and restarts, by which incarnations are ordered: a successor's job has a larger number. Clocks may differ."""
    *_, number, restarts, _ = name.rsplit(".", 3)
    return int(number), int(restarts)


def _names(run: RunDirectory, nonce: str, place: str) -> list[str]:
    return [name for name in run.files.listing(run.submitit_folder(nonce) / "exits") if name.startswith(f"{place}.")]


def _read(run: RunDirectory, nonce: str, name: str) -> Ended | None:
    """None where it is damaged, or of a cause that is not known here: it then counts for nothing."""
    try:
        return msgspec.json.decode(run.files.read(run.submitit_folder(nonce) / "exits" / name), type=Ended)
    except msgspec.DecodeError:
        return None
