"""An experiment whose allocation is settled: by a rule, or by a search for the memory that its workers would have."""

import sys

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.placement.allocate import SEARCH, settle


def settled(experiment: ExperimentConfig) -> ExperimentConfig:
    """The experiment as its allocation places it; `allocation` is then manual.

    Raises ConfigurationError with what is wrong with the result; where nothing fits, says what is over most.
    """
    found: ExperimentConfig
    if experiment.allocation != SEARCH:
        found = settle(experiment)
        return found
    # Who does not search waits for none of it.
    from hpcrl.launch.preflight import capacity_of
    from hpcrl.placement.settling import settle_by_search

    print("hpcrl: searching for an allocation", file=sys.stderr)
    found = settle_by_search(experiment, capacity_of(experiment))
    return found
