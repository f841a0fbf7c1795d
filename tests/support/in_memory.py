"""A folder in memory where there is such a place: thousands of fsyncs and renames on a disk would take minutes.

Processes are killed in tests, the machine never is: what they wrote is there afterwards in either.
"""

from pathlib import Path

FAST = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
