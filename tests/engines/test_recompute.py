"""Training that computes activations again, against training that keeps them: the same bits."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.layouts import ROWS, on_rank
from support.pool import gloo_pool
from support.tiny_models import gemma2_config, gemma3_config, gpt2_config, mixtral_config, qwen3_config, tiny_config

from hpcrl.engines.composed import NO_ROUTER_LOSS
from hpcrl.models.lessons import RouterLoss
from hpcrl.placement.layouts import parse_layout

CONFIGS = {
    "qwen2": tiny_config(tied=True),
    "critic": tiny_config(head="value"),
    "gpt2": gpt2_config(),
    "gemma2": gemma2_config(),
    "qwen3": qwen3_config(),
    "gemma3": gemma3_config(),
    "mixtral": mixtral_config(),
}
ROUTERS = RouterLoss(0.5, 0.1)
TOKENS = 40
"""Of a micro-batch: there are several, so that stages have the next one's rows before the gradient of the last."""


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    with gloo_pool(4) as ranks:
        yield ranks


def trained(pool: Any, name: str, text: str, routers: RouterLoss, recompute: bool) -> list[dict[str, Any]]:
    layout = parse_layout(text)
    split = [list(range(part, len(ROWS), layout.dp)) for part in range(layout.dp)]
    found = pool.run(on_rank, CONFIGS[name], layout, split, TOKENS, routers, recompute)
    return [each for each in found if each is not None]


@pytest.mark.parametrize(
    ("name", "layout", "routers"),
    [
        *((name, "d1", ROUTERS) for name in CONFIGS),
        pytest.param("mixtral", "d1", NO_ROUTER_LOSS, marks=pytest.mark.slow),
        ("mixtral", "t2p2", ROUTERS),
        pytest.param("mixtral", "p2", NO_ROUTER_LOSS, marks=pytest.mark.slow),
        ("qwen2", "d2t2", NO_ROUTER_LOSS),
        ("critic", "p2", NO_ROUTER_LOSS),
        pytest.param("gemma3", "t2p2", NO_ROUTER_LOSS, marks=pytest.mark.slow),
    ],
)
def test_what_is_computed_again_changes_no_bit(pool: Any, name: str, layout: str, routers: RouterLoss) -> None:
    kept, again = (trained(pool, name, layout, routers, recompute) for recompute in (False, True))
    assert len(kept) == parse_layout(layout).size
    for one, two in zip(kept, again, strict=True):
        assert one["updates"] == two["updates"] and one["totals"] == two["totals"]
        assert one["digest"] == two["digest"]
        for key, parameter in one["parameters"].items():
            assert torch.equal(parameter, two["parameters"][key]), key
