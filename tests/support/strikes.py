"""How often processes of real runs were struck in a session of tests: pytest says it at its end, by folder."""

import os
from collections import Counter
from pathlib import Path

VARIABLE = "HPCRL_TEST_STRIKES"
"""Names the file that has a line for each: the signal, and the test."""


def count(signal: str) -> None:
    """By whoever strikes, in any process of a run, just before."""
    if path := os.environ.get(VARIABLE):
        line = f"{signal} {os.environ.get('PYTEST_CURRENT_TEST', '')}\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def told(path: Path) -> str:
    """`processes were struck 288 times: tests/master 222, tests/algos 66`; empty if none was."""
    lines = path.read_text().splitlines() if path.exists() else []
    folders = Counter(str(Path(line.partition(" ")[2].partition("::")[0]).parent) for line in lines)
    parts = ", ".join(f"{folder} {times}" for folder, times in folders.most_common())
    return f"processes were struck {len(lines)} times: {parts}" if lines else ""
