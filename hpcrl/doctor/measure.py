"""What `hpcrl doctor` measures: here, of Slurm, and on some nodes. Leaves no file and no job behind."""

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

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.load import site_file
from hpcrl.config.slurm import SlurmConfig
from hpcrl.config.yaml_file import read_yaml
from hpcrl.doctor.measure_disk import measure_disk
from hpcrl.doctor.measure_nodes import (
    JobRequest,
    ask_nodes_by_job,
    ask_nodes_in_job,
    folder_in_job,
    is_step,
    read_results,
)
from hpcrl.doctor.measure_slurm import ask_slurm
from hpcrl.doctor.measurements import Measurements, software_here
from hpcrl.doctor.probe import probe
from hpcrl.durable.exclusive import DIRECTORY_MODE
from hpcrl.errors import ConfigurationError
from hpcrl.launch.slurm.commands import Slurm, SlurmError, SlurmUnavailableError

Nodes = Literal["by job", "in job", "none"]


@dataclass(frozen=True)
class MeasureRequest:
    """What is to be measured. `run_root` is the folder whose filesystem is tried, `asked` the user's own partition."""

    run_root: Path
    nodes: Nodes = "by job"
    wanted: JobRequest = field(default_factory=JobRequest)
    config: SlurmConfig = field(default_factory=SlurmConfig)
    asked: str | None = None


def measure(request: MeasureRequest, environ: Mapping[str, str], slurm: Slurm | None = None) -> Measurements | None:
    """What was found; None for a task of a step that another one speaks for.

    Raises ConfigurationError where the folder cannot be used, or where this is no job and should be one.
    """
    if request.nodes == "in job":
        folder = folder_in_job(environ, request.run_root)
    else:
        folder = request.run_root / f".hpcrl-doctor-{secrets.token_hex(6)}"
    slurm = slurm or Slurm(environ)
    # Of a step's tasks the first one clears away, when it has read what the others wrote.
    others = request.nodes == "in job" and is_step(environ) and environ.get("SLURM_PROCID", "0") != "0"
    with _temporary(folder, keep=others):
        asked = None
        if request.nodes == "in job":
            # Tasks of one step meet in the folder, so this comes first: before any of them is slowed by Slurm.
            asked = ask_nodes_in_job(environ, folder, request.wanted)
            if asked is None:
                return None
        measured = Measurements(
            here=software_here(), host=socket.gethostname(), disk=measure_disk(folder), partition=request.asked
        )
        measured = _with_slurm(measured, slurm)
        if request.nodes == "by job" and measured.slurm is not None:
            asked = ask_nodes_by_job(slurm, request.wanted, request.config, folder)
        if asked is not None:
            return msgspec.structs.replace(measured, job=asked[0], nodes=asked[1])
        if request.nodes == "by job":
            cluster = ClusterConfig(interface=request.wanted.interface, ports=request.wanted.ports)
            probe(folder, 0, 1, cluster=cluster)
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
            [f"--run-root = {folder.parent}: {error.strerror}."], "Name a folder of yours that all nodes see."
        ) from error
    try:
        yield
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def read_site_file() -> tuple[str | None, ClusterConfig]:
    """run_root and cluster of the site's defaults. Raises ConfigurationError for a value of the wrong type."""
    path = site_file()
    values = {} if path is None else read_yaml(path)
    try:
        config = msgspec.convert(values.get("cluster") or {}, ClusterConfig, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigurationError([f"cluster ({path}): {error}."]) from None
    root = values.get("run_root")
    return (os.path.expanduser(str(root)) if root else None), config
