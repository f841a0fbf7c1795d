"""docs/inspect.md: what its commands print, below each `$ hpcrl …`, is what they print now.

`make docs` runs them and writes their blocks; the text between the blocks stays as it is. A test compares. The commands
are typed in a folder that holds the run (RUN): the run that tests keep, or one of the toy algorithm, which computes the
same numbers each time.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from support.unpacked import unpacked

PAGE = Path(__file__).parent.parent / "docs" / "inspect.md"
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

    def of(self, view: str) -> Path:
        """Where a command about this view is typed."""
        match view:
            case "diff":
                return self._two()
            case "audit":
                return self._damaged()
            case _:
                return self._kept()

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
        """RUN, of which an archive is lost, a spill is cut, and a file was never finished."""
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
    words = shlex.split(command)
    folder = scenes.of(words[3] if len(words) > 3 else "")
    return f"$ {command}\n{run(command, folder)}"


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
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), Scenes(Path(made).resolve())), encoding="utf-8")
    print(PAGE)
