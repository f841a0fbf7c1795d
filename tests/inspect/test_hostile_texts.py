"""Whatever user's code, paths and libraries say: printed as it stands, escaped, by its ends; never obeyed."""

import contextlib
import io
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console
from support.made_run import MadeRun, ppo_experiment

from hpcrl.cli.main import main
from hpcrl.durable.rundir import RunDirectory
from hpcrl.events import CallFailed, ReplayDrifted, WorkerEnded
from hpcrl.foreign import LONGEST
from hpcrl.inspect.progress import Progress
from hpcrl.launch.conclusion import describe

MARKUP = ("[/x]", "[bold]", "[link=http://x]", "[", "]", ":smile:", "\\[", "%s", "{0}")
STEERING = ("\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\r", "\x00", "\u202e", "\n")
HOSTILE = st.lists(st.sampled_from([*MARKUP, *STEERING]) | st.text(st.characters(codec="utf-8"), max_size=20)).map(
    "".join
)
LONG = "begin [/x]\x1b[2J" + "x" * 5_000_000 + "the end"


def usable(name: str) -> str:
    """Without what no run's path may hold."""
    return "".join(character for character in name if character not in "/%\\" and character.isprintable())


def failed_run(folder: Path, text: str, name: str) -> RunDirectory:
    """A first attempt that lost a worker, and a second one whose reward raised."""
    made, whole, text = MadeRun(folder / name), text, text[:LONGEST]
    made.begin()
    made.write(WorkerEnded(0, made.attempt, text, text))
    made.verdict("lost", 75, text)
    made.begin()
    made.steps(0, 3)
    made.write(ReplayDrifted(2, text, "a", "b", text, text))
    made.write(CallFailed(1, text, text, text))
    made.write(CallFailed(1, text, text), process="worker-1")
    for suffix in (".out", ".err"):
        made.run.worker_log(made.attempt, "worker-1").with_suffix(suffix).write_text(whole + "\n")
    made.verdict("failed", 66, whole)
    return made.run


def printed_by(command: Callable[[], object]) -> str:
    written = io.BytesIO()
    out = io.TextIOWrapper(written, encoding="utf-8", newline="", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        command()
    out.flush()
    return written.getvalue().decode()


def progress(run: RunDirectory, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100, highlight=False)
    with Progress(run, ppo_experiment(), console) as shown:
        shown._announced.clear()
        shown.note(str(run.root))
        shown.update()
    return file.getvalue()


def assert_harmless(printed: str) -> None:
    printed.encode()
    assert not {"\x07", "\x00", "\r", "\x9b", "\u202e"} & set(printed)
    assert "\x1b[2J" not in printed and "\x1b]" not in printed
    assert len(printed) < 500_000


@settings(max_examples=25)
@given(HOSTILE, st.lists(st.sampled_from(MARKUP), max_size=3).map("".join))
@example("[/x]", "[/x]")
@example(LONG, "run")
def test_no_command_obeys_a_text_from_outside(text: str, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = failed_run(Path(folder), text, "r" + usable(name))
        verdict = run.newest_verdict()
        assert verdict is not None
        for words in (["status", str(run.root)], ["list", folder], ["logs", str(run.root)], ["inspect", str(run.root)]):
            printed = printed_by(lambda words=words: main(words))
            assert_harmless(printed)
            assert "\x1b" not in printed
        assert_harmless(progress(run, terminal=False))
        assert_harmless(progress(run, terminal=True).replace("\r", ""))
        assert_harmless(describe(run, verdict))
        assert_harmless(printed_by(lambda: main(["status", f"{folder}/{text[:50]}".replace("\x00", "")])))


def test_a_long_reason_is_shown_by_its_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = failed_run(tmp_path, LONG, "run")
    for command in ("status", "logs", "inspect"):
        main([command, str(run.root)])
        printed = capsys.readouterr().out
        assert "begin [/x]\\x1b[2J" in printed and ("the end" in printed or command != "logs")
