"""Every shipped sbatch template, as `hpcrl template` prints it, carries a run on the real Slurm."""

import json
import stat
from pathlib import Path

import pytest
from support.slurm_cluster import SlurmCluster
from support.slurm_runs import SlurmRun, hpcrl, toy_values

from hpcrl.launch.slurm.render import TEMPLATES

pytestmark = pytest.mark.slurm


def short(topology: str, **cluster: object) -> dict[str, object]:
    values = toy_values("low", topology=topology, nodes=2, **cluster)
    values["control"] = {"steps": 2}
    values["toy"] |= {"delay_s": 0.0}
    return values


WRAPPER = """#!/bin/bash
echo "$@" >> {calls}.$$
exec "${@:2}"
"""
"""What containers' programs do: it has an option of its own, and becomes the rest."""


@pytest.mark.parametrize("topology", TEMPLATES)
def test_a_template_that_a_user_has_edited_carries_a_run_in_a_wrapper(slurm: SlurmCluster, topology: str) -> None:
    wrapper, calls = slurm.directory / "my wrapper", slurm.directory / "calls"
    wrapper.write_text(WRAPPER.replace("{calls}", str(calls)))
    wrapper.chmod(0o700)
    own = slurm.directory / 'it\'s "my" own.sbatch'
    printed = hpcrl(slurm, "template", topology).stdout
    own.write_text(printed.replace("umask 077", "umask 077\necho this is mine"))
    values = short(topology, template=str(own))
    values["cluster"]["slurm"]["wrap"] = [str(wrapper), "--nv"]
    run = SlurmRun.submit(slurm, values)
    run.wait_done()
    called = [path.read_text().split() for path in slurm.directory.glob("calls.*")]
    assert sorted(words[-1] for words in called) == ["agent", "agent", "master"]
    assert all(words[0] == "--nv" and "hpcrl.launch.slurm.job" in words for words in called)
    outputs = [path.read_text() for path in run.run.submission.glob("*/*.out")]
    assert outputs and all("this is mine" in text for text in outputs)


def test_a_wrapper_that_a_node_lacks_is_named_and_the_run_ends(slurm: SlurmCluster) -> None:
    values = short("colocated")
    values["cluster"]["slurm"]["wrap"] = ["apptainer-of-nowhere", "exec", "image.sif"]
    run = SlurmRun.submit(slurm, values)
    (job,) = run.jobs("run")
    assert slurm.wait_ended(job) == {job: "FAILED"}
    (output,) = run.run.submission.glob("*/run-*.out")
    assert "cluster.slurm.wrap: there is no apptainer-of-nowhere on" in output.read_text()


@pytest.mark.slow
def test_a_script_can_be_sent_again_by_hand_and_nobody_else_reads_what_jobs_say(slurm: SlurmCluster) -> None:
    run = SlurmRun.submit(slurm, short("colocated"))
    run.wait_done()
    (script,) = run.run.submission.glob("*/run.sbatch")
    job = slurm.run(["sbatch", "--parsable", str(script)]).stdout.strip()
    assert slurm.wait_ended(job) == {job: "COMPLETED"}
    (output,) = run.run.submission.glob(f"*/run-{job}.out")
    assert "nothing to do: done" in output.read_text()
    for path in (run.run.root, *run.run.root.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_names_with_odd_characters_are_safe(slurm: SlurmCluster) -> None:
    odd = slurm.directory / 'it\'s a "run" with $HOME & é'
    odd.mkdir()
    slurm.directory = odd
    values = short("array")
    values["cluster"]["slurm"]["comment"] = 'for "us"; rm -rf $HOME'  # type: ignore[index]
    run = SlurmRun.submit(slurm, values)
    run.wait_done()
    assert run.run.root == odd / "run"


def test_a_dry_run_sends_and_makes_nothing(slurm: SlurmCluster) -> None:
    config = slurm.directory / "run.json"
    config.write_text(json.dumps(short("array")))
    said = hpcrl(slurm, "submit", str(config), "--dry-run").stdout
    assert "topology array: cluster.topology = array" in said and "calls of Slurm: 2 made now, 2 to send" in said
    assert "#SBATCH --array=0-1" in said and "GraceTime is 0" in said
    assert sorted(path.name for path in Path(slurm.directory).iterdir()) == ["run.json"]
    assert slurm.squeue("jobid", "--states=PENDING,RUNNING") == []


def test_a_chain_goes_on_where_the_link_before_was_preempted(slurm: SlurmCluster) -> None:
    own = slurm.directory / "chain.sbatch"
    own.write_text(hpcrl(slurm, "template", "chain").stdout)
    values = short("colocated", template=str(own))
    values["control"] = {"steps": 12}
    values["toy"] |= {"delay_s": 0.15}  # type: ignore[operator]
    run = SlurmRun.submit(slurm, values)
    (script,) = run.run.submission.glob("*/run.sbatch")
    links = [slurm.run(["sbatch", "--parsable", str(script)]).stdout.strip() for _ in range(3)]
    run.wait_steps(2)
    (first,) = run.jobs("run")
    with slurm.preempt(slurm.job_nodes(first)[-1]):
        run.wait_steps(2)
    assert slurm.state(first) == "PREEMPTED"
    run.wait_done()
    assert set(slurm.wait_ended(*links).values()) == {"COMPLETED"}
    assert sorted(run.run.numbers()) == [0, 1]


@pytest.mark.parametrize(("memory", "mib"), [(None, 4000), ("0", 16000)])
def test_the_nodes_of_a_heterogeneous_job_have_their_own_memory_and_not_the_masters(
    slurm: SlurmCluster, memory: str | None, mib: int
) -> None:
    """The site's DefMemPerCPU (2000M) for two CPUs, or the whole node; in the allocation and in the agents' step."""
    values = short("hetjob")
    values["cluster"]["slurm"] |= {"memory": memory, "master_memory": "1500M"}  # type: ignore[index]
    run = SlurmRun.submit(slurm, values)
    run.wait_done()
    (job,) = run.jobs("run")
    shape = ["--noheader", "--parsable2", "--format=JobID,AllocTRES"]
    lines: list[str] = []

    def complete() -> bool:
        lines[:] = slurm.run(["sacct", f"--jobs={job}", *shape]).stdout.split()
        return len(lines) == 5

    slurm.wait(complete, "two components, the batch step and a step in each, once the accounting knows", 60)
    memories: dict[str, set[str]] = {}
    for name, _, tres in (line.partition("|") for line in lines):
        memories.setdefault(name.partition(".")[0], set()).add(tres.partition("mem=")[2].partition(",")[0])
    assert memories == {f"{job}+0": {"1500M"}, f"{job}+1": {f"{2 * mib}M"}}
