import itertools
import random
import xml.etree.ElementTree as ElementTree

import networkx as nx
import pytest
from msgspec.structs import replace
from support.imagined_run import lagging, random_recipe

from hpcrl.dataflow.draw import to_svg
from hpcrl.dataflow.graph import MFC, build_graph, mfc_of
from hpcrl.dataflow.layers import DATA_SETS, Passage, arrange, calls_on, crossings, nets_of
from hpcrl.recipes.algorithm import Recipe, ppo, text_evaluation

PPO = Recipe(ppo().calls + text_evaluation().calls, ("prompts",), ("eval_prompts",)).graph()
SVG = "{http://www.w3.org/2000/svg}"
LAGGING = build_graph([lagging(mfc, 2) for mfc in ppo().calls], ["prompts"])
GRAPHS = [PPO, LAGGING, *(random_recipe(random.Random(seed)).graph() for seed in range(60))]


def parts(svg: str) -> tuple[list[str], list[dict[str, str]], list[dict[str, str]]]:
    """Texts, lines, and the frames of boxes."""
    root = ElementTree.fromstring(svg)
    lines = [path.attrib for path in root.findall(f"{SVG}path")]
    frames = [rect.attrib for rect in root.findall(f"{SVG}rect") if rect.attrib.get("fill-opacity")]
    return [text.text or "" for text in root.findall(f"{SVG}text")], lines, frames


@pytest.mark.parametrize("graph", GRAPHS)
def test_every_call_key_and_edge_is_drawn_once(graph: nx.DiGraph) -> None:
    texts, lines, _ = parts(to_svg(graph))
    reads = [
        (call, origin)
        for call in graph
        for origin in {key: producer_of(graph, key) for key in mfc_of(graph, call).inputs}.values()
    ]
    versions = [edge for edge in graph.edges(data=True) if edge[2]["kind"] == "version"]
    arrows = [line for line in lines if "marker-end" in line]
    legend = 1
    assert all(texts.count(call) == 1 for call in graph)
    assert sum("stroke-dasharray" in line for line in arrows) == len(versions) + legend
    assert sum("stroke-dasharray" not in line for line in arrows) == len(set(reads)) + legend
    labels = {key for text in texts for key in text.split(", ")}
    assert {key for call in graph for key in mfc_of(graph, call).inputs} <= labels


def producer_of(graph: nx.DiGraph, key: str) -> str:
    makers = [call for call in graph if key in mfc_of(graph, call).outputs]
    return makers[0] if makers else DATA_SETS["eval" if key in graph.graph["eval_keys"] else "train"]


@pytest.mark.parametrize("graph", GRAPHS)
def test_boxes_lie_within_the_picture_and_do_not_overlap(graph: nx.DiGraph) -> None:
    svg = to_svg(graph)
    root, frames = ElementTree.fromstring(svg), parts(svg)[2]
    spans = [[float(frame[name]) for name in ("x", "y", "width", "height")] for frame in frames]
    for x, y, width, height in spans:
        assert x >= 0 and y >= 0
        assert x + width <= float(root.attrib["width"]) and y + height <= float(root.attrib["height"])
    for (x, y, width, height), (u, v, wide, high) in itertools.combinations(spans, 2):
        assert x + width <= u or u + wide <= x or y + height <= v or v + high <= y


def test_equal_graphs_are_drawn_equal_whatever_the_order_of_their_calls() -> None:
    calls = ppo().calls + text_evaluation().calls
    assert to_svg(build_graph(calls[::-1], ["prompts"], ["eval_prompts"])) == to_svg(PPO)


def test_the_lag_and_the_roles_can_be_read() -> None:
    texts = parts(to_svg(LAGGING))[0]
    assert texts.count("actor parameters, 3 steps on") == 1 and "critic · train_step" in texts
    assert {"actor parameters, next step", "actor parameters, same step"} <= set(parts(to_svg(PPO))[0])


def test_names_with_markup_are_escaped() -> None:
    odd = MFC("gen", "a<b&c", "generate", ("x<y",), ("z",))
    assert "a<b&c · generate" in parts(to_svg(build_graph([odd], ["x<y"])))[0]


def test_calls_stand_after_what_they_read_and_lines_pass_between() -> None:
    for graph in GRAPHS:
        nets = nets_of(graph, "train")
        columns = arrange(calls_on(graph, "train"), nets, [])
        where = {item: column for column, items in enumerate(columns) for item in items}
        for net in nets:
            passed = range(where[net.source] + 1, max(where[target] for target in net.targets))
            assert all(where[target] > where[net.source] for target in net.targets)
            assert all(Passage(net, column) in columns[column] for column in passed)


def test_crossings_are_counted_as_by_hand() -> None:
    links = [("a", "d"), ("b", "c"), ("a", "c"), ("b", "d")]
    assert crossings([["a", "b"], ["c", "d"]], links) == 1
    assert crossings([["a", "b"], ["d", "c"]], links[:2]) == 0


def test_a_ladder_is_drawn_without_crossings_however_its_calls_are_named() -> None:
    for names in itertools.islice(itertools.permutations("abcd"), 12):
        top, bottom = (MFC(f"first_{name}", name, "inference", ("x",), (f"k_{name}",)) for name in names[:2])
        nexts = [
            replace(mfc, name=f"{names[i + 2]}_next", inputs=mfc.outputs, outputs=())
            for i, mfc in enumerate((top, bottom))
        ]
        graph = build_graph([top, bottom, *nexts], ["x"])
        nets = nets_of(graph, "train")
        columns = arrange(calls_on(graph, "train"), nets, [])
        assert crossings(columns, [(net.source, target) for net in nets for target in net.targets]) == 0


def test_nothing_is_drawn_of_an_empty_graph_but_the_legend() -> None:
    texts, _, frames = parts(to_svg(build_graph([], [])))
    assert texts == ["data", "parameters", "changes parameters"] and frames == []
