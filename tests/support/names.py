"""A shared directory as other nodes see it."""

from pathlib import Path

from hpcrl.nameresolve.filesystem import DirectoryCalls


class LaggingListing(DirectoryCalls):
    """A client that caches the directory: a name is in its listing only `lag` listings after it was made.

    Looking up a name before it has been listed fails the test: a client would remember that it was not there.
    """

    def __init__(self, root: Path, lag: int = 2) -> None:
        super().__init__(root)
        self.lag = lag
        self.listings = 0
        self.first_seen: dict[str, int] = {}

    def list(self) -> list[str]:
        self.listings += 1
        for name in super().list():
            self.first_seen.setdefault(name, self.listings)
        return [name for name in self.first_seen if self._is_shown(name)]

    def read(self, name: str) -> bytes:
        assert self._is_shown(name), f"{name} was looked up before a listing had shown it"
        return super().read(name)

    def _is_shown(self, name: str) -> bool:
        return name in self.first_seen and self.listings >= self.first_seen[name] + self.lag
