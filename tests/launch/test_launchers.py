"""What launchers declare, which one a name or `auto` means, and a run under one of the user's own."""

import subprocess
import sys

import pytest
from support.chaos import rows_of, wait_until
from support.cluster import is_alive
from support.experiments import load_config
from support.fake_slurm.cluster import FakeSlurm
from support.made_run import MadeRun, submit_with
from support.slurm_made import made_on_slurm

from hpcrl.config.cluster import Abilities, ClusterConfig
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, ExitCode, InternalError
from hpcrl.inspect.views.status import read_status
from hpcrl.launch.launcher import LAUNCHERS, Launchers, choose, declaration_of, launcher_problems
from hpcrl.launch.local import LocalLauncher
from hpcrl.launch.queues import LauncherQueues, has_queue, queue_of
from hpcrl.launch.slurm.launcher import SlurmLauncher
from hpcrl.plugins import load, names

TOY = "algorithm: toy\ncontrol: {steps: 2}\ncluster: {device: cpu, workers_per_node: 1, nodes: 2, type: mine.py:MINE}\n"
MINE = """
from hpcrl.config.cluster import Abilities
from hpcrl.launch.launcher import LauncherDeclaration
from hpcrl.launch.local import LocalLauncher

class Mine(LocalLauncher):
    def prepare(self, experiment):
        return experiment

class Clock:
    def __init__(self, run_dir, submission):
        self.asked = run_dir, submission
    def ends(self):
        return {0: 4e9}
    def replace_missing(self, missing):
        return {}

def abilities(cluster):
    return Abilities(replaces_nodes=cluster.nodes > 1)

MINE = LauncherDeclaration(
    launcher=f"{__file__}:Mine", allocation=f"{__file__}:Clock", abilities=abilities, waits=True
)
"""


def on_path(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_the_launchers_are_the_files_of_the_room_and_what_they_name_is_there():
    assert names(LAUNCHERS) == ("auto", "local", "slurm")
    for name in names(LAUNCHERS):
        declared = declaration_of(name)
        for path in (declared.launcher, declared.if_there, declared.allocation, declared.queue):
            assert not path or callable(load(path))


def test_reading_declarations_loads_no_executor():
    code = (
        "import sys\nfrom hpcrl.launch.launcher import LAUNCHERS, declaration_of\nfrom hpcrl.plugins import names\n"
        "[declaration_of(name) for name in names(LAUNCHERS)]\n"
        "print([name for name in sys.modules if name == 'submitit' or name.startswith('hpcrl.launch.slurm')])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_only_an_array_of_slurm_replaces_nodes_and_only_slurm_gives_each_agent_its_gpus():
    def abilities(name: str, **values: str) -> Abilities:
        return declaration_of(name).abilities(ClusterConfig(type=name, **values))

    assert abilities("slurm", topology="array") == Abilities(replaces_nodes=True, separates_gpus=True)
    assert abilities("slurm", topology="hetjob") == Abilities(separates_gpus=True)
    assert abilities("local", topology="array") == abilities("auto", topology="array") == Abilities()


def test_auto_is_slurm_where_one_answers_and_this_machine_elsewhere(tmp_path, monkeypatch):
    fake = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", str(tmp_path))
    chosen = choose("auto")
    assert isinstance(chosen.launcher, LocalLauncher) and chosen.why == "this machine: there is no sbatch in PATH"
    on_path(monkeypatch, fake.environment)
    chosen = choose("auto")
    assert isinstance(chosen.launcher, SlurmLauncher) and chosen.why == "slurm, which answers here"
    fake.away(600)
    with pytest.raises(ConfigurationError, match=r"Slurm does not answer .*--cluster slurm .*--cluster local"):
        choose("auto")
    assert isinstance(choose("local").launcher, LocalLauncher)


def test_a_name_that_is_none_is_refused_with_the_list_and_the_nearest(tmp_path):
    (tmp_path / "toy.yaml").write_text("algorithm: toy\ncontrol: {steps: 1}\ncluster: {type: slrum}\n")
    with pytest.raises(ConfigurationError) as refused:
        load_config(tmp_path / "toy.yaml", checks=(launcher_problems,))
    assert refused.value.problems == (
        "cluster.type = slrum must be one of auto, local, slurm, or file.py:NAME. Set cluster.type, probably to slurm.",
    )


def test_a_run_knows_who_started_each_submission_and_all_who_may_have(tmp_path):
    made = made_on_slurm(tmp_path / "run")
    submit_with(made.run, "later", {"cluster.type": "local", "cluster.topology": "auto"})
    made.run.record_submission("later", {"master": 1})
    launchers = Launchers(made.run)
    slurm, local = map(launchers.of, made.run.submissions())
    assert isinstance(slurm, SlurmLauncher) and isinstance(local, LocalLauncher)
    assert set(launchers.every()) == {slurm, local}


def test_only_runs_with_jobs_in_a_queue_are_asked_about(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    here, there = MadeRun(tmp_path / "here").run, made_on_slurm(tmp_path / "there").run
    assert not has_queue(here) and queue_of(here) is None
    queue = queue_of(there)
    assert queue is not None and queue.missing == "there is no squeue in PATH"
    assert not LauncherQueues().has("/gone/launcher.py:MINE")


def test_a_run_is_started_by_a_launcher_in_one_file_of_the_users(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "toy.yaml").write_text(TOY)
    words = [sys.executable, "-m", "hpcrl.cli.main", "submit", "toy.yaml", "--run-dir", "run"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
    run = RunDirectory.open(tmp_path / "run")
    assert run.configuration()["cluster"]["type"] == f"{run.code_copy(0)}{tmp_path}/mine.py:MINE"
    told = [row for row in rows_of(run.events(0)) if row["event"] == "allocation"]
    assert [row["ends"] for row in told] == [{"0": 4e9}]
    assert read_status(run.root, queue_of(run)).state == "done"


def test_jobs_that_could_not_be_started_say_why_without_a_word_from_their_process(tmp_path, monkeypatch):
    run = MadeRun(tmp_path).run
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(
        InternalError, match=r"could not be started:\n/bin/false -m hpcrl.launch.local .* ended with 1$"
    ):
        LocalLauncher().start(run, "nonce")


def test_what_a_starter_that_broke_off_has_started_is_ended(tmp_path, monkeypatch):
    starter = tmp_path / "starter"
    starter.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path}/pid\nkill -KILL $$\n")
    starter.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(starter))
    with pytest.raises(InternalError, match="ended with -9"):
        LocalLauncher().start(RunDirectory(tmp_path), "nonce")
    wait_until(lambda: not is_alive(int((tmp_path / "pid").read_text())), 30, "its end")
