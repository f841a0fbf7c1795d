"""Runs a case on a tree, through its command line alone; kills what is to be killed."""

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from same.processes import POLL_S, end_marked, find_master, find_worker, kill
from same.trees import Tree

PATIENCE_S = 240.0
WORKER_DIES_AFTER, MASTER_DIES_AFTER = 3, 7
"""Steps; checkpoints come every 4, so that train steps are replayed both times."""
ATTEMPTS_OF_KILLED = 3
SAID = 12
"""Lines of output that are shown of a command that failed."""

Command = subprocess.Popen[bytes]


class RunFailedError(Exception):
    """A command did not end as it should; the message is the end of what it said."""


@contextmanager
def started(tree: Tree, words: Sequence[str], folder: Path) -> Iterator[Command]:
    """A command that writes to `folder` and says into its `output.txt`. Nothing that it started is left afterwards.

    In a session of its own, so that a Ctrl-C is this tool's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "output.txt").open("ab") as output:
        command = subprocess.Popen(
            words,
            cwd=tree.root,
            env=tree.environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield command
    finally:
        end_marked(folder)
        command.wait()


def execute(tree: Tree, words: Sequence[str], folder: Path) -> None:
    """Run a command to its end. Raises RunFailedError."""
    with started(tree, words, folder) as command:
        code = _wait(command, folder)
    if code:
        raise RunFailedError(f"exit code {code}\n{_said(folder)}")


def left_alone(tree: Tree, example: Path, words: Sequence[str], folder: Path) -> Path:
    """Run to the end; the run's directory. Raises RunFailedError."""
    run = folder / "run"
    execute(tree, _submit(tree, example, words, run), folder)
    _check_attempts(run, 1, folder)
    return run


def killed(tree: Tree, example: Path, words: Sequence[str], folder: Path) -> Path:
    """Run to the end, but a worker and then the master are killed on the way. Raises RunFailedError."""
    run = folder / "run"
    with started(tree, _submit(tree, example, words, run), folder) as submitted:
        _wait_for_step(run, WORKER_DIES_AFTER, submitted, folder)
        kill(find_worker(folder))
        _wait_for_step(run, MASTER_DIES_AFTER, submitted, folder)
        kill(find_master(folder))
        _wait(submitted, folder)
    execute(tree, tree.hpcrl("resume", str(run)), folder)
    _check_attempts(run, ATTEMPTS_OF_KILLED, folder)
    return run


def last_step(run: Path) -> int:
    """The last step that a run's metrics have, over all attempts; -1 before the first."""
    steps = [-1]
    for path in run.glob("attempts/*/metrics.jsonl"):
        whole = path.read_bytes().rpartition(b"\n")[0]
        steps += [json.loads(line)["step"] for line in whole.splitlines()]
    return max(steps)


def _submit(tree: Tree, example: Path, words: Sequence[str], run: Path) -> list[str]:
    return tree.hpcrl("submit", str(example), "--run-dir", str(run), *words)


def _wait(command: Command, folder: Path) -> int:
    try:
        return command.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise RunFailedError(f"not at its end within {PATIENCE_S:g} s\n{_said(folder)}") from None


def _wait_for_step(run: Path, step: int, submitted: Command, folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while last_step(run) < step:
        if submitted.poll() is not None or time.monotonic() > deadline:
            raise RunFailedError(f"it never came to step {step}\n{_said(folder)}")
        time.sleep(POLL_S)


def _check_attempts(run: Path, expected: int, folder: Path) -> None:
    """A run that was disturbed in another way than it should be proves nothing."""
    attempts = len(list(run.glob("attempts/*/journal.jsonl")))
    if attempts != expected:
        raise RunFailedError(f"{attempts} attempts, not {expected}\n{_said(folder)}")


def _said(folder: Path) -> str:
    lines = (folder / "output.txt").read_text(errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in lines[-SAID:])
