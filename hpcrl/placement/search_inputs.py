"""What a search is given from outside: rates of the devices, lengths of texts, memory."""

from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hpcrl.config.bounds import TOO_MUCH
from hpcrl.config.data import DataConfig
from hpcrl.config.fields import section
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import models_of
from hpcrl.config.search import SearchConfig
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError
from hpcrl.placement.allocate import placed_models
from hpcrl.placement.capacity import Capacity
from hpcrl.placement.data_sheets import CPU_CORE, SHEETS, is_named, rates_of_gpu
from hpcrl.placement.lengths import Lengths, lengths_in, lengths_of_run, spread_lengths
from hpcrl.placement.peak_flops import part_of
from hpcrl.placement.profile_rates import differences
from hpcrl.placement.rates import Rates, rates_from_json

RESERVED = 0.08
"""Of a GPU's memory, for its driver, for libraries and for what lies between blocks."""
UNKNOWN = 1024
"""Tokens of a prompt, or of an answer, at most, where the settings do not say it."""


def rates_asked(experiment: Any) -> Rates:
    """Those of a file, of a data sheet, or of a CPU's thread. Raises ConfigurationError."""
    rates = _rates(experiment, experiment.search.profile, experiment.search.device)
    for role, model in models_of(experiment).items():
        if model.dtype not in rates.products:
            known = ", ".join(rates.products)
            text = (
                f"{role}.dtype = {model.dtype}, but of {model.dtype} nothing is known of {rates.device} ({known} is)."
            )
            raise ConfigurationError([text], f"Set {role}.dtype, or search.device or search.profile to another.")
    return rates


def _rates(experiment: Any, profile: str | None, device: str | None) -> Rates:
    if profile is not None:
        return _profiled(experiment, Path(profile))
    if experiment.cluster.device == "cpu":
        if device is not None:
            raise ConfigurationError(
                [f"search.device = {device} is a GPU, but cluster.device = cpu."],
                "Leave search.device out, or set cluster.device.",
            )
        return CPU_CORE
    key = "cluster.slurm.gpu_type" if device is None else "search.device"
    name = device or experiment.cluster.slurm.gpu_type
    if name is None:
        raise ConfigurationError(
            ["Which GPUs the workers have is not known here."],
            "Set search.device, such as H100, search.profile, or cluster.slurm.gpu_type; or cluster.device to cpu.",
        )
    if part_of(name):
        raise ConfigurationError(
            [f"{key} = {name} is a part of a GPU (MIG), and no data sheet says how fast one is."],
            "Set search.profile to what `hpcrl profile` measures on such parts.",
        )
    rates = rates_of_gpu(name)
    if rates is None:
        raise ConfigurationError(
            [f"{name} is no GPU whose data sheet hpcrl knows; it knows {', '.join(SHEETS)}."],
            "Set search.device to one of these, or search.profile.",
        )
    return rates


def _profiled(experiment: Any, path: Path) -> Rates:
    rates = read_profile(path, "search.profile")
    if found := [*_other_device(experiment, rates), *differences(experiment, rates, installed_torch())]:
        raise ConfigurationError(
            [f"search.profile = {path} does not fit: {it}." for it in found],
            "Make one with `hpcrl profile` of this configuration, or leave search.profile out.",
        )
    is_cpu = rates.device == CPU_CORE.device
    if experiment.cluster.device != "auto" and is_cpu != (experiment.cluster.device == "cpu"):
        raise ConfigurationError(
            [f"search.profile = {path} is of {rates.device}, but cluster.device = {experiment.cluster.device}."],
            "Give a profile of the devices that the run will have, or set cluster.device.",
        )
    return rates


def read_profile(path: Path, said: str) -> Rates:
    """`said`: the setting or option that names it. Raises ConfigurationError."""
    text = b""
    try:
        text = path.read_bytes()
        return rates_from_json(text)
    except OSError as error:
        lacks = f"cannot be read: {error.strerror}"
    except msgspec.DecodeError as error:
        lacks = f"is no profile: {_what_it_is(text, error)}"
    raise ConfigurationError(
        [f"{said} = {path} {lacks}."],
        "Give the JSON file that `hpcrl profile` writes: of a CONFIG, or --from RUN.",
    )


def _what_it_is(text: bytes, error: msgspec.DecodeError) -> str:
    """Of a file, instead of a profile."""
    begins = text.lstrip()[:1]
    if not begins:
        return "it is empty"
    if b"\0" in text or not _is_text(text):
        return "it is not text"
    if begins != b"{":
        return "it is not JSON"
    if isinstance(error, msgspec.ValidationError):
        return f"it is JSON of something else ({error})"
    return "it is not whole" if "truncated" in str(error) else f"it is damaged JSON ({error})"


def _is_text(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _other_device(experiment: Any, rates: Rates) -> Iterator[str]:
    """A GPU that is named besides, and is another."""
    asked = {"search.device": experiment.search.device, "cluster.slurm.gpu_type": experiment.cluster.slurm.gpu_type}
    for key, name in asked.items():
        if name is not None and not is_named(rates.device, name):
            yield f"it is of {rates.device}, but {key} = {name}"


def installed_torch() -> str:
    """Its version here; empty where there is none."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def lengths_asked(experiment: Any, rates: Rates | None = None) -> Lengths:
    """Those of a run or of a file, or by mean and spread, or of the runs that a profile was taken from, as far as the
    settings let them; else prompts and responses of half of what they may be, and half of that around it. Reads each
    model's config.json. Raises ConfigurationError, DataError."""
    asked = experiment.search
    data, generation = section(experiment, "data", DataConfig), section(experiment, "generation", GenerationConfig)
    prompt = None if data is None else data.max_prompt_tokens
    response = None if generation is None else generation.max_new_tokens
    longest = max(1, prompt or _positions(experiment) - (response or 1)), response or _positions(experiment)
    if asked.lengths is not None:
        return _recorded(experiment).cut(*longest)
    if rates is not None and rates.ran.texts and not says_lengths(experiment):
        found = Lengths(*np.array(rates.ran.texts, np.int64).T)
        return replace(found.cut(*longest), source=f"as of the runs of {asked.profile}")
    most = [set_ or min(UNKNOWN, known) for set_, known in zip((prompt, response), longest, strict=True)]
    prompts, responses = (
        given or (max(1.0, it / 2), it / 4) for given, it in zip((asked.prompts, asked.responses), most, strict=True)
    )
    found = spread_lengths(prompts, responses, longest if says_lengths(experiment) else (most[0], most[1]))
    return replace(found, source=_spread_source(asked))


def says_lengths(experiment: Any) -> bool:
    """Whether its settings say how long texts are."""
    asked = experiment.search
    return any(it is not None for it in (asked.lengths, asked.prompts, asked.responses))


def _recorded(experiment: Any) -> Lengths:
    given = experiment.search.lengths
    if beside := [name for name in ("prompts", "responses") if getattr(experiment.search, name) is not None]:
        raise ConfigurationError(
            [f"search.lengths = {given} says how long texts are, and so does search.{it}." for it in beside],
            "Set one of them to null.",
        )
    path = Path(given)
    if not path.exists():
        raise ConfigurationError([f"search.lengths = {given} does not exist."], "Name a run's directory, or a file.")
    found = lengths_of_run(RunDirectory.look(path).samples) if path.is_dir() else lengths_in(path)
    return replace(found, source=f"as in {given}")


def _spread_source(asked: SearchConfig) -> str:
    given = [name for name in ("prompts", "responses") if getattr(asked, name) is not None]
    if len(given) == 2:
        return "by search.prompts and search.responses"
    guessed = "half of what may be"
    if given:
        (other,) = {"prompts", "responses"} - set(given)
        return f"{given[0]} by search.{given[0]}, {other} taken to be {guessed}"
    return f"taken to be {guessed}, as there is no --lengths"


def _positions(experiment: Any) -> int:
    """Tokens of the longest text that all models take."""
    return min((it.max_positions for it in placed_models(experiment).values()), default=TOO_MUCH)


def longer(experiment: Any, lengths: Lengths, factor: float) -> Lengths:
    """The same with responses so many times as long, as far as the settings let them."""
    return lengths.scaled(factor, max(_longest_response(experiment), int(lengths.responses.max())))


def _longest_response(experiment: Any) -> int:
    generation = section(experiment, "generation", GenerationConfig)
    return UNKNOWN if generation is None else generation.max_new_tokens


def usable_bytes(experiment: Any, rates: Rates, capacity: Capacity | None) -> int:
    """Of each worker: what its device has, or what its node has for it, as far as that is known."""
    if capacity is not None and capacity.bytes is not None and capacity.of == "node":
        return int(capacity.bytes / experiment.cluster.workers_per_node)
    if capacity is not None and capacity.bytes is not None:
        return int(min(capacity.bytes, rates.memory * (1 - RESERVED)))
    return int(rates.memory * (1 - RESERVED))
