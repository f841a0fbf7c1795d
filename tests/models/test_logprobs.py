import pytest
import torch

from hpcrl.models.logprobs import label_logprobs

ROWS, HIDDEN, VOCABULARY = 11, 6, 30


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, HIDDEN, generator=generator, dtype=torch.float64)
    head = torch.randn(VOCABULARY, HIDDEN, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, VOCABULARY, (ROWS,), generator=generator)
    return hidden.to(dtype).requires_grad_(), head.to(dtype).requires_grad_(), labels


def naive(hidden, head, labels, temperature):
    logprobs = (hidden @ head.T / temperature).log_softmax(-1)
    return logprobs.gather(-1, labels[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk_rows", [None, 4, 1])
def test_logprobs_entropy_and_gradients_equal_log_softmax(temperature, chunk_rows):
    hidden, head, labels = inputs()
    ours = label_logprobs(hidden, head, labels, temperature=temperature, with_entropy=True, chunk_rows=chunk_rows)
    expected = naive(hidden, head, labels, temperature)
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


def test_backward_may_run_twice():
    hidden, head, labels = inputs()
    loss = label_logprobs(hidden, head, labels, with_entropy=True)[0].sum()
    first = torch.autograd.grad(loss, hidden, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(loss, hidden)[0], first)


def test_bf16_logprobs_are_fp32():
    hidden, head, labels = inputs(torch.bfloat16)
    logprobs, _ = label_logprobs(hidden, head, labels)
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs, naive(hidden, head, labels, 1.0)[0].float(), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("chunk_rows", [None, 4])
def test_rows_worked_on_in_small_pieces_have_the_same_bits(chunk_rows, monkeypatch):
    def found():
        hidden, head, labels = inputs()
        outputs = label_logprobs(hidden, head, labels, temperature=0.7, with_entropy=True, chunk_rows=chunk_rows)
        return *outputs, *torch.autograd.grad(sum(output.sum() for output in outputs), (hidden, head))

    whole = found()
    monkeypatch.setattr("hpcrl.models.logprobs.CPU_LOGITS", 2 * VOCABULARY)
    assert all(torch.equal(one, other) for one, other in zip(found(), whole, strict=True))
