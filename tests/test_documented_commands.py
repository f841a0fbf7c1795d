"""Every command that README and docs show is typed by a test: here with small stand-ins, or by the test that is named.

What would start processes, load a model or wait for Slurm goes as far as the point where that begins: its words are
parsed, its names are resolved, and its inputs are checked. A command that nobody types fails, with its page and line.
"""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from setuptools.config.setupcfg import read_configuration
from support.experiments import write_inputs, write_model
from support.made_run import MadeRun
from support.unpacked import MODEL, unpacked

from hpcrl.cli.main import main
from hpcrl.config.yaml_file import read_yaml
from hpcrl.data.indexes import ScratchIndexes
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.events import WorkerEnded
from hpcrl.launch.fork import describe_fork
from hpcrl.launch.preflight import check_inputs
from hpcrl.launch.submit import describe_recovery

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
EXTRAS = read_configuration(ROOT / "setup.cfg")["options"]["extras_require"]
PAGES = (README, *sorted((ROOT / "docs").glob("*.md")))
SHELLS = ("sh", "bash", "console", "")
"""Languages of the blocks that may show commands; a block without one may show anything else."""
PROGRAMS = re.compile(r"(?:\$ )?((?:hpcrl|make|pip|python3?|source|sbatch|scancel|scontrol|squeue|sacct|df|du) .+)")
TYPED_BY: Mapping[str, str] = {
    "first-run.md": "test_first_run_page.py",
    "export.md": "test_export_page.py",
    "lora.md": "test_lora_page.py",
    "search.md": "test_search_page.py",
    "simulate.md": "test_simulate_page.py",
    "slurm.md": "slurm/test_docs.py",
    "preemption.md": "slurm/test_docs.py",
    "administrators.md": "slurm/test_docs.py",
}
"""Pages, and the test that types all of their commands in order."""
TYPED: Sequence[tuple[str, str, str]] = (
    ("backends.md", "hpcrl ", "test_backends_page.py"),
    ("backends.md", "python3 -m venv ", "test_installed.py"),
    ("inspect.md", "hpcrl inspect RUN", "tools/test_inspect_page.py"),
    ("README.md", "hpcrl profile ", "test_profile.py"),
    ("controller.md", "hpcrl resume RUN --accept-changed algorithm", "launch/test_changed_script.py"),
    ("layouts.md", "hpcrl plan examples/layouts/ppo-7b.yaml ", "test_layouts_page.py"),
)
"""Of other pages: how commands begin, and the test that types them."""
WORDS: Sequence[tuple[str, str]] = (
    (r"\beval RUN@80 RUN@100", "eval RUN@6 STOPPED@6"),
    (r"\bRUN@\d+", "RUN@6"),
    (r"\bresume RUN\b", "resume STOPPED"),
    (r"--step (?:100|400)\b", "--step 6"),
    (r"--SECTION\.SETTING VALUE", "--reward.timeout_s 300"),
    (r"--actor\.path MODEL", f"--actor.path {MODEL} --cluster local --generation.slots 8"),
    (r" > \S+$", ""),
    (r"logs RUN --around first-failure", "logs FAILED --around first-failure"),
)
"""What a page leaves to its reader, and what stands for it here."""


CHAT = "{% for message in messages %}{{ message.content }}{% endfor %}"
STANDING = ("actor.path", "critic.path", "reference.path", "data.train", "data.evaluate")
"""Inputs of the run that tests keep, for which others stand here."""


@dataclass(frozen=True)
class Shown:
    """A command of a page."""

    page: str
    line: int
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"

    @property
    def typed_by(self) -> str | None:
        """The other test that types it."""
        named = (test for page, begins, test in TYPED if page == self.page and re.match(begins, self.text))
        return TYPED_BY.get(self.page) or next(named, None)


def shown_in(page: Path) -> Iterator[Shown]:
    """The commands of its blocks: each line of a shell's block, and each line of another that begins like one."""
    language, is_session = None, False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if fence := re.match(r"\s*```(\w*)", line):
            language, is_session = (fence[1] if language is None else None), False
        elif language in SHELLS:
            is_session = is_session or line.startswith("$ ")
            command = PROGRAMS.fullmatch(line.strip())
            if language in ("sh", "bash") and line.strip() and not line.strip().startswith("#"):
                yield Shown(page.name, number, command[1] if command else line.strip())
            elif command and "──►" not in line and (line.startswith("$ ") or not is_session):
                yield Shown(page.name, number, re.sub(r"\s+#.*", "", command[1]))


EVERY = [it for page in PAGES for it in shown_in(page)]
HERE = [it for it in EVERY if it.typed_by is None]


class Stands:
    """A model that answers, in the place of a process that has loaded one."""

    def __init__(self, *_: Any) -> None: ...

    def respond(self, *_: Any) -> Iterator[str]:
        yield "4"

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RUN, which is done, STOPPED and FAILED, which are not; README's ppo.yaml over small files; what else is named."""
    folder = tmp_path_factory.mktemp("reader")
    unpacked(folder, "RUN")
    stopped = unpacked(folder, "STOPPED")
    stopped.verdict(0).unlink()
    for export in (folder / "RUN" / "export").glob("*/step-*"):
        tokenizer = export / "tokenizer_config.json"
        tokenizer.chmod(0o600)
        tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | {"chat_template": CHAT}))
    failed = MadeRun(folder / "FAILED")
    failed.begin()
    failed.write(WorkerEnded(1, 0, "killed by SIGKILL", "attempts/000/logs/worker-1.err"))
    failed.verdict("lost", 75, "worker-1: killed by SIGKILL")
    write_inputs(folder / "inputs")
    write_model(folder / "inputs/model", max_position_embeddings=1024)
    (folder / "examples").symlink_to(ROOT / "examples")
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (folder / "ppo.yaml").write_text(text)
    values = read_yaml(folder / "ppo.yaml")
    rows = folder / "inputs" / "rows.jsonl"
    data, sums = Path("data"), folder / "runs" / "addition"
    files = [*(values["data"][name] for name in ("train", "evaluate")), "train.jsonl", data / "train.jsonl",
             data / "held_out.jsonl", sums / "train.jsonl", sums / "test.jsonl"]  # fmt: skip
    for path in {values["actor"]["path"], *files}:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).symlink_to(folder / "inputs" / "model" if path == values["actor"]["path"] else rows)
    for name in ("reward.py", "stricter.py"):
        (folder / name).write_text("def score(prompt, response, row):\n    return float(len(response) < 20)\n")
    return folder


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands are typed. What they would start is not started."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HPCRL_STATE", str(folder / "state"))
    monkeypatch.setattr("builtins.input", lambda *_: (_ for _ in ()).throw(EOFError))

    def submit(experiment: Any, run_dir: Path | None, wait: bool | None) -> int:
        check_inputs(experiment, (run_dir or Path("new")).absolute(), ScratchIndexes())
        return 0

    def recovery(run_dir: Path, accept: tuple[str, ...] = (), overrides: Sequence[str] = ()) -> list[str]:
        return list(describe_recovery(run_dir, (*accept, *STANDING), overrides))

    monkeypatch.setattr("hpcrl.cli.resume.describe_recovery", recovery)
    monkeypatch.setattr("hpcrl.launch.submit.submit", submit)
    monkeypatch.setattr("hpcrl.cli.resume.resume", lambda run, wait, *changed: 0 * len(recovery(run, *changed)))
    monkeypatch.setattr("hpcrl.cli.fork.fork_run", lambda fork, wait: 0 * len(describe_fork(fork)))
    monkeypatch.setattr("hpcrl.cli.eval._show", lambda given, places: None)
    monkeypatch.setattr("hpcrl.cli.asking.Answerer", Stands)
    monkeypatch.setattr("hpcrl.doctor.measure.measure", lambda request, environ: None)
    for command in ("pause", "continue"):
        monkeypatch.setattr(
            f"hpcrl.cli.{command}.give_command", lambda run, command: 0 * RunDirectory.open(run).numbers()[0]
        )
    monkeypatch.setattr("hpcrl.cli.stop.stop", lambda run, now: 0 * RunDirectory.open(run).numbers()[0])
    return folder


@pytest.mark.parametrize("shown", HERE, ids=lambda it: f"{it.page}:{it.line}")
def test_each_command_does_what_it_can_with_stand_ins(
    here: Path, shown: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown.text
    for pattern, words in WORDS:
        text = re.sub(pattern, words, text)
    program, *words = shlex.split(text, comments=True)
    match program:
        case "hpcrl":
            code = main(words)
            assert code == ExitCode.DONE, (shown.where, words, capsys.readouterr().err)
        case "df":
            subprocess.run([program, *words], cwd=here, capture_output=True, check=True)
        case "make":
            subprocess.run([program, "--dry-run", *words], cwd=ROOT, capture_output=True, check=True)
        case "source":
            assert f"VENV := {Path(*words).parts[0]}\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
        case "pip":
            assert words[0] == "install" and re.findall(r"hpcrl\[(\w+)\]", words[-1])[0] in EXTRAS
        case _:
            pytest.fail(f"{shown.where}: no test types it; add a stand-in, or name the test in TYPED")


def test_a_test_that_is_named_reads_the_page() -> None:
    for page, test in (*TYPED_BY.items(), *((page, test) for page, begins, test in TYPED if begins[:5] == "hpcrl")):
        assert page in (ROOT / "tests" / test).read_text(encoding="utf-8"), (page, test)
    assert all((ROOT / "tests" / test).is_file() for _, _, test in TYPED)


def test_each_row_of_the_table_is_of_use() -> None:
    assert set(TYPED_BY) <= {it.page for it in EVERY}
    for page, begins, _ in TYPED:
        assert any(it.page == page and re.match(begins, it.text) for it in EVERY), (page, begins)
    assert len(EVERY) > 100 and len(HERE) > 60


def test_an_unknown_command_is_found_on_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    blocks = (
        "sh\nmow the lawn  # soon\n\n# not\n",
        "\n$ hpcrl a b\nhpcrl out\n",
        "text\nhpcrl no\n",
        "\n  hpcrl c d  # y\n",
    )
    page.write_text("hpcrl no\n" + "".join(f"```{block}```\n" for block in blocks))
    found = [(it.line, it.text) for it in shown_in(page)]
    assert found == [(3, "mow the lawn  # soon"), (8, "hpcrl a b"), (15, "hpcrl c d")]
