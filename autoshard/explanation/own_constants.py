"""Plans on clusters whose constants are not those that autoshard packages: calibrated ones, say."""

from __future__ import annotations

from autoshard.errors import AutoshardError
from autoshard.plans.plan import Plan
from autoshard.spec.cluster import Cluster, load_cluster


def has_own_constants(plan: Plan) -> bool:
    """Whether any speed, time or size of the plan's cluster differs from what autoshard has for its instance type."""
    cluster = plan.cluster
    try:
        known = load_cluster(cluster.instance, cluster.nodes, cluster.lnc, sdk=cluster.sdk)
        known = known if cluster.stack is None else known.under_stack(cluster.stack)
    except AutoshardError:  # an instance type of one's own
        return True
    return _constants(known) != _constants(cluster)


def _constants(cluster: Cluster) -> tuple[object, ...]:
    """All that says how fast the cluster is, whatever its price and however many devices a node has."""
    inside = {link for _, link in cluster.intra_node}
    of_collectives = cluster.collective_launch_s, cluster.all_to_all_efficiency
    return cluster.device, inside, cluster.intra_domain, cluster.inter_node, *of_collectives
