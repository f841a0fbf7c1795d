from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.data.samples import SequenceSample
from hpcrl.durable.files import DamagedFileError, Files
from hpcrl.durable.spills import SMALL_BYTES, SpillRef, group_name, read_parts, read_spill, write_groups, write_spill

DTYPES = ("int32", "float32", "float64", "float16", "bool", "int64", "uint16", "uint8")


def sample(count: int, seed: int = 0) -> SequenceSample:
    generator = np.random.default_rng(seed)

    def rows(dtype: str, trailing: tuple[int, ...] = ()) -> list[np.ndarray]:
        shapes = [(int(length), *trailing) for length in generator.integers(0, 6, count)]
        return [(generator.standard_normal(shape) * 3).astype(dtype) for shape in shapes]

    keys = {dtype: rows(dtype) for dtype in DTYPES} | {"a/b%2F": rows("float32", (2, 3))}
    return SequenceSample.from_rows([f"réw{i}@{seed}" for i in range(count)], keys)


def assert_equal(left: SequenceSample, right: SequenceSample) -> None:
    assert left.meta == right.meta
    for key in left.keys:
        assert left.data[key].tobytes() == right.data[key].tobytes()


@pytest.mark.parametrize("count", [0, 1, 5])
def test_spill_is_read_back_bit_for_bit(root: Path, count: int) -> None:
    files = Files(root)
    written = sample(count)
    ref = write_spill(files, root / "s.h5", written)
    assert_equal(read_spill(root / "s.h5"), written)
    assert files.damage(ref) is None


def test_spill_is_read_by_plain_h5py_as_documented(root: Path) -> None:
    written = sample(3)
    write_spill(Files(root), root / "s.h5", written)
    with h5py.File(root / "s.h5") as file:
        assert file["ids"].asstr()[()].tolist() == list(written.ids)
        assert file["keys"].asstr()[()].tolist() == list(written.keys)
        assert file["lengths"][()].tolist() == [list(written.length(key)) for key in written.keys]
        assert (file["key:float32"][()] == written.data["float32"]).all()


def test_arrays_too_large_to_join_and_arrays_in_any_memory_order_are_kept(root: Path) -> None:
    large = np.arange(3 * SMALL_BYTES, dtype=np.int32)
    turned = np.arange(6.0).reshape(2, 3).T
    rows = {"a": [large], "turned": [turned], "b": [large[::2]]}
    written = SequenceSample.from_rows(["x"], rows)
    written = SequenceSample(written.meta, {**written.data, "turned": turned, "b": large[::2]})
    files = Files(root)
    spill = SpillRef(write_spill(files, root / "s.h5", written))
    assert_equal(read_spill(root / "s.h5"), written)
    write_groups(files, root / "c.h5", read_parts(files, {"one": spill, "two": spill}), "compact")
    assert_equal(read_spill(root / "c.h5", "two"), written)


def test_several_sub_sequences_a_sample_are_kept_apart(root: Path) -> None:
    pairs = [[np.ones(2), np.zeros(3)], [], [np.ones(0)]]
    written = SequenceSample.from_rows(["a", "b", "c"], {"pair": pairs})
    write_spill(Files(root), root / "s.h5", written)
    assert_equal(read_spill(root / "s.h5"), written)


def test_reading_some_rows_and_keys_equals_selecting_them_from_the_whole(root: Path) -> None:
    written = sample(6)
    write_spill(Files(root), root / "s.h5", written)

    @settings(max_examples=30)
    @given(st.lists(st.sampled_from(written.ids), unique=True), st.lists(st.sampled_from(DTYPES), unique=True))
    def check(ids: list[str], keys: list[str]) -> None:
        read = read_spill(root / "s.h5", keys=keys, ids=ids)
        assert_equal(read, written.select_keys(keys).select(ids))

    check()


def test_unknown_key_or_row_is_named(root: Path) -> None:
    write_spill(Files(root), root / "s.h5", sample(2))
    with pytest.raises(ValueError, match=r"no key 'nothing' in .*s\.h5"):
        read_spill(root / "s.h5", keys=["nothing"])
    with pytest.raises(ValueError, match="'stranger'"):
        read_spill(root / "s.h5", ids=["stranger"])


def test_same_sample_gives_the_same_bytes(root: Path) -> None:
    files = Files(root)
    first, second = write_spill(files, root / "a.h5", sample(3)), write_spill(files, root / "b.h5", sample(3))
    assert (first.size, first.crc32) == (second.size, second.crc32)


def test_compacted_parts_are_read_back_bit_for_bit(root: Path) -> None:
    files = Files(root)
    parts = {("gen", i): sample(i + 1, seed=i) for i in range(3)}
    spills = {
        group_name(*unit): SpillRef(write_spill(files, root / f"{unit[1]}.h5", part)) for unit, part in parts.items()
    }
    once = write_groups(files, root / "once.h5", read_parts(files, spills), "compact")
    twice = write_groups(
        files, root / "twice.h5", read_parts(files, {name: SpillRef(once, name) for name in spills}), "compact"
    )
    for unit, part in parts.items():
        assert_equal(read_spill(files.path(once), group_name(*unit)), part)
        assert_equal(read_spill(files.path(twice), group_name(*unit)), part)


def test_damaged_part_is_not_compacted(root: Path) -> None:
    files = Files(root)
    ref = write_spill(files, root / "s.h5", sample(2))
    (root / "s.h5").write_bytes((root / "s.h5").read_bytes()[:-1])
    with pytest.raises(DamagedFileError, match=r"s\.h5 has"):
        write_groups(files, root / "c.h5", read_parts(files, {"gen": SpillRef(ref)}), "compact")
    assert not (root / "c.h5").exists()
