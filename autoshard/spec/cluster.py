"""The cluster: what one device computes and holds, and how groups of devices talk to each other.

A *device* is what one rank drives: a logical NeuronCore on Trainium, a process on "cpu". Numbers come from the files in
`autoshard/hardware/` (`spec/hardware_file.py` reads them); a plan holds the cluster by value and needs them no more.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from autoshard.errors import AutoshardError
from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Absence, Count, Form, Limit, NotNegative, Positive, from_json, to_json
from autoshard.files.fields import check_choice, check_integer, check_measure, check_positive, own_number, show
from autoshard.spec.platform import PLATFORMS, Fold, Platform
from autoshard.spec.sdk import NEWEST, RELEASES, is_before, release_slowdown
from autoshard.spec.stack import FRAGMENTATION, NATIVE_DEVICES, NATIVE_RELEASE, P2P_RELEASE, STACKS
from autoshard.units import BILLION, HOUR_S


def _check_text(of: str, field: str, value: object) -> None:
    if not isinstance(value, str) or not value or not value.isprintable() or len(value) > 100:
        raise AutoshardError(f"{field}={show(value)} of {of} must be a short printable text")


def _check_share(of: str, field: str, value: float) -> None:
    check_measure(of, field, value)
    if value > 1:
        raise AutoshardError(f"{field}={show(value)} of {of} is a share of the peak, at most 1")


@dataclass(frozen=True)
class Link:
    """A way between devices.

    name: What it is.
    bandwidth_bytes_per_s: What one device (intra_domain: one chip; inter_node: one network adapter) achieves in one
        direction, bytes per second: nccl-tests' busbw, not the datasheet's.
    latency_s: Seconds of one hop.
    """

    name: str
    bandwidth_bytes_per_s: Positive
    latency_s: NotNegative

    def __post_init__(self) -> None:
        _check_text("a link", "name", self.name)
        check_measure(f"link {self.name}", "bandwidth_bytes_per_s", self.bandwidth_bytes_per_s)
        check_measure(f"link {self.name}", "latency_s", self.latency_s, may_be_zero=True)


def _read_by_dtype(data: object, where: str) -> tuple[tuple[str, float], ...]:
    if not isinstance(data, dict):
        raise AutoshardError(f"{where} is {show(data)}; it must be an object: a number by dtype")
    return tuple(sorted(data.items()))


def _read_intra_node(data: object, where: str) -> tuple[tuple[int, Link], ...]:
    if not isinstance(data, list):
        raise AutoshardError(f"{where} is {show(data)}; it must be a list of devices and link")
    return tuple(_intra_node_step(step, where) for step in data)


def _intra_node_step(step: object, where: str) -> tuple[int, Link]:
    if not isinstance(step, dict) or set(step) != {"devices", "link"}:
        raise AutoshardError(f"{where} holds {show(step)}; each entry must be an object of devices and link")
    return step["devices"], from_json(Link, step["link"], f"{where}.link")


def _write_intra_node(steps: tuple[tuple[int, Link], ...]) -> list[dict[str, Any]]:
    return [{"devices": devices, "link": to_json(link)} for devices, link in steps]


BY_DTYPE_FORM = Form(
    dict, _read_by_dtype, {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}}
)
INTRA_NODE_FORM = Form(
    _write_intra_node,
    _read_intra_node,
    {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "description": "One span.",
            "properties": {
                "devices": {"type": "integer", "minimum": 1, "description": "Neighbouring devices that it spans."},
                "link": {"$ref": "#/$defs/link", "description": "What joins them."},
            },
            "required": ["devices", "link"],
            "additionalProperties": False,
        },
    },
)


@dataclass(frozen=True)
class Device:
    """One rank's processor and memory.

    name: What it is.
    flops_per_s: Dense peak by dtype, FLOP per second, sorted by name.
    memory_bytes: Memory of one device, bytes.
    reserved_memory_bytes: Of memory_bytes, what the model cannot use: microcode, runtime, compiled code,
        scratchpad.
    memory_bandwidth_bytes_per_s: Of its memory, bytes per second.
    matmul_efficiency: Share of the peak that a large matrix product reaches, 0 to 1.
    matmul_k0: A contraction of length K reaches K / (K + matmul_k0) of that; elements.
    tile_rows: Rows of an output tile of the matrix unit; a dim is rounded up to whole tiles; 1 means no tiles.
    tile_columns: Columns of an output tile of the matrix unit; 1 means no tiles.
    memory_efficiency: Share of the memory bandwidth that operators bound by memory reach, 0 to 1.
    operator_overhead_s: Fixed seconds of each operator.
    pass_launch_s: Fixed seconds of each forward or backward of a microbatch through a stage: one compiled graph is
        started.
    attention_efficiency: Share of the peak that a flash kernel reaches, 0 to 1; null or missing: its products run like
        any others.
    quantized_efficiency: By the name of a format in flops_per_s: share of that peak that products in it reach, against
        that of products in 16 bits; above 0.
    """

    name: str
    flops_per_s: Annotated[tuple[tuple[str, float], ...], BY_DTYPE_FORM]
    memory_bytes: Positive
    reserved_memory_bytes: NotNegative
    memory_bandwidth_bytes_per_s: Positive
    matmul_efficiency: Positive
    matmul_k0: NotNegative
    tile_rows: Count
    tile_columns: Count
    memory_efficiency: Positive
    operator_overhead_s: NotNegative
    pass_launch_s: NotNegative
    attention_efficiency: Annotated[Positive | None, Absence.WRITTEN] = None
    quantized_efficiency: Annotated[tuple[tuple[str, float], ...], BY_DTYPE_FORM, Absence.WRITTEN] = ()

    def __post_init__(self) -> None:
        _check_text("a device", "name", self.name)
        of = f"device {self.name}"
        check_annotated(of, self)
        if not self.flops_per_s:
            raise AutoshardError(f"flops_per_s of {of} is empty; it must have the peak of a dtype, such as bfloat16")
        for dtype, peak in self.flops_per_s:
            check_measure(of, f"flops_per_s.{dtype}", peak)
        for dtype, share in self.quantized_efficiency:
            check_measure(of, f"quantized_efficiency.{dtype}", share)
        for field in ("memory_bytes", "memory_bandwidth_bytes_per_s"):
            check_measure(of, field, getattr(self, field))
        for field in ("reserved_memory_bytes", "matmul_k0", "operator_overhead_s", "pass_launch_s"):
            check_measure(of, field, getattr(self, field), may_be_zero=True)
        for field in ("matmul_efficiency", "memory_efficiency"):
            _check_share(of, field, getattr(self, field))
        if self.attention_efficiency is not None:
            _check_share(of, "attention_efficiency", self.attention_efficiency)
        if self.reserved_memory_bytes >= self.memory_bytes:
            raise AutoshardError(
                f"reserved_memory_bytes={self.reserved_memory_bytes:g} of {of} leaves nothing of "
                f"memory_bytes={self.memory_bytes:g}"
            )

    def peak_flops_per_s(self, dtype: str) -> float:
        """Dense peak for a dtype such as "bfloat16". Errors: a dtype that the device file does not list."""
        for name, value in self.flops_per_s:
            if name == dtype:
                return value
        known = ", ".join(name for name, _ in self.flops_per_s)
        raise AutoshardError(f"dtype {dtype} has no peak FLOP/s for device {self.name}; it lists {known}")


@dataclass(frozen=True)
class Domain:
    """A scale-up domain: nodes that links faster than the network join.

    nodes: Nodes of a whole one.
    segment_multiple: A job takes equally many nodes of every domain, a multiple of this.
    """

    nodes: Count
    segment_multiple: Count

    def __post_init__(self) -> None:
        check_annotated("a domain", self)

    def taken_by(self, nodes: int) -> int:
        """How many nodes a job of so many takes of every domain that it uses: 16 of the 18 trays of a rack for a job of
        64.

        It is the largest multiple of `segment_multiple` that divides the job's nodes and is at most those of a domain.
        A job that no such number divides fills whole domains, the last one in part.
        """
        sizes = range(self.segment_multiple, self.nodes + 1, self.segment_multiple)
        return max((size for size in sizes if size > 1 and nodes % size == 0), default=self.nodes)


@dataclass(frozen=True)
class Cluster:
    """Nodes of one instance type, all alike.

    instance: Instance type.
    nodes: Instances.
    lnc: Physical NeuronCores that one device joins; 1 but on trn2 and trn3.
    devices_per_node: Devices (logical NeuronCores) of a node; each is driven by one rank.
    devices_per_chip: Devices of a chip.
    device: One rank's processor and memory.
    intra_node: (devices, link) by rising devices: a group that lies within so many neighbouring devices of a node
        uses that link; the last one covers the whole node.
    nodes_per_domain: Nodes that links faster than the network join (a scale-up domain): 4 in a Trn2 UltraServer, 18
        in an NVL72 rack, 1 where there are no such links. Nodes fill domains in order; the last one may hold fewer.
    intra_domain: Those links, of one chip (not one device); null where there are none.
    adapters_per_node: Network adapters of a node; a device uses those of its own chip.
    inter_node: One network adapter (not one device).
    collective_launch_s: Fixed seconds of each collective, whatever its group.
    all_to_all_efficiency: Share of the bus bandwidth that an all-to-all reaches inside a node, 0 to 1: its ways are
        longer.
    price_per_node_hour_usd: US dollars for one node and hour; null where unknown.
    layout_rules: Whose rules on degrees and groups apply.
    most_nodes: Instances that can work together; left out where any number can.
    sdk: Release of the Neuron SDK that all speeds are those of; left out where it is not known, and on other devices.
    stack: Software stack of native PyTorch on Neuron that all constants are those of; left out where each pass is one
        compiled graph, and on other devices.
    domain: What nodes_per_domain follows from for other numbers of nodes; left out where there are no such links, and
        in older plans.
    """

    instance: str
    nodes: Count
    lnc: Count
    devices_per_node: Count
    devices_per_chip: Count
    device: Device
    intra_node: Annotated[tuple[tuple[int, Link], ...], INTRA_NODE_FORM]
    nodes_per_domain: Count
    intra_domain: Link | None
    adapters_per_node: Count
    inter_node: Link
    collective_launch_s: NotNegative
    all_to_all_efficiency: Positive
    price_per_node_hour_usd: NotNegative | None
    layout_rules: Annotated[str, Limit(choices=tuple(PLATFORMS))]
    most_nodes: Annotated[Count | None, Absence.WRITTEN] = None
    sdk: Annotated[str | None, Limit(choices=RELEASES), Absence.WRITTEN] = None
    stack: Annotated[str | None, Limit(choices=tuple(STACKS)), Absence.WRITTEN] = None
    domain: Annotated[Domain | None, Absence.WRITTEN] = None

    def __post_init__(self) -> None:
        _check_text("a cluster", "instance", self.instance)
        of = f"cluster {self.instance}"
        check_annotated(of, self)
        check_measure(of, "collective_launch_s", self.collective_launch_s, may_be_zero=True)
        _check_share(of, "all_to_all_efficiency", self.all_to_all_efficiency)
        if not self.can_have(self.nodes):
            alone = "one cannot work with others" if self.most_nodes == 1 else "no more can work together"
            raise AutoshardError(f"nodes={self.nodes} of {of} must be at most {self.most_nodes}: {alone}")
        check_choice(of, "layout_rules", self.layout_rules, tuple(PLATFORMS))
        if self.sdk is not None:
            check_choice(of, "sdk", self.sdk, RELEASES)
        if self.stack is not None:
            check_choice(of, "stack", self.stack, self.platform.stacks or ("null",))
        if self.price_per_node_hour_usd is not None:
            check_measure(of, "price_per_node_hour_usd", self.price_per_node_hour_usd, may_be_zero=True)
        lncs = self.platform.tp_degrees
        if lncs and self.lnc not in lncs:
            known = " or ".join(map(str, lncs))
            raise AutoshardError(f"lnc={self.lnc} of {of} must be {known}, as its layout_rules={self.layout_rules} say")
        if self.devices_per_node % self.devices_per_chip:
            raise AutoshardError(
                f"devices_per_node={self.devices_per_node} of {of} must be a multiple of "
                f"devices_per_chip={self.devices_per_chip}"
            )
        _check_intra_node(self)
        if (self.nodes_per_domain > 1) != (self.intra_domain is not None):
            raise AutoshardError(
                f"nodes_per_domain={self.nodes_per_domain} of {of} does not go with intra_domain="
                f"{'null' if self.intra_domain is None else self.intra_domain.name}: a link joins 2 nodes or more"
            )

    def usd_per_billion_tokens(self, tokens_per_s: float) -> float | None:
        """US dollars that a billion tokens cost at so many tokens per second on all nodes; None where the price of a
        node is not known."""
        if self.price_per_node_hour_usd is None:
            return None
        return BILLION / tokens_per_s / HOUR_S * self.nodes * self.price_per_node_hour_usd

    def can_have(self, nodes: int) -> bool:
        """Whether so many of these instances can work together."""
        return self.most_nodes is None or nodes <= self.most_nodes

    def with_nodes(self, nodes: int) -> "Cluster":
        """The cluster with so many nodes; a job then takes as many of a scale-up domain as its nodes allow.
        `nodes_per_domain` stays as it is where there are no links within a domain, and where it is another number than
        the domain gives this cluster. Raises AutoshardError for a number that these instances cannot have."""
        nodes = own_number(nodes)
        check_integer(f"cluster {self.instance}", "nodes", nodes)
        if nodes == self.nodes:
            return self
        return replace(self, nodes=nodes, nodes_per_domain=self._nodes_per_domain(nodes))

    def _nodes_per_domain(self, nodes: int) -> int:
        from autoshard.spec import hardware_file

        domain = self.domain
        if self.intra_domain is None or (domain and domain.taken_by(self.nodes) != self.nodes_per_domain):
            return self.nodes_per_domain
        domain = domain or hardware_file.packaged_domain(self.instance)  # older plans do not have it
        return domain.taken_by(nodes) if domain else self.nodes_per_domain

    @property
    def other_domains(self) -> str | None:
        """A sentence where the job takes other numbers of nodes of a scale-up domain than one of its size does, as
        `dataclasses.replace(cluster, nodes=8)` leaves it; else None."""
        usual = None if self.domain is None else self.domain.taken_by(self.nodes)
        if self.intra_domain is None or usual in (None, self.nodes_per_domain):
            return None
        return (
            f"nodes_per_domain={self.nodes_per_domain}: a job of {self.nodes:,} nodes of {self.instance} takes {usual} "
            f"of each domain; in Python cluster.with_nodes({self.nodes}) gives it so, not dataclasses.replace"
        )

    def with_link(
        self, which: str = "inter_node", *, bandwidth: float | None = None, latency: float | None = None
    ) -> "Cluster":
        """The cluster with another link: what if the network were twice as fast?

        which: inter_node (of one network adapter), intra_domain (of one chip) or intra_node (of one device, the same
        over all spans). bandwidth: bytes per second; latency: seconds of a hop; None: as it is.
        Raises AutoshardError for a link that the cluster does not have, or a number that is none.
        """
        check_choice("with_link", "which", which, ("inter_node", "intra_domain", "intra_node"))

        def changed(link: Link) -> Link:
            own = (link.bandwidth_bytes_per_s, link.latency_s)
            new = (
                one if given is None else own_number(given)
                for one, given in zip(own, (bandwidth, latency), strict=True)
            )
            return Link(link.name, *new)

        if which == "intra_node":
            return replace(self, intra_node=tuple((devices, changed(link)) for devices, link in self.intra_node))
        link = getattr(self, which)
        if link is None:
            raise AutoshardError(f"with_link({which!r}): {self.instance} has no links between nodes but the network")
        changes: dict[str, Any] = {which: changed(link)}
        return replace(self, **changes)

    def slowed(self, factor: float) -> "Cluster":
        """The cluster on which everything takes `factor` times as long. Raises AutoshardError for a factor that is no
        positive number."""
        check_positive("a slower cluster", "factor", factor)
        if factor == 1.0:
            return self

        def slower(link: Link) -> Link:
            return replace(
                link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / factor, latency_s=link.latency_s * factor
            )

        device = replace(
            self.device,
            matmul_efficiency=min(1.0, self.device.matmul_efficiency / factor),
            memory_efficiency=min(1.0, self.device.memory_efficiency / factor),
            operator_overhead_s=self.device.operator_overhead_s * factor,
            pass_launch_s=self.device.pass_launch_s * factor,
        )
        return replace(
            self,
            device=device,
            intra_node=tuple((devices, slower(link)) for devices, link in self.intra_node),
            intra_domain=None if self.intra_domain is None else slower(self.intra_domain),
            inter_node=slower(self.inter_node),
            collective_launch_s=self.collective_launch_s * factor,
        )

    def under_stack(self, name: str) -> "Cluster":
        """The cluster with the constants of a software stack of native PyTorch: its fixed times, and less memory, of
        which its allocator cannot hand out a part. A cluster that has a stack keeps it; one of the platform's usual
        release gets the newest, where that one has no native PyTorch.

        name: in STACKS. Raises AutoshardError for a stack that these devices do not have, or another one than theirs,
        and for a release without native PyTorch.
        """
        if self.stack == name:
            return self
        if name not in self.platform.stacks:
            raise AutoshardError(f"stack={name}: {self.native_elsewhere}; leave it out")
        if self.stack is not None:
            raise AutoshardError(f"stack={name} but the constants of {self.instance} are those of {self.stack}")
        if self.sdk is not None and is_before(self.sdk, NATIVE_RELEASE):
            return self._under_newest().under_stack(name)
        stack, device = STACKS[name], self.device
        operator_s = device.operator_overhead_s if stack.operator_s is None else stack.operator_s
        pass_s = device.pass_launch_s if stack.pass_launch_s is None else stack.pass_launch_s
        device = replace(
            device,
            operator_overhead_s=operator_s,
            pass_launch_s=pass_s,
            reserved_memory_bytes=device.reserved_memory_bytes + FRAGMENTATION * device.memory_bytes,
        )
        launch_s = self.collective_launch_s + stack.region_launch_s
        return replace(self, device=device, collective_launch_s=launch_s, stack=name)

    def _under_newest(self) -> "Cluster":
        """The cluster under the newest release, where its own is the one that nobody asked for."""
        assert self.sdk is not None, self.instance
        if self.sdk != self.platform.usual_release:
            raise AutoshardError(no_native_release(self.sdk))
        before, after = (release_slowdown(self.layout_rules, sdk) for sdk in (self.sdk, NEWEST))
        return replace(self.slowed(after / before), sdk=NEWEST)

    @property
    def lacks_native(self) -> bool:
        """Whether its devices are Neuron's, of a generation that native PyTorch does not run on."""
        return self.platform.is_trainium and not self.platform.stacks

    @property
    def native_elsewhere(self) -> str:
        """The clause on devices that native PyTorch on Neuron does not run on."""
        return f"{NATIVE_DEVICES}, not on {self.instance}"

    @property
    def compiles(self) -> bool:
        """Whether native PyTorch compiles what ranks compute, in whichever way."""
        return self.compiles_regions or self.compiles_stages

    @property
    def hands_over(self) -> str:
        """After how much of a backward gradients of weights are handed over: "stages", "regions" or "operators".

        Where each pass is one compiled graph, it hands over those of a whole stage. A GPU or a CPU adds the gradient of
        each operator's weights to its sum when it is there.
        """
        if self.stack is not None:
            return STACKS[self.stack].compiles
        return "stages" if self.platform.is_trainium else "operators"

    @property
    def compiles_regions(self) -> bool:
        """Whether what ranks compute between collectives is compiled, which native PyTorch does by default."""
        return self.stack is not None and STACKS[self.stack].compiles == "regions"

    @property
    def compiles_stages(self) -> bool:
        """Whether a pass of a microbatch through a stage is one graph of torch.compile, its collectives inside."""
        return self.stack is not None and STACKS[self.stack].compiles == "stages"

    @property
    def has_p2p(self) -> bool:
        """Whether a rank can send to another one; native PyTorch of older releases cannot, and a broadcast in a group
        of two stands in."""
        return self.stack is None or self.sdk is None or not is_before(self.sdk, P2P_RELEASE)

    @property
    def world_size(self) -> int:
        """Ranks: one a device."""
        return self.nodes * self.devices_per_node

    @property
    def chips_per_node(self) -> int:
        """Chips of one node."""
        return self.devices_per_node // self.devices_per_chip

    @property
    def platform(self) -> Platform:
        """The generation of its devices: everything that all of that generation share."""
        return PLATFORMS[self.layout_rules]

    @property
    def is_host(self) -> bool:
        """Whether its devices are processes on CPUs: by its platform, in older plans by its name."""
        return self.platform.is_host or self.instance == "cpu"

    @property
    def tp_degrees(self) -> tuple[int, ...] | None:
        """The tensor-parallel degrees that have groups here, in an instance or over the links that join several; None:
        any."""
        known = self.platform.tp_degrees.get(self.lnc)
        joined = self.devices_per_node * self.nodes_per_domain
        return None if known is None else tuple(tp for tp in known if tp <= joined)

    def fold(self, tp: int) -> Fold | None:
        """How ranks count where groups of so many tensor-parallel ranks are folded along the torus of a node's chips;
        None where they are not."""
        return self.platform.fold(self.chips_per_node, self.devices_per_node, tp)

    @cached_property
    def places(self) -> tuple[int, int, int, str]:
        """All that the shapes of groups of ranks follow from: devices of a node, nodes of a domain, devices of a chip,
        layout rules."""
        return self.devices_per_node, self.nodes_per_domain, self.devices_per_chip, self.layout_rules

    @cached_property
    def _hash(self) -> int:
        return hash(
            (self.instance, self.nodes, self.lnc, self.device, self.intra_node, self.intra_domain, self.inter_node)
        )

    def __hash__(self) -> int:
        """Computed once: search looks clusters up in caches all the time."""
        return self._hash

    def intra_node_link(self, devices: int) -> Link:
        """The link of a group that spans so many neighbouring devices of one node."""
        for limit, link in self.intra_node:
            if devices <= limit:
                return link
        return self.intra_node[-1][1]

    def intra_domain_bandwidth_bytes_per_s(self, ranks: int) -> float:
        """Bandwidth of one rank to other nodes of its domain, in bytes/s; only for a cluster with an intra_domain link.

        ranks: how many neighbouring ranks of its node send there at once. The ranks of a chip share its links to the
        other nodes.
        """
        assert self.intra_domain is not None, f"{self.instance} has no links between nodes but the network"
        chips = -(-ranks // self.devices_per_chip)
        return self.intra_domain.bandwidth_bytes_per_s * chips / ranks

    def inter_node_bandwidth_bytes_per_s(self, ranks: int) -> float:
        """Bandwidth of one rank to other nodes over the network, in bytes/s.

        ranks: how many neighbouring ranks of its node send there at once. A rank reaches the adapters of its own chip:
        4 ranks on one trn2 chip share one adapter, 64 ranks share all 16.
        """
        reached = max(1, min(self.adapters_per_node, -(-ranks * self.adapters_per_node // self.devices_per_node)))
        return self.inter_node.bandwidth_bytes_per_s * reached / ranks


def no_native_release(sdk: str) -> str:
    """The sentence on a release of the Neuron SDK without native PyTorch."""
    return f"sdk={sdk} has no native PyTorch on Neuron, which backend torch needs: it is there from {NATIVE_RELEASE} on"


def _check_intra_node(cluster: Cluster) -> None:
    of = f"cluster {cluster.instance}"
    spans = [devices for devices, _ in cluster.intra_node]
    for devices in spans:
        check_integer(of, "intra_node.devices", devices)
    if not spans or spans != sorted(set(spans)) or spans[-1] != cluster.devices_per_node:
        raise AutoshardError(
            f"intra_node={spans} devices of {of} must rise and end at devices_per_node={cluster.devices_per_node}"
        )


def instances() -> tuple[str, ...]:
    """The instance types that autoshard has a hardware file for, sorted."""
    from autoshard.spec import hardware_file

    return hardware_file.packaged_instances()


def load_cluster(
    instance: str | None,
    nodes: int,
    lnc: int | None = None,
    hardware_file: Path | None = None,
    sdk: str | None = None,
) -> Cluster:
    """The cluster of so many nodes of an instance type.

    lnc: physical cores per logical core; None takes the instance's default (2 on trn2, 1 elsewhere).
    hardware_file: a file of the user's own, read in place of a packaged one; `instance` may then be None, else it must
        agree with the file.
    sdk: release of the Neuron SDK; None takes the newest with the platform's usual backend on Trainium, and is the only
        one elsewhere.
    Errors: an unknown instance, fewer than one node, an lnc that the instance does not offer, an unknown release, a
    wrong hardware file.
    """
    from autoshard.spec import hardware_file as reader

    return reader.read_cluster(reader.find(instance, hardware_file), instance, nodes, lnc, sdk)
