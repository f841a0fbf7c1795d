"""Whether the values of a configuration make sense, together. Reads nothing but the existence of files."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import msgspec

from hpcrl.config.classifier import ClassifierConfig, classifier_problems
from hpcrl.config.cluster import ClusterConfig, first_and_last_port
from hpcrl.config.condition import Condition
from hpcrl.config.data import COLUMNS, DataConfig, of_older_files, sources_of, tokenizer_of
from hpcrl.config.environment import ENVIRONMENT, EnvironmentConfig, environment_problems
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import section, sections_of, settings
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.hub import download_command, hub_cache, is_path, name_of, nearest_folder
from hpcrl.config.judge import JudgeConfig, judge_problems
from hpcrl.config.model import CPUPlacementConfig, ModelConfig, following_roles, models_of
from hpcrl.config.reward import RewardConfig, role_of
from hpcrl.config.validate_reward import function_notices, reward_problems
from hpcrl.errors import Problem

OURS = (
    "--array",
    "--comment",
    "--output",
    "--error",
    "--chdir",
    "--signal",
    "--open-mode",
    "--job-name",
    "--dependency",
)
"""The options of sbatch without which hpcrl could not find or restart its jobs."""

_SOURCE = re.compile(r"[A-Za-z0-9_-]+")

Check = Callable[[Any], Iterable[Problem]]
"""What is wrong with an experiment."""


def collect(experiment: ExperimentConfig, checks: Sequence[Check], found: Sequence[Problem]) -> list[Problem]:
    """`found` and what the checks find; a check is not heard about a value that was already found wrong."""
    found = list(found)
    for check in checks:
        wrong = {key for problem in found for key in problem.keys}
        found += [problem for problem in check(experiment) if not _concerns(problem, wrong)]
    return found


def _concerns(problem: Problem, wrong: Iterable[str]) -> bool:
    return any(bad == key or bad.startswith(key + ".") for bad in wrong for key in problem.keys)


def bound_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """Values that are wrong whatever the others are."""
    for setting in settings(type(experiment)):
        value = setting.of(experiment)
        if expectation := setting.broken_bound(value):
            yield Problem((setting.key,), f"{setting.key} = {value} must be {expectation}.", f"Set {setting.key}.")


def section_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """Values of a section that do not go together, and files that are not there, whatever the algorithm."""
    yield from _cluster_problems(experiment)
    yield from _length_problems(experiment)
    yield from _evaluation_problems(experiment)
    following = following_roles(experiment)
    for role, model in models_of(experiment).items():
        if role not in following:
            yield from _model_problems(role, model)
    if data := section(experiment, "data", DataConfig):
        yield from _data_problems(experiment, data)
    if generation := section(experiment, "generation", GenerationConfig):
        yield from _generation_problems(generation)
    for role, environment in sections_of(experiment, EnvironmentConfig).items():
        yield from environment_problems(role, environment)
    for role, reward in sections_of(experiment, RewardConfig).items():
        yield from reward_problems(role, reward, experiment.cluster.slurm.export)
        yield from _judge_problems(experiment, role, reward)


def _judge_problems(experiment: ExperimentConfig, role: str, reward: RewardConfig) -> Iterator[Problem]:
    """Models that are components of a reward, and are not there."""
    judges, asked = sections_of(experiment, ClassifierConfig), sections_of(experiment, JudgeConfig)
    talks = [name for name, it in sections_of(experiment, EnvironmentConfig).items() if it.function is not None]
    for name, value in reward.components.items():
        judge = role_of(value)
        if not judge:
            continue
        if judge in judges:
            yield from classifier_problems(judge, judges[judge], f"{role}.components.{name}")
        elif judge in asked:
            yield from judge_problems(judge, asked[judge], f"{role}.components.{name}")
        elif judge == ENVIRONMENT and judge not in talks and hasattr(experiment, ENVIRONMENT):
            key = f"{ENVIRONMENT}.function"
            text = f"{role}.components.{name}.role = {judge} needs {key}, which is not set."
            yield Problem((f"{role}.components", key), text, f"Set {key}.")
        elif judge not in talks:
            yield Problem(
                (f"{role}.components",),
                f"{role}.components.{name}.role = {judge} must be a role that scores: "
                f"{', '.join([*judges, *asked, *talks]) or f'algorithm {experiment.algorithm} has none'}.",
                f"Set {role}.components.{name}.",
            )


def _cluster_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    cluster = experiment.cluster
    yield from _slurm_problems(experiment)
    others = sum(each.workers for each in sections_of(experiment, CPUPlacementConfig).values())
    yield from network_problems(experiment.cluster, others)
    for name in ("lost_after_s", "orphan_timeout_s"):
        patience_s = getattr(cluster, name)
        if patience_s < 3 * cluster.heartbeat_s:
            yield Problem(
                (f"cluster.{name}", "cluster.heartbeat_s"),
                f"cluster.{name} = {patience_s:g} must be at least three heartbeats, 3 · {cluster.heartbeat_s:g} s, "
                "so that one late heartbeat loses nobody.",
                f"Raise cluster.{name} or lower cluster.heartbeat_s.",
            )


def network_problems(cluster: ClusterConfig, cpu_workers: int = 0) -> Iterator[Problem]:
    """What can be known of cluster.interface and cluster.ports before a node has been seen."""
    if "/" in (cluster.interface or ""):
        try:
            IPv4Network(cluster.interface, strict=False)
        except ValueError as error:
            yield Problem(
                ("cluster.interface",),
                f"cluster.interface = {cluster.interface} must be an interface like ib0 or an IPv4 network like "
                f"10.10.0.0/16: {error}. Set cluster.interface.",
            )
    if cluster.ports is None:
        return
    first, last = first_and_last_port(cluster.ports)
    if not 1024 <= first <= last <= 65535:
        yield Problem(
            ("cluster.ports",),
            f"cluster.ports = {cluster.ports} must be a range like 20000-20100, from 1024 to 65535, the lower port "
            "first. Set cluster.ports.",
        )
        return
    needed = cluster.workers_per_node + cpu_workers + 2
    if last - first + 1 < needed:
        yield Problem(
            ("cluster.ports", "cluster.workers_per_node"),
            f"cluster.ports = {cluster.ports} has {last - first + 1} ports, but a machine needs {needed}: one for each "
            "of its workers, for the master, and for the store where they meet. Widen cluster.ports.",
        )


def _slurm_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """Only what Slurm itself would say too late, or not at all."""
    cluster, slurm = experiment.cluster, experiment.cluster.slurm
    if slurm.container != "none" and not slurm.container_image:
        yield Problem(
            ("cluster.slurm.container", "cluster.slurm.container_image"),
            f"cluster.slurm.container = {slurm.container} needs an image.",
            "Set cluster.slurm.container_image.",
        )
    if cluster.template is not None and not Path(cluster.template).is_file():
        yield Problem(
            ("cluster.template",),
            f"cluster.template = {cluster.template} must be a file.",
            "Set cluster.template; `hpcrl template array` prints one to begin with.",
        )
    for name in ("flags", "master_flags"):
        for flag in getattr(slurm, name):
            if flag.partition("=")[0] in OURS or not flag.startswith("-"):
                yield Problem(
                    (f"cluster.slurm.{name}",),
                    f"cluster.slurm.{name} has {flag!r}: it must be an option of sbatch, like --switches=1, and none "
                    f"of {', '.join(OURS)}, which hpcrl needs for itself.",
                    f"Set cluster.slurm.{name}.",
                )


def _length_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    control = experiment.control
    if (control.steps is None) == (control.epochs is None):
        found = "both are null" if control.steps is None else f"they are {control.steps} and {control.epochs}"
        yield Problem(
            ("control.steps", "control.epochs"),
            f"Exactly one of control.steps and control.epochs must be set, but {found}.",
            "Set one and leave the other null.",
        )
    if control.stop_when is not None:
        try:
            Condition.parse(control.stop_when)
        except ValueError as error:
            yield Problem(("control.stop_when",), f"control.stop_when = {error}.", "Set control.stop_when.")


def _data_problems(experiment: ExperimentConfig, data: DataConfig) -> Iterator[Problem]:
    if problem := _source_problem(experiment, data):
        yield problem
        return
    paths = {key: source.path for key, source in sources_of(data).items()} | {"data.evaluate": data.evaluate}
    for key, path in paths.items():
        if path is not None and not Path(path).exists():
            expected = "must be a file of JSON lines or parquet, or a folder of them"
            yield Problem((key,), f"{key} = {path} {expected}, but there is none.", f"Set {key}.")
    yield from _row_problems(data)
    named = tokenizer_of(experiment)
    if named is None:
        yield Problem(
            ("data.tokenizer",), "data.tokenizer is null, and no role has a model with one.", "Set data.tokenizer."
        )
        return
    key, folder = named
    if folder.is_dir() and not (folder / "tokenizer.json").is_file():
        yield Problem(
            (key, "data.tokenizer"),
            f"{key} = {folder} must hold tokenizer.json, but does not.{of_older_files(folder)}",
            _or_download(folder, "Set data.tokenizer."),
        )
    if data.tokenizer is not None and not folder.is_dir():
        yield Problem(
            (key,),
            f"{key} = {folder} must be a folder with tokenizer.json, but there is none{_in_cache(folder)}.",
            _or_download(folder, f"Set {key}."),
        )


def _source_problem(experiment: ExperimentConfig, data: DataConfig) -> Problem | None:
    """What is wrong with where the training rows come from."""
    keys, names = ("data.train", "data.sources"), data.sources
    if (data.train is None) == (not names):
        both = "both are" if names else "neither is"
        return Problem(keys, f"Exactly one of data.train and data.sources must be set, but {both}.", "Set one of them.")
    try:
        sources_of(data)
    except msgspec.ValidationError as error:
        return Problem(("data.sources",), f"data.sources = {dict(names)}: {error}.", "Set data.sources.")
    if strange := [name for name in names if not _SOURCE.fullmatch(name)]:
        what = f"data.sources names {strange[0]!r}, but a name is made of letters, digits, _ and -."
        return Problem(("data.sources",), what, "Set data.sources.")
    if names and experiment.control.epochs is not None:
        what = f"control.epochs = {experiment.control.epochs} is set, but each of data.sources has epochs of its own."
        return Problem(("control.epochs", "data.sources"), what, "Set control.steps in its place.")
    return None


def _row_problems(data: DataConfig) -> Iterator[Problem]:
    for name in data.fields.keys() - set(COLUMNS):
        yield Problem(
            ("data.fields",),
            f"data.fields names {name}, but what it can name is {', '.join(COLUMNS)}.",
            "Set data.fields to names of these.",
        )
    if data.chat_template is not None and not Path(data.chat_template).is_file():
        yield Problem(
            ("data.chat_template",),
            f"data.chat_template = {data.chat_template} must be a file with a chat template, but there is none.",
            "Set data.chat_template.",
        )


def _evaluation_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    control, data = experiment.control, section(experiment, "data", DataConfig)
    has_rows = data is None or data.evaluate is not None
    rhythm = control.evaluate
    periodic = any(every is not None for every in (rhythm.steps, rhythm.epochs, rhythm.seconds))
    if periodic and not has_rows:
        yield Problem(
            ("control.evaluate", "data.evaluate"),
            "control.evaluate asks for evaluations, but data.evaluate is null.",
            "Set data.evaluate or leave control.evaluate out.",
        )
    if (control.stop_when or "").lstrip().startswith("eval_") and not (periodic and has_rows):
        yield Problem(
            ("control.stop_when", "control.evaluate", "data.evaluate"),
            f"control.stop_when = {control.stop_when!r} waits for evaluations, but none is made.",
            f"Set {'' if has_rows else 'data.evaluate and '}control.evaluate.",
        )


def unused_notices(experiment: ExperimentConfig) -> Iterator[str]:
    """Settings that change nothing."""
    data, rhythm = section(experiment, "data", DataConfig), experiment.control.evaluate
    if data is not None and data.evaluate is not None and not any((rhythm.steps, rhythm.epochs, rhythm.seconds)):
        yield "data.evaluate is set, but control.evaluate is not, so nothing is evaluated."
    if data is not None and data.drop_last and data.sources:
        yield "data.drop_last has no effect with data.sources: each is read on and on, so that all batches are whole."
    nodes = experiment.cluster.nodes
    for count in sorted(experiment.on_nodes.keys() - set(map(str, experiment.cluster.node_counts))):
        yield f'on_nodes."{count}" has no effect: cluster.nodes = {nodes}.'


def reward_notices(experiment: ExperimentConfig) -> Iterator[str]:
    """What is odd of the functions of rewards."""
    for role, reward in sections_of(experiment, RewardConfig).items():
        yield from function_notices(role, reward)


def _model_problems(role: str, model: ModelConfig) -> Iterator[Problem]:
    folder = Path(model.path)
    config, *weights = (folder / name for name in ("config.json", "model.safetensors", "model.safetensors.index.json"))
    if config.is_file() and any(file.is_file() for file in weights):
        return
    lacking = "no model.safetensors or its index" if config.is_file() else "no config.json"
    what = f"it has {lacking}" if folder.is_dir() else "there is none"
    if not folder.is_dir():
        what += _nearest(folder) if is_path(str(folder)) else _in_cache(folder)
    yield Problem(
        (f"{role}.path",),
        f"{role}.path = {folder} must be a folder with config.json and *.safetensors, but {what}.",
        _or_download(folder, f"Set {role}.path."),
    )


def _nearest(folder: Path) -> str:
    near = nearest_folder(folder)
    return "" if near is None else f"; the nearest is {near}"


def _in_cache(folder: Path) -> str:
    """Where a name of the hub was looked for too."""
    return f", nor one of that name in {hub_cache(os.environ)}"


def _or_download(folder: Path, advice: str) -> str:
    """The advice, and what downloads a model that the hub may have, whole."""
    name = name_of(folder) if is_path(str(folder)) else str(folder)
    return f"Download it with `{download_command(name)}`, or {advice[0].lower()}{advice[1:]}" if name else advice


def _generation_problems(generation: GenerationConfig) -> Iterator[Problem]:
    if "" in generation.stop:
        yield Problem(
            ("generation.stop",),
            "generation.stop has an empty text, at which every response would end: each must have a character.",
            "Set generation.stop.",
        )
    if generation.min_new_tokens > generation.max_new_tokens:
        yield Problem(
            ("generation.min_new_tokens", "generation.max_new_tokens"),
            f"generation.min_new_tokens = {generation.min_new_tokens} must be at most generation.max_new_tokens "
            f"= {generation.max_new_tokens}.",
            "Lower the first or raise the second.",
        )
    key, evaluation = "generation.evaluation", generation.evaluation
    count = evaluation.samples_per_prompt
    if count > 1 and evaluation.temperature is None:
        yield Problem(
            (f"{key}.samples_per_prompt", f"{key}.temperature"),
            f"{key}.samples_per_prompt = {count}, but {key}.temperature is null, so that all would be equal.",
            f"Set {key}.temperature.",
        )
    if evaluation.pass_at and max(evaluation.pass_at) > count:
        yield Problem(
            (f"{key}.pass_at", f"{key}.samples_per_prompt"),
            f"{key}.pass_at has {max(evaluation.pass_at)}, but {key}.samples_per_prompt = {count}.",
            f"Raise {key}.samples_per_prompt.",
        )
