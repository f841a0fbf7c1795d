"""`make same` finds a changed byte in every kind of file that it compares."""

import ast
import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from same import processes
from same.cases import CASES, Case, Material, chosen
from same.comparison import Findings, compare_killed, compare_undisturbed
from same.runs import last_step
from same.session import DIFFERENT, NOT_COMPARED, Outcome, findings, main

TOOL = Path(processes.__file__).parent
JOURNAL, METRICS = "attempts/000/journal.jsonl", "attempts/000/metrics.jsonl"
SPILL, EXPORT = "spills/step-00000001.a000.h5", "export/actor/step-00000001"
SHARD, MANIFEST = (
    "checkpoints/step-00000001.a000/actor.r000.safetensors",
    "checkpoints/step-00000001.a000/MANIFEST.json",
)
Change = Callable[[Path], None]


def made_run(root: Path, attempt: int = 0) -> Path:
    """A run of one step, with a file of every kind."""
    spill = {"name": f"spills/step-00000001/gen.dp00.a{attempt:03d}.h5", "size": 96, "crc32": 7}
    events = [
        {"type": "opened", "step": 1, "ids": ["r1@0", "r2@0"], "calls": {"gen": 1}},
        {"type": "done", "step": 1, "call": "gen", "part": 0, "spill": spill, "stats": {"norm": [0.5, 2.0]}},
        {"type": "checkpointed", "step": 1, "manifest": {"name": MANIFEST, "size": 99, "crc32": 3}},
        {"type": "trained", "step": 1, "call": "train", "record": {"lr": [0.1, 0.2], "digest": "abc"}},
    ]
    _write(root / JOURNAL, b"".join(journal_line(event) for event in events))
    _write(root / METRICS, b'{"step": 0, "loss": 1.5}\n{"step": 1, "loss": 0.1}\n')
    cut = root / f"checkpoints/step-00000001.a{attempt:03d}"
    _write(cut / "actor.r000.safetensors", safetensors({"updates": 4}, np.array([1.0, np.nan], "<f4")))
    shard = {"name": f"checkpoints/{cut.name}/actor.r000.safetensors", "size": 10, "crc32": 5}
    manifest = {
        "step": 1,
        "attempt": attempt,
        "roles": {"actor": [shard]},
        "digests": {"actor": "abc", "critic": "def"},
    }
    _write(cut / "MANIFEST.json", json.dumps(manifest, indent=1).encode())
    _write(root / EXPORT / "model.safetensors", safetensors({}, np.array([1.0, 2.0], "<f4")))
    _write(root / EXPORT / "config.json", b'{"layers": 2}')
    (root / "spills").mkdir()
    with h5py.File(root / SPILL, "w") as file:
        file.create_dataset("gen.dp00/key:tokens", data=np.array([3, 4, 5]), track_times=False)
        file.create_dataset("gen.dp00/ids", data=np.array([b"r1@0", b"r2@0"]), track_times=False)
    _write(root / "run.json", os.urandom(8))
    _write(root / "attempts/000/events.jsonl", os.urandom(8))
    return root


def journal_line(event: dict[str, Any]) -> bytes:
    payload = json.dumps(event).encode()
    return b'{"crc":"%08x","event":%b}\n' % (zlib.crc32(payload), payload)


def safetensors(state: dict[str, Any], array: np.ndarray) -> bytes:
    entry = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [0, array.nbytes]}
    header = json.dumps({"__metadata__": {"state": json.dumps(state)}, "w": entry}).encode()
    return struct.pack("<Q", len(header)) + header + array.tobytes()


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def swapped(name: str, old: bytes, new: bytes) -> Change:
    """Replace some bytes of a file, which are in it once."""

    def change(run: Path) -> None:
        data = (run / name).read_bytes()
        assert data.count(old) == 1
        (run / name).write_bytes(data.replace(old, new))

    return change


def removed(name: str) -> Change:
    return lambda run: (run / name).unlink()


def relabelled(run: Path) -> None:
    """The journal with another name for a field, as another version may write it."""
    lines = (json.loads(line)["event"] for line in (run / JOURNAL).read_bytes().splitlines())
    renamed = [{"lines" if key == "stats" else key: value for key, value in event.items()} for event in lines]
    (run / JOURNAL).write_bytes(b"".join(journal_line(event) for event in renamed))


def in_other_order(run: Path) -> None:
    lines = (run / JOURNAL).read_bytes().splitlines(keepends=True)
    (run / JOURNAL).write_bytes(b"".join(reversed(lines)))


def with_wrong_crc(run: Path) -> None:
    head, _, last = (run / JOURNAL).read_bytes().rpartition(b'{"crc":"')
    (run / JOURNAL).write_bytes(head + b'{"crc":"00000000' + last[8:])


def without_last_line(run: Path) -> None:
    lines = (run / JOURNAL).read_bytes().splitlines(keepends=True)
    (run / JOURNAL).write_bytes(b"".join(lines[:-1]))


CHANGES: dict[str, tuple[Change, str]] = {
    "a metric": (swapped(METRICS, b"0.1", b"0.2"), f"{METRICS}: loss (step 1): BASE 0.1, here 0.2"),
    "a metric's spelling": (swapped(METRICS, b"0.1}", b"0.10}"), f"{METRICS}: bytes (from byte"),
    "a metric more": (swapped(METRICS, b"0.1}", b'0.1, "kl": 3}'), f"{METRICS}: kl (step 1): BASE absent, here 3"),
    "a step's name": (swapped(METRICS, b'"step": 1', b'"time": 1'), f"{METRICS}: time (line 2): BASE absent, here 1"),
    "a row that is none": (
        swapped(METRICS, b'{"step": 1', b'"step": 1'),
        f'{METRICS}: text (line 2): BASE absent, here "',
    ),
    "a step less": (swapped(METRICS, b'{"step": 1, "loss": 0.1}\n', b""), f"{METRICS}: step (step 1): BASE 1, here"),
    "a spill's CRC": (
        swapped(JOURNAL, b'"crc32": 7', b'"crc32": 8'),
        f"{JOURNAL}: done spill.crc32 (done 1 gen 0): BASE 7, here 8",
    ),
    "a spill's size": (swapped(JOURNAL, b": 96", b": 97"), "done spill.size (done 1 gen 0): BASE 96, here 97"),
    "a learning rate": (
        swapped(JOURNAL, b"0.2]", b"0.3]"),
        "trained record.lr[1] (trained 1 train): BASE 0.2, here 0.3",
    ),
    "a line's CRC alone": (with_wrong_crc, f"{JOURNAL}: trained line (trained 1 train): BASE b'"),
    "a line that is none": (swapped(JOURNAL, b'"type": "done"', b'"type": done"'), "done line (done 1 gen 0): BASE"),
    "a line less": (without_last_line, f"{JOURNAL}: trained line (trained 1 train): BASE"),
    "another name": (relabelled, "done stats.norm[0] (done 1 gen 0): BASE 0.5, here absent"),
    "a shard": (
        swapped(SHARD, struct.pack("<f", 1.0), struct.pack("<f", 1.5)),
        f"{SHARD}: array w (element 0, 1 of 2 differ): BASE 1.0, here 1.5",
    ),
    "a shard's state": (swapped(SHARD, b'updates\\": 4', b'updates\\": 5'), f"{SHARD}: state.updates: BASE 4, here 5"),
    "a digest": (swapped(MANIFEST, b"abc", b"abd"), f"{MANIFEST}: digests.actor: BASE abc, here abd"),
    "an export": (
        swapped(f"{EXPORT}/model.safetensors", struct.pack("<f", 2.0), struct.pack("<f", 4.0)),
        f"{EXPORT}/model.safetensors: array w (element 1, 1 of 2 differ): BASE 2.0, here 4.0",
    ),
    "an export's configuration": (swapped(f"{EXPORT}/config.json", b"2", b"3"), "config.json: layers: BASE 2, here 3"),
    "a spill": (
        swapped(SPILL, np.array([3, 4, 5]).tobytes(), np.array([3, 4, 6]).tobytes()),
        f"{SPILL}: dataset gen.dp00/key:tokens (element 2, 1 of 3 differ): BASE 5, here 6",
    ),
    "an id in a spill": (swapped(SPILL, b"r2@0", b"r3@0"), f"{SPILL}: dataset gen.dp00/ids (element 1"),
    "a spill that is none": (swapped(SPILL, b"\x89HDF", b"\x88HDF"), f"{SPILL}: dataset"),
    "a manifest that is none": (swapped(MANIFEST, b'"digests":', b'"digests"'), f"{MANIFEST}: bytes: BASE absent"),
    "no spill": (removed(SPILL), f"{SPILL}: the file: BASE there, here missing"),
    "no export": (removed(f"{EXPORT}/config.json"), f"{EXPORT}/config.json: the file: BASE there, here missing"),
    "no shard": (removed(SHARD), f"{SHARD}: the file: BASE there, here missing"),
}


def raced(run: Path) -> None:
    """As if the critic's train step had ended before the actor's."""
    manifest = json.loads((run / MANIFEST).read_bytes())
    manifest["digests"] = dict(reversed(manifest["digests"].items()))
    (run / MANIFEST).write_bytes(json.dumps(manifest, indent=1).encode())
    events = [json.loads(line)["event"] for line in (run / JOURNAL).read_bytes().splitlines()]
    events[2]["manifest"]["crc32"] = 4
    (run / JOURNAL).write_bytes(b"".join(journal_line(event) for event in events))


@pytest.mark.parametrize("what", CHANGES)
def test_what_has_changed_is_found_whether_roles_are_racing_or_not(tmp_path: Path, what: str) -> None:
    change, expected = CHANGES[what]
    base, here = made_run(tmp_path / "base"), made_run(tmp_path / "here")
    change(here)
    for racing in (False, True):
        found = compare_undisturbed(base, here, racing).lines(most=9)
        assert any(expected in line for line in found), found


def test_equal_runs_with_journals_in_another_order_are_equal(tmp_path: Path) -> None:
    base, here = made_run(tmp_path / "base"), made_run(tmp_path / "here")
    in_other_order(here)
    found = compare_undisturbed(base, here)
    assert found.differences == []
    assert found.compared["journal lines"] == 4
    assert found.compared["metric rows"] == 2


def test_which_role_finished_first_counts_unless_roles_are_racing(tmp_path: Path) -> None:
    base, here = made_run(tmp_path / "base"), made_run(tmp_path / "here")
    raced(here)
    assert compare_undisturbed(base, here, racing=True).differences == []
    assert {difference.file for difference in compare_undisturbed(base, here).differences} == {JOURNAL, MANIFEST}


def test_runs_that_wrote_nothing_are_not_equal(tmp_path: Path) -> None:
    for compare in (compare_undisturbed, compare_killed):
        assert compare(tmp_path / "base", tmp_path / "here").differences


def test_differences_of_a_kind_are_shown_once(tmp_path: Path) -> None:
    base, here = made_run(tmp_path / "base"), made_run(tmp_path / "here")
    _write(base / METRICS, b"".join(b'{"step": %d, "loss": 1, "kl": 2}\n' % step for step in range(5)))
    _write(here / METRICS, b"".join(b'{"step": %d, "loss": 3, "kl": 4}\n' % step for step in range(5)))
    found = compare_undisturbed(base, here)
    assert found.lines(most=9)[0] == f"{METRICS}: loss (step 0): BASE 1, here 3 (and 4 more like this)"
    assert found.lines(most=1)[1:] == ["and differences of 1 more kinds"]


def killed_run(root: Path, attempts: int) -> Path:
    """A run of one step whose last attempt wrote its checkpoint; older ones had other numbers for the same step."""
    made_run(root, attempts - 1)
    for attempt in range(attempts):
        loss = 0.1 if attempt == attempts - 1 else 9.0
        _write(root / f"attempts/{attempt:03d}/metrics.jsonl", b'{"step": 1, "loss": %g}\n' % loss)
    return root


def test_killed_runs_with_different_numbers_of_attempts_are_equal(tmp_path: Path) -> None:
    base, here = killed_run(tmp_path / "base", 2), killed_run(tmp_path / "here", 3)
    assert compare_killed(base, here).differences == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (swapped("attempts/002/metrics.jsonl", b"0.1", b"0.2"), "metrics: loss (step 1): BASE 0.1, here 0.2"),
        (swapped(f"{EXPORT}/config.json", b"2", b"3"), "config.json: layers"),
        (swapped(SHARD.replace("a000", "a002"), struct.pack("<f", 1.0), b"\0\0\0\0"), "r000.safetensors: array w"),
        (swapped(MANIFEST.replace("a000", "a002"), b"abc", b"abd"), "last checkpoint/MANIFEST.json: digests.actor"),
        (removed(SHARD.replace("a000", "a002")), "last checkpoint/actor.r000.safetensors: array w: BASE"),
    ],
)
def test_what_has_changed_in_a_killed_run_is_found(tmp_path: Path, change: Change, expected: str) -> None:
    base, here = killed_run(tmp_path / "base", 3), killed_run(tmp_path / "here", 3)
    change(here)
    found = compare_killed(base, here).lines(most=9)
    assert any(expected in line for line in found), found


def test_a_run_that_failed_is_a_difference_even_if_both_did(tmp_path: Path) -> None:
    outcome = Outcome(tmp_path, "exit code 64")
    assert isinstance(found := findings(CASES[0], outcome, outcome), Findings)
    assert "exit code 64" in found.lines(most=1)[0]


def test_the_last_step_is_that_of_any_attempt_and_of_whole_lines(tmp_path: Path) -> None:
    assert last_step(tmp_path) == -1
    _write(tmp_path / "attempts/000/metrics.jsonl", b'{"step": 4}\n{"st')
    _write(tmp_path / "attempts/001/metrics.jsonl", b'{"step": 3}\n')
    assert last_step(tmp_path) == 4


def test_worker_and_master_are_found_by_what_they_write_and_killed(tmp_path: Path) -> None:
    worker, master = tmp_path / "run/logs/worker-1.out", tmp_path / "run/journal.jsonl"
    _write(worker, b"")
    environment = {"PATH": os.environ["PATH"], processes.MARK: str(tmp_path / "run")}
    with worker.open("ab") as output:
        # Its child writes to the same file, and is not the worker.
        first = subprocess.Popen(["sh", "-c", "sleep 60; true"], stdout=output, env=environment)
    second = subprocess.Popen(["sh", "-c", f"exec 9>{master}; sleep 60; true"], env=environment)
    try:
        assert processes.find_worker(tmp_path) == first.pid
        assert processes.find_master(tmp_path) == second.pid
    finally:
        processes.end_marked(tmp_path)
    assert (first.wait(), second.wait()) == (-9, -9)
    assert processes.marked(tmp_path) == []


def test_cases_are_chosen_by_name_in_the_order_of_the_table() -> None:
    assert [case.name for case in chosen(["ppo-dp2", "toy"])] == ["toy", "ppo-dp2"]
    assert chosen([]) == list(CASES)
    assert len({case.name for case in CASES}) == len(CASES)
    with pytest.raises(ValueError, match="unknown case ppo; the cases are toy"):
        chosen(["ppo"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_has_settings_as_words_of_a_command_line(case: Case) -> None:
    words = case.words(Material(Path("/rows"), Path("/model"), Path("/sft-model")))
    assert all(word.startswith("--") and "=" in word and "{" not in word for word in words), words


def test_without_a_commit_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == NOT_COMPARED
    assert "make same BASE=<commit>" in capsys.readouterr().out
    assert main(["no-such-commit"]) == NOT_COMPARED
    assert "no-such-commit is not a commit" in capsys.readouterr().out
    assert DIFFERENT == 1


def test_the_tool_imports_nothing_of_hpcrl() -> None:
    for path in TOOL.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "hpcrl" for name in names), path
    loaded = "import same.session, sys; print([name for name in sys.modules if name.startswith(('hpcrl', 'torch'))])"
    environment = os.environ | {"PYTHONPATH": str(TOOL.parent)}
    said = subprocess.run([sys.executable, "-P", "-c", loaded], env=environment, capture_output=True, text=True)
    assert said.stdout == "[]\n", said.stderr
