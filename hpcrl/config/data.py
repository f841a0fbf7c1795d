"""What is read and how it becomes batches."""

from dataclasses import dataclass

from hpcrl.config.fields import PathText


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """A data set in jsonl files, one row per line with `prompt` and `answer`. Knows nothing of models."""

    train: PathText
    """The rows to train on: a .jsonl file with `prompt` and `answer` (and, if you like, `id`) per line."""
    evaluate: PathText | None = None
    """The rows to evaluate on, in the same form."""
    tokenizer: PathText | None = None
    """A folder with tokenizer.json; null takes the actor's."""
    batch_size: int
    """Prompts per step; the training data has at least as many rows."""
    samples_per_prompt: int = 1
    """Responses generated for each prompt of a step."""
    shuffle: bool = True
    """Read every epoch in a new order, which follows from `seed` and the epoch."""
    prompt_template: str = "{prompt}"
    """What the model sees of a prompt; {prompt} stands for the row's text."""
    max_prompt_tokens: int | None = None
    """Rows with a longer prompt are left out; null leaves out only what no model has positions for."""
    max_answer_tokens: int | None = None
    """Training rows with a longer answer are left out (SFT); null sets no bound."""
    evaluate_rows: int | None = None
    """Evaluate on the first so many rows; null takes all."""
