"""The process that holds a model for `hpcrl generate` and `hpcrl chat`, started by its name. Purely token ids.

It takes orders from a socket until that is closed, and ends with whoever started it.
"""

import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from hpcrl.data.tokens import Tokens, load_tokens
from hpcrl.engines.composed import DTYPES
from hpcrl.engines.flat import FlatTransformer
from hpcrl.engines.foreign import FlatForeign
from hpcrl.engines.memory import HeldModel
from hpcrl.errors import ConfigurationError, ExitCode, HpcrlError
from hpcrl.families.foreign import ForeignConfig
from hpcrl.models.generation import GenerationOptions
from hpcrl.models.pretrained import load_pretrained
from hpcrl.models.sampling import SamplingOptions
from hpcrl.models.stopping import StopStrings
from hpcrl.parallel.group import Group
from hpcrl.processes import die_with_parent
from hpcrl.wire.answering import Ended, FromModel, ModelOpened, OpenModel, Refused, Respond, Token, ToModel
from hpcrl.workers.meter import Meter

PREFILL_TOKENS = 4096
"""Of a prompt that go through the model at once."""


class ToldTokens(StopStrings):
    """Tells each token as it is drawn, and whether the text has come to a string that ends it."""

    def __init__(self, tokens: Tokens, strings: tuple[str, ...], tell: Callable[[FromModel], None]) -> None:
        super().__init__(tokens, strings or ("",))
        self._tell = tell
        self._ends = bool(strings)

    def take(self, token: int) -> bool:
        self._tell(Token(token))
        return super().take(token) if self._ends else False


class Answering:
    """A model, and the responses that it makes one after another."""

    def __init__(self, order: OpenModel) -> None:
        """Raises DataError where the folder holds no such model."""
        kind: Any = order.kind
        if order.device == "cuda" and not torch.cuda.is_available():
            raise ConfigurationError(["--device cuda: torch sees no GPU here."], "Give --device cpu.")
        self._device, self._eos = torch.device(order.device), order.eos_token_ids
        config, parameters = load_pretrained(order.folder, family=order.family, kind=kind, head="vocabulary")
        held: dict[str, Any] = {"dtype": DTYPES[order.dtype], "device": self._device, "trainable": False}
        foreign = isinstance(config, ForeignConfig)
        self._model: HeldModel = FlatForeign(config, **held) if foreign else FlatTransformer(config, **held)
        self._model.load(parameters)
        self._tokens = load_tokens(Path(order.folder))

    def respond(self, order: Respond, tell: Callable[[FromModel], None]) -> None:
        """Raises ConfigurationError where an option or the lengths are none that the model can have."""
        try:
            options = GenerationOptions(
                max_new_tokens=order.max_new_tokens,
                sampling=SamplingOptions(order.temperature, order.top_k, order.top_p, order.greedy),
                eos_token_ids=self._eos,
                stops=partial(ToldTokens, self._tokens, order.stop, tell),
                slots=1,
                prefill_tokens=PREFILL_TOKENS,
            )
            generator = self._model.generator(options, Group((0,), 0, torch.device("cpu")), Meter())
            made = generator.generate([np.array(order.prompt, np.int32)], [order.seed])
        except ValueError as error:
            raise ConfigurationError([str(error)]) from error
        tell(Ended(made.finished[0]))


def main(descriptor: int, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which closes the socket
    die_with_parent(parent)
    connection = socket.socket(fileno=descriptor)

    def tell(answer: FromModel) -> None:
        connection.sendall(msgspec.json.encode(answer) + b"\n")

    answering: Answering | None = None
    decoder = msgspec.json.Decoder(ToModel)
    with connection.makefile("rb") as lines:
        for line in lines:
            try:
                order = decoder.decode(line)
                if isinstance(order, OpenModel):
                    begun = time.monotonic()
                    answering = Answering(order)
                    tell(ModelOpened(time.monotonic() - begun))
                else:
                    assert answering is not None, "a model is opened first"
                    answering.respond(order, tell)
            except ConnectionError:
                return
            except HpcrlError as error:
                tell(Refused(str(error), int(error.exit_code)))
            except (MemoryError, torch.OutOfMemoryError) as error:
                tell(Refused(f"memory has run out: {error}", int(ExitCode.INTERNAL)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
