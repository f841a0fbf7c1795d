"""A profile's workers: their role measures, their host has groups for it as any layout could have them."""

from collections.abc import Mapping, Sequence

from hpcrl.algos.builder import Builder
from hpcrl.algos.host import TorchHost
from hpcrl.algos.measurer import Measurer
from hpcrl.durable.checkpoints import SavedRole
from hpcrl.parallel.replica import groups_of, sharing
from hpcrl.placement.layouts import Layout
from hpcrl.placement.meshes import divisors
from hpcrl.recipes.profile import ProfileExperiment


class ProfileHost(TorchHost):
    """Fulfils `hpcrl.workers.host.Host`."""

    def load(self, peers: Sequence[str], checkpoint: Mapping[str, SavedRole]) -> None:
        super().load(peers, checkpoint)
        everyone, slots = self._parallel.everyone, self._nodes.count(0)
        layouts = {tp: Layout(dp=len(everyone) // tp, tp=tp) for tp in divisors(slots)}
        for layout in layouts.values():
            self._parallel.form(sharing(layout, everyone))
        by_tp = {tp: groups_of(self._parallel, layout, everyone) for tp, layout in layouts.items()}
        for role in self._roles.values():
            assert isinstance(role, Measurer), "a profile has no other role"
            role.join(self._parallel.group(everyone), by_tp, self._nodes, self._context.run_dir)


def workers(at: Builder[ProfileExperiment]) -> Measurer:
    return Measurer(at)
