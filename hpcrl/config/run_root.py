"""Where runs are made unless somebody says otherwise. Apart, for commands that read no settings."""

RUN_ROOT = "runs"
"""The default of run_root, from the working directory."""
