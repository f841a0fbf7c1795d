"""What a run will write, as it is known before there is a run."""

from functools import partial

import pytest
from support.experiments import load_config, values_of, write_config, write_inputs
from support.tiny import CONFIG, native

from hpcrl.engines.composed import DTYPES
from hpcrl.families.reader import parameter_count
from hpcrl.placement.disk import STORED, estimate_disk
from hpcrl.placement.memory import state_size


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_checkpoint_has_as_many_bytes_as_the_engine_hands_over(dtype):
    arrays = native("vocabulary", DTYPES[dtype]).snapshot().arrays
    expected = parameter_count(CONFIG.with_head("vocabulary")) * STORED * state_size(dtype)
    assert sum(array.nbytes for array in arrays.values()) == pytest.approx(expected, rel=0.05)


def test_only_trained_roles_are_written_and_an_export_has_the_models_type(load):
    disk = estimate_disk(load("actor.dtype=bf16"))
    assert list(disk.checkpoint) == list(disk.export) == ["actor", "critic"]
    assert disk.checkpoint["actor"] == 6 * disk.export["actor"]
    assert disk.checkpoint["critic"] == 3 * disk.export["critic"]


def test_a_reference_that_follows_is_in_checkpoints_by_its_masters_alone_and_never_exported(load):
    still = estimate_disk(load("ppo.kl.mode=reward"))
    disk = estimate_disk(load("ppo.kl.mode=reward", "ppo.kl.reference_ema.decay=0.9", "reference.dtype=bf16"))
    assert disk.export == still.export and "reference" not in still.checkpoint
    assert disk.checkpoint == {**still.checkpoint, "reference": still.checkpoint["actor"] // STORED}


@pytest.mark.parametrize(
    ("overrides", "checkpoints", "exports", "spilled"),
    [
        (["control.steps=12"], 3, 1, None),
        (["control.steps=12", "control.keep_checkpoints=5", "control.checkpoint.steps=4"], 6, 1, 24),
        (["control.steps=12", "control.export.steps=4"], 3, 3, None),
        (["control.steps=13", "control.export.steps=4"], 3, 4, None),
        (["control.steps=12", "control.export.seconds=60"], 3, 1, None),
    ],
)
def test_what_lies_there_at_once_is_counted(load, overrides, checkpoints, exports, spilled):
    disk = estimate_disk(load(*overrides))
    assert (disk.checkpoints, disk.exports, disk.spilled) == (checkpoints, exports, spilled)
    whole = checkpoints * sum(disk.checkpoint.values()) + exports * sum(disk.export.values())
    archives = disk.steps * disk.archive["a step"]
    assert disk.most == whole + (spilled or 1) * disk.spill + archives > whole + archives > whole


def test_what_is_drawn_in_segments_is_spilled_twice(load):
    at_once, cut = estimate_disk(load()), estimate_disk(load("generation.segment=8"))
    tokens, samples = 4 + 4 + 1, load().data.batch_size  # a token, its log-probability, whether it is the last
    assert cut.spill - at_once.spill == samples * load().generation.max_new_tokens * tokens
    assert cut.archive == at_once.archive


def test_spills_of_steps_that_count_tokens_go_by_the_rows_that_a_step_has(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    values = values_of("generate")
    load = partial(load_config, write_config(tmp_path / "generate.yaml", values))
    counted = load(["data.batch_size=null", "data.batch_tokens=4096"])
    assert estimate_disk(counted, rows=8).spill == estimate_disk(load(["data.batch_size=8"])).spill > 0
    assert estimate_disk(counted, rows=16).spill == 2 * estimate_disk(counted, rows=8).spill


def test_archives_are_counted_by_the_samples_that_stay(load):
    counted = [
        estimate_disk(load(f"samples.per_step={wanted}")).archive.get("a step", 0) for wanted in ("1", "2", "all")
    ]
    assert 0 < 2 * counted[0] == counted[1] <= counted[2]
    evaluating = ("samples.per_step=0", "data.evaluate=rows.jsonl", "control.evaluate.steps=1")
    assert estimate_disk(load(*evaluating)).archive.keys() == {"an evaluation"}
    assert "of samples of a step, for good" in estimate_disk(load()).describe()
    assert estimate_disk(load("samples.per_step=0", "samples.per_evaluation=0")).archive == {}
