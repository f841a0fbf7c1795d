"""What a call lasts longer for what of its model waits in the host's memory."""

from hpcrl.dataflow.graph import MFC
from hpcrl.placement.costs import CostModel
from hpcrl.placement.plan import Plan


def waiting_in(costs: CostModel, plan: Plan, call: MFC) -> int:
    """Nanoseconds, each time that a call is made under a plan. Parameters that nothing changes are only copied back; a
    copy that is sent new ones lets them go there, too."""
    replica, changed = plan.replica(call.name), plan.changes.values()
    at = replica.placed
    if replica.is_home and call.role in changed:
        roles = (call.role, call.blends) if call.blends else (call.role,)
        return sum(costs.waiting_nanoseconds(role, call.kind, at) for role in roles)
    ways = 2 if call.role in changed else 1
    return ways * costs.release_nanoseconds(call.role, at) if replica.between == "host" else 0
