"""A model's parameters in hpcrl's space and in Hugging Face's, against what each kind of model reads of one folder."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_models import CONFIGS, tiny_config

from hpcrl.families.config import Adapters, DecoderConfig, HeadKind
from hpcrl.families.family import Parameter
from hpcrl.families.foreign import ForeignConfig, head_problem
from hpcrl.families.reader import parameters_of, read_config
from hpcrl.families.spaces import Translation, space_of, strange_tensor
from hpcrl.models.pretrained import load_adapters, load_pretrained, write_random_pretrained

MODELS: dict[str, Callable[..., DecoderConfig]] = {
    **CONFIGS,
    "untied": lambda: tiny_config(tied=False),
    "tied": lambda: tiny_config(tied=True),
}
HEADS: tuple[HeadKind, ...] = ("vocabulary", "value")


def folder_of(folder: Path, name: str) -> Path:
    write_random_pretrained(folder, MODELS[name](), 3)
    return folder


def loaded(
    folder: Path, kind: Any, head: HeadKind, adapters: Adapters | None = None
) -> tuple[DecoderConfig, dict[str, np.ndarray]]:
    """All parameters, or, where it has new adapters, these alone."""
    config, parameters = load_pretrained(folder, kind=kind, head=head, seed=5, trained=True)
    if adapters is not None:
        config = replace(config, adapters=adapters)
        parameters = load_adapters(config, None, seed=5)
    return config, {name: tensor.contiguous().numpy() for name, tensor in parameters}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", MODELS)
def test_parameters_of_one_space_are_made_of_the_others_to_the_bit(name: str, head: HeadKind, tmp_path: Path) -> None:
    """A new head among them, which begins with the same numbers in both."""
    folder = folder_of(tmp_path, name)
    theirs = read_config(folder, kind="transformers")
    assert isinstance(theirs, ForeignConfig)
    if head_problem(theirs, head):
        pytest.skip("transformers has no class for it")
    check_both_ways([loaded(folder, kind, head) for kind in ("own", "transformers")])


@pytest.mark.parametrize("name", ["qwen2", "gpt2", "gemma3"])
def test_new_adapters_are_those_of_the_other_space(name: str, tmp_path: Path) -> None:
    folder, adapters = folder_of(tmp_path, name), Adapters(3, 2.0)
    own, theirs = (loaded(folder, kind, "vocabulary", adapters) for kind in ("own", "transformers"))
    assert all(array.any() for name, array in own[1].items() if name.endswith("lora_A"))
    assert {array.shape for array in own[1].values()} == {array.shape for array in theirs[1].values()}
    check_both_ways([own, theirs])


def check_both_ways(spaces: list[Any]) -> None:
    for (source, given), (target, expected) in (spaces, spaces[::-1]):
        translation = Translation(source, target)
        asked: list[str] = []

        def read(parameter: Parameter, given: Any = given, asked: list[str] = asked) -> np.ndarray:
            asked.append(parameter.name)
            return given[parameter.name]

        found = {it.name: translation.make(it, read) for it in parameters_of(target)}
        assert found.keys() == expected.keys()
        for parameter in found:
            assert np.array_equal(found[parameter], expected[parameter]), parameter
            assert found[parameter].shape == expected[parameter].shape
        for of, to in translation.renamed.items():
            assert np.array_equal(given[of], expected[to]), (of, to)
        names = [it.name for it in translation.made]
        assert sorted([*translation.renamed.values(), *names]) == sorted(expected)


def test_most_of_gpt2_has_other_names_alone(tmp_path: Path) -> None:
    own, theirs = (loaded(folder_of(tmp_path, "gpt2"), kind, "vocabulary")[0] for kind in ("own", "transformers"))
    assert not Translation(own, theirs).made
    assert (space_of(own), space_of(theirs)) == ("own", "huggingface")


def test_a_reward_head_of_transformers_has_a_bias_that_ours_has_not(tmp_path: Path) -> None:
    own, theirs = (read_config(folder_of(tmp_path, "tied"), kind=kind) for kind in ("own", "transformers"))  # type: ignore[arg-type]
    assert not strange_tensor(own, theirs)
    assert strange_tensor(own.with_head("reward"), theirs.with_head("reward")) == "score.bias"
    assert strange_tensor(replace(own, vocabulary_size=7), theirs) == "model.embed_tokens.weight"
