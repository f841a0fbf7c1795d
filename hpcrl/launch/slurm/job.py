"""What every Slurm job of a run executes: `python -m hpcrl.launch.slurm.job RUN SUBMISSION master|agent`.

Takes paths only. Which node it is, and which start of its job, is in the environment that Slurm gave it.
"""

import os
import sys
import time
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode, HpcrlError
from hpcrl.launch.entry import main as entry
from hpcrl.launch.slurm.commands import Slurm
from hpcrl.launch.slurm.exits import incarnation_of
from hpcrl.launch.slurm.on_exit import ACCOUNTING_S, ALONE, job_of, write_end_before
from hpcrl.launch.slurm.on_exit import main as on_exit
from hpcrl.stamps import stamped
from hpcrl.wire.address import address_of_this_node


def node_of(environ: Mapping[str, str]) -> int:
    """The number of this node among the workers': its array element, else its place in the step. 0 elsewhere."""
    return int(environ.get("SLURM_ARRAY_TASK_ID") or environ.get("SLURM_PROCID") or 0)


def is_script(pid: int | None, environ: Mapping[str, str]) -> bool:
    """Whether this process is on this node, and of this job. One on another node, or beyond a container, is not."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"SLURM_JOB_ID={environ.get('SLURM_JOB_ID')}".encode() in variables


def begins(role: str, environ: Mapping[str, str]) -> str:
    """What a job prints first; nothing of the agents that are steps beside others of their job."""
    if role == "agent" and "SLURM_ARRAY_TASK_ID" not in environ:
        return ""
    who = "the master" if role == "master" else f"agent {node_of(environ)}"
    _, restarts = incarnation_of(environ)
    again = f", start {restarts + 1} of its job" if restarts else ""
    return f"{who} begins on {environ.get('SLURMD_NODENAME', 'this node')}{again}"


def write_down(run: RunDirectory, nonce: str, role: str, environ: Mapping[str, str]) -> None:
    """Let a job that somebody has sent by hand be known as one of its submission, like those that hpcrl has sent.

    Nothing is known before `hpcrl submit` has written down all that it has sent: then this job is one of those.
    """
    known = run.jobs_of(nonce)
    together = "run" in known.values()
    job = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID")
    if job is None or not known or job in known or (together and role == "agent"):
        return
    run.record_successor(nonce, "run" if together else {"master": "master", "agent": "workers"}[role], job)


def speaker(run: RunDirectory, nonce: str, role: str) -> str | None:
    """As whose process this one speaks for its job: where master and agents are one job, the master alone does."""
    if "run" not in run.jobs_of(nonce).values():
        return role
    return "run" if role == "master" else None


def main(arguments: Sequence[str]) -> int:
    parser = ArgumentParser(prog="hpcrl.launch.slurm.job")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of arithmetic")
    parser.add_argument("--script", type=int, help="process id of the batch script, on its node")
    parser.add_argument("--nodes", type=int, default=0, help="nodes that Slurm gave to a job that has all of them")
    parser.add_argument("run")
    parser.add_argument("submission")
    parser.add_argument("role", choices=("master", "agent"))
    given = parser.parse_args(arguments)
    os.umask(0o077)
    run = RunDirectory(Path(given.run))
    if text := begins(given.role, os.environ):
        print(stamped(text, time.time()), flush=True)
    if given.role == "agent" and run.is_told_to_stop(given.submission):
        # A master obeys the order by itself, and says so in a verdict.
        print("nothing to do: `hpcrl stop` has ended this submission", flush=True)
        return int(ExitCode.NEVER_REQUEUE)
    try:
        write_down(run, given.submission, given.role, os.environ)
    except (HpcrlError, OSError) as error:
        print(f"`hpcrl stop` and `status` will not know this job: {error}", file=sys.stderr, flush=True)
    with suppress(HpcrlError, OSError):
        if (speaks_as := speaker(run, given.submission, given.role)) is not None:
            write_end_before(run, given.submission, job_of(os.environ, speaks_as), Slurm(timeout_s=ACCOUNTING_S))
    seen = is_script(given.script, os.environ)
    code = entry(
        given.role,
        given.run,
        given.submission,
        node_of(os.environ),
        given.threads,
        incarnation=incarnation_of(os.environ),
        host=address_of_this_node(),
        granted=given.nodes or None,
    )
    if seen and not is_script(given.script, os.environ):
        speaks_as = speaker(run, given.submission, given.role)
        if speaks_as is not None:
            on_exit([given.run, given.submission, speaks_as, str(code), ALONE])
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
