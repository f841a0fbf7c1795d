"""What `search` and `simulate` have in common: settings of `search` by their short names, and what times are reckoned
from."""

from collections.abc import Collection, Iterator

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.placement.lengths import Lengths


def whole_option(word: str, short: Collection[str]) -> str:
    """An option by its whole name."""
    name, equals, value = word.partition("=")
    return f"--search.{name[2:]}{equals}{value}" if name[:2] == "--" and name[2:] in short else word


def reckoned_from(lengths: Lengths, experiment: ExperimentConfig, source: str) -> Iterator[str]:
    prompts, responses, asked = lengths.prompts, lengths.responses, experiment.search
    spread = f"prompts of {prompts.mean():.0f} ± {prompts.std():.0f} tokens, responses of {responses.mean():.0f} ± "
    as_in = f"as in {asked.lengths}" if asked.lengths else "taken to be half of what may be, as there is no --lengths"
    yield f"Texts: {spread}{responses.std():.0f}; {as_in}."
    if asked.profile is None:
        yield f"Times come from {source}; a profile is more exact."


def duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.2g} s"
