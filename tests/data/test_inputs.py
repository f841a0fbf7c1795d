import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.rows import fingerprints

from hpcrl.config.data import DataConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.errors import DataError
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig
from hpcrl.recipes.toy import ToyExperiment


@pytest.fixture
def experiment(tmp_path: Path) -> SFTExperiment:
    for name in (
        "model/config.json",
        "model/tokenizer.json",
        "model/tokenizer_config.json",
        "train.jsonl",
        "test.jsonl",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "model/model.safetensors").write_bytes(b"begin" + bytes(9 << 20) + b"end")
    return SFTExperiment(
        data=DataConfig(train=str(tmp_path / "train.jsonl"), evaluate=str(tmp_path / "test.jsonl"), batch_size=1),
        actor=SFTModelConfig(path=str(tmp_path / "model")),
        reward=RewardConfig(function="gsm8k"),
    )


CHANGES: dict[str, set[str]] = {
    "train.jsonl": {"data.train"},
    "test.jsonl": {"data.evaluate"},
    "model/tokenizer.json": {"data.tokenizer"},
    "model/tokenizer_config.json": {"data.tokenizer"},
    "model/config.json": {"actor.path", "data.tokenizer"},
    "model/model.safetensors": {"actor.path"},
}


@pytest.mark.parametrize("file", CHANGES)
def test_a_changed_byte_changes_the_fingerprint_of_its_settings_alone(
    experiment: SFTExperiment, tmp_path: Path, file: str
) -> None:
    before = fingerprints(experiment)
    content = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(b"X" + content[1:])
    after = fingerprints(experiment)
    assert before.keys() == after.keys() == set().union(*CHANGES.values())
    assert {name for name in before if before[name] != after[name]} == CHANGES[file]


def test_any_other_byte_of_the_weights_and_another_file_are_seen(experiment: SFTExperiment, tmp_path: Path) -> None:
    before = fingerprints(experiment)
    weights = tmp_path / "model/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"X")
    changed = fingerprints(experiment)["actor.path"]
    assert changed != before["actor.path"]
    weights.write_bytes(weights.read_bytes()[: 5 << 20] + b"X" + weights.read_bytes()[(5 << 20) + 1 :])
    middle = fingerprints(experiment)["actor.path"]
    assert middle != changed
    (tmp_path / "model/more.safetensors").touch()
    assert fingerprints(experiment)["actor.path"] != middle


def test_a_file_that_begins_to_say_what_ends_a_text_is_seen(experiment: SFTExperiment, tmp_path: Path) -> None:
    before = fingerprints(experiment)
    (tmp_path / "model/generation_config.json").write_text('{"eos_token_id": 3}')
    assert {name for name, found in fingerprints(experiment).items() if found != before[name]} == {"data.tokenizer"}


def test_times_and_folders_are_not_part_of_a_fingerprint(experiment: SFTExperiment, tmp_path: Path) -> None:
    before = fingerprints(experiment)
    os.utime(tmp_path / "train.jsonl", (1, 1))
    assert fingerprints(experiment) == before


@pytest.mark.parametrize("function", ["gsm8k", "exact"])
def test_hpcrls_own_functions_and_made_up_data_have_none(experiment: SFTExperiment, function: str) -> None:
    assert "reward.function" not in fingerprints(replace(experiment, reward=RewardConfig(function=function)))
    assert fingerprints(ToyExperiment()) == {}


def test_an_installed_function_is_an_input_and_what_is_the_users_own_is_not(
    experiment: SFTExperiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "judge").mkdir()
    (tmp_path / "judge/__init__.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(tmp_path)
    for function in ("judge:score", f"{tmp_path}/judge:score", f"{tmp_path}/judge/__init__.py:score", "nowhere:score"):
        assert "reward.function" not in fingerprints(replace(experiment, reward=RewardConfig(function=function)))
    found = fingerprints(replace(experiment, reward=RewardConfig(function="json.decoder:score")))
    assert found["reward.function"].startswith("decoder.py")
    assert "judge" not in sys.modules


def test_a_file_that_cannot_be_read_is_named_with_its_setting(experiment: SFTExperiment, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").unlink()
    with pytest.raises(DataError, match=r"cannot read .*train.jsonl: No such file.*another data\.train"):
        fingerprints(experiment)
