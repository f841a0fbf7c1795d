"""Random models of each family against transformers, both in float64: numbers, gradients, tokens, files."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.random_models import CONFIGURATIONS, LENGTHS
from support.tiny_models import hugging_face_model, logits_of
from support.wide import Wide

from hpcrl.engines.flat import FlatTransformer, new_model
from hpcrl.models.generation import GenerationOptions, Generator
from hpcrl.models.packing import Packing
from hpcrl.models.pretrained import load_pretrained, save_pretrained
from hpcrl.models.sampling import SamplingOptions

TOLERANCE = 1e-9
"""Relative to the largest number there is."""
NEW_TOKENS = 12


def as_ours(theirs: Any, folder: Path) -> dict[str, torch.Tensor]:
    theirs.save_pretrained(folder)
    return {name: tensor.contiguous() for name, tensor in load_pretrained(folder)[1]}


def close(actual: torch.Tensor, expected: torch.Tensor, scale: float, what: str) -> None:
    torch.testing.assert_close(
        actual, expected, atol=TOLERANCE * max(scale, 1e-30), rtol=0, msg=lambda m: f"{what}: {m}"
    )


def check_learning(theirs: Any, ours: FlatTransformer, texts: list[torch.Tensor], folder: Path) -> None:
    """Logits, log-probabilities of the next tokens, and the gradients of every parameter; packed against one by one."""
    with Wide():
        expected = torch.cat([theirs(text[None], use_cache=False).logits[0] for text in texts])
    tokens, packing = torch.cat(texts), Packing.of([len(text) for text in texts])
    close(logits_of(ours, ours.hidden(tokens, packing)), expected, float(expected.abs().max()), "logits")
    labels, rows = tokens.roll(-1), torch.arange(len(tokens))
    of_labels = expected.log_softmax(-1)[rows, labels]
    predicted = ours(tokens, packing, rows, labels)
    close(predicted.log_probs, of_labels, float(of_labels.abs().max()), "log-probabilities")
    weights = torch.linspace(-1, 1, len(tokens), dtype=torch.float64)
    (predicted.log_probs * weights).sum().backward()
    with Wide():
        (of_labels * weights).sum().backward()
    for parameter in theirs.parameters():
        parameter.data.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    gradients = as_ours(theirs, folder)
    scale = max(float(gradient.abs().max()) for gradient in gradients.values())
    for name, gradient in gradients.items():
        own = ours.views[name].grad
        close(torch.zeros_like(gradient) if own is None else own, gradient, scale, name)


def check_tokens(theirs: Any, ours: FlatTransformer, prompts: list[torch.Tensor]) -> None:
    """Greedy responses, with a cache of so many places as the windows ask for."""
    options = GenerationOptions(sampling=SamplingOptions(greedy=True), max_new_tokens=NEW_TOKENS, slots=3)
    arrays = [np.asarray(prompt) for prompt in prompts]
    responses = Generator(ours, options).generate(arrays, range(len(arrays))).tokens
    for prompt, response in zip(prompts, responses, strict=True):
        with Wide(), torch.no_grad():
            made = theirs.generate(
                prompt[None], attention_mask=torch.ones_like(prompt)[None], max_new_tokens=NEW_TOKENS, do_sample=False
            )
        assert made[0, len(prompt) :].tolist() == list(response)


def check_files(ours: FlatTransformer, given_folder: Path, folder: Path) -> None:
    """What is saved has their tensors to the byte, also a second time."""
    save_pretrained(folder / "one", ours.config, ours.views, max_file_bytes=10**9)
    again = new_model(folder / "one", dtype=torch.float64)
    save_pretrained(folder / "two", again.config, again.views, max_file_bytes=10**9)
    tensors, saved = (load_file(place / "model.safetensors") for place in (given_folder, folder / "one"))
    assert tensors.keys() == saved.keys()
    assert all(torch.equal(tensor, saved[name]) for name, tensor in tensors.items())
    for name in ("model.safetensors", "config.json"):
        assert (folder / "one" / name).read_bytes() == (folder / "two" / name).read_bytes()


def check(family: str, fields: dict[str, Any], lengths: list[int], seed: int) -> None:
    with TemporaryDirectory() as place:
        folder = Path(place)
        hugging_face_model(family, seed=seed, sizes=fields).save_pretrained(folder / "theirs")
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            folder / "theirs",
            dtype=torch.float64,
            experts_implementation="eager",  # by default one that knows no float64
            attn_implementation="eager",  # in transformers 5.17 by default one that caps no scores
        ).eval()
        ours = new_model(folder / "theirs", dtype=torch.float64)
        draw = torch.Generator().manual_seed(seed)
        texts = [torch.randint(0, fields["vocab_size"], (length,), generator=draw) for length in lengths]
        check_files(ours, folder / "theirs", folder)
        check_tokens(theirs, ours, texts[:3])
        check_learning(theirs, ours, texts, folder / "gradients")


@pytest.mark.parametrize("count", [pytest.param(3, id="some"), pytest.param(40, id="many", marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", CONFIGURATIONS)
def test_a_random_model_is_that_of_transformers(family: str, count: int) -> None:
    """Lengths go across the windows' edges; small sizes, odd ones, tied and untied, every scaling of rope."""
    few = settings(
        max_examples=count,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )

    @few
    @given(st.tuples(CONFIGURATIONS[family], LENGTHS, st.integers(0, 999)))
    def each(case: tuple[dict[str, Any], list[int], int]) -> None:
        check(family, *case)

    each()
