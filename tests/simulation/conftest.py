"""Runs beside their simulations write to memory: an fsync that takes long would change the order of calls."""

from support.in_memory import tmp_path, tmp_path_factory

__all__ = ["tmp_path", "tmp_path_factory"]
