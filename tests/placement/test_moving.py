"""Plans of moves against arrays whose elements know their own number."""

import itertools
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from support.moving import Carried, first_numbers, numbered
from support.tiny_models import odd_config

from hpcrl.families.config import DecoderConfig
from hpcrl.families.places import Place, Span
from hpcrl.placement.holdings import NOTHING, Holding, holding, holdings
from hpcrl.placement.layouts import Layout
from hpcrl.placement.moving import moves

TINY = odd_config(hidden_size=8, head_dim=2, intermediate_size=12, heads=4, kv_heads=2, blocks=5, vocabulary_size=29)
CONFIGS = {
    "tied": replace(TINY, tied=True),
    "untied": TINY,
    "one kv head": replace(TINY, kv_heads=1),
    "critic": replace(TINY, head="value"),
}
LAYOUTS = [
    Layout(dp, tp, pp) for pp, dp, tp in [(4, 1, 1), (2, 2, 2), (1, 8, 1), (3, 2, 1), (2, 1, 2), (1, 2, 2), (1, 1, 4)]
]
WORLD = 16
NODES = tuple(rank // 4 for rank in range(WORLD))
FIRSTS = {"equal": 0, "overlapping": 3, "disjoint": 8}
"""The first worker of the target; the source begins at worker 0."""


def placed(config: DecoderConfig, layout: Layout, first: int) -> tuple[Holding, ...]:
    return holdings(config, layout, tuple(range(first, first + layout.size)), WORLD)


def carried(config: DecoderConfig, source: tuple[Holding, ...], target: tuple[Holding, ...], nodes=NODES) -> Carried:
    """The move, once it is proven right."""
    views = [moves(source, target, nodes, rank) for rank in range(len(nodes))]
    numbers = first_numbers(config)
    had, wanted = ([numbered(held, numbers) for held in side] for side in (source, target))
    found = Carried(had, wanted, views)
    for rank, (got, expected) in enumerate(zip(found.targets, wanted, strict=True)):
        assert (got == expected).all(), rank
        assert (found.written[rank] == (expected >= 0)).all(), rank
    check_traffic(found, had, wanted, nodes)
    return found


def check_traffic(found: Carried, had: list, wanted: list, nodes: tuple[int, ...]) -> None:
    """No element crosses twice to a node, none that is there already, none goes to who has it."""
    across, there = defaultdict(list), defaultdict(set)
    for rank, node in enumerate(nodes):
        there[node] |= set(had[rank][had[rank] >= 0].tolist())
    for sender, receiver, values in found.sent:
        assert not set(values.tolist()) & set(had[receiver].tolist())
        if nodes[sender] != nodes[receiver]:
            across[nodes[receiver]].append(values)
    for node in set(nodes):
        needed = {int(n) for rank, of in enumerate(nodes) if of == node for n in wanted[rank] if n >= 0} - there[node]
        crossed = np.concatenate([np.zeros(0, np.int64), *across[node]])
        assert len(crossed) == len(needed) and set(crossed.tolist()) == needed


@pytest.mark.parametrize("target", LAYOUTS, ids=str)
@pytest.mark.parametrize("source", LAYOUTS, ids=str)
def test_every_element_comes_once_from_who_has_it(source: Layout, target: Layout) -> None:
    config = CONFIGS["tied"]
    carried(config, placed(config, source, 0), placed(config, target, 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("where", FIRSTS)
def test_every_pair_of_layouts_and_meshes(name: str, where: str) -> None:
    config = CONFIGS[name]
    for source, target in itertools.product([*LAYOUTS, Layout(2, 4), Layout(tp=4, pp=2)], repeat=2):
        carried(config, placed(config, source, 0), placed(config, target, FIRSTS[where]))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("where", FIRSTS)
def test_models_of_all_kinds_move_between_equal_overlapping_and_disjoint_meshes(name: str, where: str) -> None:
    config = CONFIGS[name]
    for source, target in [(Layout(2, 2, 2), Layout(1, 4, 2)), (Layout(1, 4), Layout(2, 1, 3))]:
        carried(config, placed(config, source, 0), placed(config, target, FIRSTS[where]))


def test_workers_without_a_part_do_nothing() -> None:
    source, target = placed(TINY, Layout(1, 2), 0), placed(TINY, Layout(2), 4)
    for rank in set(range(WORLD)) - {0, 1, 4, 5}:
        view = moves(source, target, NODES, rank)
        assert not len(view.copied[0]) and all(not each.sends and not each.receives for each in view.rounds)


def test_who_has_all_it_is_to_have_copies_it_and_sends_nothing_to_itself() -> None:
    source, target = placed(TINY, Layout(4), 0), placed(TINY, Layout(1, 4), 0)
    found = carried(TINY, source, target)
    assert not found.sent


def test_a_matrix_that_moves_whole_is_one_rectangle_and_its_neighbours_are_in_it() -> None:
    source, target = placed(TINY, Layout(), 0), placed(TINY, Layout(), 1)
    (transfer,) = moves(source, target, NODES, 0).rounds[0].sends
    parameters = len(source[0].names)
    assert 1 <= len(transfer.rectangles) <= parameters and (transfer.rectangles.rows_N == 1).all()
    cut = placed(TINY, Layout(1, 4), 4)
    first = moves(source, cut, NODES, 0).rounds[0].sends
    assert all(len(part.rectangles) <= sum(len(cut[4].patterns[kind]) for kind in cut[4].kinds) for part in first)


def test_senders_and_receivers_take_their_turns() -> None:
    source, target = placed(replace(TINY, blocks=8), Layout(8), 0), placed(replace(TINY, blocks=8), Layout(8), 8)
    numel = {}
    for rank in range(WORLD):
        rounds = moves(source, target, NODES, rank).rounds
        numel[rank] = sum(part.rectangles.numel for each in rounds for part in each.sends)
    across = [sum(part.rectangles.numel for part in moves(source, target, NODES, r).rounds[0].sends) for r in range(8)]
    assert max(across) <= 1.5 * sum(across) / 8
    passed = [numel[rank] for rank in range(8, 16)]
    assert max(passed) <= 1.5 * sum(passed) / 8


def test_a_node_may_be_any_of_the_workers() -> None:
    nodes = tuple(rank % 3 for rank in range(WORLD))
    carried(TINY, placed(TINY, Layout(2, 2, 2), 0), placed(TINY, Layout(4, 2), 5), nodes)


def test_files_cut_anywhere_are_a_source() -> None:
    config = CONFIGS["tied"]
    all_ = placed(config, Layout(), 0)[0]
    bounds = np.linspace(0, len(numbered(all_, first_numbers(config))), 6).astype(int).tolist()
    spans = [
        Span(Place(name, first, rows, run, stride), begin + offset, step)
        for name, begin, kind in zip(all_.names, all_.offsets, all_.kinds, strict=True)
        for first, rows, run, stride, offset, step in all_.patterns[kind]
    ]
    files = tuple(
        holding(part for span in spans for part in span.within(start, stop))
        for start, stop in itertools.pairwise(bounds)
    )
    workers = holdings(config, Layout(2, 2), tuple(range(4)), 4)
    nothing = (NOTHING,) * 4, (NOTHING,) * len(files)
    found = carried(config, (*nothing[0], *files), (*workers, *nothing[1]), (0, 0, 1, 1, *range(2, 2 + len(files))))
    read = Counter(sender for sender, _, _ in found.sent if sender >= 4)
    assert len(read) == len(files)


def test_an_element_that_nobody_has_is_named() -> None:
    halves = placed(TINY, Layout(2, 2, 2), 0)[:8:2]
    workers = holdings(TINY, Layout(1, 4), tuple(range(4)), 8)
    with pytest.raises(ValueError, match=r"^layers\.\d+\.\w+: nobody has element \d+$"):
        for rank in range(4):
            moves((*[NOTHING] * 4, *halves), workers, tuple(range(8)), rank)


def test_equal_moves_are_planned_once() -> None:
    first, again = (moves(placed(TINY, Layout(2), 0), placed(TINY, Layout(1, 2), 0), NODES, 0) for _ in range(2))
    assert first is again
