"""A run's status as text. Apart from other views, which read arrays: who asks for it loads none."""

from hpcrl.foreign import plain
from hpcrl.inspect.cause_text import cause_lines
from hpcrl.inspect.metrics import figures, last
from hpcrl.inspect.views.status import RunStatus

PURPOSES = {"train": "train", "eval": "evaluate"}
"""Of data sets, by their names."""


def status_text(status: RunStatus, right_at: float = 1.0) -> str:
    """What is known of a run's state, for people. `right_at`: the reward from which a response counts as right."""
    progress = f"step {status.step}" if status.steps is None else f"step {status.step} of {status.steps}"
    attempt = "" if status.attempt is None else f", attempt {status.attempt}"
    code = "" if status.exit_code is None else f", exit code {status.exit_code}"
    lines = [f"{status.run_dir}", f"state    {status.state}{attempt}{code}"]
    if status.cause is not None:
        lines += cause_lines(status.cause)
    elif status.why:
        lines.append(f"why      {status.why}")
    lines += status.origins
    if status.slurm is not None:
        lines.append(f"Slurm    {status.slurm.describe()}")
    lines.append(f"progress {progress}")
    rows = [dict(status.metrics)]
    shown = [figure.said(last(rows, figure.key)) for figure in figures(rows, right_at)]
    if shown:
        lines.append("metrics  " + ", ".join(shown))
    if "rounds" in status.metrics:
        kept, drawn, rounds = (int(status.metrics[key]) for key in ("samples", "drawn", "rounds"))
        lines.append(f"chosen   {kept} of {drawn} samples, drawn in {rounds} round{'s' if rounds > 1 else ''}")
    if carried := int(status.metrics.get("carried", 0)):
        lines.append(f"carried  {carried} samples that had not ended, or not in time, into the next step")
    if count := status.skipped.steps:
        trained = "1 step trained" if count == 1 else f"{count} steps trained"
        lines.append(f"empty    {trained} on nothing: no group had samples of different scores")
    for source, left in status.skipped.rows.items():
        purpose = PURPOSES.get(source, source)
        lines.append(f"left out {left.rows} of {left.of} rows to {purpose} on, which are too long")
    for call, count in status.skipped.updates.items():
        lines.append(f"skipped  {count} {'update' if count == 1 else 'updates'} of {call}: gradients not finite")
    lines += [f"worker-{worker.rank} {worker.doing}" for worker in status.workers]
    lines += [f"stalled  {stall}" for stall in status.stalled]
    if status.skipped.live:
        lines.append(f"skipped  what was under way: {status.skipped.live}")
    if status.skipped.events:
        lines.append(f"skipped  {status.skipped.events} event lines that are damaged, or of another hpcrl")
    return "\n".join(plain(line) for line in [*lines, status.hint] if line)
