"""`hpcrl inspect RUN why` of failures of real processes: the verdict, and who began it."""

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from support.failures import QUICK, SLOW, Failure, is_right, made
from support.in_memory import FAST

LEAST = 0.95


def judged(failure: Failure) -> tuple[bool, str, str]:
    """Whether it is told rightly, the verdict, and a picture for a failed test."""
    with tempfile.TemporaryDirectory(dir=FAST) as folder:
        cause, seen = made(failure, Path(folder))
        return is_right(failure, cause), "" if cause is None else cause.kind, seen


@pytest.mark.parametrize("failure", QUICK, ids=lambda it: it.name)
def test_the_cause_of_a_failure_is_told(failure: Failure) -> None:
    right, _, seen = judged(failure)
    assert right, seen


@pytest.mark.slow
def test_of_many_failures_nearly_all_are_told_rightly() -> None:
    right: Counter[str] = Counter()
    said: Counter[str] = Counter()
    wrong = []
    for failure in SLOW:
        is_told, kind, seen = judged(failure)
        said[kind] += 1
        right[failure.kind] += is_told
        if not is_told:
            wrong.append(seen)
    precision = right.total() / max(1, said.total() - said[""])
    recall = right.total() / len(SLOW)
    print(f"{len(SLOW)} failures: precision {precision:.3f}, recall {recall:.3f}\n{dict(said)}", *wrong, sep="\n")
    assert min(precision, recall) >= LEAST, "\n══\n".join(wrong)
