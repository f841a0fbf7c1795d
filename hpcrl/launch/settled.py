"""An experiment whose allocation is settled: by a rule, or by a search for the memory that its workers would have."""

import sys
from dataclasses import replace

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.validate import collect
from hpcrl.errors import ConfigurationError
from hpcrl.placement.allocate import MANUAL, SEARCH, settle
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.placement.node_counts import in_words, settle_each


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
    from hpcrl.launch.preflight import capacity_of
    from hpcrl.placement.settling import search_for
    from hpcrl.simulation.ordering import in_simulated_order

    nodes = in_words(experiment.cluster.most_nodes)
    print(f"hpcrl: searching for an allocation on {nodes}", file=sys.stderr)
    searched = search_for(replace(experiment, allocation=MANUAL), capacity_of(experiment))
    found = replace(in_simulated_order(searched).settled(), cluster=experiment.cluster)
    if problems := collect(found, ALL_CHECKS, ()):
        raise ConfigurationError(problems)
    return found
