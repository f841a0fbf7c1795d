"""Running `hpcrl` as a process of its own."""

import subprocess
import sys
from pathlib import Path

COUNTED = """
import sys
begun = len(sys.modules)  # what the interpreter itself brings depends on what is installed beside hpcrl
sys.path[:0] = [{tests!r}]
from support.work import calls_in


def command():
    from hpcrl.cli.main import main

    return main(sys.argv[1:])


code, calls = calls_in(command)
print(code, calls, len(sys.modules) - begun, file=sys.stderr)
"""


def work_of(*words: str) -> tuple[int, int]:
    """How many functions `hpcrl WORDS` calls, as a process of its own, and how many modules it loads."""
    tests = str(Path(__file__).parents[1])
    code = COUNTED.format(tests=tests)
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, check=True, text=True)
    exit_code, calls, modules = map(int, done.stderr.splitlines()[-1].split())
    assert exit_code == 0, done.stderr
    return calls, modules
