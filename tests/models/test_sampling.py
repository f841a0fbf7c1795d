import pytest
import torch
from support.devices import DEVICES

from hpcrl.config.generation import MIN_TEMPERATURE
from hpcrl.models.logprobs import label_logprobs
from hpcrl.models.sampling import SamplingOptions, choose, uniform

MASK = (1 << 64) - 1


def splitmix64(seed, index):
    """The reference generator, in Python integers."""
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return ((z ^ (z >> 31)) >> 11) / 2**53


def naive_distribution(logits, options):
    """Probabilities [V] after temperature, top-k and top-p, token by token."""
    probabilities = (logits.double() / options.temperature).softmax(-1)
    order = sorted(range(len(logits)), key=lambda token: -probabilities[token].item())
    if options.top_k:
        order = order[: options.top_k]
    whole = sum(probabilities[token].item() for token in order)
    kept, mass = [], 0.0
    for token in order:
        if mass >= options.top_p * whole:
            break
        kept.append(token)
        mass += probabilities[token].item()
    result = torch.zeros_like(probabilities)
    result[kept] = probabilities[kept] / mass
    return result


def test_draws_equal_splitmix64():
    seeds = [0, 1, 12345678901234567890, MASK, 1 << 63]
    signed = torch.tensor([seed - (1 << 64) if seed >> 63 else seed for seed in seeds])
    for index in (0, 1, 7, 100_000):
        expected = [splitmix64(seed, index) for seed in seeds]
        assert uniform(signed, torch.full((5,), index)).tolist() == expected


@pytest.mark.parametrize("device", DEVICES[1:])
def test_draws_on_a_gpu_equal_those_on_the_cpu_to_the_last_bit(device):
    seeds, index = torch.arange(1000) * -7046029254386353131, torch.arange(1000)
    assert torch.equal(uniform(seeds.to(device), index.to(device)).cpu(), uniform(seeds, index))


@pytest.mark.parametrize("options", [SamplingOptions(), SamplingOptions(top_p=0.9)], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_a_row_that_is_left_alone_is_drawn_as_it_was_beside_others(device, options):
    logits, numbers = torch.randn(3, 70_000, device=device), torch.arange(3, device=device)
    together = choose(logits, numbers, numbers, options)
    for row in range(3):
        alone = choose(logits[row : row + 1], numbers[row : row + 1], numbers[row : row + 1], options)
        assert all(torch.equal(one, several[row : row + 1]) for one, several in zip(alone, together, strict=True))


def test_draws_are_uniform_over_indices_and_over_neighbouring_seeds():
    for draws in (
        uniform(torch.full((100_000,), 42), torch.arange(100_000)),
        uniform(torch.arange(100_000), torch.zeros(100_000, dtype=torch.int64)),
    ):
        counts = torch.histc(draws, 50, 0, 1)
        chi_square = ((counts - 2000) ** 2 / 2000).sum()
        assert chi_square < 95  # 49 degrees of freedom: exceeded with probability 1e-4
        assert abs(torch.corrcoef(torch.stack([draws[:-1], draws[1:]]))[0, 1]) < 0.015


@pytest.mark.parametrize(
    "options",
    [
        SamplingOptions(),
        SamplingOptions(temperature=0.6),
        SamplingOptions(top_k=5),
        SamplingOptions(top_p=0.8),
        SamplingOptions(temperature=1.5, top_k=7, top_p=0.7),
        SamplingOptions(top_k=100),
    ],
    ids=str,
)
def test_tokens_follow_the_distribution_and_report_its_logprobs(options):
    rows = 40_000
    logits = torch.randn(12, generator=torch.Generator().manual_seed(1)) * 1.5
    tokens, logprobs = choose(
        logits.expand(rows, -1), torch.arange(rows), torch.zeros(rows, dtype=torch.int64), options
    )
    expected = naive_distribution(logits, options)
    torch.testing.assert_close(logprobs.double(), expected[tokens].log(), atol=1e-5, rtol=0)
    counts = torch.bincount(tokens, minlength=12)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    chi_square = ((counts - rows * expected)[possible] ** 2 / (rows * expected)[possible]).sum()
    assert chi_square < 37.4  # at most 11 degrees of freedom: exceeded with probability 1e-4


def test_a_token_of_probability_zero_is_never_drawn():
    logits = torch.full((50_000, 6), -torch.inf)
    logits[:, 2], logits[:, 4] = 0.0, -20.0
    tokens, _ = choose(logits, torch.arange(50_000), torch.zeros(50_000, dtype=torch.int64), SamplingOptions())
    assert set(tokens.tolist()) <= {2, 4}


@pytest.mark.parametrize(
    "options", [SamplingOptions(), SamplingOptions(top_k=3), SamplingOptions(greedy=True)], ids=str
)
def test_rows_without_a_distribution_say_nan_and_leave_the_others_alone(options):
    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    seeds, index = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    sound = choose(logits, seeds, index, options)
    logits[1, 5] = torch.nan
    tokens, logprobs = choose(logits, seeds, index, options)
    assert logprobs[1].isnan()
    assert 0 <= tokens[1] < 8
    assert torch.equal(tokens[[0, 2]], sound[0][[0, 2]])
    assert torch.equal(logprobs[[0, 2]], sound[1][[0, 2]])


def test_top_k_of_one_is_greedy_with_certainty():
    logits = torch.randn(200, 30, generator=torch.Generator().manual_seed(0))
    index = torch.zeros(200, dtype=torch.int64)
    tokens, logprobs = choose(logits, torch.arange(200), index, SamplingOptions(top_k=1))
    greedy, own_logprobs = choose(logits, torch.arange(200), index, SamplingOptions(greedy=True))
    assert torch.equal(tokens, greedy)
    assert torch.equal(logprobs, torch.zeros(200))
    torch.testing.assert_close(own_logprobs, logits.log_softmax(-1).max(-1).values)


def test_bf16_logits_are_sampled_in_fp32():
    logits = torch.randn(4, 30).bfloat16()
    index = torch.zeros(4, dtype=torch.int64)
    rough, exact = (choose(numbers, torch.arange(4), index, SamplingOptions()) for numbers in (logits, logits.float()))
    assert all(torch.equal(left, right) for left, right in zip(rough, exact, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e30])
def test_the_lowest_temperature_gives_numbers_which_training_has_too(dtype, scale):
    """Logits of any size that a model may have, divided by the least that is allowed, stay finite."""
    logits = (torch.randn(50, 30, generator=torch.Generator().manual_seed(1)) * scale).to(dtype)
    options, index = SamplingOptions(temperature=MIN_TEMPERATURE), torch.zeros(50, dtype=torch.int64)
    tokens, logprobs = choose(logits, torch.arange(50), index, options)
    assert logprobs.isfinite().all()
    trained, _ = label_logprobs(logits, torch.eye(30, dtype=dtype), tokens, temperature=MIN_TEMPERATURE)
    torch.testing.assert_close(trained.to(logprobs.dtype), logprobs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": 0.0}, "set greedy"),
        ({"temperature": 1e-30}, "temperature = 1e-30; it must be at least 0.001"),
        ({"top_k": -1}, "top_k = -1"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
    ],
)
def test_options_out_of_range_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        SamplingOptions(**fields)
