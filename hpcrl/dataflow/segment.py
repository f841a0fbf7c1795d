"""A call that draws responses a segment at a time is several calls, one after another. Pure description."""

import msgspec


class Segment(msgspec.Struct, frozen=True):
    """What one of them is a part of: the call `of`, whose name the last one has. Numbers count from 1.

    What each makes has names of its own, but for the last, which has what all have made as if it were made at once.
    """

    of: str
    number: int
    last: bool

    def whole(self, name: str) -> str:
        """What the call is called of which the one of this `name` is a part: the second time in a script's step both
        end in _2."""
        return name if self.last else name.replace(segment_name(self.of, self.number), self.of, 1)


def segment_name(name: str, number: int) -> str:
    """What a segment's call, or a key that it makes, is called."""
    return f"{name}_s{number:02d}"
