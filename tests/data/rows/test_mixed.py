"""Several sources as one data set, against each alone."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from support.rows import open_datasets, open_order
from support.tiny_tokenizer import train_tokenizer

from hpcrl.config.control import ControlConfig
from hpcrl.config.data import DataConfig
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig


def of(folder: Path, **sources: int) -> SFTExperiment:
    texts = [f"{name} {i} + {i} =" for name, count in sources.items() for i in range(count)]
    tokenizer = train_tokenizer(folder / "tokenizer", texts)
    found = {}
    for number, (name, count) in enumerate(sources.items()):
        rows = [{"prompt": f"{name} {i} + {i} =" + " and" * i, "answer": str(2 * i)} for i in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        found[name] = {"path": str(folder / f"{name}.jsonl"), "weight": number + 1}
    data = DataConfig(sources=found, tokenizer=str(tokenizer), batch_size=6)
    return SFTExperiment(data=data, actor=SFTModelConfig(path="m"), control=ControlConfig(steps=3))


def alone(experiment: SFTExperiment, name: str) -> SFTExperiment:
    path = experiment.data.sources[name]["path"]
    return replace(experiment, data=replace(experiment.data, sources={}, train=path, batch_size=1))


def test_a_mixed_batch_has_the_rows_of_its_sources_in_order(tmp_path: Path) -> None:
    experiment = of(tmp_path, maths=5, code=4)
    training = open_datasets(experiment)["train"]
    assert len(training.ids) == 9 and {"maths/4", "code/0"} <= set(training.ids)
    order = open_order(experiment, training)
    for cursor in (0, 6, 12):
        batch = order.batch_at(cursor)
        assert sum(sample.startswith("code/") for sample in batch.ids) == 4
        rows = training.rows(batch.ids)
        assert rows.ids == batch.ids
        for i, sample in enumerate(batch.ids):
            name, _, own = sample.partition("/")
            source = open_datasets(alone(experiment, name))["train"]
            expected = source.rows([own])
            for key in expected.keys:
                np.testing.assert_array_equal(rows.rows(key)[i], expected.data[key])
            assert training.lengths([sample]) == source.lengths([own])
            assert training.text(sample) == source.text(own) | {"id": f"{name}/{own.partition('@')[0]}"}


def test_each_source_leaves_out_its_own_long_rows(tmp_path: Path) -> None:
    experiment = of(tmp_path, maths=5, code=4)
    longest = max(open_datasets(experiment)["train"].rows(["maths/4@0"]).length("prompts"))
    bounded = replace(experiment, data=replace(experiment.data, max_prompt_tokens=longest - 1))
    training = open_datasets(bounded)["train"]
    assert "maths/4" in training.left_out and "maths/4" not in training.ids
    assert "rows of data.sources.maths" in training.notice


def test_a_part_without_samples_has_a_batch_without_rows(tmp_path: Path) -> None:
    training = open_datasets(of(tmp_path, maths=5, code=4))["train"]
    assert training.rows([]).ids == () and training.lengths([]) == []
