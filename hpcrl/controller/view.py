"""The experiment as a script sees it: under the version of the run's settings that is in force when it looks."""

from collections.abc import Callable, Mapping
from typing import Any

from hpcrl.controller.user_code import misuse
from hpcrl.errors import InternalError


class ExperimentView:
    """Has the attributes of the experiment. While a step is made again, they are those that it was made under."""

    __slots__ = ("_experiments", "_version")

    def __init__(self, experiments: Mapping[int, Any], version: Callable[[], int]) -> None:
        object.__setattr__(self, "_experiments", experiments)
        object.__setattr__(self, "_version", version)

    def __getattr__(self, name: str) -> Any:
        version = self._version()
        if version not in self._experiments:
            raise InternalError(
                f"version {version} of the settings is not there; there are {sorted(self._experiments)}"
            )
        return getattr(self._experiments[version], name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise misuse(f"{name} of the experiment cannot be set to {value!r}.", "Keep what changes in run.state.")

    def __repr__(self) -> str:
        return repr(self._experiments[self._version()])
