"""What the text says to Graphviz: read back by it, then followed along the lines."""

import json
import random
import re
import subprocess
import sysconfig
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.scenes import lagging, random_recipe

from hpcrl.dataflow.dot import COLOURS, DATA_SETS, Place, to_dot
from hpcrl.dataflow.graph import MFC, Graph, build_graph

ROLLOUT = ("prompts", "responses", "finished", "logprobs", "ref_logprobs", "rewards", "values")
TRAINING = (
    MFC("actor_gen", "actor", "generate", ("prompts",), ("responses", "logprobs", "finished")),
    MFC("rew_inf", "reward", "inference", ("prompts", "responses"), ("rewards",)),
    MFC("ref_inf", "reference", "inference", ("prompts", "responses"), ("ref_logprobs",)),
    MFC("critic_inf", "critic", "inference", ("prompts", "responses"), ("values",)),
    MFC("actor_train", "actor", "train_step", ROLLOUT),
    MFC("critic_train", "critic", "train_step", ROLLOUT),
)
EVALUATION = (
    MFC("eval_gen", "actor", "generate", ("eval_prompts",), ("eval_responses",), dataset="eval"),
    MFC("eval_rew", "reward", "inference", ("eval_prompts", "eval_responses"), ("eval_rewards",), dataset="eval"),
)
NINE_CALLS = (*TRAINING, *EVALUATION, MFC("rew_train", "reward", "train_step", ("prompts", "responses", "rewards")))
PPO = build_graph([*TRAINING, *EVALUATION], ["prompts"], ["eval_prompts"])
NINE = build_graph(NINE_CALLS, ["prompts"], ["eval_prompts"])
LAGGING = build_graph([lagging(mfc, 2) for mfc in TRAINING], ["prompts"])
GRAPHS = [PPO, NINE, LAGGING, *(random_recipe(random.Random(seed)).graph() for seed in range(60))]


def graphviz(form: str, text: str) -> str:
    program = Path(sysconfig.get_path("scripts")) / "graphviz-pure"
    done = subprocess.run([program, f"-T{form}"], input=text, capture_output=True, text=True, timeout=60, check=True)
    assert {line for line in done.stderr.splitlines() if "non-ASCII" not in line} <= {""}
    return done.stdout


class Picture:
    """Nodes and edges by name, with their attributes. Calls and data sets are boxes, what lines carry is a text."""

    def __init__(self, graph: Graph, places: Mapping[str, Place] | None = None) -> None:
        read: dict[str, Any] = json.loads(graphviz("dot_json", to_dot(graph, places or {})))
        self.legend = read["label"]
        things = {thing["_gvid"]: thing for thing in read["objects"]}
        parts = {thing["name"]: thing.get("nodes", []) for thing in things.values()}
        self.training, self.evaluation = (
            {things[node]["name"] for node in parts[f"cluster_{name}"]} for name in ("train", "eval")
        )
        self.nodes = {thing["name"]: thing for thing in things.values() if "shape" in thing}
        self.edges = [(things[edge["tail"]]["name"], things[edge["head"]]["name"], edge) for edge in read["edges"]]
        self.boxes = {name: node for name, node in self.nodes.items() if node["shape"] == "box"}

    def words(self, name: str) -> str:
        return " ".join(re.sub("<[^>]*>", " ", self.nodes[name]["label"]).split())

    def flows(self) -> Iterator[tuple[str, str, str]]:
        """(From, words, to) of every solid arrow, followed from its head back to the box that it leaves."""
        before = {head: tail for tail, head, edge in self.edges if edge.get("dir") == "none"}
        for tail, head, edge in self.edges:
            if "dir" not in edge:
                while self.nodes[tail]["shape"] == "point":
                    tail = before[tail]
                yield before[tail], self.words(tail), head

    def versions(self) -> Iterator[tuple[str, str, str]]:
        """(Train step, words, reader) of every dashed line."""
        after = {tail: head for tail, head, edge in self.edges if "style" in edge and edge["dir"] == "none"}
        for reader, text, edge in self.edges:
            if "style" in edge and edge["dir"] == "back":
                yield after[text], self.words(text), reader


def producer_of(graph: Graph, key: str) -> str:
    makers = [call for call in graph if key in graph.calls[call].outputs]
    return makers[0] if makers else DATA_SETS["eval" if key in graph.eval_keys else "train"]


@pytest.mark.parametrize("graph", GRAPHS)
def test_an_arrow_leads_from_a_producer_to_each_reader_with_the_keys_that_it_reads(graph: Graph) -> None:
    reads = {(producer_of(graph, key), key, call) for call in graph for key in graph.calls[call].inputs}
    drawn = list(Picture(graph).flows())
    assert {(source, key, call) for source, keys, call in drawn for key in keys.split(", ")} == reads
    assert len(drawn) == len({(source, call) for source, _, call in reads})


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_same_keys_leave_a_producer_on_one_line_however_many_read_them(graph: Graph) -> None:
    picture = Picture(graph)
    carried = {(source, keys) for source, keys, _ in picture.flows()}
    assert sum(tail in picture.boxes and edge.get("dir") == "none" for tail, _, edge in picture.edges) == len(carried)


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_dashed_line_leads_from_a_train_step_to_each_reader_of_what_it_makes(graph: Graph) -> None:
    versions = [(edge.source, edge.target) for edge in graph.edges if edge.kind == "version"]
    assert sorted((train, reader) for train, _, reader in Picture(graph).versions()) == sorted(versions)


@pytest.mark.parametrize("graph", GRAPHS)
def test_boxes_are_the_calls_and_their_data_sets_and_evaluation_stands_apart(graph: Graph) -> None:
    picture, sets = Picture(graph), {graph.calls[call].dataset for call in graph}
    assert picture.boxes.keys() == {*graph, *(DATA_SETS[name] for name in sets)}
    on_eval = {call for call in graph if graph.calls[call].dataset == "eval"}
    assert picture.evaluation & picture.boxes.keys() == on_eval | ({DATA_SETS["eval"]} if on_eval else set())
    assert not picture.evaluation & picture.training


@pytest.mark.parametrize("graph", [PPO, NINE])
def test_a_role_has_a_colour_and_what_changes_parameters_a_thick_frame(graph: Graph) -> None:
    boxes = Picture(graph).boxes
    assert all(boxes[call]["color"] == COLOURS[graph.calls[call].role] for call in graph)
    thick = {name for name, box in boxes.items() if float(box["penwidth"]) > 2}
    assert thick == {call for call in graph if graph.calls[call].kind == "train_step"}


def test_equal_graphs_are_drawn_equal_whatever_the_order_of_their_calls() -> None:
    assert to_dot(build_graph(NINE_CALLS[::-1], ["prompts"], ["eval_prompts"])) == to_dot(NINE)


def test_the_lag_and_the_roles_can_be_read() -> None:
    assert ("actor_train", "actor parameters, 3 steps on", "actor_gen") in Picture(LAGGING).versions()
    assert Picture(LAGGING).words("critic_train") == "critic_train critic · train_step"
    assert {words for _, words, _ in Picture(PPO).versions()} == {
        "actor parameters, next step",
        "actor parameters, same step",
        "critic parameters, next step",
    }


HOME = {call: Place(mfc.role, "d2 on 0-1") for call, mfc in PPO.calls.items()}


def test_a_box_says_who_makes_its_call_and_where_and_a_line_to_a_copy_names_it() -> None:
    placed = HOME | {
        "actor_gen": Place("actor@1", "d4p2 on 0-7"),
        "eval_gen": Place("actor@1", "d4p2 on 0-7"),
        "eval_rew": Place("reward@1", "d1 on 7"),
    }
    picture = Picture(PPO, placed)
    assert picture.words("actor_gen") == "actor_gen actor@1 · generate d4p2 on 0-7"
    assert picture.words("critic_train") == "critic_train critic · train_step d2 on 0-1"
    assert set(picture.versions()) == {
        ("actor_train", "actor parameters to actor@1, next step", "actor_gen"),
        ("actor_train", "actor parameters to actor@1, same step", "eval_gen"),
        ("critic_train", "critic parameters, next step", "critic_inf"),
    }
    texts = {head for tail, head, edge in picture.edges if tail == "rew_inf" and edge.get("style") == "dashed"}
    assert {picture.words(text) for text in texts} == {"reward parameters to reward@1"}
    assert {head for tail, head, _ in picture.edges if tail in texts} == {"eval_rew"}
    assert "@: a copy" in picture.legend and "every call" not in picture.legend


def test_a_place_that_all_calls_share_is_said_once() -> None:
    picture = Picture(PPO, HOME)
    assert picture.words("critic_train") == Picture(PPO).words("critic_train")
    assert picture.legend.endswith("every call: d2 on 0-1") and "@" not in picture.legend


def test_whatever_stands_in_names_is_shown_as_it_stands() -> None:
    key, role = 'x<"\\y&é', "a<b&c"
    odd = [MFC("node", role, "generate", (key,), ("z",)), MFC("edge", role, "train_step", ("z",))]
    drawn = ElementTree.fromstring(graphviz("svg", to_dot(build_graph(odd, [key]))))
    texts = [(text.text or "").replace("\xa0", " ") for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"node", f"{role} · generate", key, f"{role} parameters, next step"} <= set(texts)


def test_nothing_is_drawn_of_an_empty_graph_but_the_legend() -> None:
    drawn = graphviz("svg", to_dot(build_graph([], [])))
    assert re.findall("<text[^>]*>([a-z]+): ", drawn) == ["solid"]


@pytest.mark.parametrize("graph", GRAPHS)
def test_graphviz_draws_it(graph: Graph) -> None:
    drawn = graphviz("svg", to_dot(graph))
    assert all(f">{call}</text>" in drawn for call in graph)
