"""What of a run's files is damaged, which nobody names, and what `hpcrl resume` would do with the rest.

Every file that a believed line names is read and compared by size and CRC, each once; shards as their manifests name
them, the user's code by its digests, exports by what their own headers say. Nothing is changed.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from safetensors import safe_open

from hpcrl.durable.checkpoints import Manifest, read_manifest
from hpcrl.durable.code import digest_of, inside
from hpcrl.durable.files import DamagedFileError, FileRef, Files, is_temporary
from hpcrl.durable.history import has_grown, read_history
from hpcrl.durable.recovery import plan_next_attempt
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, DataError, InternalError
from hpcrl.families.headers import naming
from hpcrl.inspect.named_files import NamedFiles, named_files
from hpcrl.inspect.reader import RunReader

READS_OF_A_MOVING_RUN = 3

Told = Callable[[str, int], None]
"""What is called with the name of each file that is to be read, and its size in bytes."""


class Damage(msgspec.Struct, frozen=True):
    """A file that is missing, or is not what was published."""

    file: str
    what: str


class Unnamed(msgspec.Struct, frozen=True):
    """A file that no believed line names, or a temporary one, which its writer has left or is writing."""

    file: str
    bytes: int


class Audit(msgspec.Struct, frozen=True):
    """The JSON of `hpcrl inspect RUN audit --json`. Names are relative to the run directory."""

    run_dir: str
    files: int
    """That were read."""
    bytes: int
    damaged: list[Damage]
    orphans: list[Unnamed]
    leftovers: list[Unnamed]
    moved: list[str]
    """Exports that lie no more where they were written: whoever took one away may."""
    gone: list[str]
    """Archives of samples that are no longer there: whoever needs the room may delete them."""
    resume: list[str]
    """What the next attempt would do."""

    @property
    def is_whole(self) -> bool:
        return not self.damaged


class ReadOnce(Files):
    """Verifies a file once, however often it is asked about it, and tells whoever waits."""

    def __init__(self, root: Path, told: Told) -> None:
        super().__init__(root)
        self.verdicts: dict[FileRef, str | None] = {}
        self._told = told

    def damage(self, ref: FileRef) -> str | None:
        if ref not in self.verdicts:
            self._told(ref.name, ref.size)
            self.verdicts[ref] = super().damage(ref)
        return self.verdicts[ref]


def audit(reader: RunReader, told: Told = lambda _name, _size: None) -> Audit:
    """Reads all that the journals name. Where a run goes on meanwhile, what it has removed rightly is no damage."""
    run = RunDirectory.look(reader.run.root)
    run.files = files = ReadOnce(run.root, told)
    for _ in range(READS_OF_A_MOVING_RUN):
        history = read_history(run)
        named = named_files(history)
        damaged = [*_damaged(files, named)]
        if not damaged or not has_grown(run, history):
            break
    damaged += [Damage(text.partition(":")[0], text) for text in history.damage]
    damaged += [*_damaged_documents(run)]
    exports, moved = _exports(run, named)
    orphans, leftovers = _unnamed(run, named)
    return Audit(
        run_dir=str(run.root),
        files=len(files.verdicts),
        bytes=sum(ref.size for ref in files.verdicts),
        damaged=[*damaged, *exports],
        orphans=orphans,
        leftovers=leftovers,
        moved=moved,
        gone=sorted(name for name, ref in named.archives.items() if not files.path(ref).exists()),
        resume=_resume(reader, run),
    )


def _damaged(files: ReadOnce, named: NamedFiles) -> Iterator[Damage]:
    for ref in (*named.expected.values(), *_there(files, named)):
        if what := files.damage(ref):
            yield Damage(ref.name, what)
        elif ref.name in named.manifests:
            yield from _damaged_shards(files, ref, named)


def _there(files: Files, named: NamedFiles) -> list[FileRef]:
    """What may be gone, and is not."""
    return [ref for ref in named.may_be.values() if files.path(ref).exists()]


def _damaged_shards(files: ReadOnce, ref: FileRef, named: NamedFiles) -> Iterator[Damage]:
    try:
        manifest: Manifest = read_manifest(files, ref)
    except DamagedFileError as error:
        yield Damage(ref.name, error.damage)
        return
    named.add_shards(manifest)
    for shard in (shard for of_role in manifest.roles.values() for shard in of_role):
        # A cut that may be gone goes by its manifest, then its shards.
        gone = ref.name in named.may_be and not files.path(ref).exists()
        if not gone and (what := files.damage(shard)):
            yield Damage(shard.name, what)


def _damaged_documents(run: RunDirectory) -> Iterator[Damage]:
    """Settings, and the user's code as it was copied."""
    for version in run.versions():
        path = run.settings_json(version) if version else run.run_json
        try:
            run.read_settings(version)
        except InternalError as error:
            yield Damage(run.files.name(path), str(error))
    for number in range(run.newest_code() + 1):
        folder = run.code_copy(number)
        try:
            copy = run.read_code(number)
        except InternalError as error:
            yield Damage(run.files.name(folder), str(error))
            continue
        for place, copied in copy.files.items():
            name = run.files.name(inside(folder, place))
            try:
                data = run.files.read(inside(folder, place))
            except OSError as error:
                yield Damage(name, f"{name} cannot be read: {error.strerror}")
                continue
            if len(data) != copied.size or digest_of(data) != copied.digest:
                yield Damage(name, f"{name} is not what was copied")


def _exports(run: RunDirectory, named: NamedFiles) -> tuple[list[Damage], list[str]]:
    """A line names an export's folder alone: its files have to be as long as their headers say."""
    damaged, moved = list[Damage](), list[str]()
    for event in named.exports:
        folder = run.root / event.path
        if not folder.is_dir():
            moved.append(event.path)
            continue
        for path in sorted(folder.glob("*.safetensors")):
            try:
                with naming(path), safe_open(path, framework="np"):
                    pass
            except DataError as error:
                damaged.append(Damage(run.files.name(path), str(error)))
    return damaged, moved


def _unnamed(run: RunDirectory, named: NamedFiles) -> tuple[list[Unnamed], list[Unnamed]]:
    """Files of spills, checkpoints and samples without a line, and temporary files of the whole run."""
    orphans, leftovers = list[Unnamed](), list[Unnamed]()
    for folder, folders, names in os.walk(run.root):
        folders.sort()
        for name in sorted(names):
            path = Path(folder) / name
            try:
                found = Unnamed(run.files.name(path), path.lstat().st_size)
            except OSError:  # gone meanwhile
                continue
            parts = path.relative_to(run.root).parts
            if parts[0] == run.exporting.name or any(map(is_temporary, parts)):
                leftovers.append(found)
            elif parts[0] in _KEPT_BY_LINES and found.file not in named.known:
                orphans.append(found)
    return orphans, leftovers


_OTHER_BITS = "damaged: the checkpoint of step"
"""How a line begins that tells of a cut which was not what had been saved, though its files were whole."""
_KEPT_BY_LINES = ("spills", "checkpoints", "samples")
"""Folders in which each file is named by a line, or by a manifest that one names."""


def _resume(reader: RunReader, run: RunDirectory) -> list[str]:
    done = run.done_verdict()
    try:
        RunDirectory.open(run.root)
    except ConfigurationError as error:
        return [f"nothing: {error}"]
    said = [f"the run is done ({done.reason}): only more steps or epochs let it go on"] if done is not None else []
    plans = [attempt.plan for _, attempt in sorted(reader.attempts.items(), reverse=True) if attempt.plan.calls]
    if not plans:
        return [*said, "no attempt has a plan that can be read: resume makes one"]
    recovery = plan_next_attempt(run, plans[0].changes)
    lines = recovery.describe(run.versions()[-1]).splitlines()
    # Files have been told, and a part that went when its step was merged is no damage.
    return [*said, *(line for line in lines if not line.startswith("damaged: ") or line.startswith(_OTHER_BITS))]
