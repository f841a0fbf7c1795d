"""The indexes that a run keeps: made by one process, found by the others, bound to what the run may read."""

import json
from pathlib import Path

import pytest

from hpcrl.data.contents import Contents
from hpcrl.data.inputs import fingerprints
from hpcrl.data.jsonl import JsonLines
from hpcrl.data.rows.lines import PROMPTED
from hpcrl.durable.files import DamagedFileError
from hpcrl.durable.indexes import RunIndexes, indexes_of, indexes_to_try, keep_indexes
from hpcrl.durable.records import KeyPair
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import DataError


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{i}", "id": f"r{i}"}) + "\n" for i in range(5)))
    return path


@pytest.fixture
def run(tmp_path: Path, rows: Path) -> RunDirectory:
    inputs = fingerprints({"data.train": [rows]}, Contents())
    return RunDirectory.create(tmp_path / "run", experiment={}, host="", key=KeyPair("", ""), inputs=inputs)


def opened(rows: Path, indexes: object) -> JsonLines:
    return JsonLines(rows, "data.train", PROMPTED, indexes)


def test_workers_find_what_the_master_made_and_make_nothing(run: RunDirectory, rows: Path) -> None:
    workers = RunIndexes(run, run.read_run().inputs, makes=False)
    with pytest.raises(DamagedFileError, match=r"index/data.train.* is missing or damaged"):
        opened(rows, workers)
    master = opened(rows, indexes_of(run, "s0"))
    (kept,) = run.indexes.iterdir()
    before = kept.stat()
    assert opened(rows, workers).ids == master.ids == [f"r{i}" for i in range(5)]
    assert opened(rows, indexes_of(run, "s1")).ids == master.ids and kept.stat() == before
    kept.write_bytes(kept.read_bytes()[:-1])
    with pytest.raises(DamagedFileError, match=r"index/data.train.* is missing or damaged"):
        opened(rows, workers)
    assert opened(rows, indexes_of(run, "s0")).ids == opened(rows, workers).ids == master.ids


def test_what_submit_has_made_the_run_keeps(run: RunDirectory, rows: Path) -> None:
    trial = indexes_to_try(run)
    opened(rows, trial)
    assert not run.indexes.exists()
    keep_indexes(run, trial.made)
    assert opened(rows, RunIndexes(run, run.read_run().inputs, makes=False)).ids == [f"r{i}" for i in range(5)]


def test_no_index_of_a_changed_file_is_kept_until_it_is_accepted(run: RunDirectory, rows: Path) -> None:
    whole = rows.read_text()
    rows.write_text(whole.replace("p1", "q1"))
    with pytest.raises(DataError, match=r"rows.jsonl has other content.*--accept-changed data.train"):
        opened(rows, indexes_of(run, "s0"))
    assert not run.indexes.exists()
    run.accept("s1", fingerprints({"data.train": [rows]}, Contents()))
    assert opened(rows, indexes_of(run, "s1")).read([1]) == [{"prompt": "q1", "id": "r1"}]
    (of_new,) = run.indexes.iterdir()
    rows.write_text(whole)
    assert opened(rows, indexes_of(run, "s0")).read([1]) == [{"prompt": "p1", "id": "r1"}]
    assert len(list(run.indexes.iterdir())) == 2 and of_new.exists()
