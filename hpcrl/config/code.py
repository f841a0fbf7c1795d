"""What of the user's code a run takes along."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from hpcrl.config.fields import ChangeClass


@dataclass(frozen=True, kw_only=True)
class CodeConfig:
    """The run copies the user's Python files, and the modules that they import from beside them, by itself."""

    changes: ClassVar[ChangeClass] = ChangeClass.NUMBERS

    files: Annotated[tuple[str, ...], "path"] = ()
    """Further files that your code reads from beside itself: files, folders or patterns like rubrics/*.txt. They are
    copied with it and keep their place relative to it."""
