"""Shards of one space read as those of the other: every element once, to the bit, of masters and of moments."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_models import CONFIGS, tiny_config

from hpcrl.durable.checkpoints import write_shard
from hpcrl.durable.files import DamagedFileError, Files
from hpcrl.durable.shards import Shard, WholeParameters, open_shard, span_state
from hpcrl.durable.translated import MadeShard, translated
from hpcrl.families.config import DecoderConfig
from hpcrl.families.places import Span, sliced
from hpcrl.families.reader import fingerprint, parameters_of, read_config
from hpcrl.families.spaces import Translation
from hpcrl.models.pretrained import write_random_pretrained
from hpcrl.placement.layouts import parse_layout
from hpcrl.placement.shards import cut_of, held

MODELS = {"qwen2": tiny_config, "mixtral": CONFIGS["mixtral"]}
ARRAYS = ("master", "first", "second")


def spaces(folder: Path, name: str) -> tuple[DecoderConfig, DecoderConfig]:
    write_random_pretrained(folder, MODELS[name](), 3)
    return read_config(folder, kind="own"), read_config(folder, kind="transformers")


def numbers_of(config: DecoderConfig) -> dict[str, dict[str, np.ndarray]]:
    draw = np.random.default_rng(7)
    return {
        array: {it.name: draw.standard_normal(it.shape, np.float32) for it in parameters_of(config)} for array in ARRAYS
    }


def saved(folder: Path, config: DecoderConfig, layout: str, numbers: Any) -> list[Shard]:
    """What the ranks of a layout write of the parameters that they own."""
    cut, files, shards = parse_layout(layout), Files(folder), list[Shard]()
    for rank in range(cut.size):
        spans: list[Span] = []
        buffers: dict[str, list[np.ndarray]] = {array: [] for array in ARRAYS}
        for part in held(config, cut_of(cut, rank)):
            begin = sum(map(len, buffers["master"]))
            spans += [span.moved(begin) for span in part.spans if span.owned]
            for array, of_array in buffers.items():
                of_array.append(flat := np.zeros(part.parameter.numel, np.float32))
                for span in part.spans:
                    theirs = numbers[array][part.parameter.name].reshape(-1)
                    for row in range(span.place.rows):
                        here, there = span.offset + row * span.step, span.place.first + row * span.place.stride
                        flat[here : here + span.place.run] = theirs[there : there + span.place.run]
        length, data = sum(map(len, buffers["master"])), rank // cut.tp % cut.dp
        start, stop = (length * part // cut.dp for part in (data, data + 1))
        arrays = {array: np.concatenate(of_array)[start:stop] for array, of_array in buffers.items()}
        state = {"spans": span_state(sliced(spans, start, stop)), "shapes": fingerprint(parameters_of(config))}
        shards.append(open_shard(folder / write_shard(files, folder, "actor", rank, arrays, state).name))
    return shards


@pytest.mark.parametrize("layout", ["d1", "d3t2p2"])
@pytest.mark.parametrize("name", MODELS)
def test_what_any_layout_wrote_is_read_in_the_other_space(name: str, layout: str, tmp_path: Path) -> None:
    own, theirs = spaces(tmp_path / "model", name)
    numbers, there = numbers_of(own), Translation(own, theirs)
    shards = translated(saved(tmp_path, own, layout, numbers), there)
    assert {shard.state["space"] for shard in shards} == {"huggingface"}
    assert {shard.state["shapes"] for shard in shards} == {fingerprint(parameters_of(theirs))}
    assert sum(span.place.numel for shard in shards for span in shard.spans) == sum(
        parameter.numel for parameter in parameters_of(theirs)
    )
    found: dict[str, dict[str, np.ndarray]] = {}
    for array in ARRAYS:
        whole = WholeParameters(shards, array)
        found[array] = {it.name: whole.read(it) for it in parameters_of(theirs)}
        for it in parameters_of(theirs):
            expected = there.make(it, lambda of, array=array: numbers[array][of.name])
            assert np.array_equal(found[array][it.name], expected), it.name
    (tmp_path / "back").mkdir()
    back = translated(saved(tmp_path / "back", theirs, "d3", found), Translation(theirs, own))
    for array in ARRAYS:
        whole = WholeParameters(back, array)
        for it in parameters_of(own):
            assert np.array_equal(whole.read(it), numbers[array][it.name]), it.name


def test_a_parameter_of_each_space_is_kept_for_each_array_and_no_more(tmp_path: Path) -> None:
    own, theirs = spaces(tmp_path / "model", "qwen2")
    *_, made = translated(saved(tmp_path, own, "d2", numbers_of(own)), Translation(own, theirs))
    assert isinstance(made, MadeShard)
    for span in made.spans:
        for array in ARRAYS:
            assert len(made.read(array, span.offset, span.stop)) == span.place.numel
    assert made._made.keys() == set(ARRAYS)
    assert {number for number, _ in made._made.values()} == {len(made.spans) - 1}


def test_shards_that_lack_some_or_are_of_another_model_are_told(tmp_path: Path) -> None:
    own, theirs = spaces(tmp_path / "model", "qwen2")
    shards = saved(tmp_path, own, "d2", numbers_of(own))
    *_, made = translated(shards[1:], Translation(own, theirs))
    with pytest.raises(DamagedFileError, match="of the role's shards are needed"):
        made.read("master", 0, 1)
    other = [replace(shard, state={**shard.state, "shapes": "another"}) for shard in shards]  # type: ignore[type-var]
    assert {shard.state["shapes"] for shard in translated(other, Translation(own, theirs))} == {"another"}
