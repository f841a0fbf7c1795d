"""What is read and how it becomes batches."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from hpcrl.config.bounds import Count
from hpcrl.config.fields import ChangeClass, FunctionText, ModelText, PathText, section
from hpcrl.config.model import models_of

COLUMNS = ("prompt", "answer", "messages", "chosen", "rejected", "margin", "id")
"""What rows are made of, by the names that `fields` may give to columns."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Data sets and how their rows are read, which columns tell: texts or chats. Knows nothing of models."""

    changes: ClassVar[ChangeClass] = ChangeClass.IDENTITY

    train: PathText | None = None
    """The rows to train on: a file .jsonl or .parquet, or a folder of them; a row has `prompt` and `answer`, or
    `messages`, and maybe `id`."""
    sources: Annotated[Mapping[str, Any], "sources"] = field(default_factory=dict)
    """In the place of train: NAME: {path: …, weight: 1.0} for each of several sources, which are mixed. Of the rows
    read so far, each source has at any time the share that its weight says, to within one row."""
    evaluate: Annotated[PathText | None, ChangeClass.FORK] = None
    """The rows to evaluate on, in the same form."""
    tokenizer: ModelText | None = None
    """A folder with tokenizer.json, or ORG/NAME of the hub if it is in the local cache; null takes that of the first
    role with a model."""
    batch_size: Count | None = None
    """Rows per step: prompts, answers, or rows with their pairs; the training data has at least as many."""
    batch_tokens: Count | None = None
    """In the place of batch_size, where rows are learnt or read as they are: a step has as many rows, in their order,
    as have at most so many tokens together (all that a model is given of them; responses not counted), and at least
    one."""
    balance: bool = False
    """Cut an epoch into batches of batch_size rows with nearly equally many tokens, that with the longest row first, so
    that what does not fit in memory fails at once; for sft, reward_model and dpo."""
    drop_last: bool = False
    """Leave out the rows at the end of an epoch that are too few for a whole batch, or have fewer tokens than
    batch_tokens; else they are a smaller one. Without effect on sources, whose epochs end in the middle of a batch."""
    samples_per_prompt: Count = 1
    """Responses generated for each prompt of a step."""
    shuffle: bool = True
    """Read every epoch in a new order, which follows from `seed` and the epoch."""
    prompt_template: Annotated[str, Meta(pattern=r"\{prompt\}", description="a text with {prompt} in it")] = "{prompt}"
    """What the model sees of a prompt; {prompt} stands for the row's text."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """What columns are called in your rows, e.g. {prompt: question}: those named here decide how a row is read."""
    row: FunctionText | None = None
    """Your function that makes a row of each of yours, once: "module:function" or "/path/file.py:function"; it takes a
    mapping and returns one."""
    chat_template: PathText | None = None
    """A file with the Jinja template that makes texts of chats; null takes the tokenizer's."""
    template_args: Mapping[str, Any] = field(default_factory=dict)
    """What a chat template is given besides the messages, e.g. {enable_thinking: false}."""
    learn: Literal["last", "all"] = "last"
    """Which of the assistant's messages in a chat sft learns."""
    max_prompt_tokens: Count | None = None
    """Rows with a longer prompt are left out; null leaves out only what no model has positions for."""
    max_answer_tokens: Count | None = None
    """Rows with a longer answer are not trained on, where answers are learnt; null sets no bound."""
    evaluate_rows: Annotated[Count | None, ChangeClass.NUMBERS] = None
    """Evaluate on the first so many rows; null takes all."""


@dataclass(frozen=True, kw_only=True)
class GroupDataConfig(DataConfig):
    """A data set whose prompts have several responses each, which are compared with each other."""

    samples_per_prompt: Count = 8
    """Responses generated for each prompt of a step."""


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several sources of rows."""

    path: str
    weight: Annotated[float, Meta(gt=0)] = 1.0


def sources_of(data: DataConfig) -> dict[str, Source]:
    """The setting that names each source of training rows → the source. Raises msgspec.ValidationError."""
    if data.train is not None:
        return {"data.train": Source(path=data.train)}
    return {f"data.sources.{name}": msgspec.convert(value, Source) for name, value in data.sources.items()}


def rows_of_step(data: DataConfig) -> int:
    """How many rows a step has; where its tokens are counted, at most: a row has one at least."""
    return data.batch_size or data.batch_tokens or 1


def of_older_files(folder: Path) -> str:
    """How a folder without tokenizer.json gets it of what else it has; empty where it has nothing."""
    older = next((name for name in ("tokenizer.model", "vocab.json") if (folder / name).is_file()), None)
    if older is None:
        return ""
    code = f"from transformers import AutoTokenizer as A; A.from_pretrained('{folder}').save_pretrained('{folder}')"
    needed = "pip install transformers sentencepiece protobuf"
    return f' transformers makes it of {older}: `{needed}`, then `python -c "{code}"`.'


def tokenizer_of(experiment: Any) -> tuple[str, Path] | None:
    """The setting that names the folder of the tokenizer, and the folder; None where neither data nor a model does."""
    data = section(experiment, "data", DataConfig)
    if data is not None and data.tokenizer is not None:
        return "data.tokenizer", Path(data.tokenizer)
    return next(((f"{role}.path", Path(model.path)) for role, model in models_of(experiment).items()), None)
