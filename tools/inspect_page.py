"""Pages on looking at runs: what commands print, below each `$ hpcrl …`, is what they print now.

`make docs` runs them and writes their blocks; the text between the blocks stays as it is. A test compares. The commands
are typed in a folder that holds the run (RUN): the run that tests keep, one of the toy algorithm, which computes the
same numbers each time, or one that is as a mishap leaves it.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from support.told_runs import failed, hanging, told_samples
from support.unpacked import unpacked

DOCS = Path(__file__).parent.parent / "docs"
PAGES = (DOCS / "inspect.md", DOCS / "samples.md", DOCS / "troubleshooting.md")
BLOCK = re.compile(r"^```\n(\$ hpcrl .*?)^```$", re.MULTILINE | re.DOTALL)
COLUMNS = 100
TOY = {
    "algorithm": "toy",
    "control": {"steps": 12, "checkpoint": {"steps": 6}, "evaluate": {"steps": 5}},
    "cluster": {"type": "local", "workers_per_node": 2},
    "toy": {"delay_s": 0.02},
}
OTHER = ("--seed", "5", "--control.steps", "10", "--toy.delay_s", "0")


class Scenes:
    """Folders with runs, made when a command asks for one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, command: Sequence[str]) -> Path:
        """Where a command is typed."""
        match command:
            case ["hpcrl", "inspect", "RUN", "diff", *_]:
                return self._two()
            case ["hpcrl", "inspect", "RUN", "audit"]:
                return self._damaged()
            case ["hpcrl", "inspect", "RUN", "why"]:
                return self._told("failed", failed)
            case ["hpcrl", "status", *_]:
                return self._told("hanging", hanging)
            case ["hpcrl", "samples", *_]:
                return self._told("samples", told_samples)
            case _:
                return self._kept()

    def _told(self, name: str, make: Callable[[Path], object]) -> Path:
        folder = self._folder / name
        if not folder.exists():
            folder.mkdir()
            make(folder / "RUN")
        return folder

    def _kept(self) -> Path:
        folder = self._folder / "kept"
        if not folder.exists():
            folder.mkdir()
            unpacked(folder, "RUN")
        return folder

    def _two(self) -> Path:
        """RUN, and OTHER with other settings."""
        folder = self._folder / "two"
        if not folder.exists():
            folder.mkdir()
            (folder / "toy.yaml").write_text(json.dumps(TOY))
            run("hpcrl submit toy.yaml --run-dir RUN", folder)
            run(shlex.join(["hpcrl", "submit", "toy.yaml", "--run-dir", "OTHER", *OTHER]), folder)
        return folder

    def _damaged(self) -> Path:
        """RUN, of which an archive is deleted, a spill is cut, and a file was never finished."""
        folder = self._folder / "damaged"
        if not folder.exists():
            shutil.copytree(self._two() / "RUN", folder / "RUN")
            spills = folder / "RUN" / "spills"
            (folder / "RUN" / "samples" / "00000" / "step-00000003.a000.h5").unlink()
            spill = spills / "step-00000011.a000.h5"
            spill.chmod(0o600)
            spill.write_bytes(spill.read_bytes()[:-3])
            (spills / ".actor_gen.dp00.a000.h5.n001.4f.71.0.tmp").write_bytes(b"\x89HDF\r\n")
        return folder


def page(text: str, scenes: Scenes) -> str:
    """The text, with what its commands print now."""
    return BLOCK.sub(lambda block: f"```\n{_typed(block[1], scenes)}```", text)


def _typed(block: str, scenes: Scenes) -> str:
    (command,) = (line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ "))
    return f"$ {command}\n{run(command, scenes.of(shlex.split(command)))}"


def run(command: str, folder: Path) -> str:
    """What a command prints when it is typed in a folder; paths from there, and no blanks at the ends of lines."""
    words = [sys.executable, "-m", "hpcrl.cli.main", *shlex.split(command)[1:]]
    env: Mapping[str, str] = os.environ | {"COLUMNS": str(COLUMNS), "HPCRL_STATE": str(folder / "state")}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode and " damaged: see above." not in done.stderr:
        raise RuntimeError(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    lines = done.stdout.replace(f"{folder}/", "").splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        scenes = Scenes(Path(made).resolve())
        for path in PAGES:
            path.write_text(page(path.read_text(encoding="utf-8"), scenes), encoding="utf-8")
            print(path)
