"""Classifiers of the families that we know, as transformers writes them: their scores in any layout, what is learnt."""

import itertools
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.covering import covering
from support.layouts import OPTIMIZER, PROMPTS, RESPONSES, groups_in
from support.pool import gloo_pool
from support.tiny import WITH_NOBODY, engine_of
from support.tiny_models import FAMILIES, hugging_face_model
from support.wide import Wide

from hpcrl.algos.functional.preferences import bradley_terry_loss, sides
from hpcrl.config.classifier import ClassifierConfig
from hpcrl.engines.engine import Columns, Objective, Predictions, Sequences, Update
from hpcrl.engines.flat import new_model
from hpcrl.models.pretrained import save_pretrained
from hpcrl.parallel.replica import ReplicaGroups
from hpcrl.placement.judges import whole_because
from hpcrl.placement.layouts import Layout, parse_layout

ONE_LABEL = {"num_labels": 1, "pad_token_id": 0}
TEXTS = [[*prompt.tolist(), *response.tolist()] for prompt, response in zip(PROMPTS, RESPONSES, strict=True)]
PAIRS = Sequences.from_rows(
    PROMPTS, RESPONSES, labelled="after", samples=np.arange(len(PROMPTS)) // 2, counted=np.ones(len(PROMPTS), np.bool_)
)


@pytest.fixture(scope="module")
def pool():
    with gloo_pool(4) as ranks:
        yield ranks


def judge(folder: Path, family: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    model = hugging_face_model(family, "SequenceClassification", **(ONE_LABEL | changes))
    model.to(dtype).save_pretrained(folder)
    return loaded(folder, dtype)


def loaded(folder: Path, dtype: torch.dtype) -> Any:
    import transformers

    # By default one that knows no float64, and in transformers 5.17 one that caps no scores.
    eager = {"experts_implementation": "eager", "attn_implementation": "eager"}
    return transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=dtype, **eager).eval()


def scores_of(model: Any) -> np.ndarray:
    """One text at a time, so that nothing is padded; a float64 model is computed in that throughout."""
    model.config.pad_token_id = None
    with torch.no_grad(), Wide():
        return np.array([float(model(input_ids=torch.tensor([text])).logits) for text in TEXTS])


def worked(folder: Path, groups: ReplicaGroups, dtype: torch.dtype, trained: bool) -> tuple[list[int], Any]:
    """The rows of this rank's part, and their scores, or what updates by the pairs come to."""
    model = new_model(folder, dtype=dtype, trainable=trained, cut=groups.cut, tensor=groups.tp)
    engine = engine_of(model, groups, micro_batch_tokens=40, optimizer=OPTIMIZER if trained else None)
    pairs = range(groups.dp.index, len(TEXTS) // 2, groups.dp.size)
    rows = [row for pair in pairs for row in (2 * pair, 2 * pair + 1)]
    own = PAIRS.select(rows)
    if not trained:
        return rows, engine.forward(own)
    results = [engine.train_batch(own, Columns(), Objective(preferring), Update(1, i, 3)) for i in range(3)]
    return rows, ([(result.loss, result.grad_norm) for result in results], engine.digest())


def preferring(predictions: Predictions, columns: Mapping[str, torch.Tensor]) -> Any:
    chosen, rejected = sides(predictions.values)
    return bradley_terry_loss(chosen, rejected, torch.zeros_like(chosen), 0.01).sum() / 5, {}


def on_rank(context: Any, folder: Path, layout: Layout, dtype: torch.dtype, trained: bool) -> Any:
    groups = groups_in(context, layout)
    return None if groups is None else worked(folder, groups, dtype, trained)


BOUNDS = ((torch.float64, 1e-12), (torch.float32, 1e-5))


@pytest.mark.parametrize(
    ("family", "dtype", "bound"),
    covering([(family, *bound) for family in FAMILIES for bound in BOUNDS], itemgetter(0), itemgetter(1)),
)
def test_scores_are_those_of_transformers_and_its_tensors_come_back_byte_for_byte(tmp_path, family, dtype, bound):
    theirs = judge(tmp_path / "in", family, dtype)
    assert whole_because(ClassifierConfig(path=str(tmp_path / "in"))) == ""
    _, scores = worked(tmp_path / "in", WITH_NOBODY, dtype, trained=False)
    expected = scores_of(theirs)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=bound)
    assert len(set(np.round(expected, 3))) > 5, "it tells texts apart"

    model = new_model(tmp_path / "in", dtype=dtype)
    save_pretrained(tmp_path / "out", model.config, model.views)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("in", "out"))
    assert before.keys() == after.keys() and "score.weight" in after
    assert all(torch.equal(before[name], after[name]) and before[name].dtype == after[name].dtype for name in before)
    np.testing.assert_allclose(scores_of(loaded(tmp_path / "out", dtype)), expected, rtol=0, atol=bound)


@pytest.mark.parametrize(
    ("family", "layout"),
    covering(
        itertools.product(["qwen2", "gpt2", "gemma2", "gemma3_text"], ["t2p2", "d2", "t2", "p2"]),
        lambda case: case[0] if case[1] == "t2p2" else "",
        itemgetter(1),
    ),
)
def test_scores_are_the_same_in_any_layout(pool, tmp_path, family, layout):
    expected = scores_of(judge(tmp_path, family))
    found = pool.run(on_rank, tmp_path, parse_layout(layout), torch.float64, False)
    for rows, scores in filter(None, found):
        np.testing.assert_allclose(scores, expected[rows], rtol=0, atol=1e-12)


@pytest.mark.parametrize("layout", ["d2", "t2", "p2"])
def test_a_reward_model_learns_the_same_in_any_layout(pool, tmp_path, layout):
    judge(tmp_path, "qwen3")
    _, (expected, _) = worked(tmp_path, WITH_NOBODY, torch.float64, trained=True)
    found = [it for it in pool.run(on_rank, tmp_path, parse_layout(layout), torch.float64, True) if it is not None]
    for _, (updates, digest) in found:
        np.testing.assert_allclose(updates, expected, rtol=1e-9)
        assert digest == found[0][1][1]


@pytest.mark.parametrize(
    ("family", "changes", "because"),
    [
        ("llama", {"num_labels": 3}, "has 3 labels; a value or reward head has num_labels = 1"),
        ("qwen2", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    ],
)
def test_what_an_engine_cannot_hold_is_left_to_transformers_with_the_reason(tmp_path, family, changes, because):
    judge(tmp_path, family, **changes)
    assert because in whole_because(ClassifierConfig(path=str(tmp_path)))


def test_weights_that_are_no_safetensors_are_left_to_transformers(tmp_path):
    judge(tmp_path, "llama")
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert "has no safetensors" in whole_because(ClassifierConfig(path=str(tmp_path)))
