"""Graphs to test with: calls, and the keys that their data sets deliver."""

from dataclasses import dataclass

import networkx as nx

from hpcrl.dataflow.graph import MFC, build_graph
from hpcrl.recipes.ppo import CALLS


@dataclass(frozen=True)
class Recipe:
    calls: tuple[MFC, ...]
    dataset_keys: tuple[str, ...]
    eval_keys: tuple[str, ...] = ()

    def graph(self) -> nx.DiGraph:
        return build_graph(self.calls, self.dataset_keys, self.eval_keys)


PPO = Recipe(CALLS, ("prompts",), ("eval_prompts",))


def ppo() -> Recipe:
    """Without evaluation."""
    return Recipe(tuple(call for call in CALLS if call.dataset == "train"), ("prompts",))
