import pytest
import torch
from support.tiny_models import (
    CONFIGS,
    LLAMA3_ROPE,
    YARN_ROPE,
    logits_of,
    save_hugging_face_model,
    tiny_config,
    tiny_model,
)

from hpcrl.engines.flat import FlatTransformer, new_model
from hpcrl.errors import DataError
from hpcrl.models.init import random_init
from hpcrl.models.packing import Packing
from hpcrl.models.pretrained import load_pretrained

VARIANTS = {
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 without GQA": ("qwen2", {"num_key_value_heads": 4}),
    "qwen2 linear rope": ("qwen2", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 5000.0}}),
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama with one key head": ("llama", {"num_key_value_heads": 1}),
    "llama with wide heads": ("llama", {"head_dim": 16}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral with a window": ("mistral", {"sliding_window": 8}),
    "mistral with a window for all": ("mistral", {"sliding_window": 128}),
    "qwen2 with windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}),
    "qwen3 with windows": ("qwen3", {"use_sliding_window": True, "sliding_window": 39, "max_window_layers": 2}),
    "qwen3": ("qwen3", {}),
    "qwen3 with biases, tied": ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    "gemma": ("gemma", {}),
    "gemma untied, with one key head": ("gemma", {"tie_word_embeddings": False, "num_key_value_heads": 1}),
    "gemma2": ("gemma2", {}),
    "gemma2 without softcaps": ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3": ("gemma3_text", {}),
    "gpt2": ("gpt2", {}),
    "gpt2 untied": ("gpt2", {"tie_word_embeddings": False, "n_inner": None}),
    "dynamic rope": ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 500.0}}),
    "yarn rope": ("qwen3", {"rope_parameters": YARN_ROPE | {"rope_theta": 500.0, "beta_fast": 4.0}}),
    "llama3 rope": ("llama", {"rope_parameters": LLAMA3_ROPE | {"rope_theta": 500.0}}),
}
LENGTHS = (7, 40, 1, 40, 12, 7, 90)


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS)
def pair(request, tmp_path):
    family, changes = request.param
    theirs = save_hugging_face_model(tmp_path, family, **changes)
    return theirs, new_model(tmp_path)


def texts(lengths=LENGTHS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 64, (length,), generator=generator) for length in lengths]


def test_logits_equal_transformers(pair):
    theirs, ours = pair
    rows = texts()
    expected = torch.cat([theirs(row[None], use_cache=False).logits[0] for row in rows])
    logits = logits_of(ours, ours.hidden(torch.cat(rows), Packing.of(LENGTHS)))
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gpt2"])
def test_logits_and_gradients_equal_transformers_in_float64(tmp_path, family):
    theirs = save_hugging_face_model(tmp_path, family, tie_word_embeddings=False).double()
    ours, rows = new_model(tmp_path, dtype=torch.float64), texts((5, 9, 9, 40))
    expected = torch.cat([theirs(row[None], use_cache=False).logits[0] for row in rows])
    logits = logits_of(ours, ours.hidden(torch.cat(rows), Packing.of([len(row) for row in rows])))
    tolerance = 1e-11 if family == "gpt2" else 1e-5  # transformers turns by fp32 numbers, and normalises in fp32
    torch.testing.assert_close(logits, expected, atol=tolerance, rtol=0)
    logits.sin().sum().backward()
    expected.sin().sum().backward()
    for parameter in theirs.parameters():
        parameter.data.copy_(parameter.grad)
    gradients = as_ours(theirs)
    scale = max(gradient.abs().max() for gradient in gradients.values())
    for name, gradient in gradients.items():
        torch.testing.assert_close(ours.views[name].grad, gradient, atol=tolerance * scale, rtol=0, msg=name)


def test_gradients_equal_transformers(pair):
    theirs, ours = pair
    rows = texts((5, 9, 9))
    loss = sum(theirs(row[None], labels=row[None], use_cache=False).loss * (len(row) - 1) for row in rows)
    loss.backward()
    packing = Packing.of([len(row) - 1 for row in rows])
    hidden = ours.hidden(torch.cat([row[:-1] for row in rows]), packing)
    (-ours.output.logprobs(hidden, torch.cat([row[1:] for row in rows]))[0].sum()).backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for parameter, gradient in zip(theirs.parameters(), gradients.values(), strict=True):
        parameter.data.copy_(gradient)
    expected = as_ours(theirs)
    actual = {name: view.grad for name, view in ours.views.items()}
    scale = max(gradient.abs().max() for gradient in expected.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, atol=1e-5 * scale, rtol=1e-4, msg=name)


@pytest.mark.parametrize("lengths", [(9, 9), (3, 9, 4)])
def test_hidden_states_and_gradients_of_some_rows_equal_those_picked_from_all(lengths):
    model = tiny_model(dtype=torch.float64)
    packing = Packing.of(lengths)
    rows = packing.tail_rows([2] * len(lengths))

    def found(of_rows):
        model.zero_grad()
        hidden = of_rows(torch.cat(texts(lengths)))
        hidden.sin().sum().backward()
        return hidden.detach(), model.memory.grad.clone()

    ours = found(lambda tokens: model.hidden(tokens, packing, rows))
    expected = found(lambda tokens: model.hidden(tokens, packing)[rows])
    for actual, wanted in zip(ours, expected, strict=True):
        torch.testing.assert_close(actual, wanted, atol=1e-12, rtol=0)


def as_ours(theirs) -> dict[str, torch.Tensor]:
    """A transformers model's present parameters under our names, through a folder."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return {name: tensor.contiguous() for name, tensor in load_pretrained(folder)[1]}


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gpt2"])
@pytest.mark.parametrize(
    ("head", "architecture"), [("value", "TokenClassification"), ("reward", "SequenceClassification")]
)
def test_values_equal_transformers_classification_heads(tmp_path, family, head, architecture):
    theirs = save_hugging_face_model(tmp_path, family, architecture, num_labels=1)
    ours = new_model(tmp_path)
    assert ours.config.head == head
    packing = Packing.of(LENGTHS)
    rows = packing.last_rows() if head == "reward" else None
    values = ours.output.values(ours.hidden(torch.cat(texts()), packing, rows))
    expected = torch.cat([theirs(row[None], use_cache=False).logits.flatten() for row in texts()])
    torch.testing.assert_close(values, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("head", ["value", "reward"])
def test_values_of_a_bf16_model_are_as_exact_as_its_hidden_states(head):
    model = tiny_model(tiny_config(head=head), dtype=torch.bfloat16)
    hidden = model.hidden(torch.cat(texts()), Packing.of(LENGTHS))
    values = model.output.values(hidden)
    bias = 0.0 if model.output.head_bias is None else model.output.head_bias.double()
    torch.testing.assert_close(
        values.double(), hidden.double() @ model.output.head.double()[0] + bias, rtol=1e-5, atol=1e-5
    )
    values.square().sum().backward()
    assert model.memory.grad.dtype == torch.float32
    assert model.output.head.grad.abs().sum() > 0


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_packed_equals_one_at_a_time_in_values_and_gradients(config):
    model = tiny_model(config(), dtype=torch.float64)
    rows = texts()
    packed = model.hidden(torch.cat(rows), Packing.of(LENGTHS))
    (packed.sin().sum()).backward()
    gradient = model.memory.grad.clone()
    model.zero_grad()
    single = [model.hidden(row, Packing.of([len(row)])) for row in rows]
    torch.cat(single).sin().sum().backward()
    torch.testing.assert_close(packed, torch.cat(single), atol=1e-12, rtol=0)
    torch.testing.assert_close(model.memory.grad, gradient, atol=1e-11, rtol=0)


def test_asked_for_rows_are_the_same_rows_of_all():
    model = tiny_model()
    tokens, packing = torch.cat(texts()), Packing.of(LENGTHS)
    rows = packing.tail_rows([3, 10, 1, 1, 12, 2, 50])
    torch.testing.assert_close(
        model.hidden(tokens, packing, rows), model.hidden(tokens, packing)[rows], atol=1e-6, rtol=0
    )


def test_a_token_sees_nothing_of_later_tokens_or_other_texts():
    model = tiny_model()
    rows = texts((6, 8))
    before = model.hidden(torch.cat(rows), Packing.of([6, 8]))
    rows[0][4:] = 63
    rows[1][:] = 62
    after = model.hidden(torch.cat(rows), Packing.of([6, 8]))
    torch.testing.assert_close(after[:4], before[:4], atol=1e-6, rtol=0)
    assert not torch.allclose(after[4], before[4])


def test_load_refuses_missing_doubled_and_misshaped_parameters():
    config = tiny_config()
    given = list(random_init(config, 0))
    with pytest.raises(DataError, match=r"No weights were given for layers\.0\.embedding"):
        FlatTransformer(config).load(given[1:])
    with pytest.raises(DataError, match="given twice"):
        FlatTransformer(config).load([*given, given[0]])
    with pytest.raises(DataError, match=r"\(3, 3\).*\(64, 32\)"):
        FlatTransformer(config).load([("layers.0.embedding", torch.zeros(3, 3))])


def test_a_head_refuses_what_it_cannot_give():
    hidden = torch.zeros(1, 32)
    with pytest.raises(ValueError, match="value or reward head"):
        tiny_model().output.values(hidden)
    with pytest.raises(ValueError, match="vocabulary head"):
        tiny_model(tiny_config(head="value")).output.matrix()
