"""What every job of a run executes, whoever started it: takes paths and numbers only, reads the rest from the run."""

import contextlib
import importlib
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcrl.config.experiment import what_every_run_has
from hpcrl.durable.files import no_fault
from hpcrl.durable.notices import leave_notice
from hpcrl.durable.records import Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode, HpcrlError, nature_of
from hpcrl.foreign import plain
from hpcrl.garbage import kept
from hpcrl.launch.launcher import declaration_of
from hpcrl.master.allocation import Allocation
from hpcrl.plugins import load
from hpcrl.processes import allow_open_files, limit_threads, tell_faults
from hpcrl.wire.address import LOOPBACK, network_of


def seeing(cuda_visible_devices: str | None, *arguments: Any) -> int:
    """As `main`, with this CUDA_VISIBLE_DEVICES: submitit's local executor puts its own in the place of the user's."""
    if cuda_visible_devices is None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = cuda_visible_devices
    return main(*arguments)


def main(
    process: str,
    run_dir: str,
    submission: str,
    node: int,
    threads: int,
    fault: Callable[[str], None] = no_fault,
    incarnation: tuple[int, int] = (0, 0),
    host: str = LOOPBACK,
    allocation: Allocation | None = None,
    granted: int | None = None,
) -> int:
    """Be the master, or the agent of node `node`; returns the exit code. Imports numpy after its threads are set.

    `host` is where other nodes reach this one unless cluster.interface says otherwise, `incarnation` which start of its
    job this is, `allocation` is in place of the launcher's, `granted` is how many nodes there are if that is known."""
    fault("as master" if process == "master" else f"as agent-{node}")
    _prepare(threads)
    try:
        _import(process)
        run = RunDirectory(Path(run_dir))
        every = what_every_run_has(run.configuration(submission))
        cluster = every.cluster
        launcher = declaration_of(cluster.type)
        abilities = launcher.abilities(cluster)
        if process == "master":
            from hpcrl.launch.mirroring import mirrored
            from hpcrl.master.master import run_master

            if allocation is None and launcher.allocation:
                allocation = load(launcher.allocation)(Path(run_dir), submission)
            network = network_of(cluster, host)
            with mirrored(run, every.control.mirror):
                return int(run_master(Path(run_dir), submission, fault, network, abilities, allocation, granted))
        from hpcrl.agent.agent import AgentArgs, run_agent

        return int(run_agent(AgentArgs(Path(run_dir), node, submission, host, incarnation, abilities), fault))
    except Exception as error:
        code = _code_of(error, process)
        said = traceback.format_exc() if code is None else f"{type(error).__name__}: {error}\n"
        print(said, file=sys.stderr, end="", flush=True)
        with contextlib.suppress(HpcrlError, OSError):
            run = RunDirectory(Path(run_dir))
            run.read_run()  # a run of another format stays as it is
            verdict = _verdict(error, process, node, said if code is None else None)
            if process == "master":
                run.publish_early_verdict(submission, verdict)
            else:
                leave_notice(run, submission, node, incarnation, verdict)
        return int(ExitCode.INTERNAL if code is None else code)


def _prepare(threads: int) -> None:
    """What holds for this process and all that it starts."""
    limit_threads(threads)
    allow_open_files()
    tell_faults()


def _import(process: str) -> None:
    """What the process needs."""
    with kept():
        importlib.import_module("hpcrl.master.master" if process == "master" else "hpcrl.agent.agent")


def _code_of(error: Exception, process: str) -> ExitCode | None:
    """None of what nobody has foreseen."""
    if isinstance(error, HpcrlError):
        return error.exit_code
    # A node's trouble with its disk is not the run's: its job may come back.
    trouble = ExitCode.INTERNAL if process == "master" else ExitCode.REQUEUE
    return trouble if isinstance(error, OSError) else None


def _verdict(error: Exception, process: str, node: int, told: str | None) -> Verdict:
    """Of a master that came to no attempt, or of an agent that cannot tell its master. On a disk that takes none, the
    exit code remains."""
    code = _code_of(error, process) or ExitCode.INTERNAL
    reason = f"{type(error).__name__}: {error}"
    who = None if process == "master" else f"agent-{node}"
    if who is not None:
        reason = f"{who} on {socket.gethostname()}: {reason}"
    told = told and plain(told)
    return Verdict(None, "failed", int(code), plain(reason), who, None, told, time.time(), nature_of(error))
