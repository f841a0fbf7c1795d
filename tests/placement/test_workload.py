"""What a step consists of, against the slow way to say it: text by text, token by token."""

import json
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from support.kept_run import kept_run, response

from hpcrl.data.pipeline_order import cohorts
from hpcrl.errors import ConfigurationError, DataError
from hpcrl.placement.flops import Text
from hpcrl.placement.lengths import Lengths, lengths_in, lengths_of_run, spread_lengths
from hpcrl.placement.visits import Prompts, Visits, visits_of
from hpcrl.placement.workload import SLOWEST, Workload


def drawn(rows: int, per_row: int = 1, texts: int = 1, **more: object) -> Workload:
    lengths = spread_lengths((20, 10), (30, 30), (64, 128))
    prompts, responses = lengths.drawn(rows, per_row * texts, seed=3)
    return Workload(prompts, responses, texts=texts, per_row=per_row, **more)  # type: ignore[arg-type]


def token_by_token(prompts: Prompts, slots: int, prefill_tokens: int, stages: int) -> list[tuple[int, int, int]]:
    """(rows, prompt tokens, tokens seen) of each visit, as a generation makes them."""
    schedulers = cohorts(
        stages,
        prompts.lengths,
        min(slots, len(prompts.lengths)),
        prefill_tokens,
        prompts.numbers,
        limits=prompts.responses,
    )
    made = [0] * len(prompts.lengths)
    found, idle = [], 0
    turns = deque(schedulers)
    while idle < stages:
        cohort = turns[0]
        turns.rotate(-1)
        cohort.leave([])
        first = cohort.active
        admission = cohort.admit()
        rows = cohort.rows(slice(first if admission.rows else 0, cohort.active))
        idle = 0 if rows else idle + 1
        if not rows:
            found.append((0, 0, 0))
            continue
        read = {prompts.numbers[row]: prompts.lengths[row] for row in admission.prefilled}
        seen = 0 if admission.rows else sum(prompts.lengths[row] + made[row] for row in rows)
        found.append((len(rows), sum(read.values()), seen))
        for row in rows:
            made[row] += 1
        cohort.drew(rows)
    return found[: len(found) - stages]


GENERATIONS = [(1, 4, 1, 64), (1, 64, 4, 200), (2, 8, 2, 90), (3, 5, 1, 64)]


@pytest.mark.parametrize(("stages", "slots", "per_row", "bound"), GENERATIONS)
def test_visits_are_those_of_a_generation_token_by_token(stages: int, slots: int, per_row: int, bound: int) -> None:
    work = drawn(24 // per_row, per_row)
    rows = (np.arange(24) // per_row).tolist()
    prompts = Prompts(work.prompts.tolist(), rows, work.responses.tolist())
    found = visits_of(prompts, slots, bound, stages)
    slow = token_by_token(prompts, slots, bound, stages)
    rows, tokens = found.rows_V[found.order_V], found.tokens_V[found.order_V]
    whole = len(slow) // stages * stages
    assert rows.tolist()[:whole] == [rows for rows, _, _ in slow[:whole]]
    assert tokens.tolist()[:whole] == [tokens for _, tokens, _ in slow[:whole]]
    assert float((found.context_V * found.times_V).sum()) == sum(seen for _, _, seen in slow)
    assert found.rounds == sum(rows > 0 for rows, _, _ in slow)
    assert int(rows.sum()) == int(work.responses.sum())


def test_a_generation_of_nothing_has_no_visits() -> None:
    assert isinstance(found := visits_of(Prompts([], [], []), 4, 64), Visits) and found.rounds == 0


@pytest.mark.parametrize(("per_row", "texts", "shared"), [(1, 1, True), (4, 1, True), (4, 1, False), (1, 2, True)])
def test_micro_batches_have_the_pairs_of_their_texts_told_one_by_one(per_row: int, texts: int, shared: bool) -> None:
    work = drawn(16, per_row, texts)
    for part in work.predicted(2, 200, shared):
        for window in (0, 16):
            slow = [0] * len(part)
            for length, before, batch in zip(part.lengths_X, part.before_X, part.batch_X, strict=True):
                slow[batch] += Text(int(length), int(before)).pairs(window)
            assert part.pairs(window).tolist() == slow
    whole = int((work.prompts + work.responses - 1).sum())
    read = sum(int(part.tokens_M.sum()) for part in work.predicted(1, 10**6, shared))
    assert read < whole if shared and per_row * texts > 1 else read == whole
    assert sum(int(part.labels_M.sum()) for part in work.predicted(2, 200, shared)) == int(work.responses.sum())


@pytest.mark.parametrize("dp", [1, 2, 3])
def test_each_sample_is_trained_on_once_a_pass_and_each_micro_batch_keeps_to_its_bound(dp: int) -> None:
    work = drawn(30, minibatches=4)
    shares = work.shares(dp)
    assert len(shares) == 4
    assert sorted(i for parts in shares for part in parts for i in part) == list(range(30))
    for parts in work.trained(dp, 200):
        assert len(parts) == dp
        assert all((part.tokens_M <= 200).all() for part in parts)


def test_a_draw_has_the_mean_and_the_spread_that_were_asked_for_and_is_always_the_same() -> None:
    lengths = spread_lengths((40, 0), (200, 100), (64, 10**4))
    _, responses = lengths.drawn(64, 4, seed=1)
    assert abs(responses.mean() / 200 - 1) < 0.02 and abs(responses.std() / 100 - 1) < 0.1
    assert (lengths.prompts == 40).all()
    again = spread_lengths((40, 0), (200, 100), (64, 10**4)).drawn(64, 4, seed=1)[1]
    assert (again == responses).all()
    longer = lengths.scaled(1.3, 512)
    assert longer.responses.max() == 512 and longer.responses.sum() > lengths.responses.sum()


def test_texts_whose_responses_are_longer_or_shorter_are_the_same_texts() -> None:
    lengths = spread_lengths((40, 20), (3, 1), (64, 6))
    prompts, responses = lengths.drawn(32, 1)
    for factor in (0.4, 0.7, 1.3, 3.0):
        again, others = lengths.scaled(factor, 18).drawn(32, 1)
        assert (again == prompts).all(), factor
        assert (others == np.clip(np.rint(responses * factor), 1, 18)).all()
    with pytest.raises(ConfigurationError, match="100,000,000 texts are too many to reckon with"):
        lengths.drawn(10**5, 10**3)


def test_lengths_of_a_file_are_read_and_what_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lengths.jsonl"
    path.write_text("".join(json.dumps({"prompt": 3 + i, "response": 10 * (i + 1)}) + "\n" for i in range(4)))
    assert lengths_in(path).responses.tolist() == [10, 20, 30, 40]
    for content, said in (
        ('{"prompt": 3, "response": 4}\n\n{"prompt": 3}\n', "line 3: Object missing required field `response`"),
        ('{"prompt": 3, "response": 0}', "line 1: Expected `int` >= 1"),
        ('{"prompt": 3, "response": 99999999999999999999}', "line 1: Expected `int` <= 2147483647"),
        ("\n", "it has no lines. A file of lengths has lines like"),
    ):
        path.write_text(content)
        with pytest.raises(DataError, match=said):
            lengths_in(path)
    with pytest.raises(ValueError, match="at least one token"):
        Lengths(np.array([1]), np.array([0]))


def test_lengths_are_cut_to_what_a_run_allows() -> None:
    cut = Lengths(np.array([9000, 3]), np.array([99999, 7])).cut(1024, 2048)
    assert cut.prompts.tolist() == [1024, 3] and cut.responses.tolist() == [2048, 7]
    assert cut.cut(1024, 5).responses.tolist() == [5, 5] and cut.cut(1024, 5).prompts.tolist() == [1024, 3]


def test_lengths_of_a_run_are_those_of_its_archives(tmp_path: Path) -> None:
    run = kept_run(tmp_path / "run", {1: {"a": response("xyz", "ab"), "b": response("x", "abcd")}})
    found = lengths_of_run(run.root / "samples")
    assert (found.prompts.tolist(), found.responses.tolist()) == ([3, 1], [2, 4])
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="no archives with prompts and responses"):
        lengths_of_run(tmp_path / "none")


def test_the_slowest_of_many_parts_is_among_the_heaviest() -> None:
    lengths = spread_lengths((60, 30), (300, 200), (128, 1024))
    prompts, responses = lengths.drawn(512, 1, seed=3)
    work = Workload(prompts, responses, minibatches=4)
    parts, few = work.parts(64), work.heaviest(64)
    assert len(few) <= 2 * SLOWEST < len(parts) and set(few) <= set(parts)
    visits = [int(visits_of(work._waiting(part), 4, 256, 1).times_V.sum()) for part in parts]
    assert max(visits[parts.index(part)] for part in few) >= 0.98 * max(visits)
    tokens = [int((prompts + responses)[list(part)].sum()) for part in parts]
    assert max(tokens[parts.index(part)] for part in few) == max(tokens)
    assert work.heaviest(8) == work.parts(8)
