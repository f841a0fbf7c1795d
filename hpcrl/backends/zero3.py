"""DeepSpeed's ZeRO 3: parameters, gradients, masters and moments are cut over data-parallel ranks; a block is gathered
while it computes, and gradients are added up after each micro-batch."""

from hpcrl.backends.deepspeed import stage

BACKEND = stage(
    adds_up="micro_batch",
    shards="elements",
    offloads=("optimizer", "parameters"),
    engine="hpcrl.engines.zero3:Zero3Engine",
)
