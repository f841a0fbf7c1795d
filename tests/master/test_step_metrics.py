"""A step's row has what was measured; a statistic to which nothing counted ends no run."""

from hpcrl.config.condition import Condition
from hpcrl.dataflow.readiness import Unit
from hpcrl.durable.journal import Opened
from hpcrl.durable.step_lines import StepLines
from hpcrl.master.drop_limits import DropLimits
from hpcrl.master.step_metrics import StepMetrics


def test_a_condition_on_a_statistic_to_which_nothing_counted_does_not_hold_and_is_not_called_wrong() -> None:
    metrics = StepMetrics(DropLimits({}, lambda _: 0))
    metrics.opened(1)
    metrics.put(Unit(1, "actor_train", 0), {"kl": (0.0, 0.0), "skipped": (0.0, 1.0)})
    opened = Opened(1, (), 0, {"actor_train": 1}, {}, 0, (), 1, checkpoint=False, export=False)
    row = metrics.row(StepLines(opened))
    assert "actor_train/kl" not in row and row["actor_train/skipped"] == 0.0
    assert not Condition.parse("actor_train/kl < 0.1").holds(row)
    assert metrics.reported(1) == {"actor_train/kl", "actor_train/skipped"}
    assert not Condition.parse("actor_train/kl < 0.1").lacks(metrics.reported(1))
    assert Condition.parse("actor_train/kll < 0.1").lacks(metrics.reported(1))
