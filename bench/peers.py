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
    """Make the environment in `folder` unless it is there already for these very requirements.

    What a file NAME-alone.txt beside NAME.txt lists comes without its own requirements.
    """
    wanted, stamp, python = _wanted(requirements), folder / "made-for", folder / "bin" / "python"
    if stamp.exists() and stamp.read_text() == wanted:
        return Peers(python)
    print(f"installing the peers of {requirements.name} into {folder} …", flush=True)
    asked = ["torch", "transformers", "-r", str(requirements)]
    install = [str(python), "-m", "pip", "install", "--quiet"]
    commands = {
        "python -m venv": [sys.executable, "-m", "venv", "--clear", str(folder)],
        f"pip install -r bench/{requirements.name}": [*install, "-c", str(CONSTRAINTS), *asked],
    }
    if (alone := _alone(requirements)).exists():
        commands[f"pip install -r bench/{alone.name}"] = [*install, "--no-deps", "-r", str(alone)]
    for what, command in commands.items():
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return Peers(None, f"{what} failed: {_last_line(done.stderr)}")
    stamp.write_text(wanted)
    return Peers(python)


def _alone(requirements: Path) -> Path:
    return requirements.with_name(f"{requirements.stem}-alone.txt")


def _wanted(requirements: Path) -> str:
    lists = [CONSTRAINTS, requirements, *filter(Path.exists, [_alone(requirements)])]
    return hashlib.blake2b(b"".join(path.read_bytes() for path in lists), digest_size=8).hexdigest()


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "it said nothing")


if __name__ == "__main__":
    found = peers(ROOT / "runs" / "bench-peers", ROOT / "bench" / "peers.txt")
    if found.python is None:
        sys.exit(found.reason)
