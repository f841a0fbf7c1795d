"""Asking some nodes: a small job, or the job that this process is in, runs the probe on each of them."""

import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hpcrl.config.slurm import SlurmConfig
from hpcrl.doctor.measurements import JobMeasurements, NodeMeasurements
from hpcrl.doctor.probe import main as probe_main
from hpcrl.durable.files import Files
from hpcrl.errors import ConfigurationError
from hpcrl.launch.slurm.commands import Slurm, SlurmError
from hpcrl.launch.slurm.jobs import ENDED, State
from hpcrl.launch.slurm.render import wrapped
from hpcrl.launch.slurm.submission import send_once

OUTPUT = "job.out"
TIME_LIMIT_MINUTES = 10
STEP_TIMEOUT_S = 60.0 * TIME_LIMIT_MINUTES
LOOK_S = 0.25
"""How often the folder is looked at for results, which costs Slurm nothing."""
ASK_S = 15.0
"""How often Slurm is asked about the job."""
SETTLE_S = 2.0
"""How long results may still be on their way through the filesystem when the job has ended."""
SAID_LINES = 12
_LAST_STEP = 0xFFFFFFF0
"""Slurm gives higher numbers to what is no step of srun's: the batch script, an interactive shell."""


@dataclass(frozen=True)
class JobRequest:
    """The nodes that are to be asked. `gpus` is per node: 0 asks for none."""

    nodes: int = 2
    partition: str | None = None
    gpus: int = 0
    wait_s: float = 120.0
    """How long the job may wait in the queue."""
    interface: str | None = None
    ports: str | None = None
    """Where the nodes listen, as in `ClusterConfig`."""


def render(wanted: JobRequest, slurm: SlurmConfig, folder: Path) -> tuple[str, tuple[str, ...]]:
    """The script of the job, and sbatch's options. Pure.

    The options go by the command line, where nothing in a path needs quotes.
    """
    partition = wanted.partition or slurm.partition
    count = f"{slurm.gpu_type}:{wanted.gpus}" if slurm.gpu_type else str(wanted.gpus)
    gpus = f"--gres=gpu:{count}" if slurm.gpus == "gres" else f"--gpus-per-node={count}"
    given = {
        "partition": partition, "account": slurm.account, "qos": slurm.qos if partition == slurm.partition else None,
        "reservation": slurm.reservation, "constraint": slurm.constraint, "exclude": slurm.exclude,
    }  # fmt: skip
    options = (
        "--job-name=hpcrl-doctor",
        f"--comment={comment_of(folder)}",
        f"--chdir={folder}",
        f"--output={OUTPUT}",
        f"--nodes={wanted.nodes}",
        "--ntasks-per-node=1",
        "--cpus-per-task=1",
        f"--time={TIME_LIMIT_MINUTES}",
        "--no-requeue",
        *(f"--{name}={value}" for name, value in given.items() if value),
        *([gpus] if wanted.gpus else []),
        *([f"--export={','.join(('PATH', 'HOME', 'USER', *slurm.export))}"] if slurm.export else []),
    )
    python = slurm.python or sys.executable
    lines = [
        "#!/bin/bash",
        "# hpcrl doctor: a few seconds on some nodes, which write what they find into the folder of this script.",
        "umask 077",
        *slurm.prologue,
        # A node whose Python does not start must not take the others with it.
        f"exec srun --kill-on-bad-exit=0 {wrapped(slurm)}{shlex.join(_probe(python, folder, wanted))}",
    ]
    return "\n".join(lines) + "\n", options


def comment_of(folder: Path) -> str:
    """The word by which the job is found again if sbatch's answer gets lost."""
    return f"hpcrl:{folder.name}"


def _probe(python: str, folder: Path, wanted: JobRequest) -> list[str]:
    return [python, "-m", "hpcrl.doctor.probe", *_arguments(folder, wanted)]


def _arguments(folder: Path, wanted: JobRequest) -> list[str]:
    given = {"--interface": wanted.interface, "--ports": wanted.ports}
    return [str(folder), *(word for name, value in given.items() if value for word in (name, value))]


def ask_nodes_by_job(
    slurm: Slurm, wanted: JobRequest, config: SlurmConfig, folder: Path
) -> tuple[JobMeasurements, tuple[NodeMeasurements, ...]]:
    """Send the job, wait for its results, and leave nothing of it in the queue."""
    text, options = render(wanted, config, folder)
    script = folder / "doctor.sbatch"
    Files(folder).publish(script, text.encode(), "script")
    begun = time.monotonic()
    try:
        job = send_once(slurm, script, comment_of(folder), options)
    except SlurmError as error:
        return JobMeasurements(wanted.nodes, failed=_short(error)), ()
    try:
        failed = _wait(slurm, job, wanted, folder)
    finally:
        nodes = read_results(folder)
        with contextlib.suppress(SlurmError):
            _end(slurm, job, whole=len(nodes) == wanted.nodes)
    said = "" if len(nodes) >= wanted.nodes else _said(folder)
    return JobMeasurements(wanted.nodes, job, failed, time.monotonic() - begun, said), nodes


def _end(slurm: Slurm, job: str, whole: bool) -> None:
    """Nothing of the job is left: where all nodes have answered it ends by itself."""
    for pause_s in (0.5, 1.0, 2.0, 4.0) if whole else ():
        time.sleep(pause_s)
        if not any(queued.state.is_alive for queued in slurm.squeue([job])):
            return
    slurm.scancel([job])


def _wait(slurm: Slurm, job: str, wanted: JobRequest, folder: Path) -> str:
    """Until all results are there; else why they do not come."""
    begun = asked = time.monotonic()
    started = False
    while _missing(wanted, folder):
        waited = (now := time.monotonic()) - begun
        late = not started and waited > wanted.wait_s
        # Soon after a start that came at once, rarely afterwards.
        if late or now - asked >= min(ASK_S, 2.0 + waited / 4):
            asked = now
            state, reason = _look(slurm, job)
            if state in ENDED:
                time.sleep(SETTLE_S)
                missing = _missing(wanted, folder)
                return f"job {job} has ended, and {missing} of {wanted.nodes} nodes wrote no results" if missing else ""
            started = state not in (State.PENDING, State.UNKNOWN)
            if late and not started:
                return f"job {job} has not started within {wanted.wait_s:.0f} s ({reason or 'no reason given'})"
        if waited > wanted.wait_s + STEP_TIMEOUT_S:
            return f"job {job} has not answered within {waited:.0f} s"
        time.sleep(LOOK_S)
    return ""


def _look(slurm: Slurm, job: str) -> tuple[State, str]:
    """State and reason of the job; unknown where Slurm is silent or does not know it (yet)."""
    try:
        queued = next(iter(slurm.squeue([job])), None)
    except SlurmError as error:
        return State.UNKNOWN, _short(error)
    return (State.UNKNOWN, "squeue does not know it") if queued is None else (queued.state.state, queued.reason)


def _missing(wanted: JobRequest, folder: Path) -> int:
    return wanted.nodes - len(list(_results(folder)))


def ask_nodes_in_job(
    environ: Mapping[str, str], folder: Path, wanted: JobRequest
) -> tuple[JobMeasurements, tuple[NodeMeasurements, ...]] | None:
    """Ask the nodes of the job that this process is in; None for a task that another one speaks for.

    In a step, each task is one of the probes (the folder is the same for all, see `folder_in_job`); elsewhere in an
    allocation, srun starts them.
    """
    job = environ["SLURM_JOB_ID"]
    begun = time.monotonic()
    failed = said = ""
    if is_step(environ):
        count = int(environ.get("SLURM_STEP_NUM_TASKS") or 1)
        if probe_main(_arguments(folder, wanted)):
            failed = "the probe of this task failed"
        if environ.get("SLURM_PROCID", "0") != "0":
            return None
    else:
        count = int(environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or 1)
        failed, said = _step(count, folder, wanted)
    nodes = read_results(folder)
    if len(nodes) < count and not failed:
        failed = f"{count - len(nodes)} of {count} nodes wrote no results"
    return JobMeasurements(count, job, failed, time.monotonic() - begun, said), nodes


def is_step(environ: Mapping[str, str]) -> bool:
    """Whether this is a task of srun's, and not a batch script or an interactive shell."""
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdecimal() and int(step) < _LAST_STEP


def folder_in_job(environ: Mapping[str, str], run_root: Path) -> Path:
    """The same for all tasks of a step, another for each start."""
    if "SLURM_JOB_ID" not in environ:
        raise ConfigurationError(
            ["--in-job is for a shell or a step inside a job, and here is no SLURM_JOB_ID."], "Leave --in-job out."
        )
    names = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID")
    mark = ".".join(environ.get(name, "0") for name in names)
    return run_root / f".hpcrl-doctor-{mark}" if is_step(environ) else run_root / f".hpcrl-doctor-{mark}.{os.getpid()}"


def _step(count: int, folder: Path, wanted: JobRequest) -> tuple[str, str]:
    """Start a probe on each node of this allocation: what failed, and what was said."""
    shape = ["--overlap", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--cpus-per-task=1"]
    command = ["srun", *shape, "--kill-on-bad-exit=0", *_probe(sys.executable, folder, wanted)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=STEP_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"srun: {error}", ""
    said = "\n".join(done.stderr.splitlines()[-SAID_LINES:])
    return ("", said) if done.returncode == 0 else (f"srun ended with status {done.returncode}", said)


def read_results(folder: Path) -> tuple[NodeMeasurements, ...]:
    """What the nodes have published, by index."""
    files = Files(folder)
    found = [msgspec.json.decode(files.read(folder / name), type=NodeMeasurements) for name in _results(folder)]
    return tuple(sorted(found, key=lambda node: node.index))


def _results(folder: Path) -> Iterator[str]:
    names = Files(folder).listing(folder)
    return (name for name in names if name.startswith("result-") and name.endswith(".json"))


def _said(folder: Path) -> str:
    with contextlib.suppress(OSError):
        lines = (folder / OUTPUT).read_text(errors="replace").splitlines()
        return "\n".join(lines[-SAID_LINES:])
    return ""


def _short(error: SlurmError) -> str:
    return str(error).rsplit("\n", 1)[0]
