"""The run that tests keep of a format, as if it had been made here: its base model and its reward are where it says."""

import shutil
import tarfile
from pathlib import Path
from typing import Any

import msgspec

from hpcrl.durable.code import MANIFEST
from hpcrl.durable.records import FORMAT, encode, sealed
from hpcrl.durable.rundir import RunDirectory

KEPT = Path(__file__).parent.parent / "kept"
MODEL = "models/base"


def extract(packed: tarfile.TarFile, folder: Path) -> None:
    """All of it. Python 3.11.2, Debian 12's, knows no filters."""
    packed.extraction_filter = getattr(tarfile, "data_filter", None)
    packed.extractall(folder)


def unpacked(folder: Path, name: str = "run", made: int = FORMAT) -> RunDirectory:
    """The run `name` in a folder, and beside it `models/base`, which is what it trained itself."""
    with tarfile.open(KEPT / f"format-{made}.tar.xz") as packed:
        extract(packed, folder / ".packed")
    (folder / ".packed" / "run").rename(folder / name)
    (folder / ".packed").rmdir()
    run = RunDirectory.look(folder / name)
    documents: dict[Path, Any] = {run.run_json: run.read_run(), run.code_copy(0) / MANIFEST: run.read_code(0)}
    made_in = documents[run.run_json].experiment["actor"]["path"].removesuffix(f"/{MODEL}")
    for path, each in documents.items():
        text = msgspec.json.encode(each).replace(made_in.encode(), str(folder).encode())
        path.chmod(0o600)
        path.write_bytes(encode(sealed(msgspec.json.decode(text, type=type(each)))))
    (run.code_copy(0) / folder.relative_to("/")).mkdir(parents=True, exist_ok=True)
    for file in (run.code_copy(0) / made_in.lstrip("/")).iterdir():
        file.rename(run.code_copy(0) / folder.relative_to("/") / file.name)
    if not (folder / MODEL).exists():
        shutil.copytree(next(run.exports.glob("actor/step-*")), folder / MODEL)
    return RunDirectory.look(folder / name)
