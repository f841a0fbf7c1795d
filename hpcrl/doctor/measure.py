"""`hpcrl doctor` without its table: measure here, ask Slurm, ask nodes; what was found, as facts."""

import os
import secrets
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from hpcrl.config.slurm import SlurmConfig
from hpcrl.doctor.measure_disk import measure_disk
from hpcrl.doctor.measure_nodes import (
    JobRequest,
    ask_nodes_by_job,
    ask_nodes_in_job,
    ask_slurm,
    folder_in_job,
    is_step,
    read_results,
)
from hpcrl.doctor.measurements import Measurements, software_here
from hpcrl.doctor.probe import probe
from hpcrl.durable.files import DIRECTORY_MODE
from hpcrl.errors import ConfigurationError
from hpcrl.launch.slurm.commands import Slurm, SlurmError, SlurmUnavailableError

Nodes = Literal["by job", "in job", "none"]


@dataclass(frozen=True)
class Examination:
    """What is to be looked at. `run_root` is the folder whose filesystem is tried, `asked` the user's own partition."""

    run_root: Path
    nodes: Nodes = "by job"
    wanted: JobRequest = field(default_factory=JobRequest)
    config: SlurmConfig = field(default_factory=SlurmConfig)
    asked: str | None = None


def examine(plan: Examination, environ: Mapping[str, str], slurm: Slurm | None = None) -> Measurements | None:
    """The facts; None for a task of a step that another one speaks for. Leaves no file and no job behind.

    Raises ConfigurationError where the folder cannot be used, or where this is no job and should be one.
    """
    if plan.nodes == "in job":
        folder = folder_in_job(environ, plan.run_root)
    else:
        folder = plan.run_root / f".hpcrl-doctor-{secrets.token_hex(6)}"
    slurm = slurm or Slurm(environ)
    # Of a step's tasks the first one clears away, when it has read what the others wrote.
    others = plan.nodes == "in job" and is_step(environ) and environ.get("SLURM_PROCID", "0") != "0"
    with _temporary(folder, keep=others):
        asked = None
        if plan.nodes == "in job":
            # Tasks of one step meet in the folder, so this comes first: before any of them is slowed by Slurm.
            asked = ask_nodes_in_job(environ, folder)
            if asked is None:
                return None
        measured = Measurements(
            here=software_here(), host=socket.gethostname(), disk=measure_disk(folder), partition=plan.asked
        )
        measured = _with_slurm(measured, slurm)
        if plan.nodes == "by job" and measured.slurm is not None:
            asked = ask_nodes_by_job(slurm, plan.wanted, plan.config, folder)
        if asked is not None:
            return msgspec.structs.replace(measured, job=asked[0], nodes=asked[1])
        if plan.nodes == "by job":
            probe(folder, 0, 1)
            measured = msgspec.structs.replace(measured, nodes=read_results(folder))
        return measured


def _with_slurm(measured: Measurements, slurm: Slurm) -> Measurements:
    try:
        return msgspec.structs.replace(measured, slurm=ask_slurm(slurm))
    except SlurmUnavailableError as error:
        silent = error.missing == "slurmctld"
        said = f"{error.missing} does not answer" if silent else error.stderr
        return msgspec.structs.replace(measured, no_slurm=said, slurm_silent=silent)
    except SlurmError as error:
        return msgspec.structs.replace(measured, no_slurm=str(error).splitlines()[0], slurm_silent=True)


@contextmanager
def _temporary(folder: Path, keep: bool) -> Iterator[None]:
    """A folder that only this user sees, made if another task has not made it yet, and gone afterwards unless kept."""
    try:
        folder.mkdir(DIRECTORY_MODE, exist_ok=True)
        os.chmod(folder, DIRECTORY_MODE)
    except OSError as error:
        raise ConfigurationError(
            [f"--run-root = {folder.parent}: {error.strerror}. Name a folder of yours that all nodes see."]
        ) from error
    try:
        yield
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
