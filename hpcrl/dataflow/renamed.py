"""Calls that are made once more, on other keys of the graph. Pure."""

from collections.abc import Mapping

import msgspec

from hpcrl.dataflow.graph import MFC


def under_other_keys(call: MFC, own: Mapping[str, str]) -> MFC:
    """The call on, and making, keys of these names in the place of its own; its role sees them as before."""
    seen = {graph: key for key, graph in call.output_remap.items()}
    return msgspec.structs.replace(
        call,
        inputs=tuple(own.get(key, key) for key in call.inputs),
        outputs=tuple(own.get(key, key) for key in call.outputs),
        input_remap={own[key]: call.input_remap.get(key, key) for key in call.inputs if key in own},
        output_remap={seen.get(key, key): own[key] for key in call.outputs if key in own},
    )
