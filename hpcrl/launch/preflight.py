"""What can be known of a run before it starts, beyond its configuration: memory, weights, rows, tokenizer, reward.

Reads headers of weights and the first rows, and calls the reward function on a few of them, in a process of its own.
"""

import reprlib
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from hpcrl.config.changes import with_nodes
from hpcrl.config.environment import EnvironmentConfig
from hpcrl.config.experiment import ExperimentConfig, to_dict
from hpcrl.config.fields import sections_of
from hpcrl.config.reward import RewardConfig
from hpcrl.controller.rehearsal import rehearse
from hpcrl.data.datasets import open_datasets, open_texts
from hpcrl.data.order import sample_ids
from hpcrl.data.rows.kind import Dataset, Indexes
from hpcrl.data.rows.lines import ASSISTANT
from hpcrl.data.user_code import UserCode, code_places, collect_code
from hpcrl.dataflow.graph import changes
from hpcrl.durable.code import staged, with_code
from hpcrl.durable.place import nearest_folder
from hpcrl.errors import ConfigurationError, DataError, HpcrlError, UserCodeError
from hpcrl.families.reader import read_config
from hpcrl.families.stored import check_tensors
from hpcrl.launch.launcher import Launcher, declaration_of, launcher_for
from hpcrl.placement.capacity import Capacity, check_memory
from hpcrl.placement.disk import check_room
from hpcrl.placement.judges import models_held
from hpcrl.placement.node_counts import in_words, telling_count
from hpcrl.placement.placing import cpu_roles
from hpcrl.plugins import load
from hpcrl.recipes.algorithm import Algorithm, algorithm_of, experiment_from
from hpcrl.recipes.texts import SCORED_BY
from hpcrl.rewards.response import Response, ground_truth, prompt_messages
from hpcrl.rewards.run import RewardFunction, Scored
from hpcrl.rewards.user_function import answering


def check_inputs(
    experiment: ExperimentConfig,
    root: Path,
    indexes: Indexes,
    code: UserCode | None = None,
    launcher: Launcher | None = None,
    planning: bool = False,
) -> Capacity | None:
    """Raise what a run in `root` would end with as soon as it read its inputs. The experiment is valid.

    `code` takes the place of what its settings name; `launcher` is the one of the run, where it is known. Who is
    `planning` writes nothing: that the disk has no room is then said, not raised. Returns the memory that its
    processes will have, where somebody can say.

    Raises:
        ConfigurationError: models that cannot fit the memory of their workers, checkpoints that cannot fit the disk, a
            script that fails in its rehearsal.
        DataError: weights that do not fit their config.json, rows that no model can be given, a tokenizer without end.
        UserCodeError: the reward function, or the environment, fails on rows of the training data.
    """
    algorithm = algorithm_of(experiment)
    tokens = algorithm.batch(experiment).tokens
    capacity = _check_memory(experiment, launcher)
    disk_doubts = _disk_lacks if planning else _disk_doubts
    if tokens is None:
        _say(disk_doubts(experiment, root))
    _check_weights(experiment, algorithm)
    datasets = open_datasets(experiment, algorithm.rows, indexes)
    if tokens is not None:
        lengths = datasets["train"].row_lengths()
        _say(disk_doubts(experiment, root, max(1, min(len(lengths), int(tokens / lengths.mean())))))
    first = {name: dataset.look() for name, dataset in datasets.items()}
    called = algorithm.called(experiment)
    code = code or collect_code(code_places(experiment), experiment.code.files)
    with staged(code) as folder:
        copied = experiment_from(with_code(to_dict(experiment), code.settings, folder))
        for role, reward in sections_of(copied, RewardConfig).items():
            if role in called and reward.trial_rows:
                _try_reward(copied, algorithm, datasets, role, first["train"][: reward.trial_rows], folder)
        for role, environment in sections_of(copied, EnvironmentConfig).items():
            if role in called:
                tried = first["train"][: environment.trial_rows]
                _try_environment(copied, algorithm, datasets, role, tried, folder)
        if algorithm.script is not None and experiment.control.rehearse:
            _say(_rehearsed(copied, folder))
    return capacity


def _check_memory(experiment: ExperimentConfig, launcher: Launcher | None) -> Capacity | None:
    """On each number of nodes that the run may have; what is doubtful is said of the first of which anything is.

    Raises ConfigurationError.
    """
    capacity, doubts = None, list[str]()
    for count in experiment.cluster.node_counts:
        at = with_nodes(experiment, count)
        capacity = capacity_of(at, launcher)
        if capacity is None:
            return None
        with telling_count(experiment, count):
            on = f"on {in_words(count)}: " if experiment.cluster.is_elastic else ""
            found = [f"{on}{doubt}" for doubt in check_memory(at, capacity)]
        doubts = doubts or found
    _say(doubts)
    return capacity


def _say(doubts: Iterable[str]) -> None:
    for doubt in doubts:
        print(f"hpcrl: note: {doubt}", file=sys.stderr)


def capacity_of(experiment: ExperimentConfig, launcher: Launcher | None = None) -> Capacity | None:
    """Whoever would start the processes says what memory they will have; None where nobody can say."""
    kind = declaration_of(experiment.cluster.type)
    if kind.chooses:
        try:
            launcher = launcher or launcher_for(experiment.cluster.type)
            kind = declaration_of(launcher.prepare(experiment).cluster.type)
        except HpcrlError:
            return None  # A plan is made where nothing could be started, too.
    if not kind.memory:
        return None
    launcher, others = launcher or launcher_for(experiment.cluster.type), len(cpu_roles(experiment))
    found: Capacity = load(kind.memory)(experiment.cluster, launcher, others)
    return found


def _disk_doubts(experiment: ExperimentConfig, root: Path, rows: int = 1) -> Iterator[str]:
    """The disk is that of the nearest folder that is there. `rows` as for `check_room`. Raises ConfigurationError."""
    folder = nearest_folder(root)
    if folder == Path(folder.anchor) or not folder.is_dir():
        return  # A plan may be made where the cluster's disks are not.
    yield from check_room(experiment, shutil.disk_usage(folder).free, f"the disk of {folder}", rows)


def _disk_lacks(experiment: ExperimentConfig, root: Path, rows: int = 1) -> Iterator[str]:
    """The same with what would be raised."""
    try:
        yield from _disk_doubts(experiment, root, rows)
    except ConfigurationError as error:
        yield from (f"a run there would be refused: {problem}" for problem in error.problems)


def _check_weights(experiment: ExperimentConfig, algorithm: Algorithm[Any]) -> None:
    """Raise DataError with what is wrong in each folder, once."""
    problems: dict[str, str] = {}
    trained = changes(algorithm.calls(experiment)).values()
    for role, model in models_held(experiment).items():
        folder, head = Path(model.path), algorithm.roles[role].head
        try:
            config = read_config(folder, model.family, f"{role}.family", model.model)
            check_tensors(folder, config, head, role in trained)
        except DataError as error:
            problems.setdefault(str(error), f"{role}.path")
    if problems:
        raise DataError("\n".join(f"{key}: {text}" for text, key in problems.items()))


def _rehearsed(experiment: ExperimentConfig, copy: Path) -> Iterator[str]:
    """Raises ConfigurationError, which names the user's files where they are."""
    try:
        yield from rehearse(experiment)
    except ConfigurationError as error:
        found = [replace(problem, text=problem.text.replace(str(copy), "")) for problem in error.found]
        raise ConfigurationError(found) from None


def _try_environment(
    experiment: ExperimentConfig,
    algorithm: Algorithm[Any],
    datasets: Mapping[str, Dataset],
    role: str,
    rows: Sequence[str],
    copy: Path,
) -> None:
    """Import it, and have it answer these rows' own answers, and an empty one, twice. Raises UserCodeError."""
    environment = getattr(experiment, role)
    if not rows:
        with _telling(role, copy, tried=False):
            answering(role, environment).close()
        return
    answers = _answers(experiment, algorithm, datasets, rows)
    said = [msgspec.structs.replace(each, messages=_chat(each)) for each in answers]
    with _telling(role, copy):
        function = answering(role, environment)
        try:
            first, again = function.score(said), function.score(said)
        finally:
            function.close()
    one, two = (
        [(it.message or (None if it.done else ""), it.done, it.score) for it in each] for each in (first, again)
    )
    _say(_unlike(f"{role}.function", rows, one, two, "its answers have to follow from messages and row alone"))


def _unlike(what: str, rows: Sequence[str], first: Sequence[Any], again: Sequence[Any], has_to: str) -> Iterator[str]:
    """What a function is told that keeps something of what it was asked before, draws, or asks somebody who does."""
    for row, one, two in zip(rows, first, again, strict=True):
        if repr(one) != repr(two):  # NaN is like NaN
            yield (
                f"{what} was asked the same twice on row {row!r}, and answered {reprlib.repr(one)}, then "
                f"{reprlib.repr(two)}. After a kill it is asked again for what is not on disk, in any process. For the "
                f"same numbers as in a run that nobody killed, {has_to}."
            )
            return


def _chat(answer: Response) -> tuple[Mapping[str, Any], ...]:
    return (*prompt_messages(answer.row), {"role": ASSISTANT, "content": answer.response})


def _try_reward(
    experiment: ExperimentConfig,
    algorithm: Algorithm[Any],
    datasets: Mapping[str, Dataset],
    role: str,
    rows: Sequence[str],
    copy: Path,
) -> None:
    """Score the rows' own answers, twice; where there are none, and once where there are, an empty response. Raises
    UserCodeError.

    The function is that of a copy, as in the run, so that what the copy lacks is noticed.
    """
    responses, reward = _answers(experiment, algorithm, datasets, rows), getattr(experiment, role)
    with _telling(role, copy):
        function = RewardFunction(reward, role)
        try:
            first, again = function.score(responses), function.score(responses)
        finally:
            function.close()
    _say(_scored_unlike(role, reward, rows, first, again))


def _scored_unlike(
    role: str, reward: RewardConfig, rows: Sequence[str], first: Sequence[Scored], again: Sequence[Scored]
) -> Iterator[str]:
    """By component; where it scores alike, by the places of its shares."""
    has_to, is_told = "its scores have to follow from its arguments alone", False
    for number, name in enumerate(reward.parts):
        one, two = ([it.scores[number] for it in each] for each in (first, again))
        for doubt in _unlike(reward.key_of(role, name), rows, one, two, has_to):
            is_told = True
            yield doubt
    if not is_told:
        yield from _unlike(role, rows, [it.places for it in first], [it.places for it in again], has_to)


def _answers(
    experiment: ExperimentConfig, algorithm: Algorithm[Any], datasets: Mapping[str, Dataset], rows: Sequence[str]
) -> list[Response]:
    """As if a model had given the rows' own answers, and to the last none."""
    texts, samples = open_texts(experiment, datasets), sample_ids(rows, 0)
    tokens = datasets["train"].rows(samples).rows(next(iter(algorithm.rows.keys)))
    records = [datasets["train"].text(sample) for sample in samples]
    answers = [str(ground_truth(record) or "") for record in records]
    return [
        Response(
            texts.decode(prompt),
            answer,
            record,
            model_scores=dict.fromkeys(SCORED_BY, 0.0),
            tokens=tuple(texts.tokens.encode_answers([answer])[0].tolist()),
        )
        for prompt, answer, record in zip(tokens, [*answers[:-1], ""], records, strict=True)
    ]


@contextmanager
def _telling(role: str, copy: Path, tried: bool = True) -> Iterator[None]:
    """What a function of the user's does wrong, by the name of the file that was copied, and what to do."""
    try:
        yield
    except UserCodeError as error:
        said = f"{str(error).replace(str(copy), '')}\nNothing has been started"
        if not tried:
            raise UserCodeError(f"{said}.", f"Fix the function, or set {role}.kwargs.") from None
        raise UserCodeError(
            f"{said}: this was a trial on the first rows of the training data, with a copy of your code as a run has "
            f"it.",
            f"Fix the function. If it reads files beside its own, name them in code.files. If it needs something that "
            f"only the compute nodes have, set {role}.trial_rows to 0: it is then not tried.",
        ) from None
