"""Whether a call's responses are made by other code than trains."""

import msgspec

from hpcrl.backends.backend import BACKENDS
from hpcrl.config.experiment import ExperimentConfig, calls_of
from hpcrl.errors import ConfigurationError
from hpcrl.plugins import find


def is_served(experiment: ExperimentConfig, call: str) -> bool:
    """Whether a server makes them; not where `calls` has not its form, which is said elsewhere."""
    try:
        entry = calls_of(experiment).get(call)
        backend = None if entry is None or entry.backend is None else find(BACKENDS, entry.backend, "calls")
    except (msgspec.ValidationError, ConfigurationError):
        return False
    return backend is not None and backend.server is not None
