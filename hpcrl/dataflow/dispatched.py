"""Who makes a call, and how often in a step. Pure description."""

from typing import Literal

import msgspec

from hpcrl.dataflow.segment import Segment

GoesTo = Literal["parts", "ranks", "first"]


class Dispatched(msgspec.Struct, frozen=True):
    """Who makes a call: each data-parallel part with its samples, each worker by itself, or the first part's head.

    A call of `values` has no samples: it gives a value, as JSON, for each of those who make it. One `without_stages` is
    made where its role has no pipeline stages. One that draws responses may draw a `segment` of them. One that is made
    `in_rounds` is made as often in a step as that takes to choose, the second time as `<call>_2`: each time some of its
    samples are new, and the others go on from what it has made of them so far, in this step or the one before. One that
    `follows` another continues what that has made, and is made where that is unless it is placed itself.
    """

    goes_to: GoesTo = "parts"
    values: bool = False
    without_stages: bool = False
    segment: Segment | None = None
    in_rounds: bool = False
    follows: str = ""
