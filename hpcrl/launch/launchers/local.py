"""This machine: a run's processes live as long as it does, and what is lost is started again by `hpcrl resume`."""

from hpcrl.launch.launcher import LauncherDeclaration

LAUNCHER = LauncherDeclaration(
    launcher="hpcrl.launch.local:LocalLauncher",
    waits=True,
    allocation="hpcrl.launch.local_allocation:LocalAllocation",
    memory="hpcrl.launch.local_memory:memory",
)
