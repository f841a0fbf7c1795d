"""The peers' environments: made once from the lists beside this, with the torch and transformers of constraints.txt."""

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "constraints.txt"


@dataclass(frozen=True)
class Peers:
    """An interpreter that imports the peers, or why there is none."""

    python: Path | None
    reason: str = ""


def peers(folder: Path, requirements: Path) -> Peers:
    """Make the environment in `folder` unless it is there already for these very requirements."""
    wanted = hashlib.blake2b(CONSTRAINTS.read_bytes() + requirements.read_bytes(), digest_size=8).hexdigest()
    stamp, python = folder / "made-for", folder / "bin" / "python"
    if stamp.exists() and stamp.read_text() == wanted:
        return Peers(python)
    print(f"installing the peers of {requirements.name} into {folder} …", flush=True)
    asked = ["torch", "transformers", "-r", str(requirements)]
    install = [str(python), "-m", "pip", "install", "--quiet", "-c", str(CONSTRAINTS), *asked]
    for command in ([sys.executable, "-m", "venv", "--clear", str(folder)], install):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            what = f"pip install -r bench/{requirements.name}" if command is install else "python -m venv"
            return Peers(None, f"{what} failed: {_last_line(done.stderr)}")
    stamp.write_text(wanted)
    return Peers(python)


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "it said nothing")
