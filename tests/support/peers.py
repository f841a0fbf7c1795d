"""Questions to verl's and TRL's own functions, answered in their environment, which `make peers` makes."""

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = ROOT / "runs" / "bench-peers"
THEIRS = ROOT / "tests" / "peers" / "theirs.py"
PACKAGES = ("verl-0.9.1", "trl-1.16.0")


@dataclass(frozen=True, eq=False)
class Case:
    """A question with what we answer to it, or to what theirs has to be turned first."""

    name: str
    function: str
    arguments: dict[str, Any]
    ours: Callable[[], Any]
    of_theirs: Callable[[Any], Any] = lambda answer: answer
    tolerance: float = 1e-12

    def compare(self, answer: Any) -> None:
        mine, theirs = self.ours(), self.of_theirs(answer)
        assert len(mine) == len(theirs)
        for here, there in zip(mine, theirs, strict=True):
            here, there = (torch.as_tensor(part, dtype=torch.float64) for part in (here, there))
            torch.testing.assert_close(here, there, rtol=self.tolerance, atol=self.tolerance)


def ask(questions: Sequence[tuple[str, dict[str, Any]]], folder: Path) -> list[Any]:
    """One process answers all; skips the test where there is none that could."""
    site = ENVIRONMENT / "lib"
    if not all(list(site.glob(f"*/site-packages/{package}.dist-info")) for package in PACKAGES):
        pytest.skip("no environment with verl and TRL: make peers")
    answers = folder / "answers.json"
    command = [str(ENVIRONMENT / "bin" / "python"), "-I", "-W", "ignore", str(THEIRS), str(answers)]
    done = subprocess.run(command, input=json.dumps(questions), capture_output=True, text=True, cwd=folder, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[Any] = json.loads(answers.read_text())
    return found
