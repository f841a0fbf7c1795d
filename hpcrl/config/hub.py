"""Models by their names on the Hugging Face hub, as far as they have been downloaded: name → folder. Asks no network.

Reads the cache's layout as huggingface_hub documents it, without importing it: models--ORG--NAME/refs/main holds the
commit that was downloaded last, snapshots/COMMIT/ its files.
"""

import difflib
import importlib.metadata
import os
import re
from collections.abc import Mapping
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FOLDER = re.compile(r"models--(.+?)--(.+)")


def is_hub_name(text: str) -> bool:
    """Whether it could be ORG/NAME of the hub; it could also be a relative path."""
    return _NAME.fullmatch(text) is not None


def is_path(text: str) -> bool:
    """Whether what is not there was meant as a path: no name of the hub looks so, or its folder is here."""
    return not is_hub_name(text) or Path(text).parent.is_dir()


def nearest_folder(path: Path) -> Path | None:
    """Of a path that is not there, the folder that is almost called so, beside the first part that is missing."""
    whole = path.absolute()
    above = next(each for each in whole.parents if each.is_dir())
    missing = whole.relative_to(above).parts[0]
    try:
        names = [entry.name for entry in os.scandir(above) if entry.is_dir()]
    except OSError:
        return None
    near = difflib.get_close_matches(missing, names, n=1)
    if not near:
        return None
    found = above / near[0]
    return found if path.is_absolute() or not found.is_relative_to(Path.cwd()) else found.relative_to(Path.cwd())


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps what it has downloaded."""
    for name, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if environ.get(name):
            return Path(os.path.expandvars(environ[name])).expanduser() / below
    usual = environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    return Path(os.path.expandvars(usual)).expanduser() / "huggingface" / "hub"


def find_snapshot(name: str, cache: Path) -> Path | None:
    """The folder of the commit of ORG/NAME that was downloaded last; None where there is none.

    The commit is part of the path, so that what is downloaded later changes nothing for whoever holds it.
    """
    model = cache / f"models--{name.replace('/', '--')}"
    try:
        commit = (model / "refs" / "main").read_text().strip()
    except OSError:
        return None
    folder = model / "snapshots" / commit
    return folder if _COMMIT.fullmatch(commit) and folder.is_dir() else None


def name_of(folder: Path) -> str:
    """ORG/NAME of a snapshot's folder; "" of any other folder."""
    found = _FOLDER.fullmatch(folder.parent.parent.name)
    return f"{found[1]}/{found[2]}" if found and folder.parent.name == "snapshots" else ""


def download_command(name: str) -> str:
    """What downloads a model, with the huggingface_hub that is installed."""
    major, minor = (int(part) for part in importlib.metadata.version("huggingface_hub").split(".")[:2])
    return f"{'hf' if (major, minor) >= (0, 34) else 'huggingface-cli'} download {name}"
