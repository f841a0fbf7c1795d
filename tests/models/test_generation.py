import random

import numpy as np
import pytest
import torch
from support.devices import DEVICES
from support.tiny_models import (
    gemma2_config,
    gemma3_config,
    gpt2_config,
    logits_of,
    save_hugging_face_model,
    tiny_config,
    tiny_model,
)

from hpcrl.engines.flat import new_model
from hpcrl.models.decoder import Decoder
from hpcrl.models.generation import GenerationOptions, Generator
from hpcrl.models.packing import Packing
from hpcrl.models.sampling import SamplingOptions

EOS = 2


def some_prompts(count, seed=0, longest=12):
    numbers = np.random.default_rng(seed)
    return [numbers.integers(3, 64, numbers.integers(1, longest + 1)) for _ in range(count)]


def generate(model, prompts, seeds=None, limits=None, **options):
    sampling = {name: options.pop(name) for name in ("temperature", "top_k", "top_p", "greedy") if name in options}
    settings = GenerationOptions(sampling=SamplingOptions(**sampling), **({"max_new_tokens": 20} | options))
    return Generator(model, settings).generate(prompts, seeds or range(len(prompts)), limits)


def next_logits(model, tokens):
    return logits_of(model, model.hidden(torch.from_numpy(np.asarray(tokens)), Packing.of([len(tokens)]))).detach()


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen2", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("qwen3", {}),
        ("gpt2", {}),
        ("mistral", {"sliding_window": 8}),
        ("gemma", {}),
        ("gemma2", {"sliding_window": 17}),
        ("gemma3_text", {"sliding_window": 17}),
    ],
)
def test_greedy_equals_transformers_token_for_token(tmp_path, family, changes):
    theirs = save_hugging_face_model(tmp_path, family, **changes)
    model, prompts = new_model(tmp_path), some_prompts(14)
    seen = np.concatenate(generate(model, prompts, greedy=True).tokens)
    common = int(np.bincount(seen).argmax())
    ours = generate(model, prompts, greedy=True, eos_token_ids=(common,), slots=5)
    for prompt, response, finished in zip(prompts, ours.tokens, ours.finished, strict=True):
        tokens = torch.from_numpy(prompt)[None]
        settings = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": common, "pad_token_id": 0}
        expected = theirs.generate(tokens, attention_mask=torch.ones_like(tokens), **settings)[0, len(prompt) :]
        assert response.tolist() == expected.tolist()
        assert finished == (expected[-1].item() == common)
    assert 0 < sum(ours.finished) < len(prompts)


@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.6}, {"temperature": 1.3, "top_k": 20, "top_p": 0.9}],
    ids=str,
)
@pytest.mark.parametrize("config", [tiny_config, gemma2_config])
def test_logprobs_equal_teacher_forced_recomputation_under_the_same_warping(sampling, config):
    model, prompts = tiny_model(config(), dtype=torch.float64), some_prompts(12)
    responses = generate(model, prompts, min_new_tokens=3, eos_token_ids=(EOS,), **sampling)
    options = SamplingOptions(**sampling)
    for prompt, response, logprobs in zip(prompts, responses.tokens, responses.logprobs, strict=True):
        logits = next_logits(model, np.concatenate([prompt, response[:-1]]))[len(prompt) - 1 :]
        logits[:3, EOS] = -torch.inf
        for row, token, logprob in zip(logits, response, logprobs, strict=True):
            assert abs(naive_logprob(row, token, options) - logprob) < 1e-5


def naive_logprob(logits, token, options):
    logits = logits / options.temperature
    if options.top_k:
        logits = logits.masked_fill(logits < logits.topk(options.top_k).values[-1], -torch.inf)
    values, order = logits.softmax(-1).sort(descending=True)
    kept = order[values.cumsum(-1) - values < options.top_p]
    return logits[token] - logits[kept].logsumexp(-1)


@pytest.mark.parametrize("config", [tiny_config, gemma2_config])
def test_untruncated_logprobs_equal_the_training_path_at_the_same_temperature(config):
    model, prompts = tiny_model(config()), some_prompts(12)
    responses = generate(model, prompts, temperature=0.8)
    lengths = [len(prompt) + len(response) - 1 for prompt, response in zip(prompts, responses.tokens, strict=True)]
    texts = [np.concatenate(pair)[:-1] for pair in zip(prompts, responses.tokens, strict=True)]
    packing = Packing.of(lengths)
    rows = packing.tail_rows([len(response) for response in responses.tokens])
    hidden = model.hidden(torch.from_numpy(np.concatenate(texts)), packing, rows)
    labels = torch.from_numpy(np.concatenate(responses.tokens)).long()
    logprobs, _ = model.output.logprobs(hidden, labels, temperature=0.8)
    torch.testing.assert_close(
        logprobs.detach(), torch.from_numpy(np.concatenate(responses.logprobs)), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("config", [tiny_config, gemma2_config])
def test_rows_of_one_prompt_are_the_same_to_the_bit_and_read_it_once_however_few_sit_side_by_side(config, monkeypatch):
    """Catches a slot copied after its row has left it, and logits that an earlier draw has banned tokens from."""
    model, read = tiny_model(config()), []
    prefill = Decoder.prefill
    monkeypatch.setattr(Decoder, "prefill", lambda *args: read.append(args[1]) or prefill(*args))
    prompts = [prompt for prompt in some_prompts(4) for _ in range(9)]
    options = {"eos_token_ids": (EOS, 7), "min_new_tokens": 2, "max_new_tokens": 12}
    whole = generate(model, prompts, **options)
    assert sum(map(len, read)) == len(prompts)
    read.clear()
    few = generate(model, prompts, slots=5, **options)
    assert same(whole, few, range(len(prompts)))
    assert sum(map(len, read)) < len(prompts) // 2


@pytest.mark.parametrize("config", [gemma2_config, gemma3_config])
def test_a_prompt_is_read_again_once_a_row_has_written_over_what_a_window_sees_of_it(config):
    model, prompts = tiny_model(config(), dtype=torch.float64), [prompt for prompt in some_prompts(3) for _ in range(9)]
    options = {"eos_token_ids": (2, 7, 9, 11), "max_new_tokens": 40}
    whole, few = generate(model, prompts, **options), generate(model, prompts, slots=5, **options)
    assert max(map(len, whole.tokens)) > 30
    for row in range(len(prompts)):
        assert few.tokens[row].tolist() == whole.tokens[row].tolist()
        np.testing.assert_allclose(few.logprobs[row], whole.logprobs[row], atol=1e-12)


def test_top_k_of_one_equals_greedy():
    model, prompts = tiny_model(), some_prompts(20)
    greedy, certain = generate(model, prompts, greedy=True), generate(model, prompts, top_k=1)
    assert all(np.array_equal(*pair) for pair in zip(greedy.tokens, certain.tokens, strict=True))


def test_rows_end_at_eos_or_at_their_limit_and_not_before_the_minimum():
    model, prompts = tiny_model(), some_prompts(200)
    limits = [1 + row % 30 for row in range(200)]
    out = generate(model, prompts, None, limits, max_new_tokens=30, eos_token_ids=(EOS, 7))
    late = generate(model, prompts, max_new_tokens=30, min_new_tokens=10, eos_token_ids=(EOS, 7))
    for response, logprobs, finished, limit in zip(*out, limits, strict=True):
        assert len(response) == len(logprobs) <= limit
        assert not set(response[:-1].tolist()) & {EOS, 7}
        assert finished == (response[-1] in (EOS, 7))
        assert finished or len(response) == limit
    assert 20 < sum(out.finished) < 190
    assert min(map(len, late.tokens)) == 11
    assert sum(late.finished) > 20


def same(left, right, rows):
    """Whether these rows of `left` are bit for bit the rows of `right`."""
    return all(
        np.array_equal(left.tokens[row], right.tokens[place])
        and np.array_equal(left.logprobs[row], right.logprobs[place])
        for place, row in enumerate(rows)
    )


def test_the_same_call_gives_the_same_bits():
    model, prompts = tiny_model(), some_prompts(30)
    assert same(generate(model, prompts, slots=7), generate(model, prompts, slots=7), range(30))


@pytest.mark.parametrize("sampling", [{}, {"greedy": True}, {"top_k": 10, "top_p": 0.9}], ids=str)
@pytest.mark.parametrize(
    ("config", "seed"), [(tiny_config, 0), (tiny_config, 1), (gpt2_config, 2), (gemma3_config, 3), (gemma2_config, 4)]
)
def test_a_row_does_not_depend_on_the_batch_it_is_in(sampling, config, seed):
    model, prompts = tiny_model(config()), some_prompts(30, seed)
    whole = generate(model, prompts, eos_token_ids=(EOS,), **sampling)
    rows = random.Random(seed).sample(range(30), 11)
    for subset, slots, prefill_tokens in ((rows, 256, 10**6), (rows, 3, 10), (rows[:1], 1, 1)):
        part = generate(
            model,
            [prompts[row] for row in subset],
            subset,
            eos_token_ids=(EOS,),
            slots=slots,
            prefill_tokens=prefill_tokens,
            **sampling,
        )
        assert [whole.tokens[row].tolist() for row in subset] == [response.tolist() for response in part.tokens]
        for place, row in enumerate(subset):
            np.testing.assert_allclose(part.logprobs[place], whole.logprobs[row], atol=1e-5)


def test_samples_of_one_prompt_differ_by_seed_and_equal_a_prompt_of_their_own():
    model = tiny_model()
    prompt = some_prompts(1)[0]
    together = generate(model, [prompt] * 8, range(100, 108))
    assert len({tuple(response) for response in together.tokens}) == 8
    for place in range(8):
        alone = generate(model, [prompt], [100 + place])
        assert alone.tokens[0].tolist() == together.tokens[place].tolist()


def test_seeds_are_64_bits_signed_or_not():
    model, prompts = tiny_model(), some_prompts(1)
    unsigned, signed = generate(model, prompts, [(1 << 64) - 5]), generate(model, prompts, [-5])
    assert same(unsigned, signed, [0])


def test_sampled_tokens_follow_the_models_distribution():
    model, prompt = tiny_model(tiny_config(vocabulary_size=10)), np.array([4, 5])
    first = generate(model, [prompt] * 4000, max_new_tokens=2, slots=1000, prefill_tokens=10**6)
    expected = next_logits(model, prompt)[-1].softmax(-1) * 4000
    counts = torch.bincount(torch.tensor([response[0] for response in first.tokens]), minlength=10)
    assert ((counts - expected) ** 2 / expected).sum() < 33.7  # 9 degrees of freedom: exceeded with probability 1e-4
    token = int(counts.argmax())
    second = torch.bincount(torch.tensor([r[1] for r in first.tokens if r[0] == token]), minlength=10)
    expected = next_logits(model, [*prompt, token])[-1].softmax(-1) * second.sum()
    assert ((second - expected) ** 2 / expected).sum() < 33.7


def test_generation_follows_the_models_present_parameters():
    model, prompts = tiny_model(), some_prompts(4)
    generator = Generator(model, GenerationOptions(10))
    before = generator.generate(prompts, range(4))
    with torch.no_grad():
        model.memory.data.mul_(1.5)
    after = generator.generate(prompts, range(4))
    assert not same(before, after, range(4))
    assert same(after, Generator(model, GenerationOptions(10)).generate(prompts, range(4)), range(4))


def test_a_bf16_model_generates():
    out = generate(tiny_model(dtype=torch.bfloat16), some_prompts(6))
    assert all(len(response) == 20 for response in out.tokens)
    assert all(logprobs.dtype == np.float32 for logprobs in out.logprobs)


@pytest.mark.parametrize(
    ("prompts", "seeds", "limits", "message"),
    [
        ([], [], None, "at least one"),
        ([[3]], [1, 2], None, "1 prompts, 2 seeds"),
        ([[3], []], [1, 2], None, "Prompt 1 is empty"),
        ([[3]], [1], [21], r"limit of row 0 is 21; it must be in 1 … 20"),
        ([[3] * 109], [1], None, "109 tokens and may get 20 new ones, more than the model's 128 positions"),
    ],
)
def test_rows_that_cannot_be_generated_are_refused(prompts, seeds, limits, message):
    with pytest.raises(ValueError, match=message):
        Generator(tiny_model(), GenerationOptions(20)).generate([np.array(prompt) for prompt in prompts], seeds, limits)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens = 0"),
        ({"max_new_tokens": 4, "min_new_tokens": 5}, "min_new_tokens = 5"),
        ({"max_new_tokens": 4, "slots": 0}, "slots = 0"),
        ({"max_new_tokens": 4, "prefill_tokens": 0}, "prefill_tokens = 0"),
    ],
)
def test_options_out_of_range_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        GenerationOptions(**fields)


@pytest.mark.parametrize("options", [{"greedy": True}, {}, {"temperature": 0.7, "top_k": 9, "top_p": 0.8}], ids=str)
@pytest.mark.parametrize("device", DEVICES[1:])
def test_what_a_gpu_generates_equals_what_the_cpu_does(device, options):
    models = [tiny_model(dtype=torch.float64, device=where) for where in ("cpu", device)]
    on_cpu, on_gpu = (generate(model, some_prompts(10), **options) for model in models)
    assert [r.tolist() for r in on_cpu.tokens] == [r.tolist() for r in on_gpu.tokens]
    for ours, expected in zip(on_gpu.logprobs, on_cpu.logprobs, strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-6)
