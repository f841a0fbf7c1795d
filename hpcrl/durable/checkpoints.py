"""Checkpoints on disk: one safetensors file per shard, and a manifest that says which files make a cut.

Knows arrays, JSON state and files; knows neither torch nor what a role is. bf16 is never stored, its fp32 masters are.
"""

import json
import struct
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hpcrl.durable.files import DamagedFileError, FileRef, Files, unreadable
from hpcrl.durable.older_lines import OlderLines
from hpcrl.durable.once import Turn

READERS = 4
_DTYPES: Mapping[str, str] = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
}
NUMPY_TYPES: Mapping[str, str] = {theirs: ours for ours, theirs in _DTYPES.items()}
"""What safetensors calls a type, and what numpy does."""


class DamagedCheckpointError(DamagedFileError):
    """What was loaded is not what was saved, though every file is as it was published: no attempt can load it."""


@contextmanager
def loading() -> Iterator[None]:
    """A file of the right size that can be read but not understood is no shard: the cut is damaged.

    One that cannot be read any more stays a DamagedFileError: the next attempt finds whether it is still there.
    """
    try:
        yield
    except DamagedFileError as error:
        if isinstance(error, DamagedCheckpointError) or isinstance(error.__cause__, OSError):
            raise
        raise DamagedCheckpointError(error.damage) from error


class SavedRole(msgspec.Struct, frozen=True):
    """A role in a cut: its shards in rank order, and the digest of what they hold; "" where its last change was in an
    earlier step."""

    shards: tuple[FileRef, ...]
    digest: str

    def compare_share(self, files: Files, index: int, of: int) -> None:
        """Compare by CRC the shards that fall to one of so many ranks, where no digest says what they held.

        Raises DamagedCheckpointError where one is not what was published.
        """
        mine = () if self.digest else self.shards[index::of]
        if damage := next(filter(None, map(files.damage, mine)), None):
            raise DamagedCheckpointError(damage)


class Manifest(msgspec.Struct, frozen=True):
    """`MANIFEST.json`, published after all shards: each role as it was right after its last change in `step`.

    `roles` maps a changed role to its shards in rank order, however many ranks it had; they lie in the manifest's own
    directory. `epoch` and `cursor` are where the data stood once the step's batch was taken, as in `Opened`. `digests`
    are those of the roles' parameters, as in the record of the step's train_step. `older` says what the lines of the
    journals amount to that need not be read with this checkpoint; None where all are. `turn` is how the step's turn of
    a script ended, `earlier` how as many before it did as later steps are prepared from.
    """

    step: int
    attempt: int
    roles: dict[str, tuple[FileRef, ...]]
    epoch: int
    cursor: int
    digests: dict[str, str]
    older: OlderLines | None = None
    turn: Turn | None = None
    earlier: tuple[Turn, ...] = ()


def write_shard(
    files: Files, folder: Path, role: str, rank: int, arrays: Mapping[str, np.ndarray], state: Mapping[str, Any]
) -> FileRef:
    """Publish the shard of one rank (its index among the role's). The arrays are written as they lie, without a copy.

    `state` must be JSON; floats in it keep every bit. ValueError for a dtype that safetensors or numpy lacks.
    """
    # Larger items first, so that every array is aligned when the file is mapped.
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    flat = {name: _little_endian(arrays[name]) for name in names}
    header: dict[str, Any] = {"__metadata__": {"state": json.dumps(state)}}
    start = 0
    for name, array in flat.items():
        end = start + array.nbytes
        shape = list(arrays[name].shape)
        header[name] = {"dtype": _dtype(name, array), "shape": shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    chunks: list[bytes | memoryview] = [struct.pack("<Q", len(text)) + text]
    chunks += [array.reshape(-1).view(np.uint8).data for array in flat.values()]
    return files.publish_chunks(folder / f"{role}.r{rank:03d}.safetensors", chunks, "shard")


def read_shard(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays, writable, and the state. Verifies no CRC: whoever loads them compares their digest.

    Other threads go on meanwhile: safetensors' own reader stops them for as long as an array takes, which for a large
    shard is longer than a worker may be silent. Raises DamagedFileError where the file cannot be read any more.
    """
    try:
        return _read_shard(path)
    except OSError as error:
        raise DamagedFileError(unreadable(path, error)) from error
    except (ValueError, KeyError, struct.error) as error:
        raise DamagedFileError(f"{path} is no shard any more: {error}") from error


def _read_shard(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with open(path, "rb") as file:
        (header_size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_size))
    state = json.loads(header.pop("__metadata__")["state"])
    return {name: _read_array(path, 8 + header_size, entry) for name, entry in header.items()}, state


def write_manifest(files: Files, path: Path, manifest: Manifest) -> FileRef:
    """Publish a cut whose shards are all published in the directory of `path`."""
    folder, names = files.name(path.parent), (ref.name for refs in manifest.roles.values() for ref in refs)
    if strangers := [name for name in names if name.rpartition("/")[0] != folder]:
        raise ValueError(f"shards lie beside their manifest in {path.parent}, but {strangers[0]} does not")
    return files.publish(path, msgspec.json.format(msgspec.json.encode(manifest), indent=1), "manifest")


def read_manifest(files: Files, ref: FileRef) -> Manifest:
    """The manifest, with its shards named where it now lies. DamagedFileError if it is not what was published."""
    data = files.read_verified(ref)
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise DamagedFileError(f"{ref.name}: {error}") from error
    folder = files.path(ref).parent
    roles = {role: tuple(_moved(files, shard, folder) for shard in shards) for role, shards in manifest.roles.items()}
    return msgspec.structs.replace(manifest, roles=roles)


def checkpoint_damage(files: Files, manifest: Manifest, changed_roles: Collection[str]) -> list[str]:
    """What makes a cut unusable: changed roles that it lacks, shards that are missing or not whole."""
    missing = [f"step {manifest.step} has no {role}" for role in sorted(set(changed_roles) - manifest.roles.keys())]
    shards = [shard for of_role in manifest.roles.values() for shard in of_role]
    with ThreadPoolExecutor(READERS) as pool:
        damage = list(pool.map(files.damage, shards))
    return missing + [text for text in damage if text is not None]


def _moved(files: Files, shard: FileRef, folder: Path) -> FileRef:
    return msgspec.structs.replace(shard, name=files.name(folder / Path(shard.name).name))


def _little_endian(array: np.ndarray) -> np.ndarray:
    """The array as safetensors wants its bytes; itself where it lies like that."""
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))


def _read_array(path: Path, data_start: int, entry: Mapping[str, Any]) -> np.ndarray:
    dtype = np.dtype(NUMPY_TYPES[entry["dtype"]]).newbyteorder("<")
    begin, end = entry["data_offsets"]
    flat = np.fromfile(path, dtype, count=(end - begin) // dtype.itemsize, offset=data_start + begin)
    return flat.reshape(entry["shape"])


def _dtype(name: str, array: np.ndarray) -> str:
    if array.dtype.name not in _DTYPES:
        raise ValueError(f"array {name!r} has dtype {array.dtype}; a shard holds {', '.join(_DTYPES)}")
    return _DTYPES[array.dtype.name]
