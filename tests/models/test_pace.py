"""The host a visit behind, and steps that are recorded and replayed, against neither: the same responses."""

import numpy as np
import pytest
import torch
from support.devices import DEVICES
from support.recorded import StandIn, no_waits
from support.tiny_models import gemma2_config, gemma3_config, gpt2_config, mixtral_config, tiny_config, tiny_model

from hpcrl.errors import InternalError
from hpcrl.models.cohort import Cohort
from hpcrl.models.cuda_graphs import CudaGraphs
from hpcrl.models.generation import GenerationOptions, Generator, Pace, pace_on
from hpcrl.models.sampling import SamplingOptions

EOS = tuple(range(2, 64, 5))
MODELS = {
    "llama": tiny_config,
    "gpt2": gpt2_config,
    "gemma2": gemma2_config,
    "gemma3": gemma3_config,
    "mixtral": mixtral_config,
}


class Vowels:
    """Ends a response at its third even token."""

    def __init__(self) -> None:
        self.even = 0

    def take(self, token: int) -> bool:
        self.even += token % 2 == 0
        return self.even >= 3


def some_prompts(count, longest=12):
    numbers = np.random.default_rng(3)
    different = [numbers.integers(3, 64, numbers.integers(1, longest + 1)) for _ in range(count // 3)]
    return [different[row // 3] for row in range(count // 3 * 3)]


def generated(model, pace, **changes):
    prompts = some_prompts(21)
    limits = [1 + (7 * row) % 14 for row in range(len(prompts))]
    options = GenerationOptions(14, **({"eos_token_ids": EOS, "slots": 7, "prefill_tokens": 20} | changes))
    return Generator(model, options, pace=pace).generate(prompts, range(len(prompts)), limits)


def assert_same(found, expected, atol=1e-12):
    assert [row.tolist() for row in found.tokens] == [row.tolist() for row in expected.tokens]
    assert found.finished == expected.finished
    for ours, theirs in zip(found.logprobs, expected.logprobs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol)


OPTIONS = {
    "plain": {},
    "early": {"min_new_tokens": 5},
    "all side by side": {"slots": 64, "prefill_tokens": 1000},
    "one slot": {"slots": 1},
    "by text": {"stops": Vowels, "min_new_tokens": 4, "eos_token_ids": ()},
    "filtered": {"sampling": SamplingOptions(0.8, 9, 0.9)},
    "greedy": {"sampling": SamplingOptions(greedy=True)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_host_that_reads_late_gets_the_same_responses_of_steps_that_are_recorded_or_not(options):
    model = tiny_model(dtype=torch.float64)
    expected = generated(model, Pace(), **options)
    assert_same(generated(model, Pace(late=1), **options), expected)
    recorder = StandIn()
    assert_same(generated(model, Pace(late=1, recorder=recorder), **options), expected)
    assert recorder.replayed > recorder.recorded > 0 or options.get("slots") == 1
    assert 0 < sum(expected.finished) < len(expected.finished)


@pytest.mark.parametrize("name", MODELS)
def test_every_family_has_the_same_responses(name):
    model = tiny_model(MODELS[name](), dtype=torch.float64)
    recorder = StandIn()
    assert_same(generated(model, Pace(late=1, recorder=recorder)), generated(model, Pace()))
    assert (recorder.recorded > 0) == (name != "mixtral"), "experts on a CPU must know their rows"


def test_who_is_side_by_side_follows_from_the_lag_and_not_from_time(monkeypatch):
    model, seen = tiny_model(dtype=torch.float64), []
    take = Cohort.take

    def noted(cohort, tokens, logprobs):
        seen[-1].append((cohort.span, tokens.tolist()))
        take(cohort, tokens, logprobs)

    monkeypatch.setattr(Cohort, "take", noted)
    for late in (0, 1, 1):
        seen.append([])
        generated(model, Pace(late))
    assert seen[1] == seen[2] != seen[0]


@pytest.mark.parametrize("config", [tiny_config, gemma2_config])
def test_a_visit_waits_for_no_number_but_the_tokens_of_the_one_before(config, monkeypatch):
    """Plans, steps and what is noted of them, under a watch that refuses to read a tensor or to make one of Python's
    numbers."""
    model, read = tiny_model(config(), dtype=torch.float64), []

    def watched(name, method):
        def call(cohort, *given):
            if not cohort.count or cohort._admission.rows:  # nothing yet, or a prefill, which is sent numbers
                return method(cohort, *given)
            with no_waits() as readings:
                made = method(cohort, *given)
            assert len(readings) <= (name == "plan")
            read.extend(readings)
            return made

        return call

    expected = generated(model, Pace(), slots=64, prefill_tokens=1000)
    for name in ("plan", "visit", "take"):
        monkeypatch.setattr(Cohort, name, watched(name, getattr(Cohort, name)))
    assert_same(generated(model, Pace(late=1), slots=64, prefill_tokens=1000), expected)
    assert len(read) > 4


@pytest.mark.parametrize("options", [OPTIONS["plain"], OPTIONS["early"], OPTIONS["filtered"]], ids=str)
@pytest.mark.parametrize("device", DEVICES[1:])
def test_cuda_graphs_give_what_kernels_give_that_are_launched_one_by_one(device, options):
    model = tiny_model(dtype=torch.float64, device=device)
    recorder = CudaGraphs(model.device)
    assert_same(generated(model, Pace(1, recorder), **options), generated(model, Pace(), **options))


@pytest.mark.parametrize("device", DEVICES[1:])
def test_a_gpu_is_never_waited_for_but_where_tokens_are_read(device, monkeypatch):
    """PyTorch itself says where the host waits: in plans, in steps as they are and in those that are replayed."""
    model = tiny_model(dtype=torch.float64, device=device)

    def watched(method):
        def call(cohort, *given):
            if cohort.count and not cohort._admission.rows:
                torch.cuda.set_sync_debug_mode("error")
            try:
                return method(cohort, *given)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return call

    for name in ("plan", "visit", "take"):
        monkeypatch.setattr(Cohort, name, watched(getattr(Cohort, name)))
    generated(model, Pace(late=1), slots=64, prefill_tokens=1000)


def test_a_cpu_waits_for_each_token_and_a_gpu_for_none():
    assert pace_on(torch.device("cpu"), cuda_graphs=True) == Pace()
    found = [pace_on(torch.device("cuda", 0), cuda_graphs) for cuda_graphs in (True, False)]
    assert [pace.late for pace in found] == [1, 1]
    assert [isinstance(pace.recorder, CudaGraphs) for pace in found] == [True, False]


def test_without_graphs_a_device_that_cannot_record_them_generates(monkeypatch):
    """A CPU cannot; nothing else of it is a GPU's."""

    def refuse(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", refuse)
    model, device = tiny_model(dtype=torch.float64), torch.device("cpu")
    with pytest.raises(InternalError, match="cannot record a step of generation as a CUDA graph: operation") as error:
        generated(model, Pace(1, CudaGraphs(device)))
    assert error.value.advice == ("Set generation.cuda_graphs: off.",)
    off = pace_on(torch.device("cuda"), cuda_graphs=False)
    assert off.late == 1 and off.recorder is None
    assert_same(generated(model, off), generated(model, Pace()))
