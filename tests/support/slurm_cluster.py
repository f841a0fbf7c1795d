"""The Slurm cluster of tests/slurm/cluster.sh as tests use it: jobs, preemption, nodes that fail, what is left running.

A test has the cluster for itself while it holds it. The environment of the process that runs the tests stays as it is.
"""

import contextlib
import functools
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

SCRIPT = Path(__file__).parent.parent / "slurm" / "cluster.sh"
NOT_HERE = 77  # exit status of the script where the cluster cannot be had
ENDED = frozenset(
    ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"]
)
IN_USE = frozenset(["idle", "mixed", "allocated"])
PATIENCE_WITH_CONTROLLER = ("MessageTimeout=10", "MessageTimeout=3")
RETRIES, AGAIN = 20, "try again in a bit"
"""What a controller says that has just begun."""
SLURMS_OWN = re.compile(r"(SLURM|SLURMD|SBATCH|SRUN|SALLOC|SQUEUE|SACCT|SCANCEL|SINFO)_")


class NotHere(Exception):
    """This machine cannot have the cluster; the message says why."""


def up() -> str:
    """Bring the cluster up, or what of it is down; what the script said.

    Raises:
        NotHere: no root, no apt, not Debian.
        RuntimeError: it should have come up and did not.
    """
    result = _script("up")
    if result.returncode == NOT_HERE:
        raise NotHere(result.stderr.strip().splitlines()[-1])
    if result.returncode != 0:
        raise RuntimeError(f"{SCRIPT.name} up failed ({result.returncode}):\n{result.stdout}{result.stderr}")
    return result.stdout


def down() -> None:
    """Stop the cluster if there is one."""
    if (_root() / "etc").is_dir():
        _script("down").check_returncode()


def _script(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, command], capture_output=True, text=True, timeout=300)


@functools.cache
def _root() -> Path:
    return Path(_script("root").stdout.strip())


@dataclass(frozen=True)
class JobProcess:
    """A live process of a job; job_id is None where only its cgroup tells that it belongs to one."""

    pid: int
    job_id: str | None
    node: str | None
    command: str


@dataclass(frozen=True)
class Preemptor:
    """A job of high priority that holds whole nodes; as a context manager it ends with the block."""

    cluster: "SlurmCluster"
    job_id: str
    nodes: tuple[str, ...]

    def end(self) -> None:
        """Give the nodes back."""
        self.cluster.kill_job(self.job_id)

    def __enter__(self) -> "Preemptor":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class SlurmCluster:
    """A running cluster. Knows Slurm's commands and this machine's processes, nothing of hpcrl.

    `env` is the environment in which commands reach the cluster, `directory` where the jobs of the present test write.
    """

    def __init__(self, root: Path, directory: Path):
        self.root = root
        self.directory = directory
        environment = {name: value for name, value in os.environ.items() if not SLURMS_OWN.match(name)}
        self.env = {**environment, "SLURM_CONF": str(root / "etc" / "slurm.conf")}
        self.cpu_nodes = self._nodes("cpu")
        self.gpu_nodes = self._nodes("gpu")

    @property
    def nodes(self) -> list[str]:
        return self.cpu_nodes + self.gpu_nodes

    # Commands

    def run(
        self,
        command: Sequence[str | Path],
        *,
        check: bool = True,
        timeout_s: float = 60,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command that sees the cluster, in the test's directory; env is added to its environment.

        Raises:
            AssertionError: exit status other than 0, unless check is False.
        """
        result = self._run(command, timeout_s, cwd, env, input)
        for _ in range(RETRIES):
            if AGAIN not in result.stderr:
                break
            time.sleep(1)
            result = self._run(command, timeout_s, cwd, env, input)
        words = " ".join(str(word) for word in command)
        assert not check or result.returncode == 0, f"{words}: {result.returncode}\n{result.stdout}{result.stderr}"
        return result

    def _run(
        self,
        command: Sequence[str | Path],
        timeout_s: float,
        cwd: Path | None,
        env: Mapping[str, str] | None,
        input: str | None,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=cwd or self.directory,
            env={**self.env, **(env or {})},
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def sbatch(self, script: str, *options: str) -> str:
        """Submit a bash script, with or without its first line; the job's id. All its runs write to ID.out."""
        text = script if script.startswith("#!") else f"#!/bin/bash\n{script}\n"
        output = ["--output", str(self.directory / "%j.out"), "--open-mode=append"]
        return self.run(["sbatch", "--parsable", *output, *options], input=text).stdout.strip()

    def output(self, job_id: str) -> str:
        """What a job submitted by sbatch has written until now."""
        path = self.directory / f"{job_id}.out"
        return path.read_text() if path.exists() else ""

    def squeue(self, fields: str, *options: str) -> list[list[str]]:
        """Rows of fields (squeue's --Format names, comma-separated) of jobs in any state, array elements one by one."""
        names = ",".join(f"{name}:|" for name in fields.split(","))
        rows = self.run(["squeue", "--noheader", "--array", "--states=all", f"--Format={names}", *options]).stdout
        return [row.rstrip("|").split("|") for row in rows.splitlines()]

    def states(self, *job_ids: str) -> dict[str, str]:
        """Id → state of these jobs with their elements (J_0) and components (J+1), those that Slurm remembers."""
        found = {}
        for raw, array, element, leader, component, state in self.squeue(
            "jobid,arrayjobid,arraytaskid,hetjobid,hetjoboffset,state"
        ):
            if element != "N/A":
                name = f"{array}_{element}"
            elif leader not in ("N/A", "0"):
                name = f"{leader}+{component}"
            else:
                name = raw
            if {name, raw, re.split(r"[_+]", name)[0]} & set(job_ids):
                found[name] = state
        return found

    def state(self, job_id: str) -> str:
        """State of one job, element or component."""
        found = self.states(job_id)
        assert len(found) == 1, f"job {job_id} is not one job: {found}"
        return next(iter(found.values()))

    def wait_state(self, job_id: str, *states: str, timeout_s: float = 30) -> str:
        """Wait until one job is in one of the states; that state.

        Raises:
            AssertionError: not in time.
        """
        self.wait(lambda: self.state(job_id) in states, f"job {job_id} is {' or '.join(states)}", timeout_s)
        return self.state(job_id)

    def wait_ended(self, *job_ids: str, timeout_s: float = 60) -> dict[str, str]:
        """Wait until these jobs with all their elements have ended; id → state."""
        ended = functools.partial(self._all_ended, job_ids)
        self.wait(ended, f"jobs {', '.join(job_ids)} have ended", timeout_s)
        return self.states(*job_ids)

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
        """Wait for a condition; `what` says it in a sentence.

        Raises:
            AssertionError: not in time, with the queue and the nodes as they are.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"not after {timeout_s} s: {what}\n{self.picture()}"
            time.sleep(0.1)

    def picture(self) -> str:
        """The jobs and the nodes, for a message."""
        jobs = self.run(["squeue", "--array", "--states=all", "--format=%.12i %.10P %.20j %.12T %.10M %R"]).stdout
        return jobs + self.run(["sinfo", "--Node", "--format=%N %P %T %E"]).stdout

    # Disturbances

    def scancel(self, *words: str) -> None:
        self.run(["scancel", *words])

    def kill_job(self, job_id: str) -> None:
        """End a job at once, its processes by SIGKILL."""
        self.scancel("--full", "--signal=KILL", job_id)
        self.scancel(job_id)
        self.wait_ended(job_id)

    def kill_batch_step(self, job_id: str, *, script: bool) -> None:
        """SIGKILL for the slurmstepd of a job's batch script, and for the script and its sruns too if that is said.

        Slurm's controller hears nothing of it.
        """
        processes = [process for process in self.job_processes() if process.job_id == job_id]
        (batch,) = [process.pid for process in processes if "slurm_script" in process.command]
        stepd = _parent(batch)
        sruns = [process.pid for process in processes if process.command.startswith("srun ")]
        for pid in (stepd, *((batch, *sruns) if script else ())):
            os.kill(pid, signal.SIGKILL)

    def requeue(self, job_id: str) -> None:
        self.run(["scontrol", "requeue", job_id])

    def job_nodes(self, job_id: str) -> list[str]:
        """Names of the nodes that a job has."""
        listed = self.run(["squeue", "--noheader", "--states=all", "--format=%N", "--job", job_id]).stdout
        return self._expand(listed.strip())

    def preempt(self, victim: str) -> Preemptor:
        """Take a node, or the nodes of a job, by a job of high priority. Returns when that has them.

        That is seconds after it was submitted, or a grace time: a run may close many steps until then.
        """
        nodes = [victim] if victim in self.nodes else self.job_nodes(victim)
        assert nodes, f"job {victim} has no nodes to preempt\n{self.picture()}"
        where = ["--partition=high", "--job-name=preemptor", f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}"]
        taken = Preemptor(self, self.sbatch("sleep 1000", *where, "--exclusive"), tuple(nodes))
        self.wait_state(taken.job_id, "RUNNING", timeout_s=70)
        return taken

    def node_down(self, node: str) -> None:
        """As an administrator does it: its jobs are lost at once, and it stays down."""
        self.run(["scontrol", "update", f"nodename={node}", "state=down", "reason=test"])

    def node_up(self, node: str) -> None:
        """Take a node back that is down or drained, and wait for it."""
        self.run(["scontrol", "update", f"nodename={node}", "state=resume"], check=False)
        self.wait(lambda: self.node_state(node) in IN_USE, f"node {node} is back")

    def node_states(self) -> dict[str, str]:
        """Node → state."""
        rows = self.run(["sinfo", "--noheader", "--Node", "--format=%N %T"]).stdout.splitlines()
        return dict(sorted(row.split() for row in rows))

    def node_state(self, node: str) -> str:
        """As sinfo says it; a * at the end: it does not answer."""
        return self.node_states()[node]

    def kill_slurmd(self, node: str) -> None:
        """SIGKILL for a node's daemon; its jobs go on. `restart` brings it back."""
        pid = int((self.root / "run" / f"slurmd.{node}.pid").read_text())
        os.kill(pid, signal.SIGKILL)
        self.wait(lambda: not _lives(pid), "slurmd has ended")  # `up` takes one that is dying for one that lives

    def power_off(self, node: str) -> None:
        """SIGKILL for all that runs on a node, its daemon first; `restart` boots it again."""
        self.kill_slurmd(node)
        there = [process.pid for process in self.job_processes() if process.node == node]
        steps = {
            parent for pid in there if _read(Path(f"/proc/{(parent := _parent(pid))}/comm")).startswith("slurmstep")
        }
        # All at the same instant: none of them may tell of another's end.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in (*steps, *there):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def stop_controller(self) -> None:
        """End slurmctld; jobs go on. `restart` brings it back. Until then commands give up on it after 2 s."""
        pid = int((self.root / "run" / "slurmctld.pid").read_text())
        os.kill(pid, signal.SIGTERM)
        self.wait(lambda: not _lives(pid), "slurmctld has ended", 60)
        self._replace_setting(*PATIENCE_WITH_CONTROLLER)

    def restart(self) -> None:
        """Start daemons that were killed and take back all nodes; jobs go on."""
        self._replace_setting(*reversed(PATIENCE_WITH_CONTROLLER))
        up()

    def _replace_setting(self, old: str, new: str) -> None:
        """For commands that begin from now on; daemons have read theirs."""
        path = self.root / "etc" / "slurm.conf"
        path.with_suffix(".next").write_text(path.read_text().replace(old, new))
        path.with_suffix(".next").rename(path)

    # What is left

    def job_processes(self) -> list[JobProcess]:
        """Live processes of this cluster's jobs, without slurmstepd: by their environment and by their cgroup."""
        in_cgroups = {
            int(pid)
            for node in self.nodes
            for file in files_below(Path(f"/sys/fs/cgroup/freezer/slurm_{node}"), "cgroup.procs")
            if "job_" in str(file)
            for pid in _read(file).split()
        }
        found = []
        for pid in sorted({int(path.name) for path in Path("/proc").glob("[0-9]*")}):
            environment = _environment(pid)
            of_a_job = environment.get("SLURM_CONF") == self.env["SLURM_CONF"] and "SLURM_JOB_ID" in environment
            if not (of_a_job or pid in in_cgroups) or pid == os.getpid():
                continue
            command = _read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ").strip()
            # Without a command line: a zombie, or gone by now.
            if command and not command.startswith("slurmstepd"):
                job_id, node = environment.get("SLURM_JOB_ID"), environment.get("SLURMD_NODENAME")
                found.append(JobProcess(pid, job_id, node, command))
        return found

    def wait_no_processes(self, timeout_s: float = 10) -> None:
        """Wait until no process of any job lives.

        Raises:
            AssertionError: not in time, with those that live.
        """
        deadline = time.monotonic() + timeout_s
        while left := self.job_processes():
            assert time.monotonic() < deadline, f"alive after {timeout_s} s: {left}"
            time.sleep(0.1)

    def clean(self) -> None:
        """No jobs, no processes of jobs, all nodes up."""
        if any(state not in ENDED for (state,) in self.squeue("state")) or self.job_processes():
            self.scancel("--state=PENDING", "--user=root")
            self.run(["scancel", "--full", "--signal=KILL", "--user=root"], check=False)
            self.scancel("--user=root")
            for process in self.job_processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        if not set(self.node_states().values()) <= {*IN_USE, "completing"}:
            self.restart()
        self.wait(lambda: all(state in ENDED for (state,) in self.squeue("state")), "no job is left", 40)
        self.wait_no_processes()

    def _all_ended(self, job_ids: tuple[str, ...]) -> bool:
        return all(state in ENDED for state in self.states(*job_ids).values())

    def _nodes(self, partition: str) -> list[str]:
        return sorted(
            self.run(["sinfo", "-hN", f"--partition={partition}", "--format=%N"], cwd=self.root).stdout.split()
        )

    def _expand(self, nodes: str) -> list[str]:
        return self.run(["scontrol", "show", "hostnames", nodes]).stdout.split() if nodes else []


@contextlib.contextmanager
def hold(directory: Path) -> Iterator[SlurmCluster]:
    """The running cluster, for the caller alone, clean before and after; others wait."""
    root = _root()
    with FileLock(f"{root}.in-use"):
        cluster = SlurmCluster(root, directory)
        cluster.clean()
        try:
            yield cluster
        finally:
            cluster.clean()


def _lives(pid: int) -> bool:
    """Zombies count as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _parent(pid: int) -> int:
    """0 of a process that is gone."""
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return int(fields[1]) if fields else 0


def files_below(folder: Path, name: str) -> list[Path]:
    """All files of this name; what vanishes while we look is no longer there (`Path.glob` would raise)."""
    return [Path(where, name) for where, _, names in os.walk(folder) if name in names]


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_bytes().decode(errors="replace")
    return ""


def _environment(pid: int) -> dict[str, str]:
    lines = _read(Path(f"/proc/{pid}/environ")).split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)
