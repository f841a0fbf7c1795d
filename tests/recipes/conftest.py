"""Runs that tests of this folder make are in memory."""

from support.in_memory import tmp_path, tmp_path_factory

__all__ = ["tmp_path", "tmp_path_factory"]
