"""An algorithm and a model family in a file each: what `hpcrl` does with its own, it does with them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from support.chaos import Remains, held, outputs, process_of, remains, rows_of, started_twice, wait_until, workers_of
from support.cluster import alive_of
from support.experiments import KNOWN
from support.tiny_tokenizer import train_tokenizer

import hpcrl
from hpcrl.cli.main import main
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Opened
from hpcrl.durable.rundir import RunDirectory
from hpcrl.engines.flat import new_model
from hpcrl.errors import ExitCode
from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import FAMILIES
from hpcrl.models.pretrained import save_pretrained, write_random_pretrained
from hpcrl.plugins import names

SUPPORT = Path(__file__).parents[1] / "support"
ALGORITHM = f"{SUPPORT / 'toy_algorithm.py'}:ALGORITHM"
FAMILY = f"{SUPPORT / 'toy_family.py'}:FAMILY"
VOCABULARY = 258
STEPS = 8
RESPONSES, MINIBATCHES = 4, 3
STATISTICS = {"sample/length", "grade/score", "compare/spread"}
STATISTICS |= {f"learn/{name}" for name in ("loss", "lr", "grad_norm", "skipped")}
EVALUATED = {"eval_sample/length", "eval_grade/score"}

CLIENT = """
import sys
from hpcrl.cli.main import main
code = main(sys.argv[1:])
assert "torch" not in sys.modules, "a client loaded torch"
sys.exit(code)
"""


def values(folder: Path) -> dict[str, Any]:
    return {
        "algorithm": ALGORITHM,
        "control": {"steps": STEPS, "checkpoint": {"steps": 3}, "evaluate": {"steps": 4}},
        "letters": {"file": str(folder / "letters.jsonl")},
        "actor": {"path": str(folder / "model"), "family": FAMILY, "optimizer": {"lr": 0.01}},
        "reward": {"mesh": "0-1"},
        "cluster": {
            "type": "local",
            "nodes": 2,
            "workers_per_node": 2,
            "device": "cpu",
            "heartbeat_s": 0.2,
            "lost_after_s": 30,
            "orphan_timeout_s": 5,
            "replace_timeout_s": 0.5,
        },
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """own.yaml and what it names."""
    folder = tmp_path_factory.mktemp("own")
    config = DecoderConfig(FAMILY, VOCABULARY, 24, 36, 2, 4, 2, 6, 64, norm_eps=1e-5, initializer_range=0.2)
    tokenizer = train_tokenizer(folder / "tokenizer", [], size=VOCABULARY)
    write_random_pretrained(folder / "model", config, seed=3, tokenizer_from=tokenizer)
    rows = [{"start": "ab"[: 1 + i % 2] * (1 + i % 5), "limit": chr(ord("b") + i)} for i in range(20)]
    (folder / "letters.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "own.yaml").write_text(json.dumps(values(folder)))
    return folder


def client(folder: Path, *words: str, package: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`hpcrl WORDS` as a process of its own, which is refused torch."""
    environment = os.environ | ({"PYTHONPATH": str(package)} if package else {})
    command = [sys.executable, "-c", CLIENT, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=folder, env=environment)
    assert "a client loaded torch" not in done.stderr
    return done


def obeyed(folder: Path, *words: str, package: Path | None = None) -> str:
    """What `hpcrl WORDS` prints; it succeeds."""
    done = client(folder, *words, package=package)
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class Ended:
    """What a run leaves."""

    remains: Remains
    exports: dict[str, bytes]

    @classmethod
    def of(cls, run: RunDirectory) -> "Ended":
        files = (path for path in run.exports.rglob("*") if path.is_file())
        return cls(remains(run), {str(path.relative_to(run.exports)): path.read_bytes() for path in files})


@pytest.fixture(scope="module")
def plain(folder: Path) -> RunDirectory:
    """A run that nobody disturbs."""
    obeyed(folder, "submit", "own.yaml", "--run-dir", "plain")
    return RunDirectory.open(folder / "plain")


# ── before a run ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_help_has_its_settings(folder: Path) -> None:
    for words in (("plan", "own.yaml", "--help"), ("submit", "--help", "--algorithm", ALGORITHM)):
        shown = " ".join(obeyed(folder, *words).split())
        assert "--letters.rows" in shown and "Rows per step. (a whole number, at least 1; default 8)" in shown
        assert "letters: What is read, and how much of it is a step" in shown


def test_plan_has_its_calls_its_model_and_its_notice(folder: Path) -> None:
    done = client(folder, "plan", "own.yaml", "--json", "--generation.max_new_tokens", "1")
    assert done.stderr == "hpcrl: note: generation.max_new_tokens = 1 leaves nothing to say but a token.\n"
    shown = json.loads(done.stdout)
    calls = {call["name"]: call for call in shown["plan"]["calls"]}
    assert calls.keys() == {"sample", "grade", "compare", "learn", "eval_sample", "eval_grade"}
    assert (calls["compare"]["kind"], calls["compare"]["method"]) == ("inference", "centre")
    assert all(gib > 0 for gib in shown["memory_gib"])


def test_draw_has_its_calls(folder: Path) -> None:
    obeyed(folder, "draw", "own.yaml", "--out", "own.dot")
    drawn = (folder / "own.dot").read_text()
    assert all(call in drawn for call in ("sample", "grade", "compare", "learn", "eval_grade"))


WRONG = {
    "letters.rows=2": "letters.rows = 2 must be at least 3, so that each minibatch has a row. Raise letters.rows.",
    "letters.rows=3": "letters.rows gives 3 rows that are kept whole per step, but actor.layout has dp = 4, and every "
    "part needs one. Raise letters.rows, or set actor.layout to one with a smaller d, or actor.mesh to fewer workers.",
    "letters.rows=many": "letters.rows = many (command line) must be a whole number. Set letters.rows.",
    "letters.held_out=0": "letters.held_out = 0 must be at least 1. Set letters.held_out.",
    "letters.file=/gone": "letters.file = /gone must be a file, but there is none. Set letters.file.",
    "letters.rws=8": "letters.rws = 8 (command line) is not a setting of algorithm",
    "control.stop_when=grade/scor >= 1": "control.stop_when = 'grade/scor' is no statistic of grade, which reports "
    "score. Set control.stop_when, probably to grade/score.",
    "control.stop_when=grde/score >= 1": "control.stop_when = 'grde/score' is a metric of a call 'grde', but the calls "
    "are sample, grade, compare, learn, eval_sample, eval_grade. Set control.stop_when, probably to grade/score.",
    "actor.family=toi": f"actor.family = toi must be one of {', '.join(names(FAMILIES))}, or file.py:NAME. Set "
    "actor.family.",
    "actor.family=null": f"model_type 'toy' is not supported; supported are {', '.join(names(FAMILIES))}. Name the "
    "family in actor.family.",
    "algorithm=pppo": f"algorithm = pppo (command line) must be one of {', '.join(KNOWN)}, or file.py:NAME. Set "
    "algorithm, probably to ppo.",
}


@pytest.mark.parametrize(
    ("function", "body", "what"),
    [
        ("check", 'raise KeyError("rows")', "KeyError: 'rows'"),
        ("check", "yield 1 / 0", "ZeroDivisionError: division by zero"),
        ("check", "sys.exit(0)", "SystemExit: 0"),
        ("batch", "sys.exit(0)", "SystemExit: 0"),
        ("notices", "sys.exit(0)", "SystemExit: 0"),
    ],
)
def test_a_function_of_the_file_that_raises_or_leaves_is_refused_by_setting_file_and_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], function: str, body: str, what: str
) -> None:
    text = f"import sys\n{Path(ALGORITHM.partition(':')[0]).read_text()}"
    line = text[: text.index(f"def {function}(")].count("\n") + 2
    lines = text.splitlines()
    lines.insert(line - 1, f"    {body}")
    (tmp_path / "mine.py").write_text("\n".join(lines))
    code = main(["plan", str(folder / "own.yaml"), "--algorithm", f"{tmp_path}/mine.py:ALGORITHM"])
    said = capsys.readouterr().err
    assert code == ExitCode.CONFIGURATION
    assert f"algorithm = {tmp_path}/mine.py:ALGORITHM: {tmp_path}/mine.py, line {line}: {what}. Fix the file" in said


@pytest.mark.parametrize("setting", WRONG)
def test_a_wrong_setting_is_refused_by_value_expectation_and_knob_before_anything_is_made(
    folder: Path, tmp_path: Path, setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key, _, value = setting.partition("=")
    code = main(["submit", str(folder / "own.yaml"), "--run-dir", str(tmp_path / "run"), f"--{key}", value])
    assert code == ExitCode.CONFIGURATION
    assert WRONG[setting] in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_its_problems_come_with_all_others(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ("--letters.rows=2", "--letters.held_out=0", "--seed=-1", "--control.stop_when=learn/los > 1")
    assert main(["plan", str(folder / "own.yaml"), *wrong]) == ExitCode.CONFIGURATION
    said = capsys.readouterr().err
    assert "4 problems, nothing was started." in said
    assert all(word in said for word in ("letters.rows = 2", "letters.held_out = 0", "seed = -1", "learn/loss"))


def test_a_wrong_row_is_refused_by_file_line_and_field_before_anything_is_made(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"start": "a", "limit": "c"}\n{"start": "a", "limit": "cd"}\n')
    words = ["submit", str(folder / "own.yaml"), "--letters.file", str(rows), "--run-dir", str(tmp_path / "run")]
    assert main(words) == ExitCode.DATA
    assert f"{rows}, line 2: limit = 'cd' must be one letter. Fix the line or set letters.file." in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()


BROKEN = {
    "raises": ("X = 1\nraise RuntimeError('no voice')\n", ", line 2: RuntimeError: no voice."),
    "is torn": ("X = (\n", ", line 1: SyntaxError: '(' was never closed"),
    "lacks the name": ("\n\nMIME = 1\n", " has no MINE. The nearest is MIME, line 3."),
    "has another type": ("\nMINE = 1.5\n", ", line 2: MINE is a float; {needed} is needed."),
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize(("key", "needed"), [("algorithm", "an Algorithm"), ("actor.family", "a Family")])
def test_a_file_that_declares_nothing_is_refused_by_setting_file_and_line_before_anything_is_made(
    folder: Path, tmp_path: Path, what: str, key: str, needed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text, message = BROKEN[what]
    file = tmp_path / "mine.py"
    file.write_text(text)
    code = main(["submit", str(folder / "own.yaml"), f"--{key}={file}:MINE", "--run-dir", str(tmp_path / "run")])
    assert code == ExitCode.CONFIGURATION
    said = capsys.readouterr().err
    assert f"{key} = {file}:MINE: {file}{message.format(needed=needed)}" in said
    assert f"Fix the file or set {key}." in said
    assert not (tmp_path / "run").exists()


# ── the run ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_reports_the_statistics_that_it_declares(plain: RunDirectory) -> None:
    rows = [set(row) - {"step", "epoch", "samples", "settings"} for row in remains(plain).metrics]
    assert len(rows) == STEPS + 1
    assert rows[0] == EVALUATED
    assert all(row in (STATISTICS, STATISTICS | EVALUATED) for row in rows[1:])


def test_the_responses_of_a_row_share_a_minibatch_and_a_part(plain: RunDirectory) -> None:
    steps = [line.event for line in read_history(plain).lines if isinstance(line.event, Opened)]
    trained = [event for event in steps if event.ids]
    assert len(trained) == STEPS
    for event in trained:
        assert len(event.minibatches) == min(MINIBATCHES, len(event.ids) // RESPONSES)
        assert event.partitions.keys() == {"2", "4"}
        for cuts in (event.minibatches, *event.partitions.values()):
            assert sorted(chain(*cuts)) == list(range(len(event.ids)))
            for cut in cuts:
                rows = [event.ids[position].rpartition("#")[0] for position in cut]
                assert all(rows.count(row) == RESPONSES for row in rows)


@pytest.mark.slow
def test_killed_and_resumed_it_ends_with_the_bits_of_an_undisturbed_run(folder: Path, plain: RunDirectory) -> None:
    obeyed(folder, "submit", "own.yaml", "--run-dir", "killed", "--detach")
    run = RunDirectory.open(folder / "killed")
    wait_until(lambda: closed_steps(run) >= 2, 120, "the second step")
    os.kill(workers_of(run)[0], signal.SIGKILL)
    wait_until(lambda: closed_steps(run) >= 4, 120, "the fourth step")
    with held(run):
        master, worker = process_of(run, "master"), workers_of(run)[0]
        assert "libtorch" not in Path(f"/proc/{master}/maps").read_text()
        assert "libtorch" in Path(f"/proc/{worker}/maps").read_text()
        os.kill(master, signal.SIGKILL)
    resume(folder, "killed")
    assert Ended.of(run) == Ended.of(plain), outputs(run)
    assert len(run.numbers()) >= 3
    assert started_twice(run) == []
    wait_until(lambda: alive_of(run.root) == [], 60, "the end of all processes")


def closed_steps(run: RunDirectory) -> int:
    events = chain.from_iterable(rows_of(run.events(attempt)) for attempt in run.numbers())
    return len({row["step"] for row in events if row["event"] == "closed" and row["step"]})


def resume(folder: Path, name: str) -> None:
    """To the end, once its agents have noticed that their master is gone."""
    deadline = time.monotonic() + 60
    while (done := client(folder, "resume", name)).returncode == ExitCode.CONFIGURATION:
        assert "is running" in done.stderr and time.monotonic() < deadline, done.stderr
        time.sleep(0.3)
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr


def test_its_checkpoint_is_exported_offline_to_the_same_files(
    folder: Path, plain: RunDirectory, tmp_path: Path
) -> None:
    done = client(folder, "export", str(plain.root), "--role", "actor", "--out", str(tmp_path / "out"))
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
    theirs, ours = (
        {path.name: path.read_bytes() for path in place.iterdir()}
        for place in (plain.export("actor", STEPS), tmp_path / "out")
    )
    assert theirs == ours and "model.safetensors" in ours


def test_its_export_loads_again_number_for_number(folder: Path, plain: RunDirectory, tmp_path: Path) -> None:
    exported = plain.export("actor", STEPS)
    model = new_model(exported, family=FAMILY)
    save_pretrained(tmp_path, model.config, model.views)
    before, after, again = (
        {name: tensor.numpy().tobytes() for name, tensor in load_file(place / "model.safetensors").items()}
        for place in (folder / "model", exported, tmp_path)
    )
    assert again == after
    assert before.keys() == after.keys()
    assert all(before[name] != after[name] for name in before)
    fields = [json.loads((place / "config.json").read_text()) for place in (folder / "model", exported)]
    assert fields[0] == fields[1]
    assert fields[1]["width"] == 24


# ── among hpcrl's own files ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def package(folder: Path) -> Path:
    """A copy of hpcrl into whose rooms both files are dropped, under names; named.yaml says them."""
    package = folder / "package" / "hpcrl"
    shutil.copytree(Path(hpcrl.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SUPPORT / "toy_algorithm.py", package / "recipes" / "letters.py")
    shutil.copy(SUPPORT / "toy_family.py", package / "families" / "toy.py")
    by_file = values(folder)
    by_name = by_file | {"algorithm": "letters", "actor": by_file["actor"] | {"family": None}}
    (folder / "named.yaml").write_text(json.dumps(by_name))
    return package.parent


def test_dropped_into_the_rooms_they_are_found_by_name(folder: Path, package: Path) -> None:
    shown = " ".join(obeyed(folder, "plan", "--help", "--algorithm", "letters", package=package).split())
    assert "Settings of algorithm letters" in shown and "--letters.rows" in shown
    listed = ", ".join(sorted([*KNOWN, "letters"]))
    assert listed in client(folder, "plan", "named.yaml", "--algorithm=leters", package=package).stderr
    refused = client(folder, "plan", "named.yaml", "--actor.family", "toi", package=package)
    assert refused.returncode == ExitCode.CONFIGURATION
    families = ", ".join(sorted([*names(FAMILIES), "toy"]))
    assert f"must be one of {families}, or file.py:NAME. Set actor.family, probably to toy." in refused.stderr
    assert "sample" in obeyed(folder, "plan", "named.yaml", package=package)
    obeyed(folder, "draw", "named.yaml", "--out", "named.dot", package=package)
    assert "compare" in (folder / "named.dot").read_text()


@pytest.mark.slow
def test_dropped_into_the_rooms_they_compute_what_they_do_as_files_of_the_users(
    folder: Path, package: Path, plain: RunDirectory
) -> None:
    enough = ("--control.stop_when", "grade/score >= 0")
    obeyed(folder, "submit", "named.yaml", "--run-dir", "named", *enough, package=package)
    run = RunDirectory.open(folder / "named")
    events = [line.event for line in read_history(run).lines]
    rows = rows_of(run.metrics(0))
    assert rows == list(remains(plain).metrics[: len(rows)]), outputs(run)
    assert [event.step for event in events if isinstance(event, Opened) and event.ids][-1] == 1
    exported = json.loads((run.export("actor", 1) / "config.json").read_text())
    assert (exported["model_type"], exported["width"]) == ("toy", 24)
