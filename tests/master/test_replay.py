"""What explains that a replay has other bits, and what is no rounding whatever explains it."""

import math

import msgspec
import pytest

from hpcrl.durable.journal import Numerics, Stats, Trained
from hpcrl.master.replay import unlike, why_other_bits


def numerics(*hardware: str, software: str = "torch 2", threads: int = 1, inexact: tuple[str, ...] = ()) -> Numerics:
    return Numerics(len(hardware), hardware, (software,) * len(hardware), threads, inexact)


RECORDED = Trained(3, "actor_train", {"digest": "b"}, {}, "a", numerics("Xeon", "EPYC"))
OVER = "recorded over 2 workers of 1 thread (1 × Xeon, 1 × EPYC; torch 2), replayed over "


@pytest.mark.parametrize(
    ("now", "before", "why"),
    [
        (numerics("Xeon", "EPYC"), "a", ""),
        (numerics("Xeon"), "a", OVER + "1 worker of 1 thread (Xeon; torch 2)"),
        (numerics("Xeon", "EPYC", threads=4), "a", OVER + "2 workers of 4 threads (1 × Xeon, 1 × EPYC; torch 2)"),
        (numerics("EPYC", "Xeon"), "a", OVER + "2 workers of 1 thread (1 × EPYC, 1 × Xeon; torch 2)"),
        (numerics("EPYC", "EPYC"), "a", OVER + "2 workers of 1 thread (EPYC; torch 2)"),
        (numerics("Xeon", "EPYC", software="3"), "a", OVER + "2 workers of 1 thread (1 × Xeon, 1 × EPYC; 3)"),
        (numerics("Xeon", "EPYC"), "z", "the parameters that it began with had other bits already"),
    ],
)
def test_only_other_workers_software_or_parameters_explain_other_bits(now: Numerics, before: str, why: str) -> None:
    assert why_other_bits(RECORDED, now, before, inputs_made_again=False) == why


def test_another_kernel_of_attention_explains_other_bits_and_both_are_named() -> None:
    one, other = (
        msgspec.structs.replace(numerics("A", "A"), attention=kernels)
        for kernels in (("flash", "flash"), ("flash", "varlen"))
    )
    why = why_other_bits(Trained(3, "actor_train", {}, {}, "a", one), other, "a", inputs_made_again=False)
    assert "(A; torch 2; attention: flash), replayed over" in why
    assert why.endswith("(A; torch 2; attention: 1 × flash, 1 × varlen)")


def test_inputs_that_were_damaged_may_have_other_bits() -> None:
    why = why_other_bits(RECORDED, RECORDED.numerics, RECORDED.before, inputs_made_again=True)
    assert why == "what it consumed was damaged, and computed again"


def test_as_many_of_each_kind_in_another_order_of_ranks_are_others() -> None:
    one, other = numerics("A", "A", "B"), numerics("A", "B", "B")
    assert one != other and set(one.hardware) == set(other.hardware)
    recorded = Trained(3, "actor_train", {}, {}, "a", one)
    assert "(2 × A, 1 × B; torch 2), replayed over 3 workers of 1 thread (1 × A, 2 × B;" in why_other_bits(
        recorded, other, "a", inputs_made_again=False
    )


NAN, INF = math.nan, math.inf
STATS: Stats = {"loss": (460.0, 200.0), "clip_fraction": (1.0, 200.0), "grad_norm": (2.0, 4.0)}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"loss": (460.001, 200.0)},
        {"loss": (490.0, 200.0)},
        {"clip_fraction": (4.0, 200.0)},
        {"clip_fraction": (0.0, 200.0)},
        {"grad_norm": (2.1, 4.0)},
        {"loss": (460.0, 200.0 * (1 + 1e-9))},
    ],
)
def test_what_rounding_can_do_is_alike(changed: Stats) -> None:
    assert unlike(STATS, STATS | changed) == ""
    assert unlike(STATS | changed, STATS) == ""


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"loss": (920.0, 200.0)}, "loss = 4.6 where the journal has 2.3"),
        ({"loss": (-460.0, 200.0)}, "loss = -2.3 where the journal has 2.3"),
        ({"loss": (NAN, 200.0)}, "loss = nan where the journal has 2.3"),
        ({"loss": (INF, 200.0)}, "loss = inf where the journal has 2.3"),
        ({"clip_fraction": (20.0, 200.0)}, "clip_fraction = 0.1 where the journal has 0.005"),
        ({"grad_norm": (4.0, 4.0)}, "grad_norm = 1 where the journal has 0.5"),
        ({"grad_norm": (1.5, 3.0)}, "grad_norm over a weight of 3 where the journal has 4"),
        ({"entropy": (1.0, 1.0)}, "statistics clip_fraction, entropy, grad_norm, loss where the journal has clip_frac"),
    ],
)
def test_what_rounding_cannot_do_is_named_with_both_values(changed: Stats, words: str) -> None:
    assert unlike(STATS, STATS | changed).startswith(words)
    assert unlike(STATS | changed, STATS)


@pytest.mark.parametrize("value", [NAN, INF, 0.0])
def test_what_was_recorded_as_no_number_is_like_itself(value: float) -> None:
    assert unlike({"x": (value, 2.0)}, {"x": (value, 2.0)}) == ""
    assert unlike({"x": (value, 0.0)}, {"x": (value, 0.0)}) == ""


def test_an_operation_that_is_not_deterministic_explains_other_bits_wherever_it_was() -> None:
    exact, inexact = numerics("A"), numerics("A", inexact=("put_",))
    line = Trained(3, "actor_train", {"digest": "b"}, {}, "a", inexact)
    assert why_other_bits(line, inexact, "a", False) == "not every operation is deterministic there (put_)"
    recorded_exactly = msgspec.structs.replace(line, numerics=exact)
    why = why_other_bits(recorded_exactly, inexact, "a", False)
    assert why.endswith("replayed over 1 worker of 1 thread (A; torch 2; not deterministic: put_)")
