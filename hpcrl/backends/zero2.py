"""DeepSpeed's ZeRO 2: gradients, masters and moments are cut over data-parallel ranks; gradients are added up after
each micro-batch."""

from hpcrl.backends.deepspeed import stage

BACKEND = stage(adds_up="micro_batch", offloads=("optimizer",), engine="hpcrl.engines.deepspeed:ZeroEngine")
