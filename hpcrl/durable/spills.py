"""What calls produced, in HDF5: one file per part of a call, or one per closed step with a group for each part.

A part is `ids` (UTF-8, packed) with `id_lengths`, and per key a group of `values` (packed, as in SequenceSample) and
`lengths`; `counts` only where samples have several sub-sequences. Built in memory and published whole: an HDF5 file
that is open for writing when its process dies can be unreadable. Knows nothing of steps, calls or what keys mean.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import h5py
import msgspec
import numpy as np

from hpcrl.data.samples import KeyMeta, SampleMeta, SequenceSample
from hpcrl.durable.files import FileRef, Files


class SpillRef(msgspec.Struct, frozen=True):
    """Where the outputs of one part are: a file, and the group in it where the step was compacted."""

    file: FileRef
    group: str | None = None

    @property
    def path(self) -> str:
        """Relative to the run directory."""
        return self.file.name


def group_name(call: str, part: int) -> str:
    """The group of one part in the file of a compacted step."""
    return f"{call}.dp{part:02d}"


def write_spill(files: Files, path: Path, sample: SequenceSample) -> FileRef:
    """Publish a sample as a file of its own."""
    with h5py.File.in_memory() as file:
        _write_part(file, sample)
        image = _image(file)
    return files.publish(path, image, "spill")


def read_spill(
    path: Path, group: str | None = None, keys: Sequence[str] | None = None, ids: Sequence[str] | None = None
) -> SequenceSample:
    """The sample of a part, or of it the given keys and rows. Reads only the keys asked for; verifies no CRC."""
    with h5py.File(path, "r", locking=False) as file:
        sample = _read_part(file if group is None else file[group], keys)
    return sample if ids is None or tuple(ids) == sample.ids else sample.select(ids)


def compact(files: Files, path: Path, parts: Mapping[str, SpillRef]) -> FileRef:
    """Publish one file that holds all parts, under the given group names. DamagedFileError if a part is not whole."""
    with h5py.File.in_memory() as target:
        for name, part in parts.items():
            with h5py.File.in_memory(files.read_verified(part.file)) as source:
                source.copy(source if part.group is None else source[part.group], target, name)
        image = _image(target)
    return files.publish(path, image, "compact")


def _image(file: h5py.File) -> bytes:
    file.flush()
    image: bytes = file.id.get_file_image()
    return image


def _write_part(group: h5py.Group, sample: SequenceSample) -> None:
    encoded = [sample_id.encode() for sample_id in sample.ids]
    group.attrs["keys"] = np.bytes_(json.dumps(sample.keys).encode())
    group.create_dataset("ids", data=np.frombuffer(b"".join(encoded), np.uint8))
    group.create_dataset("id_lengths", data=np.array([len(text) for text in encoded], np.int64))
    for key, meta in sample.meta.keys.items():
        # A key may hold any character; as the name of a group it must have no slash.
        of_key = group.create_group(f"key:{key.replace('%', '%25').replace('/', '%2F')}")
        of_key.create_dataset("values", data=sample.data[key])
        of_key.create_dataset("lengths", data=np.array([n for lengths in meta.lengths for n in lengths], np.int64))
        if any(len(lengths) != 1 for lengths in meta.lengths):
            of_key.create_dataset("counts", data=np.array([len(lengths) for lengths in meta.lengths], np.int64))


def _read_part(group: h5py.Group, keys: Sequence[str] | None) -> SequenceSample:
    text = group["ids"][()].tobytes()
    ids = tuple(piece.decode() for piece in _cut(text, group["id_lengths"][()].tolist()))
    known = json.loads(group.attrs["keys"])
    wanted = known if keys is None else keys
    metas, data = {}, {}
    for key in wanted:
        if key not in known:
            raise ValueError(f"no key {key!r} in {group.file.filename}; it has {known}")
        of_key = group[f"key:{key.replace('%', '%25').replace('/', '%2F')}"]
        values = data[key] = of_key["values"][()]
        metas[key] = KeyMeta(values.dtype.name, _lengths(of_key), values.shape[1:])
    return SequenceSample(SampleMeta(ids, metas), data)


def _lengths(of_key: h5py.Group) -> tuple[tuple[int, ...], ...]:
    lengths = iter(of_key["lengths"][()].tolist())
    if "counts" not in of_key:
        return tuple((length,) for length in lengths)
    return tuple(tuple(islice(lengths, count)) for count in of_key["counts"][()].tolist())


def _cut(text: bytes, lengths: Sequence[int]) -> Iterator[bytes]:
    start = 0
    for length in lengths:
        yield text[start : start + length]
        start += length
