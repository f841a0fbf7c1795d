"""The digest of shards is the engine's, compiled or in numpy, and a run is believed in what it says of it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.miniature import NUMERICS, make_run

from hpcrl.durable import digests
from hpcrl.durable.checkpoints import Manifest, write_shard
from hpcrl.durable.digests import digest_of, saved_digest, with_memory
from hpcrl.durable.files import DamagedFileError
from hpcrl.durable.history import History, Line
from hpcrl.durable.journal import Trained
from hpcrl.durable.shards import open_shard, span_state
from hpcrl.engines import checksum
from hpcrl.families.places import Place, Span, whole
from hpcrl.ops.checksum import compiled_total, total_in_numpy
from hpcrl.ops.rectangles import Memory

SPANS = (
    (whole("vector", 100), Span(Place("matrix", 0, 30, 7, 20), 100, 7)),
    (Span(Place("matrix", 7, 30, 13, 20), 0, 13), Span(Place("other", 3, 5, 4, 8), 390, 6)),
)
SAID = {"updates": 21, "algorithm": {"kl_coef": 0.1}}


@pytest.mark.parametrize(("piece", "share"), [(1 << 20, 1 << 20), (37, 1 << 20), (37, 101)])
def test_it_is_the_digest_of_the_engine_that_saved_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int, share: int
) -> None:
    monkeypatch.setattr(digests, "PIECE", piece)
    monkeypatch.setattr(digests, "SHARE", share)
    run, draw = make_run(tmp_path / "run"), np.random.default_rng(0)
    parts, paths = [], []
    for rank, spans in enumerate(SPANS):
        count = max(span.stop for span in spans)
        arrays = {name: draw.standard_normal(count, np.float32) for name in ("first", "master", "second")}
        shard = write_shard(
            run.files, run.checkpoint(1, 0), "actor", rank, arrays, {"spans": span_state(spans), **SAID}
        )
        paths.append(run.files.path(shard))
        parts.append(([torch.from_numpy(arrays[name]) for name in ("master", "first", "second")], spans))
    expected = checksum.digest_of_parts(parts, 3, lambda totals: totals)
    assert digest_of([open_shard(path) for path in paths]) == with_memory(f"{expected}00000015", {"kl_coef": 0.1})


@pytest.mark.parametrize("kind", [np.int16, np.float32, np.float64])
def test_numpy_adds_up_what_is_compiled(kind: type) -> None:
    array = np.frombuffer(np.random.default_rng(1).bytes(500 * np.dtype(kind).itemsize), kind)
    compiled = compiled_total(Memory(array.ctypes.data, len(array), array.itemsize), SPANS[1])
    if compiled is None:
        pytest.skip("nothing is compiled here")
    assert total_in_numpy(array, SPANS[1]) == compiled


def trained(step: int, digest: str, attempt: int = 0, call: str = "actor_train") -> Line:
    return Line(attempt, 1, Trained(step, call, {"digest": digest}, {}, "", NUMERICS, version=step))


def cut(digest: str | None, attempt: int = 0) -> Manifest:
    return Manifest(4, attempt, {}, 0, 0, {} if digest is None else {"actor": digest})


LINES = (trained(3, "three"), trained(4, "four"), trained(4, "critic's", call="critic_train"), trained(5, "five"))


@pytest.mark.parametrize(
    ("lines", "manifest", "says"),
    [
        (LINES, cut("four"), "four"),
        (LINES, cut(None), "four"),
        (LINES[:1], cut(None), "three"),
        (LINES[2:], cut("saved"), "saved"),
        (LINES[2:], cut(None), None),
        (LINES, cut("trained again", attempt=1), "trained again"),
    ],
)
def test_the_last_line_of_the_role_says_what_it_was(
    lines: tuple[Line, ...], manifest: Manifest, says: str | None
) -> None:
    assert saved_digest(History(lines=lines), manifest, "actor", ["actor_train"]) == says


def test_a_checkpoint_that_was_saved_as_something_else_is_refused() -> None:
    with pytest.raises(DamagedFileError, match="actor was saved with digest other, and step 4 had left four"):
        saved_digest(History(lines=LINES), cut("other"), "actor", ["actor_train"])
