import pytest
import torch

from hpcrl.data.logit_rows import rows_per_chunk
from hpcrl.models.logprobs import label_logprobs

ROWS, HIDDEN, VOCABULARY = 11, 6, 30


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, HIDDEN, generator=generator, dtype=torch.float64)
    head = torch.randn(VOCABULARY, HIDDEN, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, VOCABULARY, (ROWS,), generator=generator)
    return hidden.to(dtype).requires_grad_(), head.to(dtype).requires_grad_(), labels


def naive(hidden, head, labels, temperature, softcap=None):
    logits = hidden @ head.T if softcap is None else softcap * (hidden @ head.T / softcap).tanh()
    logprobs = (logits / temperature).log_softmax(-1)
    return logprobs.gather(-1, labels[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("softcap", [None, 1.5, 30.0])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk_rows", [None, 4, 1])
def test_logprobs_entropy_and_gradients_equal_log_softmax(temperature, chunk_rows, softcap):
    hidden, head, labels = inputs()
    options = {"temperature": temperature, "softcap": softcap, "chunk_rows": chunk_rows}
    ours = label_logprobs(hidden, head, labels, with_entropy=True, **options)
    expected = naive(hidden, head, labels, temperature, softcap)
    weights = torch.linspace(-1, 2, ROWS, dtype=torch.float64)
    for actual, wanted in zip(ours, expected, strict=True):
        torch.testing.assert_close(actual, wanted, atol=1e-12, rtol=0)
    losses = [(logprobs * weights + entropy * weights.flip(0)).sum() for logprobs, entropy in (ours, expected)]
    for actual, wanted in zip(*(torch.autograd.grad(loss, (hidden, head)) for loss in losses), strict=True):
        torch.testing.assert_close(actual, wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("chunk_rows", [None, 3])
def test_a_loss_without_entropy_has_the_gradient_of_log_softmax(chunk_rows):
    hidden, head, labels = inputs()
    ours, entropy = label_logprobs(hidden, head, labels, chunk_rows=chunk_rows)
    assert entropy is None
    losses = ours.exp().sum(), naive(hidden, head, labels, 1.0)[0].exp().sum()
    for actual, wanted in zip(*(torch.autograd.grad(loss, (hidden, head)) for loss in losses), strict=True):
        torch.testing.assert_close(actual, wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("used", [0, 1])
def test_a_loss_of_one_output_alone_has_its_gradient(used):
    hidden, head, labels = inputs()
    losses = (
        label_logprobs(hidden, head, labels, with_entropy=True)[used].sum(),
        naive(hidden, head, labels, 1.0)[used].sum(),
    )
    for actual, wanted in zip(*(torch.autograd.grad(loss, (hidden, head)) for loss in losses), strict=True):
        torch.testing.assert_close(actual, wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_backward_may_run_twice(softcap):
    hidden, head, labels = inputs()
    loss = label_logprobs(hidden, head, labels, with_entropy=True, softcap=softcap)[0].sum()
    first = torch.autograd.grad(loss, hidden, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(loss, hidden)[0], first)


@pytest.mark.parametrize(("temperature", "softcap"), [(1.0, None), (0.7, None), (0.7, 3.0)])
def test_bf16_logprobs_are_an_fp32_log_softmax_of_bf16_products(temperature, softcap):
    hidden, head, labels = inputs(torch.bfloat16)
    options = {"temperature": temperature, "softcap": softcap}
    logprobs, entropy = label_logprobs(hidden, head, labels, with_entropy=True, **options)
    assert logprobs.dtype == entropy.dtype == torch.float32
    products = (hidden @ head.T).float()
    logits = products if softcap is None else softcap * (products / softcap).tanh()
    table = (logits / temperature).log_softmax(-1)
    torch.testing.assert_close(logprobs, table.gather(-1, labels[:, None])[:, 0], atol=1e-5, rtol=0)
    torch.testing.assert_close(entropy, -(table.exp() * table).sum(-1), atol=1e-5, rtol=0)


def test_the_gradient_of_a_bf16_head_adds_up_over_chunks_in_fp32():
    """Rows of one sign: a sum in bf16 would stand still after a few hundred of them."""
    rows = 1024
    hidden = torch.ones(rows, HIDDEN, dtype=torch.bfloat16)
    head = torch.zeros(VOCABULARY, HIDDEN, dtype=torch.bfloat16).requires_grad_()
    head.grad_dtype = torch.float32
    logprobs, _ = label_logprobs(hidden, head, torch.zeros(rows, dtype=torch.int64), chunk_rows=1)
    logprobs.sum().backward()
    expected = rows * ((torch.arange(VOCABULARY) == 0).float() - 1 / VOCABULARY)
    torch.testing.assert_close(head.grad, expected[:, None].expand(-1, HIDDEN), rtol=5e-3, atol=0)


def test_chunks_are_large_enough_for_the_device():
    assert rows_per_chunk(151_936, "cpu") == 220
    assert rows_per_chunk(151_936, "cuda") == 1766
    assert rows_per_chunk(2**30, "cpu") == 1


@pytest.mark.parametrize(("chunk_rows", "softcap"), [(None, None), (4, None), (None, 2.0), (4, 2.0)])
def test_rows_worked_on_in_small_pieces_have_the_same_bits(chunk_rows, softcap, monkeypatch):
    options = {"temperature": 0.7, "softcap": softcap, "chunk_rows": chunk_rows}

    def found():
        hidden, head, labels = inputs()
        outputs = label_logprobs(hidden, head, labels, with_entropy=True, **options)
        return *outputs, *torch.autograd.grad(sum(output.sum() for output in outputs), (hidden, head))

    whole = found()
    monkeypatch.setattr("hpcrl.data.logit_rows.CPU_PIECE", 2 * VOCABULARY)
    assert all(torch.equal(one, other) for one, other in zip(found(), whole, strict=True))
