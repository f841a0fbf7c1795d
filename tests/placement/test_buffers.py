from itertools import pairwise

from support.tiny_models import odd_config

from hpcrl.families.reader import parameters_of
from hpcrl.placement.buffers import ALIGNMENT, ROOM, lay_out


def test_parameters_lie_in_order_aligned_and_without_overlap():
    parameters = parameters_of(odd_config())
    layout = lay_out(parameters)
    assert layout.parameters == parameters
    for (parameter, offset), (_, following) in pairwise(layout.spans()):
        assert offset + parameter.numel <= following < offset + parameter.numel + ALIGNMENT
    assert all(offset % ALIGNMENT == 0 for offset in layout.offsets)
    end = layout.offsets[-1] + parameters[-1].numel
    assert end <= layout.numel < end + ROOM and layout.numel % ROOM == 0


def test_a_range_of_layers_begins_at_the_start_of_its_own_buffer():
    parameters = parameters_of(odd_config())
    stages = [lay_out(p for p in parameters if p.layer in layers) for layers in (range(2), range(2, 4), range(4, 5))]
    assert all(stage.offsets[0] == 0 for stage in stages)
    assert [parameter for stage in stages for parameter in stage.parameters] == list(parameters)
