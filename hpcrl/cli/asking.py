"""What `hpcrl generate` and `hpcrl chat` share: options, the model that they open, and how it is shown a prompt."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jsonargparse import ArgumentParser, Namespace

from hpcrl.config.generation import GenerationConfig
from hpcrl.data.chat import ChatTemplate, find_template
from hpcrl.data.tokens import Tokens, load_tokens
from hpcrl.errors import ConfigurationError
from hpcrl.families.reader import read_config
from hpcrl.foreign import plain
from hpcrl.launch.answering import Answerer, device_of, refuse_too_large
from hpcrl.launch.named_models import NamedModel, named_model
from hpcrl.placement.exporting import DTYPES
from hpcrl.wire.answering import OpenModel

MODEL_HELP = "a folder in Hugging Face format, ORG/NAME in the hub's local cache, a run, or RUN@STEP"

FLAGS = ("--greedy", "--raw", "--help", "-h")
"""Options without a value."""


@dataclass(frozen=True)
class Asked:
    """A model that is ready."""

    model: NamedModel
    tokens: Tokens
    template: ChatTemplate | None
    positions: int
    answerer: Answerer
    config: GenerationConfig
    seed: int

    def respond(self, prompt: np.ndarray, number: int = 0) -> Iterator[str]:
        """The text as it comes, of at most as many tokens as the model has positions left.

        Raises ConfigurationError where the prompt fills them all.
        """
        left = self.positions - len(prompt)
        if not len(prompt) > 0 or left < 1:
            raise ConfigurationError(
                [f"the prompt has {len(prompt)} tokens, and {self.model.name} has {self.positions} positions."],
                "Give a prompt that is not empty, and shorter.",
            )
        config = replace(self.config, max_new_tokens=min(left, self.config.max_new_tokens))
        return self.answerer.respond(prompt, config, self.seed + number)

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """The tokens of a chat up to where the response begins. Raises DataError."""
        assert self.template is not None
        return self.tokens.encode_chats([self.template.prompt(messages)])[0]


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("model", type=str, help=MODEL_HELP)
    parser.add_argument("--role", type=str | None, default=None, help="of a run; by default the one that generates")
    parser.add_argument("--system", type=str | None, default=None, help="a system message before the prompt")
    parser.add_argument("--max-new-tokens", type=int, default=512, help="the longest response, in tokens")
    parser.add_argument("--temperature", type=float, default=1.0, help="of sampling; divides the logits")
    parser.add_argument("--top-k", type=int, default=0, help="sample from the N likeliest tokens; 0: from all")
    parser.add_argument(
        "--top-p", type=float, default=1.0, help="sample from the likeliest tokens that together have this probability"
    )
    parser.add_argument("--greedy", action="store_true", help="always take the likeliest token")
    parser.add_argument("--stop", type=str | None, default=None, help="a text that ends the response")
    parser.add_argument("--seed", type=int, default=1, help="of sampling")
    parser.add_argument(
        "--dtype", type=str | None, default=None, help="fp32, bf16 or fp64; by default what config.json says"
    )
    parser.add_argument("--device", type=str, default="auto", help="cpu, cuda, or auto: a GPU where there is one")


def model_first(words: Sequence[str]) -> list[str]:
    """The same with the model and the prompt before all options: the parser takes them only together."""
    own: list[str] = []
    options: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        is_option = word.startswith("--")
        (options if is_option else own).append(word)
        if is_option and "=" not in word and word not in FLAGS and rest:
            options.append(rest.pop(0))
    return [*own, *options]


@contextmanager
def asked(given: Namespace, *, chats: bool = False) -> Iterator[Asked]:
    """The model of the command line, in its process, which ends afterwards.

    Raises ConfigurationError where there is none, where it does not fit into memory, or `chats` and it cannot.
    """
    config = GenerationConfig(
        max_new_tokens=given.max_new_tokens,
        temperature=given.temperature,
        top_k=given.top_k,
        top_p=given.top_p,
        greedy=given.greedy,
        stop=(given.stop,) if given.stop else (),
    )
    with named_model(given.model, given.role, lambda what: print(what, file=sys.stderr, flush=True)) as model:
        dtype, device = given.dtype or model.dtype, device_of(given.device)
        if dtype not in DTYPES:
            raise ConfigurationError([f"--dtype {dtype} is none of {', '.join(DTYPES)}."])
        tokens = load_tokens(model.folder, otherwise="name another model")
        template = find_template(model.folder, model.chat_template, model.template_args)
        if template is None and (chats or given.system is not None):
            raise ConfigurationError(
                [f"{given.model} has no chat template."], f"Continue a text: `hpcrl generate {given.model} …`."
            )
        kind: Any = model.kind
        described = read_config(model.folder, model.family, kind=kind)
        prompt_tokens = max(1, min(described.max_positions - 1, 2048))
        refuse_too_large(model.name, described, dtype, device, prompt_tokens, config)
        opened = OpenModel(str(model.folder), model.family, model.kind, dtype, device, tokens.eos_ids)
        answerer = Answerer(opened, tokens)
        try:
            yield Asked(model, tokens, template, described.max_positions, answerer, config, given.seed)
        finally:
            answerer.close()


def show(pieces: Iterable[str]) -> str:
    """Print a text as it comes, with what would steer a terminal as escapes; the whole of it."""
    said = []
    for piece in pieces:
        said.append(piece)
        print(plain(piece) if sys.stdout.isatty() else piece, end="", flush=True)
    print(flush=True)
    return "".join(said)
