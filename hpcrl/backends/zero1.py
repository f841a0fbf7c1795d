"""DeepSpeed's ZeRO 1: masters and moments are cut over data-parallel ranks; gradients are added up once an update."""

from hpcrl.backends.deepspeed import stage

BACKEND = stage(adds_up="update", offloads=("optimizer",), engine="hpcrl.engines.deepspeed:ZeroEngine")
