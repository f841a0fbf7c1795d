"""What `search` and `simulate` have in common: settings of `search` by their short names, what times are reckoned from,
and whether a plan fits."""

from collections.abc import Collection, Iterator

from hpcrl.config.changes import with_nodes
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.placement.capacity import Capacity, need
from hpcrl.placement.data_sheets import CPU_CORE
from hpcrl.placement.lengths import Lengths
from hpcrl.placement.memory import estimate_models
from hpcrl.placement.node_counts import in_words
from hpcrl.placement.plan import plan_for
from hpcrl.placement.rates import Rates
from hpcrl.placement.search_inputs import usable_bytes
from hpcrl.placement.sizes import size_in_words
from hpcrl.placement.worker_memory import peaks

SHORT = ("profile", "device", "lengths", "prompts", "responses")
"""Settings of `search` that commands which reckon take without it."""


def whole_option(word: str, short: Collection[str] = SHORT) -> str:
    """An option by its whole name."""
    name, equals, value = word.partition("=")
    return f"--search.{name[2:]}{equals}{value}" if name[:2] == "--" and name[2:] in short else word


def short_forms(short: Collection[str] = SHORT) -> str:
    """What a command's help says of them."""
    return f"{', '.join(f'--{name} VALUE' for name in short)} are short for --search.{next(iter(short))} and so on."


def reckoned_from(lengths: Lengths, experiment: ExperimentConfig, source: str) -> Iterator[str]:
    prompts, responses, asked = lengths.prompts, lengths.responses, experiment.search
    spread = f"prompts of {prompts.mean():.0f} ± {prompts.std():.0f} tokens, responses of {responses.mean():.0f} ± "
    yield f"Texts: {spread}{responses.std():.0f}; {lengths.source}."
    if asked.profile is None:
        yield f"Times: {source}; a profile is more exact."


def does_not_fit(experiment: ExperimentConfig, rates: Rates, capacity: Capacity | None) -> Iterator[str]:
    """That its plan needs more memory than its workers have, or their nodes, where it does; of a range of nodes, on the
    first number on which it does."""
    counts = experiment.cluster.node_counts
    for count in counts:
        if lacks := _lacks(with_nodes(experiment, count), rates, capacity):
            on = f"on {in_words(count)}, it " if len(counts) > 1 else ""
            yield f"{on}{lacks}"
            return


def _lacks(experiment: ExperimentConfig, rates: Rates, capacity: Capacity | None) -> str:
    plan, device = plan_for(experiment), "cpu" if rates.device == CPU_CORE.device else "cuda"
    if capacity is None or capacity.bytes is None or capacity.of == "worker":
        capacity = Capacity(float(usable_bytes(experiment, rates, capacity)), "worker", rates.device)
    most, fullest = need(plan, peaks(plan, estimate_models(plan, experiment), device), capacity)
    if most <= (room := capacity.bytes or 0.0):
        return ""
    return (
        f"does not fit: {fullest.call} needs {size_in_words(most)} of {size_in_words(room)} on its fullest "
        f"{capacity.of}; `hpcrl plan` says more."
    )


def duration(seconds: float) -> str:
    if seconds >= 99.95:
        return f"{seconds:.1f} s"
    return f"{seconds:#.3g} s" if seconds >= 0.001 else f"{seconds:.2g} s"
