"""The names of this user's runs: `runs.jsonl` in $HPCRL_STATE, else in ~/.local/state/hpcrl. A convenience.

No run depends on it: whatever goes wrong with it is forgiven. It is written under a lock, in the user's own folder;
nothing in a run directory is.
"""

import difflib
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from hpcrl.config.run_root import RUN_ROOT
from hpcrl.durable.exclusive import DIRECTORY_MODE, FILE_MODE
from hpcrl.errors import ConfigurationError

LOCK_S = 5.0
FORGOTTEN_S = 90 * 86400.0
"""A run whose filesystem is not here is remembered for this long: it may be mounted elsewhere."""


class Entry(msgspec.Struct, frozen=True):
    """A line of the registry: a run's directory, and when it was submitted or resumed. Its name is the last part."""

    run_dir: str
    time: float

    @property
    def name(self) -> str:
        return Path(self.run_dir).name


def state_folder(environ: Mapping[str, str]) -> Path:
    """$HPCRL_STATE, else hpcrl in $XDG_STATE_HOME, else ~/.local/state/hpcrl."""
    if named := environ.get("HPCRL_STATE"):
        return Path(named)
    home = environ.get("XDG_STATE_HOME", "")
    return (Path(home) if Path(home).is_absolute() else Path.home() / ".local" / "state") / "hpcrl"


class Registry:
    """Names and directories of runs. Holds nothing but the place of its file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "runs.jsonl"

    @classmethod
    def of_user(cls) -> "Registry":
        return cls(state_folder(os.environ))

    def add(self, run_dir: Path) -> None:
        """Remember a run, forget those that are gone. Never raises: a full home must not keep a run from starting."""
        with suppress(OSError, Timeout):
            self._folder.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
            with FileLock(self._folder / "runs.lock", timeout=LOCK_S, mode=FILE_MODE):
                here = str(run_dir.absolute())
                kept = [entry for entry in self._read() if entry.run_dir != here and not _is_forgotten(entry)]
                self._write([*kept, Entry(here, time.time())])

    def runs(self) -> list[Path]:
        """The directories of the runs that are there, the newest last."""
        return [Path(entry.run_dir) for entry in self._read() if _is_there(entry)]

    def find(self, name: str) -> Path | None:
        """The run of this name, if there is one. Raises ConfigurationError if there are several."""
        found = [path for path in self.runs() if path.name == name]
        if len(found) > 1:
            listed = ", ".join(map(str, found))
            raise ConfigurationError([f"{name} is the name of {len(found)} runs: {listed}."], "Name its directory.")
        return found[0] if found else None

    def _read(self) -> Sequence[Entry]:
        """What can be read; a damaged line is passed over."""
        entries = []
        with suppress(OSError):
            for line in self._path.read_bytes().splitlines():
                with suppress(msgspec.MsgspecError):
                    entries.append(msgspec.json.decode(line, type=Entry))
        return entries

    def _write(self, entries: Sequence[Entry]) -> None:
        temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}.tmp")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
            with open(descriptor, "wb") as file:
                file.write(b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries))
            os.replace(temporary, self._path)
        finally:
            temporary.unlink(missing_ok=True)


def named_run(name: str) -> Path | None:
    """The run of a name that is no path: in `runs` here, or else anywhere; None where there is none. Raises
    ConfigurationError if several elsewhere have it."""
    here = Path(RUN_ROOT, name)
    return here if (here / "run.json").is_file() else Registry.of_user().find(name)


def nearest_run(name: str) -> str | None:
    """The name of a run that is almost this one, of those that `named_run` finds."""
    names = [each.parent.name for each in Path(RUN_ROOT).glob("*/run.json")]
    names += [each.name for each in Registry.of_user().runs()]
    return next(iter(difflib.get_close_matches(name, names, n=1)), None)


def _is_there(entry: Entry) -> bool:
    return Path(entry.run_dir, "run.json").exists()


def _is_forgotten(entry: Entry) -> bool:
    """Whether a run was removed, as far as can be seen: its folder is there and it is not, or it is long ago."""
    if _is_there(entry):
        return False
    return Path(entry.run_dir).parent.exists() or time.time() - entry.time > FORGOTTEN_S
