"""Running `hpcrl` as a process of its own."""

import resource
import subprocess
import sys


def cpu_seconds(*words: str) -> float:
    """What `hpcrl WORDS` takes on an idle machine: processor time, which other processes do not lengthen."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "hpcrl.cli.main", *words], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
