"""Whoever can start processes from here: a batch system where one answers, else this machine."""

from hpcrl.launch.launcher import LAUNCHERS, Choice, LauncherDeclaration
from hpcrl.plugins import find, load, names

LAUNCHER = LauncherDeclaration(launcher=f"{__name__}:whoever_is_there", chooses=True)


def whoever_is_there() -> Choice:
    """The first of the launchers that can start jobs from here, in the order of their names.

    Raises ConfigurationError where one should be able to, and is not: who meant a cluster does not mean its login node.
    """
    from hpcrl.launch.local import LocalLauncher

    why_not = []
    for name in names(LAUNCHERS):
        if path := find(LAUNCHERS, name, "cluster.type").if_there:
            found = load(path)()
            if not isinstance(found, str):
                return Choice(found, f"{name}, which answers here")
            why_not.append(found)
    return Choice(LocalLauncher(), f"this machine: {'; '.join(why_not)}")
