"""JSON of typed values in which floats keep every bit, NaN and infinities too, and whole numbers stay whole."""

import json
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class ExactJSON(Generic[T]):
    """Of a union of structs."""

    def __init__(self, of: Any) -> None:
        self._of = of
        self._decoder = msgspec.json.Decoder(of)

    def encode(self, value: T) -> bytes:
        """By msgspec, a tenth of the work; what does not come back from that as it was by Python's JSON, which alone
        writes NaN and infinities. Raises TypeError or ValueError for a value that could not be read back."""
        with suppress(ValueError, TypeError):
            payload = msgspec.json.encode(value)
            if self._decoder.decode(payload) == value:
                return payload
        payload = json.dumps(msgspec.to_builtins(value), ensure_ascii=False, separators=(",", ":")).encode()
        self.decode(payload)
        return payload

    def decode(self, payload: bytes) -> T:
        """Raises ValueError, of which msgspec.ValidationError is one, where it is no such value."""
        try:
            found: T = self._decoder.decode(payload)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:  # NaN or an infinity
            found = msgspec.convert(json.loads(payload), self._of)
        return found
