"""What leaves a collective tells of a peer, with group, operation, number and rank; what is one's own stays so."""

import ast
import inspect
import os
from collections.abc import Iterator

import pytest
import torch
import torch.distributed
from support.pool import gloo_pool

from hpcrl.errors import ExitCode, PeerLostError
from hpcrl.parallel import context as context_module
from hpcrl.parallel import group as group_module
from hpcrl.parallel.context import ParallelContext
from hpcrl.parallel.operations import Operations

PAIR = (0, 2)


def test_operations_are_counted_anew_for_each_unit_of_work() -> None:
    operations = Operations((4, 7), rank=7)
    with operations("all-gather"), operations("all-to-all"):
        pass
    with pytest.raises(PeerLostError) as third, operations("all-gather"):
        raise RuntimeError("Connection closed by peer")
    lost = third.value
    assert (lost.group, lost.operation, lost.number, lost.rank) == ((4, 7), "all-gather", 3, 7)
    assert str(lost) == (
        "all-gather, operation 3 of ranks [4, 7] in this call, broke on rank 7: RuntimeError: Connection closed by peer"
    )
    assert lost.exit_code == ExitCode.REQUEUE
    operations.count_anew()
    with pytest.raises(PeerLostError) as first, operations("all-gather"):
        raise torch.distributed.DistBackendError("NCCL error: remote process exited")
    assert first.value.number == 1


@pytest.mark.parametrize(
    "own",
    [
        MemoryError("16 GiB"),
        torch.OutOfMemoryError("CUDA out of memory"),
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered", 700),
        ValueError("no"),
    ],
)
def test_an_error_of_this_process_itself_stays_its_own(own: Exception) -> None:
    with pytest.raises(type(own)) as raised, Operations((0, 1), rank=0)("all-gather"):
        raise own
    assert raised.value is own


def test_a_large_group_is_told_by_its_ends() -> None:
    with pytest.raises(PeerLostError, match=r"of ranks 0 … 1023, 1024 in all, in"), Operations(range(1024), 0)("x"):
        raise RuntimeError


def test_a_peer_that_dies_in_a_collective_is_lost_to_all_others_of_the_group() -> None:
    with gloo_pool(3) as ranks:
        assert ranks.run(form_pair) == [None, None, None]
        with pytest.raises(AssertionError) as failed:
            ranks.run(reduce_or_die)
    said = str(failed.value)
    assert "all-to-all, operation 2 of ranks [0, 2] in this call, broke on rank 0: RuntimeError" in said
    assert "rank 2:\ndied" in said and "rank 1:" not in said


def form_pair(context: ParallelContext) -> None:
    context.form([PAIR])


def reduce_or_die(context: ParallelContext) -> None:
    context.begin_unit()
    if context.rank not in PAIR:
        return
    group = context.group(PAIR)
    group.total(torch.zeros(1))
    if context.rank == 2:
        os._exit(1)
    group.reduce_scatter(torch.zeros(4))


def test_a_store_that_is_gone_is_a_peer_that_is_lost() -> None:
    meeting = ParallelContext(0, 2, torch.device("cpu"))
    invitation = meeting.invite()
    meeting.leave()
    with pytest.raises(PeerLostError, match="meeting at rank 0's store, operation 1 of ranks \\[0, 1\\]"):
        ParallelContext(1, 2, torch.device("cpu")).join(invitation, timeout_s=2.0)


def test_every_call_of_torch_distributed_is_made_in_an_operation() -> None:
    """Besides what concerns this process alone: opening rank 0's store, leaving, and which group is that of all."""
    alone = {
        "TCPStore": "invite",
        "is_initialized": "leave",
        "destroy_process_group": "leave",
        "group": "process_group",
    }
    texts = [inspect.getsource(module) for module in (context_module, group_module)]
    found = [use for text in texts for use in _uses(ast.parse(text))]
    needed = {"all_to_all_single", "batch_isend_irecv", "broadcast", "init_process_group", "new_group"}
    assert {name for name, _, within in found if within} >= needed
    assert [(name, where) for name, where, within in found if not within and alone.get(name) != where] == []


def _uses(tree: ast.AST, where: str = "", within: bool = False) -> Iterator[tuple[str, str, bool]]:
    """(what of torch.distributed is used, in which function, whether in an operation); type annotations apart."""
    if isinstance(tree, ast.FunctionDef):
        where = tree.name
    if isinstance(tree, ast.With):
        called = [ast.unparse(item.context_expr) for item in tree.items]
        within = within or any(text.startswith(("self.operations(", "self._together(")) for text in called)
    if isinstance(tree, ast.Attribute) and isinstance(tree.value, ast.Name) and tree.value.id == "dist":
        yield tree.attr, where, within
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(tree, ast.AnnAssign) and child is tree.annotation):
            yield from _uses(child, where, within)
