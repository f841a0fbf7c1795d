"""What a script does outside of its run: once it has its line never again, before it the same, under the same key."""

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from support import once_script
from support.chaos import create_run, ends_alike, outputs, remains, toy_experiment, whole_run
from support.covering import covering
from support.faults import Strike
from support.in_memory import FAST

from hpcrl.config.control import Frequency
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Called, Closed, Done
from hpcrl.durable.once import Once
from hpcrl.durable.rundir import RunDirectory

STEPS = 4


def experiment() -> Any:
    algorithm = f"{Path(once_script.__file__)}:ALGORITHM"
    made = toy_experiment(lost_after_s=60.0, start_timeout_s=60.0)
    return replace(made, algorithm=algorithm, control=replace(made.control, steps=STEPS, evaluate=Frequency()))


def lines(run: RunDirectory) -> list[Any]:
    return [line.event for line in read_history(run).lines]


def sent(folder: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (folder / "sent").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole() -> Iterator[RunDirectory]:
    """A run that nothing has disturbed."""
    with tempfile.TemporaryDirectory(dir=FAST) as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv(once_script.FILE, f"{name}/sent")
        yield whole_run(Path(name), experiment())


def test_it_is_done_when_what_it_rests_on_is_on_disk_and_has_its_line(whole: RunDirectory) -> None:
    found, known = lines(whole), set()
    onces = [it for it in found if isinstance(it, Once)]
    assert [(it.step, it.call) for it in onces] == [(s, c) for s in range(1, STEPS + 1) for c in ("send", "send_2")]
    for it in found:
        if isinstance(it, Done):
            known.add((it.step, it.call))
        elif isinstance(it, Once):
            assert (it.step, "rew_inf") in known
        elif isinstance(it, Closed):
            assert it.turn is not None
            assert it.turn.calls == sum(isinstance(line, Called | Once) and line.step == it.step for line in found)
    told = sent(whole.root.parent)
    assert [json.loads(it.arguments) for it in onces] == [[step, score] for _, step, score in told]
    assert [json.loads(it.result)["taken"] for it in onces] == [[score] for _, _, score in told]
    identity = whole.read_run().digest[:16]
    assert [key for key, _, _ in told] == [f"{identity}/{it.step}/{it.call}" for it in onces]


# Where the master or the script's worker passes; how often it has passed there before; how often that is done again.
POINTS = [
    ("master", "master.ask", 4, "self", 0),
    ("master", "master.ask", 12, "worker-2", 0),
    ("master", "master.once", 1, "self", 1),
    ("master", "master.once", 4, "all", 1),
    ("worker-2", "script.did", 3, "self", 1),
    ("worker-2", "script.did", 4, "master", 1),
    ("worker-2", "script.answered", 8, "self", None),
    ("worker-2", "script.answered", 9, "master", None),
    ("master", "journal.before", 7, "self", None),
    ("master", "journal.after", 8, "worker-2", None),
    ("master", "journal.after", 9, "all", None),
]


@pytest.mark.parametrize(("who", "point", "nth", "target", "again"), covering(POINTS, itemgetter(0), itemgetter(4)))
def test_a_kill_before_its_line_repeats_it_and_none_after(
    whole: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    who: str,
    point: str,
    nth: int,
    target: str,
    again: int | None,
) -> None:
    monkeypatch.setenv(once_script.FILE, str(tmp_path / "sent"))
    run = create_run(tmp_path / "run", experiment())
    ends_alike(run, remains(whole), Strike(tmp_path, "strike", who, point, "KILL", target, nth))
    ours, theirs = [Counter(json.dumps(it[1:]) for it in sent(of)) for of in (tmp_path, whole.root.parent)]
    assert ours.keys() == theirs.keys(), outputs(run)
    repeated = (ours - theirs).total()
    assert repeated <= 1 if again is None else repeated == again
    assert len({key for key, _, _ in sent(tmp_path)}) == theirs.total()
