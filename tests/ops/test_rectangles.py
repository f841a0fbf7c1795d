"""Compiled copies of rectangles against numpy's and against one element at a time."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.kernels import built, kernel_on_host

from hpcrl.ops import rectangles as module
from hpcrl.ops.rectangles import UNSIGNED, Launch, Memory, Runs, copy_rectangles, launch

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return built(tmp_path_factory.mktemp("csrc"), "rectangles")


@pytest.fixture(params=["compiled", "numpy"])
def library(request, compiled, monkeypatch):
    found = compiled if request.param == "compiled" else None
    monkeypatch.setattr(module, "compiled", lambda: found)


def memory(array: np.ndarray) -> Memory:
    return Memory(array.ctypes.data, array.size, array.itemsize)


def column(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def drawn(draw: np.random.Generator, longest: int) -> tuple[Runs, Runs, np.ndarray, np.ndarray, int, int]:
    """Rectangles that lie one after another on both sides, in different orders, with gaps."""
    count = int(draw.integers(0, 6))
    rows, runs = draw.integers(0, 9, count), draw.integers(0, longest, count)
    sides, ends = [], []
    for _ in range(2):
        steps, offsets, end = runs + draw.integers(0, 70, count), np.zeros(count, np.int64), 0
        for i in draw.permutation(count):
            offsets[i] = end + draw.integers(0, 5)
            end = offsets[i] + rows[i] * steps[i] + runs[i]
        sides.append(Runs(offsets, steps))
        ends.append(int(end) + 3)
    return *sides, rows, runs, *ends


@pytest.mark.parametrize("itemsize", UNSIGNED)
@pytest.mark.parametrize("longest", [4, 90, 600])
def test_copies_are_those_of_one_element_at_a_time(library, itemsize, longest):
    draw = np.random.default_rng(longest)
    for _ in range(12):
        sent, received, rows, runs, had, gets = drawn(draw, longest)
        source = draw.integers(0, 256, had * itemsize, np.uint8).view(UNSIGNED[itemsize])
        target = draw.integers(0, 256, gets * itemsize, np.uint8).view(UNSIGNED[itemsize])
        expected = target.copy()
        for i in range(len(rows)):
            for row in range(rows[i]):
                for k in range(runs[i]):
                    at = received.offsets_N[i] + row * received.steps_N[i] + k
                    expected[at] = source[sent.offsets_N[i] + row * sent.steps_N[i] + k]
        copy_rectangles(memory(source), sent, memory(target), received, rows, runs)
        assert target.tobytes() == expected.tobytes()


@pytest.mark.parametrize("shift", [0, 1, 4])
def test_more_than_a_cache_holds_is_copied_alike(library, shift):
    source = np.arange(6 * 2**20, dtype=np.uint32)
    target = np.zeros(3 * 2**20 + shift, np.uint32)
    rows, run = 3 * 2**20 // 257, 257
    copy_rectangles(
        memory(source), Runs(column(5), column(2 * run - 9)), memory(target), Runs(column(shift), column(run)),
        column(rows), column(run),
    )  # fmt: skip
    expected = 5 + np.arange(rows)[:, None] * (2 * run - 9) + np.arange(run)
    assert (target[shift : shift + rows * run] == expected.reshape(-1)).all()
    assert not target[:shift].any() and not target[shift + rows * run :].any()


@pytest.mark.parametrize(
    ("rows", "run", "step", "to_step", "shift"),
    [
        (3, 3 * 2**20 + 77, 3 * 2**20 + 100, 3 * 2**20 + 77, 5),  # few long runs, one behind another
        (2, 5 * 2**20 + 3, 5 * 2**20 + 3, 6 * 2**20, 64),  # and apart
        (1, 9 * 2**20, 9 * 2**20, 9 * 2**20, 0),
        (1003, 1000, 1000, 1024, 7),  # scattered, each run alike in its lines
        (1003, 1024, 1024, 4096, 0),
        (9, 70, 70, 128, 0),
        (6, 4096, 8192, 4096, 0),  # fewer than are copied side by side
    ],
)
def test_runs_of_all_kinds_come_whole_and_leave_the_rest(library, rows, run, step, to_step, shift):
    source = np.random.default_rng(run).integers(0, 256, rows * step + 9, np.uint8)
    target = np.full(shift + rows * to_step + 200, 7, np.uint8)
    expected = target.copy()
    for row in range(rows):
        begin = shift + row * to_step
        expected[begin : begin + run] = source[9 + row * step : 9 + row * step + run]
    sides = Runs(column(9), column(step)), Runs(column(shift), column(to_step))
    copy_rectangles(memory(source), sides[0], memory(target), sides[1], column(rows), column(run))
    assert (target == expected).all()


@pytest.mark.parametrize(
    ("source", "target", "sent", "received", "said"),
    [
        ("u4", "u2", (0, 2), (0, 2), "4 and 2 bytes"),
        ("V16", "V16", (0, 2), (0, 2), "16 and 16 bytes"),
        ("u4", "u4", (2, 3), (0, 2), "elements 2 to 10 of a buffer of 9"),
        ("u4", "u4", (0, 2), (-1, 2), "elements -1 to"),
    ],
)
def test_what_would_leave_a_buffer_is_refused(library, source, target, sent, received, said):
    buffers = [np.zeros(9, dtype) for dtype in (source, target)]
    sides = [Runs(column(at), column(step)) for at, step in (sent, received)]
    with pytest.raises(ValueError, match=said):
        copy_rectangles(memory(buffers[0]), sides[0], memory(buffers[1]), sides[1], column(3), column(2))


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    return kernel_on_host(tmp_path_factory.mktemp("csrc"))


@pytest.mark.parametrize("itemsize", UNSIGNED)
@pytest.mark.parametrize(("longest", "unit"), [(4, 1), (90, 1), (600, 4), (4000, 8)])
def test_a_launch_copies_as_numpy_does(kernel, itemsize, longest, unit):
    draw = np.random.default_rng(longest)
    for _ in range(6):
        sent, received, rows, runs, had, gets = drawn(draw, longest // unit)
        sent, received = (Runs(*(column * unit for column in side)) for side in (sent, received))
        source = draw.integers(0, 256, had * unit * itemsize, np.uint8).view(UNSIGNED[itemsize])
        target, expected = (np.full(gets * unit, 9, UNSIGNED[itemsize]) for _ in range(2))
        sides = [memory(source), sent, memory(target), received, rows, runs * unit]
        module.in_numpy(memory(source), memory(expected), [*sent, *received, rows, runs * unit])
        launched = launch(*sides)
        assert unit == 1 or launched.itemsize == min(8, unit * itemsize)
        addresses = source.ctypes.data, target.ctypes.data, launched.columns_7N.ctypes.data
        launched.begin(kernel, *addresses, stream=0)
        assert (target == expected).all()


def test_elements_that_no_kernel_has_are_refused(kernel):
    with pytest.raises(RuntimeError, match="error -1"):
        Launch(np.zeros((7, 0), np.int64), 0, 3).begin(kernel, 0, 0, 0, stream=0)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_the_cuda_source_compiles(tmp_path):
    library = tmp_path / "cuda.so"
    flags = ["-std=c++17", "-arch=all-major", "-shared", "-Xcompiler", "-fPIC", "-Werror", "all-warnings"]
    subprocess.run(["nvcc", *flags, ROOT / "csrc" / "rectangles.cu", "-o", library], check=True)
    assert ctypes.CDLL(str(library)).hpcrl_copy_rectangles_cuda
