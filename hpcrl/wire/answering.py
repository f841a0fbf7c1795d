"""What a command that talks with a model and the process that holds the model tell each other: lines of JSON."""

import msgspec


class OpenModel(msgspec.Struct, frozen=True, tag="open"):
    """Command → process: hold the model of a folder. `kind` is as `<role>.model`, `dtype` as `<role>.dtype`."""

    folder: str
    family: str | None
    kind: str
    dtype: str
    device: str
    eos_token_ids: tuple[int, ...]


class Respond(msgspec.Struct, frozen=True, tag="respond"):
    """Command → process: respond to a prompt, token by token. `stop` are strings that end it."""

    prompt: tuple[int, ...]
    seed: int
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    greedy: bool
    stop: tuple[str, ...]


class ModelOpened(msgspec.Struct, frozen=True, tag="opened"):
    """Process → command: the model is there."""

    seconds: float


class Token(msgspec.Struct, frozen=True, tag="token"):
    """Process → command: the next token of the response."""

    token: int


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """Process → command: the response has ended, by itself (`finished`) or by its length."""

    finished: bool


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Process → command: it cannot be done; the exit code says whose matter it is."""

    why: str
    exit_code: int


ToModel = OpenModel | Respond
FromModel = ModelOpened | Token | Ended | Refused
