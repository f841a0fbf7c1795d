"""What the batch scripts do, executed by a real bash, with stand-ins for srun, scontrol and Python that obey a test."""

import dataclasses
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.chaos import create_run, toy_experiment
from support.fake_slurm.cluster import FakeSlurm

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.slurm import SlurmConfig
from hpcrl.launch.slurm.render import Target, Topology, render, template_folder
from hpcrl.launch.slurm.requeue import RequeueRules
from hpcrl.launch.slurm.submission import script_path, send_all, write_intent

TEMPLATES = ("array", "colocated", "hetjob", "chain")
STRICT = ("set -euo pipefail", "set -o posix", "IFS=$'\\n\\t'", "trap 'exit 9' ERR")
"""What a careful user's prologue begins with."""
WAIT_S = 30.0

SRUN = """#!/bin/bash
role=${!#}
trap 'echo "$role heard USR1" >> events' USR1
trap 'echo "$role heard TERM" >> events' TERM
env > environment-$role
echo "$role began" >> events
while [ ! -e leave-$role ]; do sleep 0.02; done
echo "$role ended" >> events
read -r code < leave-$role
exit "$code"
"""
SAYS = '#!/bin/bash\necho "{name} $#: $*" >> events\nexit {status}\n'


class Batch:
    """A batch script in a folder, as slurmstepd would execute it. `settled`: on_exit does its work."""

    def __init__(self, folder: Path, template: str, *prologue: str, settled: bool = True) -> None:
        self.folder = folder
        topology: Topology = "colocated" if template == "chain" else template  # type: ignore[assignment]
        slurm = SlurmConfig(python=str(folder / "python"), prologue=prologue)
        own = str(template_folder() / f"{template}.sbatch")
        cluster = ClusterConfig(nodes=2, template=own, slurm=slurm)
        self.script = render(cluster, topology, Target(Path("/r"), "ppo", "n1"))[0].text
        self.together = template != "array"
        self.settles = template != "chain"
        (folder / "script").write_text(self.script)
        texts = {
            "srun": SRUN,
            "scontrol": SAYS.format(name="scontrol", status=0),
            "python": SAYS.format(name="python", status=0 if settled else 3),
        }
        for name, text in texts.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o700)

    def begin(self, under: str = "exec bash script", **environ: str) -> None:
        environ |= {"PATH": f"{self.folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "77", "SLURMD_NODENAME": "n1"}
        self.job = subprocess.Popen(["bash", "-c", under], cwd=self.folder, env=environ, stderr=subprocess.PIPE)

    def begin_and_wait(self, under: str = "exec bash script", **environ: str) -> None:
        self.begin(under, **environ)
        for role in ("master", "agent") if self.together else ("master",):
            self.until(f"{role} began")

    def leave(self, role: str, code: int) -> None:
        """The process of a role ends."""
        path = self.folder / f"leave-{role}"
        path.with_suffix(".new").write_text(f"{code}\n")
        path.with_suffix(".new").rename(path)

    def leave_all(self, code: int) -> None:
        self.leave("master", code)
        if self.together:
            self.leave("agent", 0)

    def tell(self, name: str) -> None:
        os.kill(self.job.pid, getattr(signal, f"SIG{name}"))

    def events(self) -> list[str]:
        path = self.folder / "events"
        return path.read_text().splitlines() if path.exists() else []

    def until(self, event: str) -> None:
        self.wait(lambda: event in self.events(), event)

    def wait(self, look: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not look():
            assert self.job.poll() is None, f"the script ended before: {what}; {self.events()}"
            assert time.monotonic() < deadline, f"in vain: {what}; {self.events()}"
            time.sleep(0.01)

    def end(self) -> int:
        """The script's exit code; it has said nothing that a user would wonder about."""
        _, said = self.job.communicate(timeout=WAIT_S)
        assert not said, said.decode()
        return self.job.returncode

    def asked(self) -> list[str]:
        """The calls of on_exit: the number of its arguments, and those after the role."""
        calls = [event for event in self.events() if event.startswith("python")]
        return [call.replace("-m hpcrl.launch.slurm.on_exit /r n1 ", "") for call in calls]

    def expected(self, code: int, *told: str) -> list[str]:
        role = "run" if self.together else "master"
        return [f"python {6 + len(told)}: {' '.join((role, str(code), *told))}"] if self.settles else []


def _is_pending(pid: int, number: int) -> bool:
    """Whether it has been sent the signal and has not taken it: another one of its kind would be lost."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(sum(1 << number - 1 & int(lines[name], 16) for name in ("SigPnd", "ShdPnd")))


@pytest.mark.parametrize("prologue", [(), STRICT], ids=["plain", "strict"])
@pytest.mark.parametrize("environ", [{}, {"POSIXLY_CORRECT": "1"}], ids=["bash", "posix"])
@pytest.mark.parametrize("code", [0, 75, 137])
@pytest.mark.parametrize("template", TEMPLATES)
def test_the_exit_code_outlives_the_signals_that_come_before_it(
    tmp_path: Path, template: str, code: int, environ: dict[str, str], prologue: tuple[str, ...]
) -> None:
    batch = Batch(tmp_path, template, *prologue)
    batch.begin_and_wait(**environ)
    for name in ("USR2", "TERM"):
        before = batch.events().count("master heard USR1")
        batch.tell(name)
        batch.wait(lambda: batch.events().count("master heard USR1") > before, f"{name} reaches the process")  # noqa: B023
    batch.leave_all(code)
    assert batch.end() == code
    assert batch.asked() == batch.expected(code, "USR2", "TERM")


@pytest.mark.parametrize("environ", [{}, {"POSIXLY_CORRECT": "1"}], ids=["bash", "posix"])
@pytest.mark.parametrize("template", TEMPLATES)
def test_an_undisturbed_process_hands_on_its_exit_code(tmp_path: Path, template: str, environ: dict[str, str]) -> None:
    batch = Batch(tmp_path, template)
    batch.leave_all(75)
    batch.begin(**environ)
    assert batch.end() == 75
    assert batch.asked() == batch.expected(75)


@pytest.mark.parametrize("template", TEMPLATES)
def test_who_is_told_to_go_during_the_prologue_starts_nothing_and_asks_for_another_turn(
    tmp_path: Path, template: str
) -> None:
    batch = Batch(tmp_path, template, "touch prologue", "while [ ! -e go ]; do sleep 0.02; done")
    batch.begin()
    batch.wait((tmp_path / "prologue").exists, "the prologue")
    batch.tell("TERM")
    (tmp_path / "go").touch()
    assert batch.end() == 75
    assert batch.asked() == batch.expected(75, "TERM")
    assert not any("began" in event for event in batch.events())


@pytest.mark.parametrize("prologue", [(), STRICT], ids=["plain", "strict"])
@pytest.mark.parametrize("template", ["array", "colocated", "hetjob"])
def test_a_script_whose_slurmstepd_was_killed_is_known_to_be_alone(
    tmp_path: Path, template: str, prologue: tuple[str, ...]
) -> None:
    batch = Batch(tmp_path, template, *prologue)
    # A shell that waits for the script stands for slurmstepd.
    batch.begin_and_wait(under="bash script; :")
    os.kill(batch.job.pid, signal.SIGKILL)
    batch.job.wait(WAIT_S)
    batch.leave_all(75)
    deadline = time.monotonic() + WAIT_S
    while not batch.asked() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert batch.asked() == batch.expected(75, "ALONE")


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_prologue_that_fails_in_a_strict_shell_ends_the_job(tmp_path: Path, template: str) -> None:
    batch = Batch(tmp_path, template, "set -e", "(exit 9)")
    batch.begin()
    assert batch.end() == 9
    assert batch.events() == []


@pytest.mark.parametrize("prologue", [(), STRICT], ids=["plain", "strict"])
@pytest.mark.parametrize("template", [name for name in TEMPLATES if name != "array"])
def test_agents_are_waited_for_whatever_is_heard_meanwhile(
    tmp_path: Path, template: str, prologue: tuple[str, ...]
) -> None:
    batch = Batch(tmp_path, template, *prologue)
    batch.begin_and_wait()
    batch.leave("master", 75)
    batch.until("master ended")
    time.sleep(0.1)
    for _ in range(3):
        batch.tell("TERM")
        batch.wait(lambda: not _is_pending(batch.job.pid, signal.SIGTERM), "SIGTERM taken")
        time.sleep(0.3)  # a shell takes two signals of a kind that wait for it for one
    assert batch.job.poll() is None and batch.asked() == []
    batch.leave("agent", 0)
    assert batch.end() == 75
    assert batch.asked() == batch.expected(75, "TERM", "TERM", "TERM")
    assert "agent heard TERM" not in batch.events(), "they leave by themselves"


@pytest.mark.parametrize("template", [name for name in TEMPLATES if name != "array"])
def test_agents_of_a_master_that_was_killed_are_told_and_waited_for(tmp_path: Path, template: str) -> None:
    batch = Batch(tmp_path, template)
    batch.begin_and_wait()
    batch.leave("master", 137)
    batch.until("agent heard TERM")
    time.sleep(0.1)
    assert batch.job.poll() is None and batch.asked() == []
    batch.leave("agent", 143)
    assert batch.end() == 137
    assert batch.asked() == batch.expected(137)


@pytest.mark.parametrize("prologue", [(), STRICT], ids=["plain", "strict"])
@pytest.mark.parametrize("told", [None, "USR2", "TERM"])
@pytest.mark.parametrize("code", [0, 70, 75, 93, 137])
@pytest.mark.parametrize("template", ["array", "colocated", "hetjob"])
def test_where_python_is_broken_who_was_interrupted_is_queued_again_unless_slurm_ends_it(
    tmp_path: Path, template: str, code: int, told: str | None, prologue: tuple[str, ...]
) -> None:
    batch = Batch(tmp_path, template, *prologue, settled=False)
    batch.begin_and_wait()
    if told:
        batch.tell(told)
        batch.until("master heard USR1")
    batch.leave_all(code)
    assert batch.end() == code
    requeued = [event for event in batch.events() if event.startswith("scontrol")]
    assert requeued == (["scontrol 2: requeue 77"] if code == 75 and told != "TERM" else [])


@pytest.mark.parametrize("template", TEMPLATES)
def test_no_script_reads_what_a_command_says_since_bash_loses_its_place_if_a_signal_comes_then(
    tmp_path: Path, template: str
) -> None:
    lines = [line for line in Batch(tmp_path, template).script.splitlines() if not line.startswith("#")]
    assert not [line for line in lines if any(begin in line for begin in ("$(", "`", "<("))]


def submitted_with(fake: FakeSlurm, folder: Path, outside: str, container: str) -> Path:
    """A run of two elements on a fake Slurm, submitted by the Python `outside`; the script of its workers."""
    run = create_run(folder / "run", toy_experiment())
    run.files.make_directory(run.submitit_folder("n1"))
    within: dict[str, Any] = {"apptainer": {"container": "apptainer", "container_image": "/i.sif"}}
    within |= {"none": {}, "wrap": {"wrap": ("apptainer", "exec", "/i.sif")}}
    slurm = SlurmConfig(python="/only/in/the/container/python", **within[container])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", outside)
        scripts = render(ClusterConfig(nodes=2, slurm=slurm), "array", Target(run.root, "toy", "n1"))
    rules = {name: {"": RequeueRules()} for name in ("master", "workers")}
    send_all(run, fake.commands(), write_intent(run, "n1", "array", scripts, rules))
    fake.run(100)
    fake.run(101)
    return script_path(run, "n1", "workers")


def execute_element_1(fake: FakeSlurm, script: Path, code: int) -> tuple[int, str]:
    """The batch script of job 102 = 101_1, whose process ends with this code: its exit code, and what it says."""
    srun = fake.bin / "srun"
    srun.write_text(f"#!/bin/bash\nexit {code}\n")
    srun.chmod(0o700)
    environ = fake.environment | {
        "SLURM_JOB_ID": "101", "SLURM_ARRAY_JOB_ID": "101", "SLURM_ARRAY_TASK_ID": "1", "SLURMD_NODENAME": "n1",
    }  # fmt: skip
    done = subprocess.run(["bash", script], env=environ, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def turns(fake: FakeSlurm) -> list[int | None]:
    """The elements that wait for another turn."""
    return [job["element"] for job in fake.state["jobs"] if job["past"] and job["state"] == "PENDING"]


@pytest.mark.parametrize(("code", "container"), [(75, "apptainer"), (137, "apptainer"), (75, "wrap")])
def test_a_container_has_its_own_python_and_the_one_that_submitted_decides_what_becomes_of_the_job(
    tmp_path: Path, code: int, container: str
) -> None:
    fake = FakeSlurm(tmp_path / "slurm")
    script = submitted_with(fake, tmp_path, sys.executable, container)
    assert "/only/in/the/container/python" in script.read_text()
    ended, said = execute_element_1(fake, script, code)
    assert ended == code and "the job is queued again" in said
    assert turns(fake) == [1]
    assert [path.name for path in (script.parent / "exits").iterdir()] == ["workers-1.101.0.json"]


@pytest.mark.parametrize("container", ["none", "apptainer"])
@pytest.mark.parametrize("lacks", ["hpcrl", "everything"])
@pytest.mark.parametrize("code", [0, 75, 76, 93, 137])
def test_on_a_node_where_no_python_has_hpcrl_who_was_interrupted_is_queued_again_alone(
    tmp_path: Path, code: int, lacks: str, container: str
) -> None:
    fake = FakeSlurm(tmp_path / "slurm")
    outside = tmp_path / "python"
    if lacks == "hpcrl":
        outside.write_text(f'#!/bin/bash\nexec {sys.executable} -IS "$@"\n')
        outside.chmod(0o700)
    ended, said = execute_element_1(fake, submitted_with(fake, tmp_path, str(outside), container), code)
    assert ended == code
    assert ("No such file" if lacks == "everything" or container == "none" else "No module named") in said
    assert turns(fake) == ([1] if code in (75, 76) else []), "one element, not the array that has its id"


def test_what_decides_needs_little_of_hpcrls_requirements() -> None:
    code = "import sys, hpcrl.launch.slurm.on_exit; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "msgspec" in loaded
    assert not loaded & {
        "submitit",
        "torch",
        "numpy",
        "h5py",
        "zmq",
        "networkx",
        "yaml",
        "jsonargparse",
        "rich",
        "transformers",
    }


def test_the_nodes_of_a_heterogeneous_job_do_not_inherit_the_masters_memory_and_cpus(tmp_path: Path) -> None:
    """srun takes SLURM_MEM_PER_* of the batch script, which are the first component's, for options of its own."""
    batch = Batch(tmp_path, "hetjob")
    batch.leave_all(0)
    batch.begin(SLURM_MEM_PER_CPU="2048", SLURM_CPUS_PER_TASK="2", SLURM_MEM_PER_NODE_HET_GROUP_1="65536")
    assert batch.end() == 0
    seen = (tmp_path / "environment-agent").read_text()
    assert "SLURM_MEM_PER_CPU=" not in seen and "SLURM_CPUS_PER_TASK=" not in seen
    assert "SLURM_MEM_PER_NODE_HET_GROUP_1=65536" in seen


def test_odd_characters_reach_the_process_as_they_are(tmp_path: Path) -> None:
    odd = """/scratch/it's "a" $HOME `x` \\ é %j @RUN@ run"""
    slurm = SlurmConfig(python=str(tmp_path / "python"))
    master, workers = render(ClusterConfig(nodes=2, slurm=slurm), "array", Target(Path(odd), "ppo", "0123abcd"))
    calls = tmp_path / "calls"
    for name in ("srun", "python"):
        text = f"#!/bin/bash\n(printf '%s\\0' {name} \"$@\"; echo) >> {shlex.quote(str(calls))}\n"
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o700)
    (tmp_path / "script").write_text(workers.text)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "77"}
    subprocess.run(["bash", "script"], env=environ, cwd=tmp_path, timeout=20, check=True)
    srun, after = (line.split("\0") for line in calls.read_bytes().decode().split("\0\n") if line)
    assert srun[-3:] == [odd, "0123abcd", "agent"]
    assert after == ["python", "-m", "hpcrl.launch.slurm.on_exit", odd, "0123abcd", "agent", "0"]
    assert '--chdir="/scratch/it\'s \\"a\\" $HOME `x` \\\\ é %j @RUN@ run/submission/0123abcd"' in master.text


@pytest.mark.parametrize(
    ("written", "cpus", "expected"),
    [("4G", 2, "2048M"), ("4G", 3, "1366M"), ("1500", 1, "1500M"), ("2048K", 4, "1M"), ("1t", 2, "524288M")],
)
def test_the_memory_of_a_first_component_is_asked_for_by_cpu(written: str, cpus: int, expected: str) -> None:
    """sbatch gives the --mem of a component to the next one, if that has none."""
    slurm = SlurmConfig(python="python", master_memory=written, master_cpus=cpus)
    text = render(ClusterConfig(nodes=2, slurm=slurm), "hetjob", Target(Path("/r"), "ppo", "n1"))[0].text
    assert f"#SBATCH --mem-per-cpu={expected}\n" in text.partition("hetjob\n")[0] and "--mem=" not in text
    whole = dataclasses.replace(slurm, master_memory="0")
    text = render(ClusterConfig(nodes=2, slurm=whole), "hetjob", Target(Path("/r"), "ppo", "n1"))[0].text
    assert "#SBATCH --mem=0\n" in text
