"""What the pages about Slurm show works: each command of their `sh` blocks, in order, on a real cluster."""

import ast
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.experiments import load_config
from support.slurm_cluster import SlurmCluster
from support.slurm_runs import SlurmRun, toy_values

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.fields import settings
from hpcrl.config.slurm import SlurmConfig
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("slurm.md", "preemption.md", "administrators.md")
INSTALLS = ("python3 -m venv", "~/hpcrl-env/bin/pip install")
"""What is shown but not run here: `make` and the tests of packaging do that."""
SILENT = ("mkdir", "scancel", "scontrol requeue")
"""What says nothing if it works."""
FOLLOWED_FOR_S = 6
TIMED_OUT = 124


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def shown_commands(page: str) -> list[str]:
    """The lines of the page's shell blocks without their comments."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    return [command for line in lines if (command := re.sub(r"(^|\s+)#.*", "", line).strip())]


def rows_of_table(page: str, heading: str) -> list[list[str]]:
    """Cells of the first table below a heading, without its head."""
    lines = text_of(page).partition(f"\n{heading}\n")[2].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return rows


@dataclass
class Reader:
    """Somebody who types what a page shows, with a small run in the place of theirs."""

    cluster: SlurmCluster
    run: SlurmRun | None = None

    def prepare(self) -> None:
        """A home, hpcrl in PATH, and a ppo.yaml that is a toy run for this cluster."""
        binaries = self.cluster.directory / "bin"
        binaries.mkdir()
        (binaries / "hpcrl").write_text(f'#!/bin/sh\nexec {sys.executable} -m hpcrl.cli.main "$@"\n')
        (binaries / "hpcrl").chmod(0o755)
        self.cluster.env |= {"HOME": str(self.cluster.directory), "PATH": f"{binaries}:{self.cluster.env['PATH']}"}
        self.cluster.env.pop("HPCRL_SITE", None)
        self.cluster.env.pop("XDG_CONFIG_HOME", None)
        values = toy_values("low")
        values["control"]["steps"] = 10_000
        # What the site.yaml that is shown asks for, and this cluster has not.
        values["cluster"]["slurm"] |= {"account": None, "prologue": [], "time": "30"}
        (self.cluster.directory / "ppo.yaml").write_text(json.dumps(values))

    def type(self, command: str) -> None:
        """Run a command as a shell does, and wait until what it has begun is seen to work."""
        bound, expected = self.bind(command), 0
        if "--follow" in command:
            bound, expected = f"timeout {FOLLOWED_FOR_S} {bound}", TIMED_OUT
        done = self.cluster.run(["bash", "-o", "pipefail", "-c", bound], check=False, timeout_s=150)
        said = f"{command}\n{bound}\nexit status {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.returncode == expected, said
        assert done.stdout or ">" in command or command.startswith(SILENT), said
        if submitted := re.search(r"^submitted (/.+)$", done.stdout, re.MULTILINE):
            self.run = SlurmRun(self.cluster, RunDirectory.open(Path(submitted[1])))
        if self.run is not None and (submitted or command.startswith(("sbatch", "scontrol requeue"))):
            self.run.wait_steps(1)
        if self.run is not None and command.startswith("scancel MASTER"):
            self.cluster.wait_ended(*self.run.jobs("master")[-1:], *self.run.jobs("workers")[-1:])

    def bind(self, command: str) -> str:
        """The command with the reader's own things in the place of the page's words."""
        if self.run is None:
            return command
        newest = self.run.run.submissions()[-1]
        places = {
            "RUN": str(self.run.run.root),
            "NONCE": newest.nonce,
            "MASTER": str(newest.jobs.get("master", "")),
            "WORKERS": str(newest.jobs.get("workers", "")),
        }
        return re.sub(r"(?<![\w$])(RUN|NONCE|MASTER|WORKERS)(?=\b|_)", lambda found: places[found[1]], command)


@pytest.fixture
def reader(slurm: SlurmCluster) -> Reader:
    reader = Reader(slurm)
    reader.prepare()
    return reader


@pytest.mark.slurm
@pytest.mark.parametrize("page", PAGES)
def test_each_command_that_is_shown_works(reader: Reader, page: str) -> None:
    commands = [command for command in shown_commands(page) if not command.startswith(INSTALLS)]
    if not any(command == "hpcrl submit ppo.yaml --nodes 4" for command in commands):
        reader.type("hpcrl submit ppo.yaml --nodes 4")
    for command in commands:
        reader.type(command)


@pytest.mark.parametrize("page", PAGES)
def test_no_command_hides_in_a_block_that_is_not_run(page: str) -> None:
    names = [name for name, _ in re.findall(r"^```(\w*)\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)]
    assert set(names) <= {"sh", "yaml", "text"}
    others = "\n".join(blocks(page, "yaml") + blocks(page, "text"))
    assert not re.search(r"^\s*(hpcrl|s[a-z]*(queue|batch|cancel|acct|control)) ", others, re.MULTILINE)
    assert len(shown_commands(page)) >= 4


@pytest.mark.parametrize("page", PAGES)
def test_each_configuration_that_is_shown_is_accepted(page: str, tmp_path: Path, monkeypatch) -> None:
    base = tmp_path / "toy.yaml"
    base.write_text("algorithm: toy\ncontrol: {steps: 1}\n")
    for number, block in enumerate(blocks(page, "yaml")):
        site = tmp_path / f"site-{number}.yaml"
        site.write_text(block)
        monkeypatch.setenv("HPCRL_SITE", str(site))
        load_config(base)


def test_the_table_of_site_options_is_that_of_the_code() -> None:
    in_code = {setting.key: _shown(setting.default) for setting in settings(SlurmConfig)}
    in_page = {row[0].strip("`"): row[1] for row in rows_of_table("slurm.md", "## 11. Site options")}
    assert in_page == in_code


def test_the_deadlines_are_those_of_the_code() -> None:
    after = text_of("slurm.md").partition("Deadlines, under `cluster`")[2].partition("## 12")[0]
    shown = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", after, re.MULTILINE))
    assert len(shown) == 5
    assert {name: float(value) for name, value in shown.items()} == {
        name: getattr(ClusterConfig(), name) for name in shown
    }


def test_the_exit_codes_are_those_of_the_code() -> None:
    shown = {int(code) for row in rows_of_table("preemption.md", "## Exit codes") for code in row[0].split()}
    assert shown == {int(code) for code in ExitCode}


def test_each_message_of_the_troubleshooting_table_is_one_of_hpcrl() -> None:
    """Those of Slurm and of the shell apart."""
    of_others = {"(Dependency)", "(BeginTime)", "module: command not found"}
    symptoms = [row[0] for row in rows_of_table("slurm.md", "## 14. When something is wrong")]
    fragments = {text for cell in symptoms for text in re.findall(r"`([^`]+)`", cell)} - of_others
    assert len(fragments) > 12
    said = "\n".join(_texts(path) for path in (DOCS.parent / "hpcrl").rglob("*.py"))
    assert [fragment for fragment in sorted(fragments) if fragment not in said] == []


@pytest.mark.parametrize("page", PAGES)
def test_each_link_leads_to_a_file_and_a_heading(page: str) -> None:
    for target in re.findall(r"\]\(([^):]+)\)", text_of(page)):
        name, _, anchor = target.partition("#")
        linked = DOCS / (name or page)
        assert linked.is_file(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in anchors, target


def test_the_drawing_is_what_its_script_draws() -> None:
    """If this fails: python docs/draw_preemption.py > docs/preemption.svg"""
    command = [sys.executable, str(DOCS / "draw_preemption.py")]
    drawn = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert drawn == text_of("preemption.svg")


def _shown(default: object) -> str:
    if default is None:
        return "null"
    return "[]" if default == () else str(default)


def _texts(path: Path) -> str:
    """The literal texts of a module, those of f-strings with … for their values."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return "\n".join(found)
