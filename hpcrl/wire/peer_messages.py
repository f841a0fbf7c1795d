"""What workers of a run ask one another for: rows of their memory, or what the numbers of these add up to."""

import msgspec

from hpcrl.data.samples import SampleMeta
from hpcrl.data.totals import Total

Raw = bytes | memoryview
"""An array, as a frame beside its message."""


# ── worker ↔ worker ───────────────────────────────────────────────────────────────────────────────────────────────────
class Fetch(msgspec.Struct, frozen=True, tag=True):
    """Send me these rows of your memory; where I `sum` them, only their total."""

    token: int
    step: int
    call: str
    keys: tuple[str, ...]
    ids: tuple[str, ...]
    sum: bool = False


class Rows(msgspec.Struct, frozen=True, tag=True):
    """Rows asked for; a raw frame per key follows, in the order of `meta.keys`. Or their `total` alone. `missing` says
    what is not here."""

    token: int
    meta: SampleMeta | None
    missing: str = ""
    total: Total | None = None
