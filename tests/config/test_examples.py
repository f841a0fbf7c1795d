"""Every configuration that is shipped is read, within its bounds, and can be planned."""

from pathlib import Path

import pytest
from support.experiments import load_config

from hpcrl.config.validate import bound_problems
from hpcrl.placement.plan import plan_for

ROOT = Path(__file__).parents[2]
CONFIGURATIONS = sorted((ROOT / "examples").rglob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_shipped_configuration_can_be_planned(path):
    """Its inputs need not be there: the demo makes them."""
    experiment = load_config(path, checks=(bound_problems,))
    plan = plan_for(experiment)
    assert set(plan.graph()) == {call.name for call in plan.calls}
