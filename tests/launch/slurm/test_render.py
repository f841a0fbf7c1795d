"""What is sent to Slurm, against texts that were looked at. To renew them after a change: HPCRL_RENEW=1 pytest …"""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.slurm import SlurmConfig
from hpcrl.errors import ConfigurationError
from hpcrl.launch.slurm.render import TEMPLATES, Script, Target, Topology, choose_topology, read_template, render

GOLDEN = Path(__file__).parent / "golden"
TARGET = Target(Path("/scratch/runs/ppo-1"), "ppo", "0123abcd")
PLAIN = SlurmConfig(python="/opt/hpcrl/bin/python")
FULL = SlurmConfig(
    python="/opt/hpcrl/bin/python",
    account="lab-7",
    partition="gpu",
    master_partition="cpu",
    qos="normal",
    reservation="friday",
    constraint="a100&nvlink",
    exclude="node[13-14]",
    time="1-12:00:00",
    gpus="gres",
    gpu_type="a100",
    cpus_per_worker=8,
    memory="200G",
    mail_user="me@example.org",
    mail_type="END,FAIL",
    comment='it\'s "mine"',
    prologue=("module load cuda/12.4", 'export NCCL_DEBUG="WARN"'),
    export=("HF_HOME", "WANDB_API_KEY"),
    flags=("--switches=1@10:00", "--exclusive"),
    master_flags=("--nice=100",),
)
CASES: dict[str, tuple[Topology, ClusterConfig, Target]] = {
    "array": ("array", ClusterConfig(nodes=4, slurm=PLAIN), TARGET),
    "colocated": ("colocated", ClusterConfig(nodes=2, workers_per_node=8, slurm=PLAIN), TARGET),
    "hetjob": ("hetjob", ClusterConfig(nodes=4, workers_per_node=8, slurm=PLAIN), TARGET),
    "array-full": ("array", ClusterConfig(nodes=4, workers_per_node=8, threads_per_worker=2, slurm=FULL), TARGET),
    "hetjob-full": ("hetjob", ClusterConfig(nodes=4, workers_per_node=8, slurm=FULL), TARGET),
    "array-cpu": ("array", ClusterConfig(nodes=2, device="cpu", slurm=PLAIN), TARGET),
    "array-pyxis": (
        "array",
        ClusterConfig(
            nodes=2,
            slurm=dataclasses.replace(
                PLAIN, container="pyxis", container_image="/img/hpcrl a.sqsh", container_mounts=("/data:/data",)
            ),
        ),
        TARGET,
    ),
    "array-wrapped": (
        "array",
        ClusterConfig(
            nodes=2, slurm=dataclasses.replace(PLAIN, wrap=("apptainer", "exec", "--nv", "/img/my image.sif"))
        ),
        TARGET,
    ),
    "colocated-apptainer": (
        "colocated",
        ClusterConfig(
            nodes=2, slurm=dataclasses.replace(PLAIN, container="apptainer", container_image="/img/hpcrl.sif")
        ),
        dataclasses.replace(TARGET, code=Path("/scratch/runs/ppo-1/submission/0123abcd/code")),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_scripts_are_as_they_were_when_somebody_looked(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/opt/hpcrl/bin/python")
    topology, cluster, target = CASES[case]
    for script in render(cluster, topology, target):
        path = GOLDEN / f"{case}.{script.name}.sbatch"
        if os.environ.get("HPCRL_RENEW"):
            path.write_text(script.text)
        assert script.text == path.read_text(), path
        subprocess.run(["bash", "-n", path], check=True)


def scripts(topology: Topology, **changes: object) -> tuple[Script, ...]:
    cluster = ClusterConfig(nodes=2, slurm=dataclasses.replace(PLAIN, **changes))  # type: ignore[arg-type]
    return render(cluster, topology, TARGET)


@pytest.mark.parametrize("topology", TEMPLATES)
@pytest.mark.parametrize("container", ["none", "apptainer"])
def test_the_wrapper_comes_before_python_in_every_process_and_not_before_what_asks_slurm(
    topology: Topology, container: str
) -> None:
    sent = scripts(topology, wrap=("env", "A='1 2'", "$HOME"), container=container, container_image="/i.sif")
    lines = [line for script in sent for line in script.text.splitlines() if "hpcrl.launch.slurm.job" in line]
    assert len(lines) == 2
    assert all(line.count("""env 'A='"'"'1 2'"'"'' '$HOME' "$python" -m""") == 1 for line in lines)
    for script in sent:
        (on_exit,) = [line for line in script.text.splitlines() if "on_exit" in line]
        assert on_exit.startswith(f"{sys.executable} -m")


def test_an_own_template_is_used_and_refused_where_hpcrl_could_not_find_its_run(tmp_path: Path) -> None:
    own = tmp_path / "my.sbatch"
    own.write_text(read_template("array").replace("umask 077", "umask 027 # ours"))
    cluster = ClusterConfig(nodes=2, template=str(own), slurm=PLAIN)
    assert "umask 027 # ours" in render(cluster, "array", TARGET)[0].text
    own.write_text("#!/bin/bash\nrun=@RUN@\n")
    with pytest.raises(ConfigurationError, match=r"cluster\.template has no @OPTIONS@, @SUBMISSION@"):
        render(cluster, "array", TARGET)


def test_an_option_with_a_line_break_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="line break"):
        scripts("array", comment="a\n#SBATCH --wrap=rm")


@pytest.mark.parametrize(
    ("nodes", "asked", "expected"),
    [(1, "auto", "colocated"), (2, "auto", "array"), (1, "array", "array"), (8, "hetjob", "hetjob")],
)
def test_the_topology_is_chosen_with_a_reason(nodes: int, asked: str, expected: str) -> None:
    cluster = ClusterConfig(nodes=nodes, topology=asked)  # type: ignore[arg-type]
    topology, why = choose_topology(cluster)
    assert topology == expected and why


@pytest.mark.parametrize("topology", TEMPLATES)
def test_a_node_gets_cpus_for_its_cpu_workers_too_and_no_more_gpus(topology: Topology) -> None:
    cluster = ClusterConfig(nodes=2, workers_per_node=8, slurm=SlurmConfig(cpus_per_worker=3))
    without, with_ = ([script.text for script in render(cluster, topology, TARGET, others)] for others in (0, 2))
    assert [text.replace("-task=24", "-task=30") for text in without] == with_
    assert "--cpus-per-task=30" in with_[-1] and "--gpus-per-node=8" in with_[-1]
