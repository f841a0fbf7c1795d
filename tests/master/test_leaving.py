"""What a master that leaves does, in this order."""

from pathlib import Path

import pytest
from support.chaos import begin, create_run, outputs, toy_experiment
from support.faults import WaitsForAll
from support.hosts import write_task

from hpcrl.config.cluster import Abilities
from hpcrl.config.control import ControlConfig
from hpcrl.config.data import DataConfig
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Archived, Stopped
from hpcrl.durable.records import Command, Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.master.master import Master
from hpcrl.processes import Signals
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig
from hpcrl.wire.address import Network
from hpcrl.wire.channel import Hub
from hpcrl.wire.messages import AgentHello, Finish, Message


def test_the_verdict_is_on_disk_before_anybody_is_told_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is told asks what became of the run, and a master that is killed in between has told nobody."""
    run = create_run(tmp_path / "run", toy_experiment())
    seen: list[Verdict | None] = []

    def send(_hub: Hub, _identity: bytes, body: Message) -> None:
        if isinstance(body, Finish):
            seen.append(run.read_verdict(0))

    monkeypatch.setattr(Hub, "send", send)
    signals = Signals()
    try:
        master = Master(run, "first", signals, Network(), Abilities())
        master._reactor.members.agent(b"agent-0", AgentHello(0, "host", 8, 1))
        run.publish_command(Command("drain", "first"))
        assert master.serve_run() == ExitCode.NEVER_REQUEUE
    finally:
        signals.close()
    assert [verdict and verdict.state for verdict in seen] == ["stopped"]


def test_when_a_run_is_over_everybody_of_a_node_leaves_by_himself(tmp_path: Path) -> None:
    """Workers and whoever did its chores: an agent that had to kill one would have waited for that first."""
    run = create_run(tmp_path / "run", toy_experiment(lost_after_s=60.0, start_timeout_s=60.0))
    jobs = begin(run, "first", WaitsForAll())
    assert jobs.wait(90) == {"master": 0, "agent-0": 0}, outputs(run)
    assert any(isinstance(line.event, Archived) for line in read_history(run).lines), "there were chores"


def serve(run: RunDirectory) -> ExitCode:
    """A master of this run, whom nobody comes to."""
    signals = Signals()
    try:
        return Master(run, "first", signals, Network(), Abilities()).serve_run()
    finally:
        signals.close()


def test_a_plan_is_made_once_its_nodes_are_there_and_not_before(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", toy_experiment(start_timeout_s=0.2))
    assert serve(run) == ExitCode.REQUEUE
    verdict = run.read_verdict(0)
    assert verdict is not None and verdict.state == "incomplete" and "missing: [0]" in verdict.reason
    assert run.adopted(0).exists() and not run.plan(0).exists()
    assert any(isinstance(line.event, Stopped) for line in read_history(run).lines)


def test_a_data_set_that_is_gone_when_the_run_starts_is_told_in_the_verdict(tmp_path: Path) -> None:
    write_task(tmp_path)
    experiment = SFTExperiment(
        control=ControlConfig(steps=1),
        data=DataConfig(train=str(tmp_path / "rows.jsonl"), batch_size=4),
        actor=SFTModelConfig(path=str(tmp_path / "model")),
    )
    run = create_run(tmp_path / "run", experiment)
    (tmp_path / "rows.jsonl").unlink()
    assert serve(run) == ExitCode.DATA
    verdict = run.read_verdict(0)
    assert verdict is not None and verdict.state == "failed" and verdict.exit_code == ExitCode.DATA
    assert "Make it readable, or submit a new run with another data.train." in verdict.reason
