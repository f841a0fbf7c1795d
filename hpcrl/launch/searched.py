"""A search for an allocation, on one number of nodes or on each that a run may have, and the settings that it gives."""

import sys
from dataclasses import replace
from typing import Any

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.validate import collect
from hpcrl.errors import ConfigurationError
from hpcrl.launch.preflight import capacity_of
from hpcrl.placement.allocate import MANUAL
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.placement.node_counts import in_words, settle_each
from hpcrl.placement.settling import Found, search_for
from hpcrl.simulation.ordering import in_simulated_order


def searched(experiment: ExperimentConfig) -> tuple[Found, Any]:
    """What is found on the experiment's number of nodes, and its settings with the best plan. Raises ConfigurationError
    where none fits."""
    print(f"hpcrl: searching for an allocation on {in_words(experiment.cluster.most_nodes)}", file=sys.stderr)
    found = in_simulated_order(search_for(replace(experiment, allocation=MANUAL), capacity_of(experiment)))
    best = replace(found.settled(), cluster=experiment.cluster)
    if problems := collect(best, ALL_CHECKS, ()):
        raise ConfigurationError(problems)
    return found, best


def searched_each(experiment: ExperimentConfig) -> tuple[dict[int, Found], Any]:
    """The same on each number of nodes, by number, and settings that keep the best plan of each. Raises
    ConfigurationError with what is wrong on the first number on which anything is."""
    found: dict[int, Found] = {}

    def settle(at: ExperimentConfig) -> Any:
        found[at.cluster.most_nodes], best = searched(at)
        return best

    settled = settle_each(experiment, settle)
    return found, settled
