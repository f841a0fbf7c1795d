"""What workers import where DeepSpeed or Megatron trains a model, for a server that they are forked from.

Only where all compute on CPUs: DeepSpeed keeps the kind of device that it is told here. At its first update it imports
torch's compiler.
"""

from importlib import import_module

from hpcrl.parallel.deepspeed import ACCELERATOR, told

GUESTS = (
    "deepspeed.comm",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.zero.stage_1_and_2",
    "hpcrl.engines.megatron",
)

with told(ACCELERATOR, "cpu"):
    for guest in GUESTS:
        import_module(guest)
