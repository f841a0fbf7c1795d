"""What a rank has of every parameter: together the ranks have each element once; experts are cut as stacks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.foreign_folders import OPT, TENSORS, write
from support.tiny_models import CONFIGS

from hpcrl.backends.backend import CutBy
from hpcrl.families.config import DecoderConfig
from hpcrl.families.reader import parameters_of, read_config
from hpcrl.families.stacks import stacks_of
from hpcrl.placement.cut_memory import cut_by_rows
from hpcrl.placement.own_parts import own_parts

WIDTHS: dict[str, tuple[int, int]] = {"gate_proj": (48, 32), "up_proj": (48, 32), "down_proj": (32, 48)}


def with_experts(folder: Path, experts: int) -> DecoderConfig:
    """Whose tensors a folder has in any order."""
    found: dict[str, Any] = {
        f"model.decoder.layers.{block}.mlp.experts.{expert}.{name}.weight": shape
        for block in (1, 0)
        for name, shape in WIDTHS.items()
        for expert in reversed(range(experts))
    }
    write(folder, OPT | {"more": 1}, {**TENSORS, **found})
    return read_config(folder, kind="transformers")


def numbers_of(config: DecoderConfig) -> dict[str, np.ndarray]:
    """Each element of the model has its own."""
    ends = np.cumsum([parameter.numel for parameter in parameters_of(config)])
    named = zip(parameters_of(config), ends, strict=True)
    return {it.name: np.arange(end - it.numel, end) for it, end in named}


@pytest.mark.parametrize("by", ["rows", "elements"])
@pytest.mark.parametrize(("experts", "ranks"), [(4, 2), (3, 2), (1, 2), (5, 3), (4, 3), (2, 4)])
def test_ranks_have_each_element_once_and_in_the_order_of_its_stack(
    by: CutBy, experts: int, ranks: int, tmp_path: Path
) -> None:
    config = with_experts(tmp_path, experts)
    numbers, seen = numbers_of(config), []
    stacked = {it.name: np.concatenate([numbers[each.name] for each in it.parameters]) for it in stacks_of(config)}
    for rank in range(ranks):
        own = own_parts(config, ranks, rank, by)
        buffer = np.full(own.numel, -1)
        for span in own.spans():
            place = span.place
            buffer[span.offset : span.offset + place.run] = numbers[place.parameter][place.first :][: place.run]
        for it in own.stacks:
            mine = buffer[it.offset : it.offset + it.numel]
            assert np.array_equal(mine, stacked[it.stack.name][it.begin : it.begin + it.numel])
            assert it.numel <= it.room
            if by == "rows":
                assert np.prod(it.rows) == it.numel and it.rows[1:] == it.stack.shape[1:]
        assert len({part.offset for part in own.parts if part.numel}) == sum(part.numel > 0 for part in own.parts)
        seen.append(buffer[buffer >= 0])
    everything = np.sort(np.concatenate(seen))
    assert np.array_equal(everything, np.arange(sum(it.numel for it in parameters_of(config))))


def test_cut_by_rows_an_expert_is_on_one_rank(tmp_path: Path) -> None:
    config = with_experts(tmp_path, 5)
    names = [it.name for it in stacks_of(config)]
    assert "model.decoder.layers.1.mlp.experts.gate_up_proj" in names
    shapes = {it.stack.name.rpartition(".")[2]: it.stack.shape for it in own_parts(config, 3, 0, "rows").stacks}
    assert (shapes["gate_up_proj"], shapes["down_proj"]) == ((5, 96, 32), (5, 32, 48))
    for rank, expected in enumerate(({0, 1}, {2, 3}, {4})):
        parts = [part for part in own_parts(config, 3, rank, "rows").parts if "experts" in part.parameter.name]
        assert all(part.numel in (0, part.parameter.numel) for part in parts)
        assert {int(part.parameter.name.split(".experts.")[1][0]) for part in parts if part.numel} == expected


def test_what_the_rank_with_most_experts_holds_is_estimated(tmp_path: Path) -> None:
    config = with_experts(tmp_path, 3)
    kept: dict[str, Any] = {"trained": True, "changes": True, "offload": "none", "each": False}
    first, second = (own_parts(config, 2, rank, "rows") for rank in (0, 1))
    assert sum(part.numel for part in first.parts) > 1.4 * sum(part.numel for part in second.parts)
    assert first.numel == second.numel  # its buffer has room for what is sent
    assert cut_by_rows(config, 2, 4, 4, **kept).parameters == pytest.approx(4 * first.numel, rel=0.02)


def test_of_other_models_each_parameter_is_one_stack() -> None:
    config = CONFIGS["mixtral"]()
    assert [(it.name, it.shape) for it in stacks_of(config)] == [(it.name, it.shape) for it in parameters_of(config)]
