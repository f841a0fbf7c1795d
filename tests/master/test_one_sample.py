"""One sample and one request on their way through a real run of PPO, with two nodes of two workers."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest
from support.chaos import begin, create_run, outputs
from support.cluster import alive_of
from support.hosts import write_task
from support.stations import STATIONS, Fact, Following, passages

import hpcrl
from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig
from hpcrl.config.data import DataConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.data.samples import SampleMeta
from hpcrl.durable.archives import read_archive
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Archived, Closed, Compacted, Done, Opened, Trained
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.spills import group_name, read_spill
from hpcrl.recipes.ppo import CriticConfig, PPOConfig, PPOExperiment
from hpcrl.wire.messages import Reply
from hpcrl.wire.peer_messages import Rows

STEP, GENERATE, TRAIN = 1, "actor_gen", ("actor_train", "critic_train")

NEXT = {
    "row": ["opened"],
    "opened": ["part"],
    "part": ["request"],
    "request": ["syn"],
    "syn": ["ack"],
    "ack": ["execute"],
    "execute": ["memory"],
    "memory": ["reply", "spill"],
    "reply": ["heard"],
    "heard": ["fetch", "line"],
    "fetch": ["train step"],
    "spill": ["line"],
    "line": ["closed"],
    "train step": ["closed"],
    "closed": ["archived", "forgotten"],
    "archived": ["compacted"],
}
"""What follows each station. Spill and line wait for no reader, forgotten does not wait for compacted."""


def experiment(task: Path) -> PPOExperiment:
    """The actor generates on the first node; who reads its rows is on the second."""
    model = str(task / "model")
    return PPOExperiment(
        control=ControlConfig(steps=2),
        cluster=ClusterConfig(nodes=2, workers_per_node=2, device="cpu", lost_after_s=60.0, orphan_timeout_s=60.0),
        data=DataConfig(train=str(task / "rows.jsonl"), batch_size=4),
        actor=TrainedModelConfig(path=model, mesh="0-1"),
        critic=CriticConfig(path=model, mesh="2-3"),
        reference=ReferenceConfig(path=model, mesh="2-3"),
        reward=RewardConfig(function=f"{task / 'reward.py'}:ones", mesh="3"),
        generation=GenerationConfig(max_new_tokens=6),
        ppo=PPOConfig(minibatches=2),
    )


@dataclass(frozen=True)
class Way:
    """One sample's way: the passages of each station that were its own.

    Of the peers' fetches the first; of the looks at the row, which is tokenised a step ahead, the last.
    """

    run: RunDirectory
    sample: str
    unit: Fact
    passed: dict[str, list[Fact]]

    def one(self, station: str) -> Fact:
        (found,) = self.passed[station]
        return found


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    folder = tmp_path_factory.mktemp("way")
    write_task(folder)
    run = create_run(folder / "run", experiment(folder))
    jobs = begin(run, "first", Following(folder), nodes=2)
    codes = jobs.wait(120)
    assert set(codes.values()) == {0}, outputs(run)
    assert alive_of(run.root) == []
    yield follow(run, passages(folder))


def follow(run: RunDirectory, noted: list[Fact]) -> Way:
    """The way of the first sample of the step: by its id, then by the unit that makes it and by the unit's request."""
    sample = next(fact for fact in noted if fact["station"] == "opened" and fact["step"] == STEP)["ids"][0]
    made = {"step": STEP, "call": GENERATE}
    (part,) = [
        fact for fact in noted if fact["station"] == "part" and made.items() <= fact.items() and holds(fact, sample)
    ]
    unit = made | {"part": part["part"]}
    (request,) = [fact for fact in noted if fact["station"] == "request" and unit.items() <= fact.items()]
    head, number = request["who"], request["request"]
    spill = run.files.name(run.spill(STEP, GENERATE, unit["part"], attempt=0))

    def is_its_own(fact: Fact) -> bool:
        match fact["station"]:
            case "row" | "opened":
                return holds(fact, sample)
            case "syn" | "ack" | "reply" | "heard":
                return fact["request"] == number
            case "memory" | "fetch" | "execute":
                return made.items() <= fact.items() and holds(fact, sample)
            case "part" | "request" | "line":
                return unit.items() <= fact.items()
            case "train step":
                return fact["step"] == STEP and fact["call"] in TRAIN and holds(fact, sample)
            case "spill":
                return fact["file"] == spill
            case "forgotten":
                return fact["before"] > STEP and fact["who"] == head
            case _:
                return fact["step"] == STEP

    own = [fact for fact in noted if is_its_own(fact)]
    passed = {name: [fact for fact in own if fact["station"] == name] for name in STATIONS}
    return Way(run, sample, unit, passed | {"fetch": passed["fetch"][:1], "row": passed["row"][-1:]})


def holds(fact: Fact, sample: str) -> bool:
    return sample in fact["ids"]


def test_a_sample_passes_every_station_in_their_order(way: Way) -> None:
    assert [name for name, facts in way.passed.items() if not facts] == []
    for earlier, stations in NEXT.items():
        for later in stations:
            ready, next_at = way.passed[earlier][-1]["at"], way.passed[later][0]["at"]
            assert ready < next_at, f"{later} came {ready - next_at:.6f} s before {earlier}"
    assert {name for name in STATIONS if name not in NEXT} == {"compacted", "forgotten"}


def test_each_station_is_passed_once_by_who_it_belongs_to(way: Way) -> None:
    head = way.one("request")["who"]
    assert head in ("worker-0", "worker-1")
    of_the_head = ("ack", "execute", "memory", "reply", "fetch", "spill")
    assert {way.one(name)["who"] for name in of_the_head} == {head}
    of_the_master = ("row", "opened", "part", "syn", "heard", "line", "closed")
    assert {way.one(name)["who"] for name in of_the_master} == {"master"}
    assert {way.one(name)["who"] for name in ("archived", "compacted")} == {"housekeeper-0"}
    assert sorted(fact["call"] for fact in way.passed["train step"]) == sorted(TRAIN)
    assert way.one("request")["holders"] == ["InDataset"]


def test_the_journal_has_the_lines_of_the_way_in_their_order(way: Way) -> None:
    events = [line.event for line in read_history(way.run).lines]

    def place(kind: type, **fields: object) -> int:
        (found,) = [
            index
            for index, event in enumerate(events)
            if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())
        ]
        return found

    opened, closed = (place(kind, step=STEP) for kind in (Opened, Closed))
    line = place(Done, **way.unit)
    trained = [place(Trained, step=STEP, call=call) for call in TRAIN]
    assert (
        opened < line < min(trained) <= max(trained) < closed < place(Archived, step=STEP) < place(Compacted, step=STEP)
    )


def test_metadata_is_built_once_and_never_converted(way: Way) -> None:
    """One object in the worker's memory, reply and spill; one type there, in the master, on the wire and on disk."""
    told = [fact for facts in way.passed.values() for fact in facts if fact.get("meta")]
    assert {fact["meta_type"] for fact in told} == {f"{SampleMeta.__module__}.{SampleMeta.__qualname__}"}
    assert len({way.one(name)["meta_object"] for name in ("memory", "reply", "spill")}) == 1
    assert way.one("heard")["meta"] == way.one("reply")["meta"]
    compacted = way.run.root / way.one("compacted")["file"]
    _, kept = read_archive(way.run.root / way.one("archived")["file"])
    assert way.sample in kept["train"].ids
    on_disk = read_spill(compacted, group_name(GENERATE, way.unit["part"])).meta
    assert on_disk == msgspec.convert(way.one("heard")["meta"], SampleMeta)


def test_nothing_else_describes_samples() -> None:
    assert get_type_hints(Reply)["meta"] == get_type_hints(Rows)["meta"] == SampleMeta | None
    trees = [ast.parse(path.read_text()) for path in Path(hpcrl.__path__[0]).rglob("*.py")]
    classes = [node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert sorted(name for name in classes if name.endswith("Meta")) == ["KeyMeta", "SampleMeta"]
