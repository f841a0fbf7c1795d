"""What follows where a response cannot be scored: the run ends, it is tried again, or it is dropped."""

import sys
from dataclasses import dataclass
from typing import Literal

from hpcrl.errors import HpcrlError

OnError = Literal["fail", "drop", "retry"]

ATTEMPTS = 3
"""How often `retry` tries a response."""


@dataclass(frozen=True)
class ErrorRule:
    """`reward.on_error`."""

    on_error: OnError

    def again(self, error: HpcrlError, attempts: int) -> bool:
        """Whether to try once more what has failed so often, and now with this error; else it is dropped.

        Raises:
            HpcrlError: the error, where it ends the run.
        """
        if self.on_error == "fail" or (self.on_error == "retry" and attempts >= ATTEMPTS):
            raise error from None
        again = self.on_error == "retry"
        what = f"It is tried again, {attempts} of {ATTEMPTS - 1} times." if again else "It is dropped, and not counted."
        print(f"{error}\n{what}", file=sys.stderr, flush=True)
        return again
