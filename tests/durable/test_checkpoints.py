import math
import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.kills import FullAt

from hpcrl.durable.append_log import DiskFullError
from hpcrl.durable.checkpoints import (
    Manifest,
    checkpoint_damage,
    read_manifest,
    read_shard,
    write_manifest,
    write_shard,
)
from hpcrl.durable.files import DamagedFileError, FileRef, Files

ARRAYS = {
    "weight": np.arange(12, dtype=np.float32).reshape(3, 4).T,
    "mask": np.array([True, False, True]),
    "step": np.array(7, np.int64),
    "empty": np.zeros((0, 5), np.float64),
    "odd": np.arange(3, dtype=np.uint8),
    "moments": np.linspace(0, 1, 5)[::2],
    "foreign": np.arange(3, dtype=">i4"),
    "half": np.array([1.5, math.inf], np.float16),
}


def write_cut(files: Files, folder: Path, step: int = 3) -> FileRef:
    roles = {
        role: tuple(write_shard(files, folder, role, rank, {"w": np.full(4, rank)}, {"v": step}) for rank in range(2))
        for role in ("actor", "critic")
    }
    return write_manifest(
        files, folder / "MANIFEST.json", Manifest(step, 0, roles, epoch=1, cursor=24, digests={"actor": "ab"})
    )


def test_shard_is_read_back_bit_for_bit(root: Path) -> None:
    state = {"lr": 0.1 + 0.2, "nothing": None, "nan": math.nan, "big": 2**80, "nested": {"list": [1, 2.5]}}
    ref = write_shard(Files(root), root / "c", "actor", 1, ARRAYS, state)
    arrays, read = read_shard(root / ref.name)
    assert ref.name == "c/actor.r001.safetensors"
    assert arrays.keys() == ARRAYS.keys()
    for name, array in arrays.items():
        assert array.shape == ARRAYS[name].shape and array.dtype == ARRAYS[name].dtype.newbyteorder("<")
        assert np.array_equal(array, ARRAYS[name]) and array.flags.writeable
    assert math.isnan(read.pop("nan")) and read == {name: value for name, value in state.items() if name != "nan"}


def test_shard_is_a_safetensors_file_for_others_too(root: Path) -> None:
    ref = write_shard(Files(root), root, "actor", 0, ARRAYS, {})
    theirs = load_file(root / ref.name)
    assert all(np.array_equal(theirs[name], array) for name, array in ARRAYS.items())


def test_other_threads_go_on_while_a_shard_is_read(root: Path) -> None:
    ref = write_shard(Files(root), root, "actor", 0, {"flat": np.zeros(96 << 20, np.uint8)}, {})

    def turns_of_another_thread() -> int:
        reader = threading.Thread(target=read_shard, args=(root / ref.name,))
        reader.start()
        turns = 0
        while reader.is_alive():
            time.sleep(0.0005)
            turns += 1
        return turns

    assert any(turns_of_another_thread() > 10 for _ in range(5))


def test_arrays_are_aligned_for_whoever_maps_the_file(root: Path) -> None:
    ref = write_shard(Files(root), root, "actor", 0, {"a": np.ones(3, np.uint8), "b": np.ones(2)}, {})
    data = (root / ref.name).read_bytes()
    assert struct.unpack("<Q", data[:8])[0] % 8 == 0
    assert np.array_equal(np.frombuffer(data[-19:-3]), np.ones(2))


def test_same_state_gives_the_same_bytes(root: Path) -> None:
    files = Files(root)
    first = write_shard(files, root, "actor", 0, ARRAYS, {"a": 1})
    second = write_shard(files, root, "actor", 1, dict(reversed(ARRAYS.items())), {"a": 1})
    assert (first.size, first.crc32) == (second.size, second.crc32)


def test_dtype_that_cannot_be_stored_is_named(root: Path) -> None:
    with pytest.raises(ValueError, match="array 'z' has dtype complex64"):
        write_shard(Files(root), root, "actor", 0, {"z": np.zeros(2, np.complex64)}, {})


def test_manifest_names_its_shards_where_it_lies(root: Path) -> None:
    files = Files(root)
    ref = write_cut(files, root / "a")
    manifest = read_manifest(files, ref)
    assert (manifest.step, manifest.epoch, manifest.cursor) == (3, 1, 24)
    assert [shard.name for shard in manifest.roles["critic"]] == [f"a/critic.r00{rank}.safetensors" for rank in (0, 1)]
    (root / "a").rename(root / "b")
    moved = read_manifest(files, FileRef("b/MANIFEST.json", ref.size, ref.crc32))
    assert checkpoint_damage(files, moved, {"actor", "critic"}) == []


def test_manifest_refuses_shards_that_lie_elsewhere(root: Path) -> None:
    files = Files(root)
    shard = write_shard(files, root / "a", "actor", 0, {}, {})
    with pytest.raises(ValueError, match=r"a/actor\.r000\.safetensors does not"):
        write_manifest(files, root / "b" / "MANIFEST.json", Manifest(1, 0, {"actor": (shard,)}, 0, 0, {}))


def test_cut_without_a_trained_role_or_with_a_damaged_shard_is_unusable(root: Path) -> None:
    files = Files(root)
    manifest = read_manifest(files, write_cut(files, root / "a"))
    assert checkpoint_damage(files, manifest, {"actor"}) == []
    assert checkpoint_damage(files, manifest, {"actor", "reward"}) == ["step 3 has no reward"]
    shard = root / "a" / "critic.r001.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert "critic.r001.safetensors has CRC" in checkpoint_damage(files, manifest, {"actor"})[0]


def test_damaged_manifest_is_refused(root: Path) -> None:
    files = Files(root)
    ref = write_cut(files, root / "a")
    path = root / "a" / "MANIFEST.json"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DamagedFileError, match=r"MANIFEST\.json has"):
        read_manifest(files, ref)


def test_full_disk_leaves_no_shard(root: Path) -> None:
    with pytest.raises(DiskFullError, match=r"actor\.r000\.safetensors: it needs"):
        write_shard(Files(root, FullAt(2)), root, "actor", 0, ARRAYS, {})
    assert list(root.iterdir()) == []
