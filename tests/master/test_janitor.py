"""What is behind a step's closing: lines of what agents have made, and pruning that waits for them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support.crew import Table
from support.miniature import make_run

from hpcrl.data.samples import SequenceSample
from hpcrl.durable.checkpoints import Manifest, write_manifest
from hpcrl.durable.files import FileRef
from hpcrl.durable.journal import Archived, Compacted, Done, Event, Opened, Pruned
from hpcrl.durable.recovery import RecoveryPlan
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.spills import write_spill
from hpcrl.durable.step_lines import StepLines
from hpcrl.master.chores import Turns
from hpcrl.master.janitor import Janitor, Retention
from hpcrl.wire.chores import ChoreDone

MADE, MERGED = FileRef("samples/made", 1, 1), FileRef("spills/merged", 1, 1)


class Stage:
    """A janitor, the lines that it had written, and the one agent that does what it orders."""

    def __init__(self, run: RunDirectory, stay: Sequence[str] = ("r1",)) -> None:
        self.run = run
        self.lines: list[Event] = []
        self.table = Table(0)
        self.janitor = Janitor(run, 0, RecoveryPlan(), Retention(2, compacts=True), self._append)
        self.janitor.begin(lambda lines: {"train": tuple(stay)} if stay else {}, Turns(self.table))

    def _append(self, events: Sequence[Event]) -> None:
        self.lines += events
        self.janitor.written(events)

    def close(self, step: int, parts: int) -> None:
        """A step closes that has so many parts."""
        sample = SequenceSample.from_rows(["r1"], {"y": [np.arange(step)]})
        for part in range(parts):
            spill = write_spill(self.run.files, self.run.spill(step, "gen", part, 0), sample)
            self.janitor.written([Done(step, "gen", part, spill, None, {})])
        opened = Opened(step, ("r1",), 0, {}, {}, 0, (), 1, checkpoint=False, export=False)
        self.janitor.closed(StepLines(opened))
        self.janitor.tidy()

    def tell(self, step: int, archive: FileRef | None = None, merged: FileRef | None = None) -> None:
        """What the agent was told last is done."""
        self.janitor.heard(self.table.agents[0], ChoreDone(0, step, archive, merged))
        self.janitor.tidy()

    def rest(self) -> None:
        """Until nothing is done any more."""
        while not self.janitor.idle:
            self.janitor.tidy()


@pytest.fixture
def run(folder: Path) -> RunDirectory:
    return make_run(folder / "run")


def manifests(run: RunDirectory, *steps: int) -> list[Manifest]:
    made = [Manifest(step, 0, {}, 0, step, {}) for step in steps]
    for manifest in made:
        write_manifest(run.files, run.manifest(manifest.step, 0), manifest)
    return made


def test_lines_are_written_of_what_was_told_and_parts_go_after_their_lines(run: RunDirectory) -> None:
    stage = Stage(run)
    stage.close(1, parts=2)
    assert stage.lines == [] and stage.table.kinds == ["KeepStep"]
    stage.tell(1, MADE, MERGED)
    assert stage.lines == [Archived(1, MADE), Compacted(1, MERGED)]
    assert stage.table.kinds == ["KeepStep", "RemoveParts"] and not stage.janitor.idle
    stage.tell(1)
    assert stage.janitor.idle


def test_of_a_step_that_leaves_nothing_there_is_a_line_and_no_chore(run: RunDirectory) -> None:
    stage = Stage(run, stay=())
    stage.close(1, parts=1)
    assert stage.lines == [Archived(1)] and stage.table.kinds == [] and stage.janitor.idle


def test_nothing_goes_of_which_an_archive_is_still_made(run: RunDirectory) -> None:
    """Not even checkpoints: whoever resumes the run then has what the archive is to be made of."""
    stage = Stage(run)
    kept = manifests(run, 1, 2, 3)
    stage.close(1, parts=1)
    stage.janitor.prune(kept)
    for _ in range(3):
        stage.janitor.tidy()
    assert run.step_spills(1).exists() and len(run.files.listing(run.checkpoints)) == 3
    stage.tell(1, MADE)
    stage.rest()
    assert stage.lines == [Archived(1, MADE), Pruned(2)]
    assert not run.step_spills(1).exists() and len(run.files.listing(run.checkpoints)) == 2
