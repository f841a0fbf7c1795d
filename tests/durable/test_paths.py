from pathlib import Path

import pytest

from hpcrl.durable.paths import RunPaths, attempt_number, attempt_of, step_of
from hpcrl.errors import InternalError


def test_names_say_their_step_and_attempt() -> None:
    run = RunPaths(Path("/run"))
    assert attempt_of(run.spill(12, "actor_gen", 3, 7).name) == 7
    assert attempt_of(run.compacted(12, 1234).name) == 1234
    assert attempt_of(run.checkpoint(12, 7).name) == 7
    assert attempt_of(".actor_gen.dp00.a007.h5.node.a100.example.1f.33.0.tmp") == 7
    assert attempt_of(".MANIFEST.json.node.a100.example.1f.33.0.tmp") is None
    assert attempt_of("run.json") is None
    assert [step_of(path.name) for path in (run.step_spills(12), run.compacted(3, 0), run.checkpoint(4, 0))] == [
        12,
        3,
        4,
    ]
    assert step_of("12") is None
    assert run.renumbered("spills/step-00000012.a003.h5", 10) == run.compacted(12, 10)
    assert run.renumbered("checkpoints/step-00000012.a003/MANIFEST.json", 10) == run.manifest(12, 10)
    with pytest.raises(InternalError, match="carries no attempt's number"):
        run.renumbered("run.json", 1)


def test_a_directory_of_an_attempt_is_named_by_its_number() -> None:
    assert [attempt_number(name) for name in ("000", "012", "1234", "12", ".000", "000.tmp", "")] == [
        0,
        12,
        1234,
        None,
        None,
        None,
        None,
    ]
