"""The two trees: the one this tool is in, uncommitted changes included, and a worktree of BASE."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from same.processes import MARK

HERE = Path(__file__).parents[2]


class TreeError(Exception):
    """A tree cannot be made or would not run its own code."""


@dataclass(frozen=True)
class Tree:
    """A checkout of hpcrl and how to call its command line."""

    side: str
    root: Path

    def hpcrl(self, *words: str) -> list[str]:
        return self.python("-m", "hpcrl.cli.main", *words)

    def python(self, *words: str) -> list[str]:
        return [sys.executable, *words]

    def environment(self, folder: Path) -> dict[str, str]:
        """This tree comes first on every Python's path, the site has no settings, and processes carry a mark."""
        return os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.root),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "HPCRL_SITE": "",
            "HPCRL_STATE": str(folder / "state"),
            MARK: str(folder),
        }


def check(tree: Tree, work: Path) -> None:
    """Raises TreeError if Python would import an installed hpcrl instead of the tree's own."""
    ask = tree.python("-c", "import hpcrl; print(hpcrl.__file__)")
    said = subprocess.run(ask, cwd=tree.root, env=tree.environment(work), capture_output=True, text=True)
    if not Path(said.stdout.strip()).is_relative_to(tree.root):
        raise TreeError(f"{tree.root} would run the hpcrl in {said.stdout.strip() or said.stderr.strip()}")


def resolve(commit: str) -> str:
    """The full hash of a commit. Raises TreeError."""
    return _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", problem=f"{commit} is not a commit")


def describe(commit: str) -> str:
    return _git("log", "-1", "--format=%h %s", commit, problem=f"{commit} has no log")


@contextmanager
def worktree(commit: str, root: Path) -> Iterator[Tree]:
    """Check a commit out into a new folder; it is removed at the end."""
    try:
        _git("worktree", "add", "--detach", str(root), commit, problem="no worktree could be made")
        yield Tree("base", root)
    finally:
        # Unchecked: after a Ctrl-C there may be half a worktree or none.
        subprocess.run(["git", "worktree", "remove", "--force", str(root)], cwd=HERE, capture_output=True)


def _git(*words: str, problem: str) -> str:
    done = subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True)
    if done.returncode:
        raise TreeError(f"{problem}. {done.stderr.strip()}".strip())
    return done.stdout.strip()
