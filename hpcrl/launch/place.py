"""Where a new run is to be."""

from datetime import datetime
from pathlib import Path

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.durable.place import refuse_place


def new_root(experiment: ExperimentConfig, run_dir: Path | None) -> Path:
    """The directory that is given, or that of its name and the time. Raises ConfigurationError where no run can be."""
    usual = Path(experiment.run_root) / f"{experiment.name}-{datetime.now():%Y%m%d-%H%M%S}"
    root = (run_dir or usual).absolute()
    refuse_place(root)
    return root
