"""Whether the text of a response has come to one of the strings at which it stops, token by token."""

from collections.abc import Sequence

from hpcrl.data.tokens import HALF, Tokens


class StopStrings:
    """Of one response. The tokens stay what was drawn: the last may say more than the string.

    The text is that of all tokens at once. `tokenizers.decoders.DecodeStream` gives another, or raises, where
    byte-fallback tokens are no UTF-8 together: that replaces all of them, those that were a character before too.
    """

    def __init__(self, tokens: Tokens, strings: Sequence[str]) -> None:
        self._tokens = tokens
        self._strings = strings
        self._kept = max(map(len, strings)) - 1
        self._tail = ""
        self._settled: Sequence[int] = tokens.lead
        self._open: list[int] = []
        self.stopped = False
        """Whether the text has had one of the strings."""

    def take(self, token: int) -> bool:
        """Read one more token; whether the text has had one of the strings."""
        self._open.append(token)
        said = self._tokens.decode_on(self._settled, self._open)
        text = self._tail + said
        self.stopped = self.stopped or any(string in text for string in self._strings)
        if said and not said.endswith(HALF):
            self._tail = text[-self._kept :] if self._kept else ""
            self._settled, self._open = self._open, []
        return self.stopped
