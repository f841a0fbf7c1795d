"""The indexes of a run's sources: `index/NAME`, made once, by whoever submits or by the master, mapped by all."""

import contextlib
import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hpcrl.data.contents import Contents
from hpcrl.data.indexes import ScratchIndexes
from hpcrl.data.inputs import changed, differences, fingerprints
from hpcrl.durable.exclusive import AlreadyPublishedError
from hpcrl.durable.files import DamagedFileError
from hpcrl.durable.history import accepted_inputs, read_history
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.seen import read_seen

POINT = "index"
"""Where a test may strike."""


class RunIndexes:
    """Fulfils `hpcrl.data.rows.kind.Indexes`. `inputs` are the fingerprints by setting that the run goes by.

    Who does not make indexes (`makes`) raises DamagedFileError where one is missing: the master makes it again.
    """

    def __init__(self, run: RunDirectory, inputs: Mapping[str, str], *, makes: bool) -> None:
        self._run = run
        self._inputs = inputs
        self._makes = makes

    def fingerprint(self, setting: str, files: Sequence[Path]) -> str:
        if setting in self._inputs:
            return self._inputs[setting]
        return fingerprints({setting: list(files)}, Contents(read_seen(self._run)))[setting]

    def confirm(self, setting: str, files: Sequence[Path]) -> None:
        if setting not in self._inputs:
            return
        expected = {setting: self._inputs[setting]}
        if differing := differences(expected, {setting: list(files)}, Contents(read_seen(self._run))):
            raise changed(differing, self._run.root)

    def find(self, name: str) -> Path | None:
        return find_index(self._run, name)

    def keep(self, name: str, chunks: Sequence[bytes | memoryview]) -> Path:
        self._refuse_making(name)
        path = self._run.indexes / name
        with contextlib.suppress(AlreadyPublishedError):
            self._run.files.publish_chunks(path, chunks, POINT)
        return path

    def discard(self, name: str) -> None:
        self._refuse_making(name)
        self._run.files.unlink(self._run.indexes / name, POINT)

    def _refuse_making(self, name: str) -> None:
        if not self._makes:
            raise DamagedFileError(f"{self._run.files.name(self._run.indexes / name)} is missing or damaged")


def find_index(run: RunDirectory, name: str) -> Path | None:
    """Where a run keeps the index of this name, if it does."""
    return run.indexes / name if name in run.files.listing(run.indexes) else None


def indexes_to_try(run: RunDirectory) -> ScratchIndexes:
    """Those of a run, and new ones that it does not keep, of files as they are now."""
    return ScratchIndexes(Contents(read_seen(run)), lambda name: find_index(run, name))


def indexes_of(run: RunDirectory, submission: str) -> RunIndexes:
    """For the master of a submission: of files as they were submitted, or accepted since."""
    accepted = accepted_inputs(read_history(run, recent=1)) | run.accepted_by(submission)
    return RunIndexes(run, run.read_run().inputs | accepted, makes=True)


def keep_indexes(run: RunDirectory, made: Mapping[str, Path]) -> None:
    """Have a new run keep indexes that were made before it."""
    for name, path in made.items():
        with _mapped(path) as content:
            run.files.publish_chunks(run.indexes / name, [content], POINT)


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as content,
    ):
        yield content
