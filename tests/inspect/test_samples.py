"""`hpcrl samples`: which samples are shown, in which order, and that what they say is shown and never obeyed."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from rich.console import Console
from support.experiments import load_config, values_of, write_config, write_inputs
from support.kept_run import begin_attempt, kept_run, response, write_lines, write_step
from support.miniature import make_run

from hpcrl.cli.main import main
from hpcrl.config.experiment import to_dict
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Adopted, encode_line
from hpcrl.durable.records import KeyPair, Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.inspect.archives import Archives
from hpcrl.inspect.conditions import Where
from hpcrl.inspect.sample_files import to_html
from hpcrl.inspect.sample_texts import render
from hpcrl.inspect.views.samples import Asked, pieces, samples, shade_of
from hpcrl.launch.next_settings import next_settings
from hpcrl.placement.plan import plan_for

STEPS = {
    1: {
        "7@0": response("1+1=", "2", reward=1.0, right=1.0, format=1.0, record={"level": 1}),
        "9@0": response("2+2=", "five", reward=-1.0, record={"level": 3}, ended="length", finished=False),
    },
    2: {
        "7@1": response("1+1=", "3", reward=-0.5, format=1.0, details={"numbers": {"spam": 2.0}}, record={"level": 1}),
        "8@1": response("3+3=", "6!", reward=float("nan"), details={"error": "it raised"}, record={"level": 2}),
    },
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return kept_run(tmp_path_factory.mktemp("kept") / "run", STEPS)


def found(run: RunDirectory, *words: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main(["samples", str(run.root), "--jsonl", *words]) == ExitCode.DONE
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], ["7@1", "8@1"]),
        (["--step", "1"], ["7@0", "9@0"]),
        (["--step", "1-2"], ["7@0", "9@0", "7@1", "8@1"]),
        (["--step", "2-"], ["7@1", "8@1"]),
        (["--step", "all", "--where", "reward < 0 and format == 0"], ["9@0"]),
        (["--step", "all", "--where", "-1 <= reward < 0"], ["9@0", "7@1"]),
        (["--step", "all", "--where", "not (reward < 0) or spam == 2"], ["7@0", "7@1", "8@1"]),
        (["--step", "all", "--where", "ended == 'length' or error != ''"], ["9@0", "8@1"]),
        (["--step", "all", "--where", "'!' in response"], ["8@1"]),
        (["--step", "all", "--where", "row.level in '3'"], None),
        (["--step", "all", "--where", "row.level >= 2 and step == 1"], ["9@0"]),
        (["--step", "all", "--where", "reward != 1"], ["9@0", "7@1", "8@1"]),
        (["--step", "all", "--grep", "^f.ve$"], ["9@0"]),
        (["--step", "all", "--grep", r"1\+1"], ["7@0", "7@1"]),
        (["--prompt", "7"], ["7@0", "7@1"]),
        (["--prompt", "7@1"], ["7@1"]),
        (["--prompt", "7", "--step", "1"], ["7@0"]),
        (["--step", "all", "--sort", "reward"], ["9@0", "7@1", "7@0", "8@1"]),
        (["--step", "all", "--sort", "reward", "--desc", "--limit", "2"], ["7@0", "7@1"]),
        (["--step", "all", "--sort", "response"], ["7@0", "7@1", "8@1", "9@0"]),
    ],
)
def test_what_is_asked_for_is_found(
    run: RunDirectory, words: list[str], shown: list[str] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if shown is None:
        assert main(["samples", str(run.root), *words]) == ExitCode.CONFIGURATION
        assert "compares row.level (a number, as 1) with '3'" in capsys.readouterr().err
        return
    assert [sample["sample"] for sample in found(run, *words, capsys=capsys)] == shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--step", "7"], "--step 7 has kept no sample. There are 1-2."),
        (["--step", "x"], "--step x is no step. Give 1-2, a span of them, or all."),
        (["--where", "rewrd < 0"], "--where rewrd is nothing that these samples have. Did you mean reward?"),
        (["--where", "row.size == 1"], "--where row.size is nothing"),
        (["--sort", "colour"], "--sort colour is nothing that these samples have. There are: "),
        (["--prompt", "77"], "--prompt 77 is nothing that these samples have. Did you mean 7? There are: 7, 9, 8."),
        (["--grep", "("], "--grep ( is not a regular expression"),
        (["--where", "reward <"], "--where reward < cannot be read."),
        (["--where", "reward < 'a'"], "compares reward (a number, as -0.5) with 'a'. Compare it as in: reward == 3 or"),
        (
            ["--where", "prompt == 3"],
            "prompt (text, as '1+1=') with 3. Compare it as in: prompt == '3' or '3' in",
        ),
        (["--where", "reward > 1 and 3 == ended"], "compares 3 with ended (text, as 'eos')."),
        (["--where", "1 in response"], "compares 1 with response (text, as '3')."),
        (["--where", "prompt in reward"], "compares prompt (text, as '1+1=') with reward (a number, as -0.5)."),
        (
            ["--where", "reward > 0 and 1 == 'a'"],
            "compares 1 with 'a'. Compare it as in: reward == 3 or 'a' in response",
        ),
        (["--limit", "-1"], "--limit -1 shows nothing. Give 1 or more, or leave it out."),
        (["--limit", "few"], "--limit few is not a whole number."),
        (["--desc"], "--desc says how to sort, but not by what. Add a name, as in --sort reward."),
    ],
)
def test_what_is_unknown_is_refused_with_what_there_is(
    run: RunDirectory, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["samples", str(run.root), *words]) == ExitCode.CONFIGURATION
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "advised",
    [
        ["--step", "1-2"],
        ["--step", "2"],
        ["--step", "all"],
        ["--where", "reward < 0 and ended == 'length'"],
        ["--where", "prompt == '3' or '3' in prompt"],
        ["--where", "reward == 3 or reward < 3"],
        ["--where", "reward == 3 or 'a' in response"],
        ["--limit", "1"],
        ["--desc", "--sort", "reward"],
        ["--sort", "reward"],
        ["--prompt", "7"],
        ["--grep", r"\("],
    ],
)
def test_who_does_what_is_advised_is_not_refused(run: RunDirectory, advised: list[str]) -> None:
    assert main(["samples", str(run.root), *advised]) == ExitCode.DONE


@pytest.mark.parametrize(
    "text",
    ["__import__('os').system('x')", "reward.__class__ == 1", "[r for r in prompt]", "(lambda: 1)()", "reward + 1 > 0",
     "row.x.y == 1", "f'{reward}'", "reward if 1 else 2", "prompt[0] == 'a'", "reward := 1", "None == None", "\0",
     "1 < " * 3000 + "1",
     "(" * 500 + "reward" + ")" * 500],
)  # fmt: skip
def test_a_condition_is_read_and_never_executed(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--where"):
        Where(text)


@pytest.mark.parametrize(
    ("text", "is_true"),
    [
        ("a != 1", True),
        ("a not in 'b'", True),
        ("a == 1", False),
        ("a < 1", False),
        ("a >= 1", False),
        ("a in 'b'", False),
    ],
)
def test_of_a_value_that_a_sample_lacks_only_its_absence_is_true(text: str, is_true: bool) -> None:
    assert Where(text).holds({}) == is_true


WORDS = ("reward", "<", "0", "and", "not", "(", ")", "==", "'a'", "in", "1")


@given(st.text(max_size=60) | st.lists(st.sampled_from(WORDS)).map(" ".join))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    try:
        where = Where(text)
        assert where.holds({"reward": 1.0}) in (True, False)
    except ConfigurationError as error:
        assert error.exit_code == ExitCode.CONFIGURATION


def test_a_field_that_is_now_text_and_now_a_number_may_be_compared_with_both(tmp_path: Path) -> None:
    rows = {f"{i}@0": response("a", "b", record={"level": level}) for i, level in enumerate([1, "2"])}
    run = kept_run(tmp_path / "run", {1: rows})
    view = samples(Archives(run), str(run.root), Asked(where=Where("row.level == 1 or row.level == '2'")))
    assert len(view.samples) == 2


def test_a_sample_has_all_that_the_archive_has_of_it(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    (sample,) = found(run, "--step", "1", "--where", "sample == '9@0'", capsys=capsys)
    assert sample["texts"] == {"prompt": "2+2=", "response": "five"} and sample["record"]["level"] == 3
    assert sample["figures"] == {
        "prompt_length": 4.0, "length": 4.0, "finished": 0.0, "logprobs": -0.5, "ref_logprobs": -0.75, "reward": -1.0,
        "right": 0.0, "format": 0.0, "log_ratio": 0.25,
    }  # fmt: skip
    assert sample["columns"]["responses.ends"] == [1, 2, 3, 4] and sample["ended"] == "length"
    (sample,) = found(run, "--where", "error != ''", capsys=capsys)
    assert sample["error"] == "it raised" and "reward" not in sample["figures"], "a number that there is none of"


def test_responses_are_coloured_token_by_token_by_advantage_or_log_ratio(tmp_path: Path) -> None:
    rows = {
        "1@0": response("a", "abcd", advantages=[1.0, -1.0, 0.2, 0.0]),
        "2@0": response("a", "xy", advantages=[]),
    }
    run = kept_run(tmp_path / "run", {1: rows})
    view = samples(Archives(run), str(run.root), Asked())
    assert [shade_of(sample) for sample in view.samples] == [
        ("advantages", [1.0, -1.0, pytest.approx(0.2), 0.0]),
        ("log_ratio", [0.25, 0.25]),
    ]
    assert [*pieces(view.samples[0])] == [("a", 1.0), ("b", -1.0), ("c", pytest.approx(0.2)), ("d", 0.0), ("", 0.0)]
    console = Console(force_terminal=True, color_system="standard", width=200)
    with console.capture() as shown:
        console.print(render(view))
    assert "\x1b[1;32ma\x1b[0m\x1b[1;31mb\x1b[0m\x1b[32mc\x1b[0md" in shown.get()
    page = to_html(view).decode()
    assert '<span class="u3">a</span><span class="d3">b</span><span class="u1">c</span>d</pre>' in page


def test_a_table_and_a_page_are_written_where_they_are_to_be(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, page = tmp_path / "samples.parquet", tmp_path / "samples.html"
    words = ["--step", "all", "--parquet", str(table), "--html", str(page)]
    assert main(["samples", str(run.root), *words]) == ExitCode.DONE
    rows = parquet.read_table(table).to_pylist()
    assert [row["sample"] for row in rows] == ["7@0", "9@0", "7@1", "8@1"]
    assert rows[1]["text.response"] == "five" and rows[1]["tokens.logprobs"] == [-0.5] * 4
    assert rows[0]["figure.spam"] is None and rows[2]["figure.spam"] == 2.0
    assert json.loads(rows[0]["record"])["level"] == 1
    assert page.read_text().count("<article>") == 4 and "4 of 4 samples of 2 steps from 1 to 2" in page.read_text()
    said = capsys.readouterr()
    assert said.out == "" and "4 of 4 samples" in said.err


HOSTILE = "<script>alert(1)</script>&\"'</pre>\x1b[31m\x1b]0;t\x07\u202e\r[bold]{{ 7*7 }}{% raw %}"


@given(st.text(st.characters(codec="utf-8"), max_size=60))
@example(HOSTILE)
@settings(max_examples=30, deadline=None)
def test_what_texts_hold_is_shown_and_never_obeyed(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        row = response(text + "p", text + "r", details={"error": text + "e"}, record={"odd": text})
        run = kept_run(Path(folder) / "run", {1: {"1@0": row}})
        view = samples(Archives(run), str(run.root), Asked())
        page = to_html(view).decode()
        console = Console(force_terminal=True, color_system=None, width=500)
        with console.capture() as shown:
            console.print(render(view), soft_wrap=True)
    unseen = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
    assert unseen.search(page) is None and unseen.search(shown.get()) is None
    assert "<script" not in page and page.count("</pre>") == page.count("<pre")
    assert "http" not in page.replace("http-equiv", "").replace(text, "")


def test_of_attempts_the_newest_that_said_so_is_believed(tmp_path: Path) -> None:
    """An older one that writes on, and an archive that no line names, count for nothing."""
    run = make_run(tmp_path / "run")
    old = begin_attempt(run)
    write_lines(run, old, [write_step(run, old, 1, {"1@0": response("a", "old")})])
    believed = read_history(run)
    new = begin_attempt(run, Adopted(believed.prefixes(len(believed.lines)), {}))
    late = write_step(run, old, 2, {"1@1": response("a", "late")})
    with run.journal(old).open("ab") as journal:
        journal.write(encode_line(late))
    write_step(run, new, 3, {"1@2": response("a", "unnamed")})
    assert Archives(run).steps == [1]
    write_lines(run, new, [write_step(run, new, 2, {"1@1": response("a", "new")})])
    found = Archives(run)
    assert found.steps == [1, 2] and [it.texts["response"] for it in found.samples(2)] == ["new"]


def test_a_damaged_archive_is_named_and_a_half_copied_run_says_what_it_lacks(
    tmp_path: Path, run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = RunDirectory(tmp_path / "copy")
    shutil.copytree(run.root, copy.root)
    path = copy.archive(2, 0)
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["samples", str(copy.root)]) != ExitCode.DONE
    assert "samples/00000/step-00000002.a000.h5 has" in capsys.readouterr().err
    path.unlink()
    assert main(["samples", str(copy.root)]) != ExitCode.DONE
    assert "samples/00000/step-00000002.a000.h5 is missing" in capsys.readouterr().err
    assert main(["samples", str(copy.root), "--step", "1"]) == ExitCode.DONE


def test_archives_that_were_deleted_are_passed_over_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = {step: {f"{row}@{step}": response("a", "b") for row in (6, step)} for step in range(1, 5)}
    run = kept_run(tmp_path / "run", steps)

    def says(*words: str) -> str:
        code = main(["samples", str(run.root), *words])
        said = capsys.readouterr()
        return said.err if code else said.out

    run.archive(1, 0).unlink()
    assert "; the archive of another step is gone" in says("--step", "all")
    run.archive(2, 0).unlink()
    shown = found(run, "--step", "all", capsys=capsys)
    assert {sample["step"] for sample in shown} == {3, 4}
    for words in (["--step", "all"], ["--step", "0-"], ["--prompt", "6"]):
        assert "samples of 2 steps from 3 to 4; the archives of 2 other steps are gone" in says(*words)
    assert "1 of 2 samples of step 3; the archives of 2 other steps are gone" in says("--step", "1-3", "--prompt", "3")
    assert main(["samples", str(run.root), "--step", "all", "--jsonl"]) == ExitCode.DONE
    assert "; the archives of 2 other steps are gone" in capsys.readouterr().err
    assert "--prompt 1 is nothing that these samples have; the archives of 2 other steps are gone." in says(
        "--prompt", "1"
    )
    assert "--step 1-2: the archives of all of these steps, 1-2, are gone. There are 3-4." in says("--step", "1-2")
    assert "--step 9 has kept no sample. There are 3-4." in says("--step", "9")
    assert "step-00000001.a000.h5 is missing. Look at other steps with --step." in says("--step", "1")
    assert "2 of 2 samples of step 4\n" in says()


def test_a_run_that_has_kept_nothing_says_so_until_a_step_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run")
    assert main(["samples", str(run.root)]) == ExitCode.CONFIGURATION
    assert "no step has kept a sample yet. Wait for the first step to end." in capsys.readouterr().err
    number = begin_attempt(run)
    write_lines(run, number, [write_step(run, number, 1, STEPS[1])])
    assert main(["samples", str(run.root)]) == ExitCode.DONE


EVALUATES = ("data.evaluate=rows.jsonl", "control.evaluate.steps=1")


@pytest.mark.parametrize(
    ("algorithm", "settings", "state", "says"),
    [
        ("ppo", (), "", "no step has kept a sample yet. Wait for the first step to end."),
        ("dpo", (), "", "no step has kept a sample yet. Wait for the first step to end."),
        ("ppo", (), "stopped", "no step has kept a sample, and the run has ended (stopped). Nothing that was finished"),
        ("ppo", (), "done", "no step has kept a sample, and the run has ended (done)."),
        ("ppo", ("samples.per_step=0",), "", "samples.per_step = 0. Have later steps keep some: hpcrl resume "),
        ("ppo", ("samples.per_step=0",), "done", "samples.per_step = 0. Submit a new run with --samples.per_step 32."),
        ("ppo", ("samples.per_step=0", *EVALUATES), "", "no evaluation has kept a sample yet. Wait for the first eval"),
        ("sft", (), "", "this run keeps no samples: it evaluates nothing, and steps of sft train on rows as they are."),
        (
            "reward_model",
            (),
            "done",
            "this run keeps no samples: it evaluates nothing, and steps of reward_model",
        ),
        ("sft", EVALUATES, "", "no evaluation has kept a sample yet. Wait for the first evaluation to end."),
        (
            "sft",
            ("samples.per_evaluation=0", *EVALUATES),
            "",
            "this run keeps no samples: samples.per_evaluation = 0. Have later steps keep some: hpcrl resume ",
        ),
    ],
)
def test_a_run_that_has_kept_nothing_says_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    algorithm: str,
    settings: Sequence[str],
    state: str,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path)
    experiment = load_config(write_config(tmp_path / "c.yaml", values_of(algorithm)), settings)
    values, key = to_dict(experiment), KeyPair("", "")
    run = RunDirectory.create(tmp_path / "run", experiment=values, host="m:C", key=key, inputs={})
    number = begin_attempt(run)
    run.files.publish(run.plan(number), msgspec.json.encode(plan_for(experiment)), "plan")
    if state:
        run.record_submission("s", {})
        run.publish_verdict(number, Verdict(number, state, 0, "", None, None, None, 0.0))
    assert main(["samples", str(run.root)]) == ExitCode.CONFIGURATION
    said = capsys.readouterr().err
    assert says in said
    assert main(["samples", str(run.root), "--prompt", "7"]) == ExitCode.CONFIGURATION
    assert capsys.readouterr().err == said
    advised = re.search(r"hpcrl (resume|inspect) \S+ (.+)", said)
    if advised is None:
        return
    if advised[1] == "inspect":
        assert main(["inspect", str(run.root), advised[2]]) == ExitCode.DONE
        return
    option, value = advised[2].removeprefix("--").split()
    changed = next_settings(run, [f"{option}={value}"])
    assert option in [change.key for change in changed.changes]


def test_a_copy_that_cannot_be_written_is_read_without_torch(tmp_path: Path, run: RunDirectory) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.root, copy)
    for path in (*copy.rglob("*"), copy):
        path.chmod(0o500 if path.is_dir() else 0o400)
    before = sorted((str(path), path.stat().st_mtime_ns) for path in copy.rglob("*"))
    program = (
        "import sys; from hpcrl.cli.main import main; code = main(['samples', sys.argv[1], '--step', 'all']); "
        "assert not {'torch', 'transformers', 'zmq', 'submitit', 'tokenizers'} & sys.modules.keys(); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(copy)], capture_output=True, text=True, env=os.environ)
    assert done.returncode == ExitCode.DONE, done.stderr
    assert "step 1 · train · 9@0" in done.stdout and "five" in done.stdout
    assert sorted((str(path), path.stat().st_mtime_ns) for path in copy.rglob("*")) == before


def commands() -> list[list[str]]:
    page = Path(__file__).parents[2] / "docs" / "samples.md"
    return [shlex.split(line)[2:] for line in page.read_text().splitlines() if line.startswith("$ hpcrl")]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_what_the_page_says_is_done(run: RunDirectory, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert words[:2] == ["samples", "RUN"] and main(["samples", str(run.root), *words[2:]]) == ExitCode.DONE
    assert capsys.readouterr().out
