"""Runs a tree's command line, and kills a worker and the master where a case asks for it."""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from same.processes import POLL_S, end_marked, find_master, find_worker, kill
from same.records import metric_rows
from same.trees import Tree

PATIENCE_S = 240.0
WORKER_DIES_AFTER, MASTER_DIES_AFTER = 3, 7
"""Steps. Checkpoints come every 4, so both resumptions replay train steps."""
ATTEMPTS_OF_KILLED = 3
OUTPUT_LINES = 12
"""Lines of a failed command's output that are shown."""

Command = subprocess.Popen[bytes]


class RunFailedError(Exception):
    """A command failed; the message ends with the last lines of its output."""


@contextmanager
def started(tree: Tree, words: Sequence[str], folder: Path) -> Iterator[Command]:
    """Start a command with its output in `folder`; in the end, kill whatever is left of it.

    It gets a session of its own, so Ctrl-C reaches this tool only.
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
    """Run a command. Raises RunFailedError."""
    with started(tree, words, folder) as command:
        code = _wait(command, folder)
    if code:
        raise RunFailedError(f"exit code {code}\n{_last_output(folder)}")


def run_undisturbed(tree: Tree, example: Path, words: Sequence[str], folder: Path) -> Path:
    """Submit a run and wait for its end; returns the run directory. Raises RunFailedError."""
    run = folder / "run"
    execute(tree, _submit(tree, example, words, run), folder)
    _check_attempts(run, 1, folder)
    return run


def run_killed(tree: Tree, example: Path, words: Sequence[str], folder: Path) -> Path:
    """The same, but kill a worker, later the master, and resume."""
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
    """The last step in the metrics of any attempt; -1 if there is none yet."""
    steps = [-1]
    for path in run.glob("attempts/*/metrics.jsonl"):
        steps += [row.get("step", -1) for row in metric_rows(path.read_bytes()).values()]
    return max(steps)


def _submit(tree: Tree, example: Path, words: Sequence[str], run: Path) -> list[str]:
    return tree.hpcrl("submit", str(example), "--run-dir", str(run), *words)


def _wait(command: Command, folder: Path) -> int:
    try:
        return command.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise RunFailedError(f"still running after {PATIENCE_S:g} s\n{_last_output(folder)}") from None


def _wait_for_step(run: Path, step: int, submitted: Command, folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while last_step(run) < step:
        if submitted.poll() is not None or time.monotonic() > deadline:
            raise RunFailedError(f"never reached step {step}\n{_last_output(folder)}")
        time.sleep(POLL_S)


def _check_attempts(run: Path, expected: int, folder: Path) -> None:
    """A run that was interrupted in any other way than intended proves nothing."""
    attempts = len(list(run.glob("attempts/*/journal.jsonl")))
    if attempts != expected:
        raise RunFailedError(f"{attempts} attempts instead of {expected}\n{_last_output(folder)}")


def _last_output(folder: Path) -> str:
    lines = (folder / "output.txt").read_text(errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in lines[-OUTPUT_LINES:])
