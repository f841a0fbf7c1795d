"""Whoever can start processes from here: a batch system where one answers, else this machine."""

from hpcrl.launch.launcher import LAUNCHERS, Launcher, LauncherDeclaration
from hpcrl.plugins import find, load, names

LAUNCHER = LauncherDeclaration(launcher=f"{__name__}:whoever_is_there", chooses=True)


def whoever_is_there() -> Launcher:
    """The first of the launchers that say so, in the order of their names."""
    from hpcrl.launch.local import LocalLauncher

    asked = [find(LAUNCHERS, name, "cluster.type").if_there for name in names(LAUNCHERS)]
    return next((launcher for path in asked if path and (launcher := load(path)())), None) or LocalLauncher()
