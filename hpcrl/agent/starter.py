"""Turns an order into workers: each bound to its place, with the servers beside it.

Owns the servers; the zygote, which forks, is the agent's.
"""

from dataclasses import dataclass, field

from hpcrl.agent.gpus import CPU_WORKER, DeviceBinding
from hpcrl.agent.servers import Servers, Where
from hpcrl.agent.zygote import Zygote
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.durable.rundir import RunDirectory
from hpcrl.event_log import EventLog
from hpcrl.member_events import WorkersForked
from hpcrl.placement.plan import Plan, read_plan
from hpcrl.placement.servers import servers_of
from hpcrl.recipes.algorithm import experiment_from
from hpcrl.wire.address import network_of
from hpcrl.wire.messages import StartWorkers
from hpcrl.wire.zygote import WorkerArgs


@dataclass
class Starter:
    """Of one agent. `bindings` are the places of its slots."""

    run: RunDirectory
    experiment: ExperimentConfig
    host: str
    zygote: Zygote
    bindings: tuple[DeviceBinding, ...] = ()
    servers: Servers = field(default_factory=Servers)

    @property
    def devices(self) -> tuple[str, ...]:
        """UUIDs by slot; none where workers compute on CPUs."""
        return tuple(binding.uuid for binding in self.bindings if binding.uuid)

    def start(self, order: StartWorkers, log: EventLog, master: str) -> None:
        """Fork the ordered workers; the old ones are dead. Raises OSError where a server cannot be started."""
        if not order.ranks:  # it may hear so before the attempt has a plan
            if not order.over:
                self.servers.close()
            log.write(WorkersForked(order.attempt, (), [], list(self.devices)))
            return
        plan = read_plan(self.run, order.attempt)
        given = {rank: self._binding(plan.workers[rank].slot) for rank in order.ranks}
        servers, pids = self._servers(plan, order, given)
        caches = self.zygote.caches.environment()
        for rank, binding in given.items():
            path = self.run.worker_log(order.attempt, f"worker-{rank}")
            args = WorkerArgs(
                run_dir=str(self.run.root),
                attempt=order.attempt,
                rank=rank,
                master=master,
                network=network_of(self.experiment.cluster, self.host),
                out=str(path.with_suffix(".out")),
                err=str(path.with_suffix(".err")),
                device=binding.device,
                device_uuid=binding.uuid,
                environment=caches | dict(binding.environment),
                cpus=binding.cpus,
                servers=servers.get(rank, {}),
            )
            self.zygote.fork(args)
        devices = [binding.device for binding in given.values()]
        log.write(WorkersForked(order.attempt, tuple(order.ranks), devices, list(self.devices), pids))

    def _servers(
        self, plan: Plan, order: StartWorkers, given: dict[int, DeviceBinding]
    ) -> tuple[dict[int, dict[str, str]], dict[str, int]]:
        """Rank → model → the socket of what makes its responses; and these, by name, with their process ids. They are
        told to start before workers are forked, for both take their time."""
        told = servers_of(plan, experiment_from(plan.experiment), order.ranks)
        threads = self.experiment.cluster.threads_per_worker
        where = {it: Where.of([given[rank] for rank in it.ranks], threads * len(it.ranks)) for it in told}
        sockets: dict[int, dict[str, str]] = {}
        pids: dict[str, int] = {}
        out = self.run.worker_log(order.attempt, "server")
        for it, server in zip(told, self.servers.serve(where, out), strict=True):
            sockets.setdefault(it.head, {})[it.model] = str(server.socket)
            pids[f"{it.model} of worker-{it.head}"] = server.pid
        return sockets, pids

    def _binding(self, slot: int) -> DeviceBinding:
        """CPU workers have the slots after those of the model workers."""
        return self.bindings[slot] if slot < len(self.bindings) else CPU_WORKER
