import itertools
import random
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from support.work import calls_in

from hpcrl.data.partition import balanced_batches, contiguous, partition_step, share_out


def best_heaviest(sizes: list[float], parts: int, min_size: int) -> float:
    """The lightest possible heaviest run, by trying every cut."""
    best = float("inf")
    for cuts in itertools.combinations_with_replacement(range(len(sizes) + 1), parts - 1):
        bounds = [0, *cuts, len(sizes)]
        runs = list(itertools.pairwise(bounds))
        if all(end - start >= min_size for start, end in runs):
            best = min(best, max(sum(sizes[start:end]) for start, end in runs))
    return best


def test_a_contiguous_cut_is_as_good_as_the_best_of_all_cuts() -> None:
    for seed in range(400):
        rng = random.Random(seed)
        count, min_size = rng.randint(1, 10), rng.choice([0, 1, 1, 2, 3])
        parts = rng.randint(1, max(1, count // max(1, min_size)))
        if count < parts * min_size:
            continue
        sizes = [rng.choice([rng.randint(0, 3), rng.randint(0, 50)]) for _ in range(count)]
        runs = contiguous(sizes, parts, min_size)
        assert [i for run in runs for i in run] == list(range(count)), "contiguous, and everything once"
        assert len(runs) == parts and all(len(run) >= min_size for run in runs)
        assert max(sum(sizes[i] for i in run) for run in runs) == best_heaviest(sizes, parts, min_size)


@pytest.mark.parametrize(
    ("sizes", "parts", "min_size", "says"),
    [
        ([1, 2], 3, 1, "2 items do not make 3 parts"),
        ([1] * 5, 3, 2, "parts · min_size = 6"),
        ([], 1, 1, "0 items"),
        ([1], 0, 1, "0 parts"),
        ([1, -2], 1, 1, "-2"),
    ],
)
def test_an_impossible_cut_is_refused(sizes: list[int], parts: int, min_size: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        contiguous(sizes, parts, min_size)


LENGTHS = {
    "uniform": lambda rng: rng.integers(8, 1025, 4096),
    "skewed": lambda rng: np.clip(rng.lognormal(5.0, 1.0, 4096), 1, 4096).astype(int),
    "long": lambda rng: rng.integers(900, 1001, 4096),
    "equal": lambda rng: np.full(4096, 512),
}


@pytest.mark.parametrize("kind", sorted(LENGTHS))
def test_4096_sequences_in_64_parts_take_few_operations_and_differ_by_less_than_a_thousandth(kind: str) -> None:
    lengths = LENGTHS[kind](np.random.default_rng(0)).tolist()
    (_, parts), calls = calls_in(lambda: partition_step(lengths, 1, 64))
    loads = [sum(lengths[i] for i in part) for part in parts]
    assert calls < 10 * 4096, "a step opens while nothing else does"
    assert max(loads) / statistics.mean(loads) <= 1.001
    assert sorted(itertools.chain(*parts)) == list(range(4096))
    assert all(part == tuple(sorted(part)) for part in parts)


def test_the_parts_of_a_minibatch_are_at_most_four_thirds_of_the_best() -> None:
    for seed in range(150):
        rng = random.Random(seed)
        lengths, parts = [rng.randint(1, 20) for _ in range(rng.randint(1, 7))], rng.randint(1, 3)
        best = min(
            max(sum(n for n, where in zip(lengths, homes, strict=True) if where == part) for part in range(parts))
            for homes in itertools.product(range(parts), repeat=len(lengths))
        )
        assert max(sum(lengths[i] for i in part) for part in partition_step(lengths, 1, parts)[1]) <= best * 4 / 3


def test_sequences_without_length_are_spread_by_count() -> None:
    assert [len(part) for part in partition_step([0] * 12, 1, 4)[1]] == [3, 3, 3, 3]


def test_fewer_sequences_than_parts_leave_parts_empty() -> None:
    assert partition_step([5, 7], 1, 4)[1] == ((1,), (0,), (), ())
    assert partition_step([], 1, 2)[1] == ((), ())


def test_rows_that_are_kept_whole_are_divided_instead_of_samples() -> None:
    rows = [f"r{i}" for i in range(10) for _ in range(4)]
    lengths = [random.Random(i).randint(1, 50) for i in range(len(rows))]
    minibatches, parts = partition_step(lengths, 3, 2, rows)
    for cut in (minibatches, parts):
        assert sorted(i for piece in cut for i in piece) == list(range(40))
        assert sum(len({rows[i] for i in piece}) for piece in cut) == 10, "each row is in one piece"
    of_rows = [sum(lengths[4 * i : 4 * i + 4]) for i in range(10)]
    assert [[i // 4 for i in part[::4]] for part in parts] == [list(part) for part in partition_step(of_rows, 3, 2)[1]]
    assert partition_step(lengths, 3, 2, [str(i) for i in range(40)]) == partition_step(lengths, 3, 2)


def test_reordered_batches_are_a_permutation_within_the_size_that_with_the_longest_first_and_far_more_even() -> None:
    lengths = np.random.default_rng(1).lognormal(5, 1, 1000).astype(int).tolist()
    batches = balanced_batches(lengths, 32)
    assert sorted(itertools.chain(*batches)) == list(range(1000))
    assert len(batches) == 32 and max(map(len, batches)) <= 32
    loads = [sum(lengths[i] for i in batch) for batch in batches]
    assert max(lengths) in [lengths[i] for i in batches[0]]
    assert loads[1:] == sorted(loads[1:], reverse=True)
    unsorted = [sum(lengths[i : i + 32]) for i in range(0, 1000, 32)]
    assert max(loads) - min(loads) < (max(unsorted) - min(unsorted)) / 20


def test_a_batch_of_no_sequences_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size is 0"):
        balanced_batches([1], 0)


@pytest.mark.parametrize("seed", range(40))
def test_a_step_is_cut_into_even_minibatches_that_are_each_balanced_over_the_parts(seed: int) -> None:
    rng = random.Random(seed)
    count, minibatches, dp = rng.randint(1, 60), rng.randint(1, 6), rng.randint(1, 5)
    ids = list(range(count))
    length = [rng.randint(1, 100) for _ in ids]
    cut, parts = partition_step(length, minibatches, dp)
    assert list(itertools.chain(*cut)) == ids
    sizes = list(map(len, cut))
    assert len(cut) == min(minibatches, count) and max(sizes) - min(sizes) <= 1
    assert len(parts) == dp and sorted(itertools.chain(*parts)) == sorted(ids)
    assert all(list(part) == [sample for sample in ids if sample in part] for part in parts), "canonical order"
    for minibatch in cut:
        loads = [sum(length[sample] for sample in part if sample in minibatch) for part in parts]
        assert max(loads) - min(loads) <= max(length[sample] for sample in minibatch)


def test_small_minibatches_take_turns_with_the_parts() -> None:
    _, parts = partition_step([5] * 8, 8, 4)
    assert [len(part) for part in parts] == [2, 2, 2, 2]


def tokens_of(rows: int, group: int, seed: int) -> tuple[list[int], list[int]]:
    """(Prompts, whole texts): responses are lognormal, of a group around a length of its prompt's own."""
    rng = np.random.default_rng(seed)
    prompts = np.repeat(rng.integers(50, 300, rows), group)
    around = np.repeat(rng.lognormal(5.5, 0.4, rows), group)
    responses = np.clip(around * rng.lognormal(0, 0.8, rows * group), 1, 2048).astype(int)
    return prompts.tolist(), (prompts + responses).tolist()


def slowest(shares: Sequence[Sequence[int]], minibatches: Sequence[Sequence[int]], tokens: list[int]) -> float:
    """What a step takes in which every minibatch waits for its heaviest share, in means of all shares."""
    heaviest = [max(sum(tokens[i] for i in set(share) & set(run)) for share in shares) for run in minibatches]
    return sum(heaviest) / (sum(tokens) / len(shares))


@pytest.mark.parametrize(("group", "kept_whole"), [(1, False), (8, False), (8, True)])
@pytest.mark.parametrize("seed", range(4))
def test_by_the_lengths_of_whole_texts_the_slowest_of_8_ranks_has_little_more_than_the_mean(
    group: int, kept_whole: bool, seed: int
) -> None:
    count = 2048 if kept_whole else 512
    prompts, texts = tokens_of(count // group, group, seed)
    rows = [f"r{i // group}" for i in range(count)] if kept_whole else None
    minibatches, by_prompts = partition_step(prompts, 4, 8, rows)
    shares = share_out(texts, minibatches, 8, rows)
    assert sorted(itertools.chain(*shares)) == list(range(count))
    assert slowest(shares, minibatches, texts) <= 1.05 < 1.1 < slowest(by_prompts, minibatches, texts)
    if rows is not None:
        assert sum(len({rows[i] for i in share}) for share in shares) == len(set(rows))


def test_a_sample_of_several_minibatches_is_in_one_share() -> None:
    order = random.Random(0).sample(range(24), 24)
    passes = [tuple(range(start, start + 8)) for start in (0, 8, 16)] + [tuple(order[:12]), tuple(order[12:])]
    lengths = [1 + i % 5 for i in range(24)]
    shares = share_out(lengths, passes, 3)
    assert shares == share_out(lengths, passes[:3], 3)
    assert sorted(itertools.chain(*shares)) == list(range(24))


@pytest.mark.parametrize(("lengths", "minibatches", "dp"), [([1, 1], 0, 1), ([1, 1], 1, 0)])
def test_a_division_that_cannot_be_is_refused(lengths: list[int], minibatches: int, dp: int) -> None:
    with pytest.raises(ValueError, match="do not make"):
        partition_step(lengths, minibatches, dp)
