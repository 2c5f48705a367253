"""Says over which links each mesh axis communicates, on clusters whose nodes are joined into domains (UltraServers)."""

from __future__ import annotations

from autoshard.cost.collectives import GroupShape, group_shape
from autoshard.cost.local_shape import mesh_order
from autoshard.plans.plan import Plan


def axis_links(plan: Plan) -> str | None:
    """A text such as 'tp in a node; cp over the Z ring of the UltraServer; dp over that and the network'. None without
    domains."""
    link = plan.cluster.intra_domain
    if link is None:
        return None
    order, names_by_reach = mesh_order(plan.mesh), dict[str, list[str]]()
    for name, size in reversed(order):
        if size > 1:
            shape = group_shape(order, (name,), plan.cluster)
            names_by_reach.setdefault(_reach(shape, link.name), []).append(name)
    return "; ".join(f"{' '.join(names)} {reach}" for reach, names in names_by_reach.items()) or None


def reach(plan: Plan, axes: tuple[str, ...]) -> str:
    """Over which links the ranks along mesh axes, taken together, communicate: 'in a node', 'over the network'."""
    link = plan.cluster.intra_domain
    return _reach(group_shape(mesh_order(plan.mesh), axes, plan.cluster), "" if link is None else link.name)


def _reach(shape: GroupShape, link: str) -> str:
    if shape.nodes == 1:
        return "in a node"
    if link and shape.nodes_per_domain == shape.nodes:
        return f"over the {link}"
    return "over the network" if not link or shape.nodes_per_domain == 1 else f"over the {link} and the network"
