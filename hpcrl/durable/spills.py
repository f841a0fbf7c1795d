"""What calls produced, in HDF5: one file per part of a call, or one per closed step with a group for each part.

A part is `ids` and `keys` (UTF-8), per key a dataset `key:<key>` (packed, as in SequenceSample), and `lengths`
[keys, samples]. Where samples have several sub-sequences, or none, `counts` [keys, samples] says how many, and
`lengths` is flat: key after key, sample after sample. Knows nothing of steps, calls or what keys mean.

An HDF5 file that is open for writing when its process dies can be unreadable, so files are published whole. HDF5 only
lays them out: it writes their structure to a sparse file in memory, and the arrays go to the disk from where they are.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from itertools import chain, groupby, islice
from pathlib import Path
from typing import TypeVar

import h5py
import msgspec
import numpy as np
from h5py import h5d, h5f, h5fd, h5g, h5p, h5s, h5t

from hpcrl.data.samples import KeyMeta, SampleMeta, SequenceSample
from hpcrl.durable.files import DamagedFileError, FileRef, Files, unreadable

Chunk = bytes | memoryview
SMALL_BYTES = 1 << 16
K = TypeVar("K")


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


def write_spill(files: Files, path: Path, sample: SequenceSample, point: str = "spill") -> FileRef:
    """Publish a sample as a file of its own."""
    return files.publish_chunks(path, _chunks({None: sample}), point)


def read_spill(
    path: Path, group: str | None = None, keys: Sequence[str] | None = None, ids: Sequence[str] | None = None
) -> SequenceSample:
    """The sample of a part, or of it the given keys and rows. Reads only the keys asked for; verifies no CRC.

    Raises DamagedFileError where the file cannot be read any more.
    """
    try:
        with h5py.File(path, "r", locking=False) as file:
            sample = _read_part(file if group is None else file[group], keys)
    except OSError as error:
        raise DamagedFileError(unreadable(path, error)) from error
    return sample if ids is None or tuple(ids) == sample.ids else sample.select(ids)


def read_meta(path: Path, group: str | None = None) -> SampleMeta:
    """What is known of a part without its arrays. DamagedFileError where the file cannot be read any more."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            return _read_meta(file if group is None else file[group])
    except OSError as error:
        raise DamagedFileError(unreadable(path, error)) from error


def read_parts(files: Files, parts: Mapping[K, SpillRef]) -> dict[K, SequenceSample]:
    """All samples of these parts. DamagedFileError if one of them is not whole."""
    samples = {}
    for name, part in parts.items():
        with h5py.File.in_memory(files.read_verified(part.file)) as source:
            samples[name] = _read_part(source if part.group is None else source[part.group], None)
    return samples


def write_groups(files: Files, path: Path, samples: Mapping[str, SequenceSample], point: str) -> FileRef:
    """Publish one file that holds all these samples, each in the group of its name; others may do so too."""
    return files.publish_alike(path, _chunks(samples), point)


def read_groups(path: Path) -> dict[str, SequenceSample]:
    """All samples of such a file, by group. DamagedFileError where it cannot be read any more; verifies no CRC."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            return {name: _read_part(group, None) for name, group in file.items()}
    except (OSError, KeyError) as error:
        raise DamagedFileError(unreadable(path, error) if isinstance(error, OSError) else f"{path}: {error}") from error


def _chunks(parts: Mapping[str, SequenceSample] | Mapping[None, SequenceSample]) -> list[Chunk]:
    """The content of a file that holds every part in the group of its name, or the one part itself."""
    with open(os.memfd_create("spill"), "r+b", buffering=0) as sparse:
        arrays = _lay_out(sparse, parts)
        chunks: list[Chunk] = []
        end = 0
        for offset, array in sorted(arrays.items()):
            chunks += [os.pread(sparse.fileno(), offset - end, end), array]
            end = offset + len(array)
        chunks.append(os.pread(sparse.fileno(), os.fstat(sparse.fileno()).st_size - end, end))
    return list(_joined(chunks))


def _joined(chunks: Sequence[Chunk]) -> Iterator[Chunk]:
    """The same content with small chunks that follow each other as one: a write costs more than their copy."""
    for small, following in groupby(chunks, lambda chunk: len(chunk) < SMALL_BYTES):
        if small:
            yield b"".join(following)
        else:
            yield from following


def _lay_out(
    sparse: FileIO, parts: Mapping[str, SequenceSample] | Mapping[None, SequenceSample]
) -> dict[int, memoryview]:
    """Write all of the file but the arrays; returns these by their offsets in it.

    The low-level interface takes a quarter of the time. No times are stored: the same parts make the same bytes.
    """
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_fileobj_driver(h5fd.fileobj_driver, sparse)
    access.set_libver_bounds(h5f.LIBVER_V18, h5f.LIBVER_V18)
    file = h5f.create(b"spill", h5f.ACC_TRUNC, _timeless(h5p.FILE_CREATE), access)
    placed: dict[int, memoryview] = {}
    for name, sample in parts.items():
        placed |= _place(file if name is None else _group(file, name), sample)
    file.close()
    return placed


def _group(file: h5f.FileID, name: str) -> h5g.GroupID:
    return h5g.create(file, name.encode(), None, _timeless(h5p.GROUP_CREATE))


def _place(group: h5g.GroupID, sample: SequenceSample) -> dict[int, memoryview]:
    """Give every array of a part a dataset, and room that is not written to."""
    properties = _timeless(h5p.DATASET_CREATE)
    properties.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5d.FILL_TIME_NEVER)
    placed: dict[int, memoryview] = {}
    for name, array in _arrays(sample).items():
        kind, space = h5t.py_create(array.dtype, logical=True), h5s.create_simple(array.shape)
        dataset = h5d.create(group, name.encode(), kind, space, properties)
        if array.size:
            placed[dataset.get_offset()] = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return placed


def _timeless(kind: h5p.PropClassID) -> h5p.PropOCID:
    """Properties of what is created: without the time at which it was."""
    properties = h5p.create(kind)
    properties.set_obj_track_times(False)
    return properties


def _arrays(sample: SequenceSample) -> dict[str, np.ndarray]:
    """The datasets of a part by name."""
    metas = sample.meta.keys.values()
    form = len(metas), len(sample.ids)
    counts = np.array([[len(lengths) for lengths in meta.lengths] for meta in metas], np.int64).reshape(form)
    lengths = np.array([n for meta in metas for n in chain.from_iterable(meta.lengths)], np.int64)
    single = bool((counts == 1).all())
    return {
        "ids": _text(sample.ids),
        "keys": _text(sample.keys),
        **({"lengths": lengths.reshape(form)} if single else {"lengths": lengths, "counts": counts}),
        **{_dataset_name(key): array for key, array in sample.data.items()},
    }


def _text(texts: Sequence[str]) -> np.ndarray:
    encoded = np.array([text.encode() for text in texts], np.bytes_)
    return encoded.astype(h5py.string_dtype("utf-8", encoded.itemsize))


def _dataset_name(key: str) -> str:
    """A key may hold any character; the name of a dataset must have no slash."""
    return f"key:{key.replace('%', '%25').replace('/', '%2F')}"


def _read_part(group: h5py.Group, keys: Sequence[str] | None) -> SequenceSample:
    known = _read_meta(group)
    for key in keys or ():
        if key not in known.keys:
            raise ValueError(f"no key {key!r} in {group.file.filename}; it has {list(known.keys)}")
    metas = known.keys if keys is None else {key: known.keys[key] for key in keys}
    return SequenceSample(SampleMeta(known.ids, metas), {key: group[_dataset_name(key)][()] for key in metas})


def _read_meta(group: h5py.Group) -> SampleMeta:
    arrays = {key: group[_dataset_name(key)] for key in group["keys"].asstr()[()].tolist()}
    lengths = zip(arrays.items(), _lengths(group), strict=True)
    metas = {key: KeyMeta(array.dtype.name, of_key, array.shape[1:]) for (key, array), of_key in lengths}
    return SampleMeta(tuple(group["ids"].asstr()[()].tolist()), metas)


def _lengths(group: h5py.Group) -> list[tuple[tuple[int, ...], ...]]:
    """Per key, and per sample, the lengths of its sub-sequences."""
    lengths = group["lengths"][()]
    if "counts" not in group:
        return [tuple((length,) for length in of_key) for of_key in lengths.tolist()]
    rest = iter(lengths.tolist())
    return [tuple(tuple(islice(rest, count)) for count in of_key) for of_key in group["counts"][()].tolist()]
