"""Whether the text of a response has come to one of the strings at which it stops, token by token."""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class StopStrings:
    """Of one response. The tokens stay what was drawn: the last may say more than the string."""

    def __init__(self, tokenizer: Tokenizer, strings: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._strings = strings
        self._stream = DecodeStream(skip_special_tokens=True)
        self._kept = max(map(len, strings)) - 1
        self._tail = ""
        self.stopped = False
        """Whether the text has had one of the strings."""

    def take(self, token: int) -> bool:
        """Read one more token; whether the text has had one of the strings."""
        # A character whose last byte is still to come is no text yet.
        text = self._tail + (self._stream.step(self._tokenizer, token) or "")
        self.stopped = self.stopped or any(string in text for string in self._strings)
        self._tail = text[-self._kept :] if self._kept else ""
        return self.stopped
