"""The compiled part of hpcrl. Without a C++ compiler numpy does the same, to the same bits (hpcrl/ops)."""

from setuptools import Extension, setup

FLAGS = ["-O3", "-ffp-contract=off"]
setup(ext_modules=[Extension("hpcrl.ops._compiled", ["csrc/gae.cpp"], extra_compile_args=FLAGS, optional=True)])
