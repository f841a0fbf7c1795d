"""Nobody waits for a tokenizer to hear that a process is alive: a data set of 100,000 rows, all of them tokenised."""

import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from support.chaos import begin, create_run, outputs, rows_of, wait_until
from support.cluster import alive_of
from support.hosts import write_task

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.data import DataConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.data.indexes import ScratchIndexes
from hpcrl.data.rows.texts import TextDataset
from hpcrl.durable.records import Command
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.step_lines import StepLines
from hpcrl.errors import ExitCode
from hpcrl.master.members import Members
from hpcrl.master.reactor import Reactor
from hpcrl.master.schedule import RunSchedule
from hpcrl.master.stepping import StepSource, open_data
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig
from hpcrl.wire.messages import AgentHello, Message

ROWS = 100_000
HEARTBEAT_S = 1.0


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> SFTExperiment:
    """Every row is measured, and so are those of an evaluation. Who is not heard for two beats is lost."""
    folder = tmp_path_factory.mktemp("task")
    write_task(folder, ROWS)
    return SFTExperiment(
        control=ControlConfig(epochs=1, evaluate=Frequency(steps=10_000), checkpoint=Frequency(steps=10_000)),
        cluster=ClusterConfig(device="cpu", workers_per_node=1, heartbeat_s=HEARTBEAT_S, lost_after_s=2 * HEARTBEAT_S),
        data=DataConfig(
            train=str(folder / "rows.jsonl"),
            evaluate=str(folder / "held_out.jsonl"),
            batch_size=32,
            max_prompt_tokens=32,
        ),
        actor=SFTModelConfig(path=str(folder / "model")),
        generation=GenerationConfig(max_new_tokens=4),
    )


class Line:
    """Sockets, signals and commands of a reactor that nobody talks to. Notes when it beats."""

    caught = ""

    def __init__(self) -> None:
        self.beats: list[float] = []

    def receive(self, timeout_ms: int, _gather_s: float) -> list[tuple[bytes, Message]]:
        time.sleep(timeout_ms / 1000)
        return []

    def take_lost(self) -> list[str]:
        return []

    def send(self, _identity: bytes, _body: Message) -> None:
        self.beats.append(time.monotonic())

    def flush(self) -> None:
        pass

    def quiet(self) -> None:
        pass

    def poll(self, *_told: object) -> None:
        pass

    def close(self) -> None:
        pass


def test_while_a_master_tokenises_all_rows_its_beats_go_on(experiment: SFTExperiment) -> None:
    line = Line()
    members = Members(1, lost_after_s=1e9)
    members.agent(b"agent", AgentHello(0, "host", 1, 1))
    reactor = Reactor(line, members, line, line, experiment.cluster)  # type: ignore[arg-type]
    began = time.monotonic()
    data = reactor.while_beating(lambda: open_data(experiment, ScratchIndexes()))
    reactor.close()
    assert len(data.order.epoch(0)) == ROWS
    moments = [began, *line.beats, ended := time.monotonic()]
    # On a machine that has more to do everything takes longer. A master that does not beat meanwhile has one gap.
    assert max(after - before for before, after in pairwise(moments)) <= max(2 * HEARTBEAT_S, (ended - began) / 3)


def test_no_step_is_tokenised_on_the_thread_that_beats(
    experiment: SFTExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()
    encode = TextDataset._encode

    def noted(dataset: TextDataset, rows: list[str]) -> object:
        threads.add(threading.current_thread().name)
        return encode(dataset, rows)

    monkeypatch.setattr(TextDataset, "_encode", noted)
    # Without a bound, rows are tokenised when their step opens.
    experiment = replace(experiment, data=replace(experiment.data, max_prompt_tokens=None))
    line = Line()
    reactor = Reactor(line, Members(1, 1e9), line, line, experiment.cluster)  # type: ignore[arg-type]
    schedule = RunSchedule(experiment.control, evaluates=True)
    plan = plan_for(experiment, nodes=1)
    data = reactor.while_beating(lambda: open_data(experiment, ScratchIndexes()))
    source = reactor.while_beating(lambda: StepSource(plan, experiment, data, schedule, reactor.in_background, {}))
    lines = None
    for step in range(3):
        source.look_ahead(lines)
        wait_until(source.is_ready, 90, "the lengths")
        lines = StepLines(source.open(step, lines))
        for call in lines.opened.calls:
            source.parts(lines, call)
        source.shares(lines, "actor_train", [0] * len(lines.trained), 1)
    reactor.close()
    assert threads and all(name.startswith("slow") for name in threads)


@pytest.mark.timeout(900)
def test_no_process_of_a_run_is_silent_for_two_beats(tmp_path: Path, experiment: SFTExperiment) -> None:
    """On a machine that has much to do somebody may be silent once; who is silent while it tokenises always is."""
    assert any(nobody_is_missed(tmp_path / f"{turn}", experiment) for turn in range(3))


def nobody_is_missed(folder: Path, experiment: SFTExperiment) -> bool:
    folder.mkdir()
    run = create_run(folder / "run", experiment)
    jobs = begin(run, "first")
    try:
        wait_until(lambda: closed(run) or len(run.numbers()) > 1, 240, "the first step")
        run.publish_command(Command("stop", "first"))
        assert jobs.wait_for("master", 90) == ExitCode.NEVER_REQUEUE, outputs(run)
        jobs.wait(90)
    finally:
        jobs.kill_all()
    verdict = run.newest_verdict()
    assert verdict is not None and verdict.state == "stopped"
    assert alive_of(run.root) == []
    return run.numbers() == [0]


def closed(run: RunDirectory) -> bool:
    return any(row["event"] == "closed" for row in rows_of(run.events(0)))
