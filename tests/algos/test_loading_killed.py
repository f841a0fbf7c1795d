"""Runs that are struck while their workers read files together: who waits for a reader that is gone does not hang."""

from pathlib import Path

import pytest
from support.chaos import create_run, ends_alike, remains
from support.faults import After, Strike
from support.layout_runs import Undisturbed, sft, undisturbed_runs
from support.phases import Phased


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return undisturbed_runs(tmp_path_factory)


@pytest.mark.parametrize("who", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_run_whose_worker_is_killed_as_it_reads_weights_ends_with_the_same_bits(
    undisturbed: Undisturbed, tmp_path: Path, who: int
) -> None:
    """One of the two has read all of so small a model, and dies before it sends; or the other, to whom it is sent."""
    run = create_run(tmp_path / "run", sft(undisturbed.task, "d1t2p1", 2))
    expected = remains(undisturbed("sft", "d1t2p1", 2))
    ends_alike(run, expected, Strike(tmp_path, "kill", f"worker-{who}", "read.end", "KILL"), told=Phased)


def test_a_run_whose_worker_is_killed_as_it_reads_a_checkpoint_ends_with_the_same_bits(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = create_run(tmp_path / "run", sft(undisturbed.task, "d1t2p1", 2))
    expected = remains(undisturbed("sft", "d1t2p1", 2))
    training = Strike(tmp_path, "training", "worker-0", "minibatch.begin", "KILL", nth=4)
    reading = After(tmp_path, "reading", "worker-1", "stretch.end", "KILL", first=training)
    ends_alike(run, expected, training, reading, told=Phased)
