"""Runs over mixtures of chats, tables and files, on real processes: killed, they read on where they were."""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from support.chaos import Remains, create_run, ends_alike, finish, outputs, remains
from support.faults import Strike
from support.hosts import write_task
from support.tiny_runs import tiny_cluster, tiny_control, tiny_data

from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import OptimizerConfig, ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.recipes.grpo import GRPOConfig, GRPOExperiment
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig

OPTIMIZER = OptimizerConfig(lr=0.01)
STEPS = 5
TEMPLATE = """
{%- for message in messages -%}
{%- if message.role == "assistant" -%}
{%- generation -%}# {{ message.content }}{{ eos_token }}{%- endgeneration -%}
{%- else -%}{{ message.content }}={%- endif -%}
{%- endfor -%}
"""
POINTS = [
    ("worker-1", "worker.call", 4, "KILL", "self"),
    ("master", "journal.after", 7, "KILL", "all"),
]
MORE = [
    ("worker-0", "worker.executed", 5, "KILL", "self"),
    ("worker-0", "shard.published", 1, "KILL", "agent-0"),
    ("master", "journal.before", 8, "KILL", "self"),
    ("master", "manifest.synced", 1, "KILL", "all"),
]
KINDS = ("chats", "prompts")
CASES = [
    pytest.param(kind, point, marks=() if (kind, point) == (KINDS[0], POINTS[0]) else pytest.mark.slow)
    for kind in KINDS
    for point in (*POINTS, *MORE)
]


def chat(number: int, turns: int) -> dict[str, Any]:
    """As many sums as turns, each answered."""
    messages = []
    for turn in range(turns):
        sums = (number % 10, (number + turn) % 10)
        messages += [
            {"role": "user", "content": f"{sums[0]}+{sums[1]}"},
            {"role": "assistant", "content": str(sum(sums))},
        ]
    return {"id": f"c{number}", "messages": messages}


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model; chats of one turn and more, in lines and in a table; prompts in lines, and in a folder of two tables."""
    folder = tmp_path_factory.mktemp("task")
    write_task(folder, rows=7)
    (folder / "chat.jinja").write_text(TEMPLATE)
    write_lines(folder / "chats.jsonl", (chat(i, 1 + i % 3) for i in range(6)))
    parquet.write_table(arrow.Table.from_pylist([chat(i, 2) for i in range(6, 11)]), folder / "chats.parquet")
    (folder / "tables").mkdir()
    for name, rows in (("a", range(20, 24)), ("b", range(24, 29))):
        table = [{"prompt": f"{i % 10}+{i % 7}=", "answer": f"# {i % 10 + i % 7}"} for i in rows]
        parquet.write_table(arrow.Table.from_pylist(table), folder / "tables" / f"{name}.parquet", row_group_size=2)
    return folder


def chats(task: Path) -> SFTExperiment:
    sources = {
        "short": {"path": str(task / "chats.jsonl"), "weight": 2.0},
        "long": {"path": str(task / "chats.parquet")},
    }
    return SFTExperiment(
        control=tiny_control(STEPS),
        cluster=tiny_cluster(),
        data=tiny_data(task, train=None, sources=sources, chat_template=str(task / "chat.jinja"), learn="all"),
        actor=SFTModelConfig(path=str(task / "model"), optimizer=OPTIMIZER),
        generation=GenerationConfig(max_new_tokens=4),
    )


def prompts(task: Path) -> GRPOExperiment:
    path = str(task / "model")
    sources = {"file": {"path": str(task / "rows.jsonl")}, "tables": {"path": str(task / "tables"), "weight": 1.5}}
    return GRPOExperiment(
        control=tiny_control(STEPS),
        cluster=tiny_cluster(),
        data=tiny_data(task, train=None, sources=sources, samples_per_prompt=2),  # type: ignore[arg-type]
        actor=TrainedModelConfig(path=path, optimizer=OPTIMIZER),
        reference=ReferenceConfig(path=path),
        reward=RewardConfig(function=f"{task / 'reward.py'}:ones"),
        generation=GenerationConfig(max_new_tokens=6, slots=8),
        grpo=GRPOConfig(minibatches=2),
    )


EXPERIMENTS: dict[str, Callable[[Path], Any]] = {"chats": chats, "prompts": prompts}


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Remains]:
    """By kind; each runs when it is first asked for."""

    def of(kind: str) -> Remains:
        run = create_run(tmp_path_factory.mktemp(kind) / "run", EXPERIMENTS[kind](task))
        assert finish(run) == [0], outputs(run)
        found = remains(run)
        order = [sample.partition("#")[0] for ids in found.ids.values() for sample in ids]
        read = {tuple(sample.replace("@", "/").split("/")[::2]) for sample in order}
        assert len({source for source, epoch in read if epoch != "0"}) == 2, (
            "every source is read in two epochs or more"
        )
        return found

    return cache(of)


@pytest.mark.parametrize(("kind", "point"), CASES)
def test_killed_at_a_point_it_ends_with_the_same_bits(
    tmp_path: Path, task: Path, undisturbed: Callable[[str], Remains], kind: str, point: tuple[str, str, int, str, str]
) -> None:
    role, at, nth, what, target = point
    run = create_run(tmp_path / "run", EXPERIMENTS[kind](task))
    strike = Strike(tmp_path, "strike", role, at, what, target, nth)
    ends_alike(run, undisturbed(kind), strike)
