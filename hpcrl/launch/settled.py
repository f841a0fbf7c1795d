"""An experiment whose allocation is settled: by a rule, or by a search for the memory that its workers would have."""

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.placement.allocate import MANUAL, SEARCH, settle
from hpcrl.placement.node_counts import settle_each


def settled(experiment: ExperimentConfig) -> ExperimentConfig:
    """The experiment as its allocation places it on each number of nodes that it may have; `allocation` is then manual.

    Raises ConfigurationError with what is wrong with the result; where nothing fits, says what is over most.
    """
    return experiment if experiment.allocation == MANUAL else settle_each(experiment, _settled)


def _settled(experiment: ExperimentConfig) -> ExperimentConfig:
    found: ExperimentConfig
    if experiment.allocation != SEARCH:
        found = settle(experiment)
        return found
    # Who does not search waits for none of it.
    from hpcrl.launch.searched import searched

    found = searched(experiment)[1]
    return found
