"""A call of a Ray actor in another process, with as many bytes as a request of hpcrl has. Argument: bytes."""

import statistics
import sys
import time

from serving import serve

CALLS = 500


def main() -> None:
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")

    @ray.remote(num_cpus=0)
    class Actor:
        def call(self, _payload: bytes) -> None:
            """Nothing."""

    actor, payload = Actor.remote(), b"x" * int(sys.argv[1])

    def trip() -> float:
        started = time.perf_counter()
        ray.get(actor.call.remote(payload))
        return time.perf_counter() - started

    serve(lambda: {"us": statistics.median(trip() for _ in range(CALLS)) * 1e6})
    ray.shutdown()


if __name__ == "__main__":
    main()
