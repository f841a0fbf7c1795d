"""Where libraries keep what they compile as they run: on the node itself, for one agent.

In a home on a shared filesystem the nodes of a run would write the same files at once, and torch's build lock, a file,
outlives a process that is killed: whoever builds next waits for it, for ever.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence

from hpcrl.scratch import ScratchFolder

PREFIX = "hpcrl-compiled-"
"""What the names of agents' folders begin with."""
FOLDERS: Mapping[str, str] = {
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
}
"""The variable that says where, and the folder in ours."""
LOCK = "lock"
"""What torch puts into the folder of an extension while it is built."""


class CompileCaches:
    """Of one agent, for all of its workers, or of a server beside them, which has more. A variable that the agent was
    given itself stays as it is."""

    def __init__(self, given: Mapping[str, str], more: Sequence[str] = ()) -> None:
        folders = dict(FOLDERS) | {variable: variable.lower() for variable in more}
        self._folders = {variable: name for variable, name in folders.items() if variable not in given}
        self._folder: ScratchFolder | None = None

    def environment(self) -> dict[str, str]:
        """What workers are told, of whom none lives yet: what an earlier one was killed over is built anew.

        Where nothing can be written to $TMPDIR, libraries keep what they compile where they always do.
        """
        try:
            return self._made()
        except OSError as error:
            print(f"no folder for what is compiled as it runs: {error}", file=sys.stderr, flush=True)
            return {}

    def remove(self) -> None:
        if self._folder is not None:
            self._folder.remove()

    def _made(self) -> dict[str, str]:
        if self._folder is None:
            self._folder = ScratchFolder(PREFIX)
        for lock in self._folder.path.rglob(LOCK):
            shutil.rmtree(lock.parent, ignore_errors=True)
        folders = {variable: self._folder.path / name for variable, name in self._folders.items()}
        for folder in folders.values():
            folder.mkdir(mode=0o700, exist_ok=True)
        return {variable: str(folder) for variable, folder in folders.items()}
