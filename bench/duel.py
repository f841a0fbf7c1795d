"""Two or more sides measured in turn, each in a process and an interpreter of its own.

A side prints one JSON line when it is warm and one after every round; a round begins when it reads a line. See
`sides/serving.py` for the other end.
"""

import json
import os
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

SIDES = Path(__file__).parent / "sides"
ROOT = Path(__file__).parent.parent
NO_TREES: Mapping[str, Path] = {}
Rounds = dict[str, list[dict[str, Any]]]


class SideFailedError(Exception):
    """A side ended before its time; the message is the end of what it said."""


class Side:
    """One process of a duel, with the hpcrl of `tree`. `log` takes all that it says besides figures."""

    def __init__(self, python: Path, script: str, arguments: Sequence[str], log: Path, tree: Path = ROOT) -> None:
        environment = os.environ | {
            "PYTHONPATH": str(tree),
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": "error",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONWARNINGS": "ignore",
        }
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [str(python), str(SIDES / script), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                cwd=tree,
                text=True,
            )
        self.facts = self._read()

    def round(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._read()

    def __enter__(self) -> "Side":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        self._process.wait()
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        raise SideFailedError(f"{self._process.args} ended with {self._process.returncode}:\n{tail}")


def duel(
    sides: Mapping[str, tuple[Path, str, Sequence[str]]],
    rounds: int,
    logs: Path,
    trees: Mapping[str, Path] = NO_TREES,
    rivals: Collection[str] = (),
) -> tuple[dict[str, Any], Rounds]:
    """Name → what the side said when it was warm; name → its rounds, taken in turn with those of the others.

    `trees` names the sides that run another tree than this one. Of the `rivals` only the one with the fastest first
    round has any more.
    """
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(Side(python, script, arguments, logs / f"{name}.log", trees.get(name, ROOT)))
            for name, (python, script, arguments) in sides.items()
        }
        taken: Rounds = {name: [] for name in sides}
        for number in range(rounds):
            fastest = min(rivals, key=lambda name: taken[name][0]["cpu_s"]) if number and rivals else None
            for name, side in running.items():
                if fastest in (None, name) or name not in rivals:
                    taken[name].append(side.round())
        return {name: side.facts for name, side in running.items()}, taken
