"""What an export takes from the folder that its role began from, compared with what the run was submitted with."""

from collections.abc import Callable, Mapping
from pathlib import Path

from hpcrl.config.data import tokenizer_of
from hpcrl.config.model import lora_of, models_of
from hpcrl.data.contents import Contents
from hpcrl.data.inputs import differences, model_files
from hpcrl.data.tokens import tokenizer_files
from hpcrl.durable.history import inputs_of
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.seen import read_seen
from hpcrl.errors import DataError
from hpcrl.recipes.algorithm import experiment_from


def compare_with_begin(run: RunDirectory, role: str, told: Callable[[str], None]) -> None:
    """Tell of other files of the tokenizer, and of another config.json.

    Files that have the times that they had are not read. Raises DataError where adapters would be merged into other
    weights than theirs.
    """
    experiment = experiment_from(run.configuration())
    model, tokenizer = models_of(experiment).get(role), tokenizer_of(experiment)
    if model is None or tokenizer is None:
        return
    expected = inputs_of(run)
    inputs = {f"{role}.path": model_files(Path(model.path))}
    if there := [path for path in tokenizer_files(tokenizer[1]) if path.is_file()]:
        inputs["data.tokenizer"] = there
    else:
        told(f"data.tokenizer: {tokenizer[1]} has none any more, and so has what is exported.")
    if lora_of(model) is None:  # all of the weights are the checkpoint's
        inputs[f"{role}.path"] = inputs[f"{role}.path"][:1]
        expected = _of_config(expected, f"{role}.path")
    found = differences(expected, inputs, Contents(read_seen(run)))
    if lora_of(model) is not None and (how := found.get(f"{role}.path")):
        raise DataError(
            f"{role}.path: {how}. The adapters of {role} were trained with what was there before, and fit only that.",
            "Put it back.",
        )
    for setting, how in sorted(found.items()):
        told(f"{setting}: {how}. The run had it otherwise; what is exported has it as it is now.")


def _of_config(expected: Mapping[str, str], setting: str) -> dict[str, str]:
    """With the fingerprint of config.json alone in the place of a model's, of which it is the first file."""
    return {key: text.partition("/")[0] if key == setting else text for key, text in expected.items()}
