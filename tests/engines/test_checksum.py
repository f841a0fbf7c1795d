"""The checksum over slices is that of the whole, in any layout, and notices what matters."""

import ctypes
import itertools

import numpy as np
import pytest
import torch
from support.kernels import built
from support.tiny_models import odd_config

from hpcrl.engines.checksum import MASK, ODD_STEP, checksum, checksums, compiled_total, runs, totals_in_torch
from hpcrl.engines.flat import FlatParameters
from hpcrl.families.places import Place, Span, sliced, whole
from hpcrl.families.reader import parameters_of
from hpcrl.ops import checksum as module
from hpcrl.placement.layouts import Layout
from hpcrl.placement.shards import cut_of


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return built(tmp_path_factory.mktemp("csrc"), "checksum")


@pytest.fixture(params=["compiled", "torch"], autouse=True)
def library(request: pytest.FixtureRequest, compiled: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "compiled", lambda: compiled if request.param == "compiled" else None)


CPU = torch.device("cpu")
CONFIG = odd_config(heads=4, kv_heads=2, blocks=4, vocabulary_size=29, intermediate_size=24, tied=True)
SPANS = [whole("first", 120_000), whole("second", 80_003).moved(120_000)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_slices_add_up_to_the_whole(dtype: torch.dtype) -> None:
    buffer = torch.randn(200_003).to(dtype)
    cuts = [0, 1, 77_777, 150_000, len(buffer)]
    parts = [checksums([buffer[a:b]], sliced(SPANS, a, b))[0] for a, b in itertools.pairwise(cuts)]
    assert [sum(parts) & MASK] == checksums([buffer], SPANS)


def slowly(buffer: torch.Tensor, spans: list[Span]) -> int:
    """Element by element, by the formula."""
    numbers = {name: checksum_number(name) for name in {span.place.parameter for span in spans}}
    total, bits = 0, buffer.view(torch.int32).tolist()
    for span in spans:
        place = span.place
        for row, column in itertools.product(range(place.rows), range(place.run)):
            index = place.first + row * place.stride + column
            weight = 2 * (numbers[place.parameter] + index) + 1
            total += bits[span.offset + row * span.step + column] * weight * span.owned
    return (total * ODD_STEP) & MASK


def checksum_number(name: str) -> int:
    """What stands for a name: found from the weight of its first element."""
    one = torch.tensor([1], dtype=torch.int32).view(torch.float32)
    weight = checksums([one], [Span(Place(name, 0, 1, 1, 1), 0, 1)])[0] * pow(ODD_STEP, -1, MASK + 1) & MASK
    return (weight - 1) // 2


def test_it_is_the_sum_that_it_says() -> None:
    spans = [
        Span(Place("matrix", 3, 4, 5, 20), 7, 6),
        Span(Place("matrix", 12, 4, 2, 20), 40, 2, owned=False),
        Span(Place("vector", 1, 1, 9, 9), 50, 9),
    ]
    buffer = torch.randn(64)
    assert checksums([buffer, -buffer], spans) == [slowly(buffer, spans), slowly(-buffer, spans)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_compiled_sums_of_long_and_short_runs_are_torchs(
    dtype: torch.dtype, compiled: ctypes.CDLL, monkeypatch
) -> None:
    monkeypatch.setattr(module, "compiled", lambda: compiled)
    buffer = torch.randn(700_000).to(dtype)
    spans = [
        Span(Place("long", 5, 1, 500_003, 500_003), 1, 500_003),
        Span(Place("rows", 7, 100, 1001, 1500), 500_010, 1003),
        Span(Place("short", 2, 900, 3, 64), 650_000, 5),
        Span(Place("one", 0, 1, 1, 1), 699_999, 1),
    ]
    parts = [compiled_total(buffer, [span]) for span in spans]
    assert parts == [totals_in_torch([buffer], [span])[0] & MASK for span in spans]
    assert compiled_total(buffer, spans) == totals_in_torch([buffer], spans)[0] & MASK == sum(parts) & MASK
    assert compiled_total(buffer, []) == 0


@pytest.mark.parametrize("text", ["d1t2p1", "d2t1p1", "d2t2p2", "d1t4p2", "d3t1p4", "d1t1p3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_owners_of_any_layout_add_up_to_one_rank_with_everything(text: str, dtype: torch.dtype) -> None:
    layout = Layout(*(int(digit) for digit in text[1::2]))
    draw = torch.Generator().manual_seed(0)
    wholes = {p.name: torch.randn(p.numel, generator=draw).to(dtype) for p in parameters_of(CONFIG)}

    def total(layout: Layout) -> int:
        sums = []
        for index in range(layout.dp * layout.tp * layout.pp):
            memory = FlatParameters(CONFIG, cut_of(layout, index), dtype, CPU, trainable=False)
            for span in memory.spans:
                place = span.place
                there = Span(place, place.first, place.stride)
                runs(memory.data, span).copy_(runs(wholes[place.parameter], there))
            part, length = index // layout.tp % layout.dp, -(-len(memory.data) // layout.dp)
            here = slice(part * length, min((part + 1) * length, len(memory.data)))
            sums += checksums([memory.data[here]], sliced(memory.spans, here.start, here.stop))
        return sum(sums) & MASK

    assert total(layout) == total(Layout())


def test_one_bit_a_swap_a_sign_of_zero_and_another_name_are_noticed() -> None:
    buffer = torch.arange(10.0)
    swapped, nudged, negative = buffer.clone(), buffer.clone(), buffer.clone()
    swapped[[3, 4]] = buffer[[4, 3]]
    nudged[5] = torch.nextafter(buffer[5], torch.tensor(9.0))
    negative[0] = -0.0
    assert len({checksum(x) for x in (buffer, swapped, nudged, negative)}) == 4
    assert checksum(buffer) == checksum(buffer.clone())
    assert checksums([buffer], [whole("a", 10)]) != checksums([buffer], [whole("b", 10)])


def test_no_weight_of_a_70b_model_overflows() -> None:
    highest = max(checksum_number(parameter.name) for parameter in parameters_of(CONFIG))
    assert 2 * (highest + np.iinfo(np.int32).max * 40) + 1 < 2**63
