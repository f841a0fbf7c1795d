"""Why no step of a run has kept a sample, by what its calls make, its settings and how it ended."""

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError
from hpcrl.inspect.hints import what_next
from hpcrl.inspect.planned import Planned, read_planned

KEPT_OF = {"train": ("step", "per_step"), "eval": ("evaluation", "per_evaluation")}
"""Data set → what makes something of its samples, and the key of `samples` that says how many stay."""


def nothing_kept(run: RunDirectory) -> ConfigurationError:
    plan, settings = _newest_plan(run), run.configuration().get("samples", {})
    made_of = sorted({call.dataset for call in plan.calls if call.outputs}, reverse=True)
    if plan.calls and not made_of:
        return ConfigurationError(
            [
                f"this run keeps no samples: it evaluates nothing, and steps of {plan.algorithm} train on rows as they "
                "are."
            ],
            f"Their metrics say what they computed: hpcrl inspect {run.root} steps",
        )
    may_come = [KEPT_OF[name][0] for name in made_of if settings.get(KEPT_OF[name][1]) != 0]
    verdict = run.newest_verdict()
    if made_of and not may_come:
        none = " and ".join(f"samples.{KEPT_OF[name][1]} = 0" for name in made_of)
        option = f"--samples.{KEPT_OF[made_of[0]][1]} 32"
        return ConfigurationError(
            [f"this run keeps no samples: {none}."],
            f"Submit a new run with {option}."
            if verdict is not None and verdict.state == "done"
            else f"Have later steps keep some: hpcrl resume {run.root} {option}",
        )
    what = may_come[0] if may_come else "step"
    if verdict is None:
        return ConfigurationError([f"no {what} has kept a sample yet."], f"Wait for the first {what} to end.")
    return ConfigurationError(
        [f"no {what} has kept a sample, and the run has ended ({verdict.state})."], what_next(run.root, verdict.state)
    )


def _newest_plan(run: RunDirectory) -> Planned:
    """One without calls where no attempt has any."""
    plans = (read_planned(run.plan(number)) for number in reversed(run.numbers()))
    return next((plan for plan in plans if plan.calls), Planned([]))
