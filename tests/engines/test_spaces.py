"""Checkpoints that go from hpcrl's own code to transformers' and back, under each backend that holds both."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.guests import lived
from support.megatron_cpu import megatron
from support.pool import gloo_pool
from support.sharded import Case
from support.tiny import fsdp, native
from support.tiny_models import CONFIGS, tiny_config
from support.translating import by_transformers, taken

from hpcrl.families.config import Experts
from hpcrl.models.pretrained import write_random_pretrained
from hpcrl.placement.layouts import parse_layout

SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def pool() -> Any:
    with gloo_pool(2) as ranks:
        yield ranks


@pytest.mark.parametrize(
    "case",
    [Case(), pytest.param(Case("value", "bf16"), marks=SLOW), pytest.param(Case("value", tied=False), marks=SLOW)],
    ids=str,
)
def test_the_first_digest_comes_again(pool: Any, tmp_path: Path, case: Case) -> None:
    """No update between; what one more would make is the same up to rounding."""
    write_random_pretrained(tmp_path, tiny_config(tied=case.tied), 3)
    theirs = partial(by_transformers, tmp_path)
    (first, *_) = pool.run(lived, native, case, parse_layout("d1"))
    own = [(fsdp, "d2"), (megatron, "t2")]
    foreign = [(theirs("native"), "d2"), (theirs("fsdp"), "d2"), (theirs("zero2"), "d2")]
    digests, losses, saved, before = [first["digest"]], [], [first["saved"]], first["digest"]
    for maker, text in (*own, *foreign, (native, "d1")):
        layout = parse_layout(text)
        found = pool.run(taken, tmp_path, maker, case, layout, saved)[: layout.size]
        assert all(it["exact"] and it["of_shards"] == before for it in found), text
        assert len({(it["digest"], it["parameters"]) for it in found}) == 1
        digests.append(before := found[0]["digest"])
        losses.append(found[0]["loss"] / layout.dp)  # each part has all rows
        saved = [it["saved"] for it in found]
    kept, changed = digests[: 1 + len(own)] + digests[-1:], digests[1 + len(own) : -1]
    assert set(kept) == {first["digest"]} and len(set(changed)) == 1 and not set(kept) & set(changed)
    assert losses == pytest.approx([losses[0]] * len(losses), rel=0.02 if case.dtype == "bf16" else 1e-5)


@SLOW
def test_experts_come_again_from_stacks_that_are_cut_between_them(pool: Any, tmp_path: Path) -> None:
    """Three, of which the first of two ranks has two, or half of the elements of each stack, or all."""
    config, case = CONFIGS["mixtral"](experts=Experts(3, 2, 48)), Case()
    write_random_pretrained(tmp_path, config, 3)
    (first, *_) = pool.run(lived, native, case, parse_layout("d1"), config)
    saved, before, digests = [first["saved"]], first["digest"], []
    stages = [(by_transformers(tmp_path, name), "d2") for name in ("fsdp", "zero1", "native", "zero3", "zero2", "fsdp")]
    for maker, text in (*stages, (fsdp, "d2"), (native, "d1")):
        found = pool.run(taken, tmp_path, maker, case, parse_layout(text), saved, config)[: parse_layout(text).size]
        assert all(it["exact"] and it["of_shards"] == before for it in found), text
        assert len({(it["digest"], it["parameters"]) for it in found}) == 1
        digests.append(before := found[0]["digest"])
        saved = [it["saved"] for it in found]
    assert len(set(digests[:-2])) == 1 and set(digests[-2:]) == {first["digest"]}


@SLOW
@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - {"gemma3"}))
def test_models_of_other_families_come_back_as_they_were(pool: Any, tmp_path: Path, name: str) -> None:
    write_random_pretrained(tmp_path, config := CONFIGS[name](), 3)
    case, layout = Case(), parse_layout("d1")
    (first, *_) = pool.run(lived, native, case, layout, config)
    theirs = by_transformers(tmp_path, "native")
    (there, *_) = pool.run(taken, tmp_path, theirs, case, layout, [first["saved"]])
    (back, *_) = pool.run(taken, tmp_path, native, case, layout, [there["saved"]], config)
    assert back["digest"] == first["digest"] != there["digest"]
    assert there["loss"] == pytest.approx(back["loss"], rel=1e-4)
