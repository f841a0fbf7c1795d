"""docs/backends.md: its commands do what it says, and its texts are those that hpcrl prints."""

import json
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.chaos import rows_of, wait_until
from support.experiments import ppo_values, write_config, write_inputs
from support.fake_slurm.cluster import FakeSlurm

from hpcrl.backends.backend import BACKENDS
from hpcrl.cli.main import main
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.shards import open_shard
from hpcrl.errors import ExitCode
from hpcrl.plugins import find, names

PAGE = (Path(__file__).parent.parent / "docs" / "backends.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(line, comments=True)[1:] for line in PAGE.splitlines() if line.startswith("hpcrl ")]
REFUSED, SWITCHED = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("|")]


def commands(*beginning: str) -> Iterator[Sequence[str]]:
    return (words for words in COMMANDS if words[: len(beginning)] == list(beginning))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands are typed: ppo.yaml for two workers, and a backend of the user's own."""
    folder = tmp_path_factory.mktemp("page")
    write_inputs(folder)
    (folder / "mine.py").write_text(CODE)
    optimizer = {"grad_clip": 0.0}
    values = ppo_values() | {"cluster": {"type": "local", "workers_per_node": 2}, "control": {"steps": 2}}
    for role in ("actor", "critic"):
        values[role] = {**values[role], "optimizer": optimizer}
    write_config(folder / "ppo.yaml", values)
    return folder


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "140")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> str:
    """The directory of a run on the backend that is the default."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["submit", "ppo.yaml", "--run-dir", "native"]) == ExitCode.DONE
    return str(folder / "native")


def exports(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted(run.glob("export/*/*/*.safetensors"))}


def test_every_command_of_the_page_is_one_of_these() -> None:
    assert [words[0] for words in COMMANDS] == [
        "doctor",
        "plan",
        "plan",
        "submit",
        "plan",
        "plan",
        "plan",
        "plan",
        *["resume"] * 5,
        "plan",
        "resume",
    ]


def test_the_table_has_every_backend_with_what_it_declares() -> None:
    told = {row[0].split("`")[1]: row[1:] for row in ROWS if len(row) == 5 and row[0].startswith("`")}
    assert set(told) == set(names(BACKENDS))
    for name, cells in told.items():
        backend = find(BACKENDS, name, "actor.backend")
        words = {True: "yes", False: "no"}
        able = [words[backend.train], words[bool(backend.generate)] + " (in a server)" * (backend.server is not None)]
        assert cells == [", ".join(backend.axes), ", ".join(backend.dtypes), *able]


def test_the_doctor_names_them(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in FakeSlurm(here / "slurm").environment.items():
        monkeypatch.setenv(name, value)
    for name in ("SLURM_CONF", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HPCRL_SITE", "")
    (words,) = commands("doctor")
    main([*words, "--no-jobs", "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    values = {row["what"]: row["value"] for row in found if row["area"] == "backends"}
    assert "splits over dp, parameters too" in values["fsdp"] and "splits over dp, tp, pp" in values["native"]


def test_plan_names_the_backend_and_the_layout(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = (
        ["backend fsdp: actor"],
        ["backend fsdp: actor"],
        ["backend fsdp: actor", "backend native: actor@1, reference, critic"],
        ["backend megatron: actor, critic"],
        ["backend zero3: actor", "backend zero2: critic"],
        [f"backend {here}/mine.py:MINE: critic"],
    )
    for words, backends in zip(commands("plan", "ppo.yaml"), told, strict=True):
        assert main(words) == ExitCode.DONE
        said = capsys.readouterr()
        assert said.err == ""
        assert backends == [line for line in map(str.strip, said.out.splitlines()) if line.startswith("backend ")]
    assert main(["plan", "ppo.yaml"]) == ExitCode.DONE
    assert "backend" not in capsys.readouterr().out


def test_a_plan_says_what_each_needs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (words,) = commands("plan", "examples/addition/ppo.yaml")
    needed: list[list[list[str]]] = []
    for backend in ("native", "fsdp"):
        own = [backend if word == "fsdp" else word for word in words[2:]]
        assert main(["plan", "ppo.yaml", *own]) == ExitCode.DONE
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        needed.append([line[3:9] for line in lines if len(line) > 8 and line[0] in ("actor", "critic")])
    for whole, sharded in zip(*needed, strict=True):
        expected = [float(number) / cut for number, cut in zip(whole[::2], (2, 2, 1), strict=True)]  # both cut AdamW's
        shares = [float(number) / all_of_it for number, all_of_it in zip(sharded[::2], expected, strict=True)]
        assert all(0.98 < share <= 1 for share in shares), "flat buffers have gaps, so that parameters align"
        assert sharded[1::2] == whole[1::2], "units"


def test_what_is_refused_is_refused_in_these_words(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["--actor.backend", "fsdp", "--actor.layout", "t2", "--critic.backend", "fsdpp"]
    assert main(["submit", "ppo.yaml", *wrong, "--run-dir", "refused"]) == ExitCode.CONFIGURATION
    assert capsys.readouterr().err == REFUSED
    assert not Path("refused").exists()


def test_an_allocation_gives_a_sharded_role_data_parallel_workers_alone(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "ppo.yaml", "--actor.backend", "fsdp", "--allocation", "pipe_model"]) == ExitCode.DONE
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    layouts = {line[0]: line[2] for line in lines if len(line) > 4 and re.fullmatch(r"d\d+t\d+p\d+", line[2])}
    assert (layouts["actor"], layouts["critic"]) == ("d2t1p1", "d1t2p1")


def test_the_submitted_run_has_the_bits_of_the_default(here: Path, run: str) -> None:
    (submit,) = commands("submit")
    assert main([*submit, "--run-dir", "fsdp"]) == ExitCode.DONE
    expected = exports(Path(run))
    assert len(expected) == 2 and exports(here / "fsdp") == expected


def test_a_run_is_switched_as_the_page_says(here: Path, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run, "switched")
    dry, switch, *_, own = ([word.replace("RUN", "switched") for word in words] for words in commands("resume"))
    assert main([*dry, "--control.steps", "3"]) == ExitCode.DONE
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if line in SWITCHED.splitlines()] == SWITCHED.splitlines()
    assert main([*dry, "--actor.layout", "t2", "--control.steps", "3"]) == ExitCode.CONFIGURATION
    assert "actor.backend = fsdp splits over dp only" in capsys.readouterr().err
    assert main([*switch, "--control.steps", "3"]) == ExitCode.DONE
    assert main([*own, "--control.steps", "4"]) == ExitCode.DONE
    assert sorted(path.name for path in Path("switched/export/actor").iterdir())[-1] == "step-00000004"


def test_a_run_goes_to_other_code_and_back_as_the_page_says(
    here: Path, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, "translated")
    _, _, dry, there, back, _ = ([word.replace("RUN", "translated") for word in words] for words in commands("resume"))
    assert main([*dry, "--control.steps", "3"]) == ExitCode.DONE
    assert "actor.model, critic.model: what is computed with another value is equal" in capsys.readouterr().out
    assert main([*there, "--control.steps", "3"]) == ExitCode.DONE
    assert main([*back, "--control.steps", "4"]) == ExitCode.DONE
    spaces = [open_shard(path).state["space"] for path in sorted(Path("translated").glob("checkpoints/*/actor.r000.*"))]
    assert spaces[-2:] == ["huggingface", "own"]


@pytest.mark.slow
def test_a_fork_begins_with_other_code(here: Path, run: str) -> None:
    theirs = ["--actor.model", "transformers", "--control.steps", "3"]
    assert main(["fork", run, "--step", "2", "--run-dir", "forked", *theirs]) == ExitCode.DONE
    assert [path.name for path in Path("forked/export/actor").iterdir()] == ["step-00000003"]


@pytest.mark.slow
def test_a_run_that_is_stopped_goes_on_under_the_other(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "ppo.yaml", "--run-dir", "stopped", "--detach", "--control.steps", "400"]) == ExitCode.DONE
    run = RunDirectory.open(here / "stopped")
    wait_until(lambda: closed(run) >= 2, 60, "2 steps")
    assert main(["stop", "stopped"]) == ExitCode.DONE
    _, switch, *_ = ([word.replace("RUN", "stopped") for word in words] for words in commands("resume"))
    before = closed(run)
    assert main([*switch, "--control.steps", str(before + 2)]) == ExitCode.DONE
    assert closed(run) == before + 2


def closed(run: RunDirectory) -> int:
    rows = [row for attempt in run.numbers() for row in rows_of(run.events(attempt))]
    return len({row["step"] for row in rows if row["event"] == "closed"})


def test_every_file_that_is_linked_to_exists() -> None:
    targets = re.findall(r"\]\(([^)#:]+)", PAGE)
    assert [name for name in targets if not (Path(__file__).parent.parent / "docs" / name).is_file()] == []
