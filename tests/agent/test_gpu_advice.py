"""Who follows what is said about GPUs gets further, by commands, with real agents and workers.

The driver is a stand-in: hpcrl asks it nothing but what pynvml passes on, and the toy host computes on no GPU.
"""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.chaos import rows_of, wait_until

from hpcrl.agent.claims import claims_folder
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode

TOY = """
algorithm: toy
control: {steps: 2}
cluster: {type: local, workers_per_node: 1, heartbeat_s: 0.2, lost_after_s: 10, orphan_timeout_s: 10}
"""
DRIVER = """
import glob, os, sys
from hpcrl.agent import claims, gpus
from support.gpus import NODES, FakeNode, FakeNvml, a100s
claims.LEAVE_S = 0.5
gpus.DEVICE_FILES = "DEVICES"
there = glob.glob(os.environ.get("LD_LIBRARY_PATH", "none") + "/libnvidia-ml.so.1")
sys.modules["pynvml"] = FakeNvml(FakeNode(a100s(*UUIDS)) if there else NODES["no library"])
"""
"""What Python executes first; the loader would look for the library as it does."""


@pytest.fixture
def uuids(tmp_path: Path) -> Iterator[list[str]]:
    """Two GPUs of the machine. Their claims are in the real place: nobody else has them."""
    made = [f"GPU-{uuid.uuid4()}" for _ in range(2)]
    (tmp_path / "toy.yaml").write_text(TOY)
    (tmp_path / "nvidia0").touch()
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "libnvidia-ml.so.1").touch()
    text = DRIVER.replace("UUIDS", str(made)).replace("DEVICES", str(tmp_path / "nvidia[0-9]*"))
    (tmp_path / "sitecustomize.py").write_text(text)
    yield made
    for name in made:
        (claims_folder() / f"{name}.lock").unlink(missing_ok=True)


def hpcrl(folder: Path, *words: str, gpus: str, library: Path | None = None) -> tuple[int, str]:
    """A command's exit code and what it said."""
    python_path = ":".join([str(folder), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environ = os.environ | {"PYTHONPATH": python_path, "CUDA_VISIBLE_DEVICES": gpus}
    environ |= {} if library is None else {"LD_LIBRARY_PATH": str(library)}
    command = [sys.executable, "-m", "hpcrl.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=folder, env=environ)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_run_gets_its_gpus_by_doing_what_it_is_told_until_nothing_is_left_to_tell(
    tmp_path: Path, uuids: list[str]
) -> None:
    there = partial(hpcrl, tmp_path, library=tmp_path / "driver")
    words = ("submit", "toy.yaml", "--run-dir", "long", "--control.steps", "5000", "--toy.delay_s", "0.1", "--detach")
    assert there(*words, gpus="0")[0] == ExitCode.DONE
    run = RunDirectory(tmp_path / "long")
    wait_until(lambda: run.numbers() and any(row["event"] == "closed" for row in rows_of(run.events(0))), 120, "a step")

    code, said = hpcrl(tmp_path, "submit", "toy.yaml", "--run-dir", "run", gpus="0")
    assert code == ExitCode.CONFIGURATION
    assert "Add its folder to LD_LIBRARY_PATH (to a container: --nv), or set cluster.device to cpu." in said

    code, said = there("submit", "toy.yaml", "--run-dir", "run", gpus="0")
    assert code == ExitCode.CONFIGURATION
    assert "End that run with `hpcrl stop`, or give each job its own GPUs (CUDA_VISIBLE_DEVICES; on Slurm, " in said

    code, said = there("resume", "run", "--cluster.workers_per_node", "2", gpus="1")
    assert code == ExitCode.CONFIGURATION
    assert (
        "Lower cluster.workers_per_node, ask for more GPUs (cluster.slurm.gpus), or set cluster.device to cpu" in said
    )

    assert there("stop", "long", "--now", gpus="0")[0] == ExitCode.DONE
    code, said = there("resume", "run", "--cluster.workers_per_node", "2", gpus="1,0")
    assert code == ExitCode.DONE, said
    newest = RunDirectory.open(tmp_path / "run")
    (forked,) = [row for row in rows_of(newest.worker_log(newest.numbers()[-1], "agent-0")) if row["event"] == "forked"]
    assert forked["uuids"] == uuids[::-1]
