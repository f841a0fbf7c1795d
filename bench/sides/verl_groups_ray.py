"""verl's own worker group of four Ray actors in one pool, on CPUs: no rows to all, and a batch that the driver has.

A batch is serialised by torch.save, as it comes, and as `VERL_DATAPROTO_SERIALIZATION_METHOD=numpy` does it.
"""

import os
import statistics
import time

import ray
import torch
from groups_shapes import CALLS, KEYS, ROW_CALLS, ROWS, TOKENS, WORKERS
from serving import serve
from verl import DataProto
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

METHOD = "VERL_DATAPROTO_SERIALIZATION_METHOD"


@ray.remote
class Learner(Worker):
    """What is called."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def nothing(self, number):
        return number

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def serialise_by(self, method):
        os.environ[METHOD] = method

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def learn(self, rows):
        of = rows.batch
        ratios = (of["logprobs"] - of["old_logprobs"]) * (of["labels"] == of["tokens"])
        return DataProto.from_dict(tensors={"ratios": ratios})


def main():
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="error")
    pool = RayResourcePool(process_on_nodes=[WORKERS], use_gpu=False, max_colocate_count=1)
    group = RayWorkerGroup(pool, RayClassWithInitArgs(cls=Learner), device_name="cpu")
    columns = {key: torch.arange(TOKENS, dtype=getattr(torch, kind)) for key, kind in KEYS.items()}
    batch = DataProto.from_dict(tensors={key: column.repeat(ROWS, 1) for key, column in columns.items()})

    def on_rows(method):
        os.environ[METHOD] = method
        group.serialise_by(method)
        return statistics.median(timed(lambda: group.learn(batch)) for _ in range(ROW_CALLS))

    def round_():
        return {
            "rows": on_rows("torch"),
            "rows_numpy": on_rows("numpy"),
            "no_rows": statistics.median(timed(lambda n=number: group.nothing(n)) for number in range(CALLS)),
        }

    assert group.world_size == WORKERS and group.nothing(3) == [3] * WORKERS
    assert group.learn(batch).batch["ratios"].shape == (ROWS, TOKENS)
    serve(round_)
    ray.shutdown()


def timed(call):
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
