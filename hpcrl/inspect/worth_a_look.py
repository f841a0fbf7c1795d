"""Metrics that are out of the range in which a run learns, in words. Pure; knows a few names, and no run."""

from collections.abc import Iterator, Sequence

from hpcrl.inspect.lines import Row
from hpcrl.inspect.metrics import series
from hpcrl.inspect.words import counted

LAST = 10
"""Steps at the end of which a mean is taken."""
MOST_CUT = 0.9
"""Share of responses that are cut at the largest length."""
RATIO_OFF = 0.2
"""Of the mean ratio of probabilities, from 1."""
MOST_KL = 1.0
"""Nats per token."""
FALL = 0.05
"""Of the held-out reward, below its best: of that."""
LEAST_EVALUATIONS = 4


def worth_a_look(rows: Sequence[Row]) -> list[str]:
    """A sentence for each; none where nothing stands out."""
    return [*_out_of_range(rows), *([said] if (said := _falls_behind(rows)) else [])]


def _out_of_range(rows: Sequence[Row]) -> Iterator[str]:
    for name in dict.fromkeys(name for row in rows[-LAST:] for name in row):
        values = series(rows, name)[1][-LAST:]
        if not values:
            continue
        mean, last = sum(values) / len(values), counted(len(values), "step")
        said = ""
        if name.endswith("/explained_variance") and mean < 0:
            said = "below 0, the critic predicts returns worse than their mean would"
        elif name.endswith("_train/ratio") and abs(mean - 1) > RATIO_OFF:
            said = "the policy that learns is far from the one that made the responses"
        elif name.endswith("_train/kl") and mean > MOST_KL:
            said = "the policy is far from the reference"
        elif name.endswith("_gen/finished") and not name.startswith("eval_") and mean < 1 - MOST_CUT:
            said = "hardly a response ends by itself before generation.max_new_tokens"
        elif name.endswith("_train/grad_norm") and not any(values):
            said = "nothing is learnt: all advantages may be 0"
        if said:
            yield f"{name} is {mean:.3g} in the mean of the last {last}: {said}."


def _falls_behind(rows: Sequence[Row]) -> str:
    """Whether the held-out reward has fallen since its best while that of training has risen."""
    steps, held_out = series(rows, "eval_rew/reward")
    if len(held_out) < LEAST_EVALUATIONS:
        return ""
    best = max(range(len(held_out)), key=held_out.__getitem__)
    at, training = series(rows, "rew_inf/reward")
    until, since = [[value for step, value in zip(at, training, strict=True) if (step > steps[best]) is later][-LAST:]
                    for later in (False, True)]  # fmt: skip
    if not until or not since or sum(since) / len(since) <= sum(until) / len(until):
        return ""
    if held_out[-1] >= held_out[best] - FALL * abs(held_out[best]):
        return ""
    return (
        f"The held-out reward has fallen from {held_out[best]:.3g} in step {steps[best]} to {held_out[-1]:.3g}, while "
        "that of training rose."
    )
