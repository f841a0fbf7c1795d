"""What a replayed train_step has in common with the one that was recorded: every bit, or all but rounding.

Pure: journal lines and numbers in, reasons out. Knows neither workers nor messages.
"""

import math
from collections.abc import Sequence
from itertools import groupby

from hpcrl.durable.journal import Blended, Numerics, Stats, Trained

RELATIVE = 0.1
ABSOLUTE = 0.02
"""How far means may be apart by rounding, see `unlike`."""
SAME_WEIGHT = 1e-6


def why_other_bits(
    recorded: Trained, numerics: Numerics, before: str, inputs_made_again: bool, source: str = ""
) -> str:
    """What lets a replay differ from the train_step or blend that was recorded; "" if nothing does."""
    if numerics != recorded.numerics:
        return f"recorded over {in_words(recorded.numerics)}, replayed over {in_words(numerics)}"
    if recorded.numerics.inexact:
        return f"not every operation is deterministic there ({', '.join(recorded.numerics.inexact)})"
    if before != recorded.before:
        return "the parameters that it began with had other bits already"
    if isinstance(recorded, Blended) and source != recorded.source:
        return "the parameters that it took in had other bits already"
    return "what it consumed was damaged, and computed again" if inputs_made_again else ""


def unlike(recorded: Stats, replayed: Stats) -> str:
    """The first statistic in which a train_step from the same parameters and inputs is no longer the same; "" if none.

    Names and weights (counts of tokens, samples, updates) do not depend on rounding. Means may be apart by
    RELATIVE of the larger plus ABSOLUTE: sums in another order differ by 1e-6 in fp32 and by some per cent in bf16,
    most of all in the norm of a gradient after several updates, and tokens at a bound tip over in rates. What is
    wrong is wrong by far more: gradients added up twice, rows missing, weights not loaded, NaN. Looser than most
    differences, because a sound run that is refused can only go on where it was. NaN equals NaN.
    """
    if recorded.keys() != replayed.keys():
        return f"statistics {', '.join(sorted(replayed))} where the journal has {', '.join(sorted(recorded))}"
    for name, (total, weight) in recorded.items():
        found, over = replayed[name]
        if not _near(weight, over, SAME_WEIGHT, 0.0):
            return f"{name} over a weight of {over:g} where the journal has {weight:g}"
        was, now = total / (weight or 1.0), found / (over or 1.0)
        if not _near(was, now, RELATIVE, ABSOLUTE):
            return f"{name} = {now:g} where the journal has {was:g}"
    return ""


def _near(one: float, two: float, relative: float, absolute: float) -> bool:
    if one == two or (math.isnan(one) and math.isnan(two)):
        return True
    # Of an infinite bound everything would be within.
    return math.isfinite(one) and math.isfinite(two) and abs(one - two) <= relative * max(abs(one), abs(two)) + absolute


def in_words(numerics: Numerics) -> str:
    """`2 workers of 1 thread (Xeon; torch 2.13.0; attention: sdpa; d2t1p1; fsdp)`."""
    workers = "1 worker" if numerics.workers == 1 else f"{numerics.workers} workers"
    made = "".join(f"; {name}" for name in (numerics.layout, numerics.backend) if name)
    made += "".join(f"; {count} a node" for count in numerics.neighbours)
    threads = "1 thread" if numerics.threads == 1 else f"{numerics.threads} threads"
    inexact = "".join(f"; not deterministic: {operation}" for operation in numerics.inexact)
    tokens = f"; micro-batches of {numerics.micro_batch_tokens} tokens" if numerics.micro_batch_tokens else ""
    attention = f"; attention: {_runs(numerics.attention)}" if numerics.attention else ""
    free = "" if numerics.deterministic else "; deterministic: false"
    on = f"{_runs(numerics.hardware)}; {_runs(numerics.software)}"
    return f"{workers} of {threads} ({on}{attention}{made}{tokens}{free}{inexact})"


def _runs(by_rank: Sequence[str]) -> str:
    """`Xeon`, where all are alike; else `2 × Xeon, 1 × EPYC, 1 × Xeon`, by rank."""
    runs = [(name, len(list(alike))) for name, alike in groupby(by_rank)]
    return runs[0][0] if len(runs) == 1 else ", ".join(f"{count} × {name}" for name, count in runs)
