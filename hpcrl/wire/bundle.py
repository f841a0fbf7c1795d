"""What a relay carries; relay → master, master → relay."""

import msgspec


class Bundle(msgspec.Struct, frozen=True, tag=True):
    """What several workers of a node say, or are told: whose it is, and the frame, in order."""

    frames: list[tuple[bytes, bytes]]
