"""Constants and datasheets -> the Cluster and the Software that a measured row ran on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoshard.cost.software import COMPILED, Software
from autoshard.spec.cluster import Cluster, Link, load_cluster
from benchmarks.constants import FUSED_ACCUMULATION, stack_of
from benchmarks.measured_rows import Case, Unscored

Constants = Mapping[str, Any]
DATA = Path(__file__).parent / "data"

GPUS = (
    ("a100", 40, "a100-40gb"),
    ("a100", 80, "a100-80gb"),
    ("h100", 80, "h100-80gb"),
    ("h200", 141, "h200-141gb"),
    ("gb200", 186, "gb200-186gb"),
    ("b200", 180, "b200-180gb"),
)
"""What the row's gpu holds, GB, hardware file: of those that fit, the one with the nearest memory."""
FAMILIES = {"a100": "a100", "h100": "h100", "h200": "h100", "b200": "h100", "gb200": "h100"}
"""Hardware file -> whose fitted constants it takes. No result of a B200 or GB200 was fitted."""


CALIBRATED = DATA / "cpu_calibrated.json"
"""What `autoshard calibrate --device cpu` wrote on the machine of data/measured_cpu.csv."""


def hardware(case: Case) -> tuple[str, str]:
    """(hardware file, family). Raises Unscored for a device without a file."""
    text = case.gpu.lower()
    if text == "cpu":
        return "cpu", "cpu"
    known = [entry for entry in GPUS if entry[0] in text and not (entry[0] == "b200" and "gb200" in text)]
    if not known:
        raise Unscored(f"gpu={case.gpu!r} has no hardware file; known: {', '.join(name for _, _, name in GPUS)}")
    wanted = case.memory_gb or known[-1][1]
    name = min(known, key=lambda entry: abs(entry[1] - wanted))
    return name[2], FAMILIES[name[0]]


def calibrated_cluster(hardware_file: Path, processes: int) -> Cluster:
    """So many CPU processes of the machine that `autoshard calibrate` measured."""
    machine = load_cluster(None, 1, hardware_file=hardware_file)
    _, link = machine.intra_node[-1]
    return replace(machine, devices_per_node=processes, devices_per_chip=processes, intra_node=((processes, link),))


def built(cls: type, like: Any, **changes: Any) -> Any:
    """A copy with other values, unchecked: they may be numbers that carry their derivatives."""
    copy: Any = object.__new__(cls)
    for name in cls.__dataclass_fields__:  # type: ignore[attr-defined]
        object.__setattr__(copy, name, changes.get(name, getattr(like, name)))
    return copy


def machine(case: Case, family: Constants, stack: Constants) -> tuple[Cluster, Software]:
    """family, stack: constants by name, see benchmarks/fit.py. autoshard's own runs on a calibrated machine have none:
    they are priced as `autoshard plan --hardware` prices them."""
    name, _ = hardware(case)
    if name == "cpu":
        return calibrated_cluster(CALIBRATED, case.strategy.world_size), COMPILED
    return _cluster(case, family, load_cluster(name, case.nodes)), _software(case, family, stack)


def _cluster(case: Case, family: Constants, sheet: Cluster) -> Cluster:
    device = built(
        type(sheet.device),
        sheet.device,
        matmul_efficiency=family["matmul_efficiency"],
        matmul_k0=family["matmul_k0"],
        memory_efficiency=family["memory_efficiency"],
        operator_overhead_s=0.0,
        pass_launch_s=family["pass_launch_s"],
        memory_bytes=memory_bytes(case, sheet),
    )
    node_bytes_per_s = case.network_bytes_per_s or sheet.adapters_per_node * sheet.inter_node.bandwidth_bytes_per_s
    adapters = min(case.gpus_per_node, sheet.adapters_per_node)
    link = sheet.intra_node[-1][1]
    hop_s = family["hop_latency_s"]
    link_bytes_per_s = sheet_link(hardware(case)[0]) * family["link_efficiency"]
    cluster: Cluster = built(
        Cluster,
        sheet,
        devices_per_node=case.gpus_per_node,
        device=device,
        intra_node=(
            (
                case.gpus_per_node,
                built(Link, link, bandwidth_bytes_per_s=link_bytes_per_s, latency_s=hop_s),
            ),
        ),
        adapters_per_node=adapters,
        inter_node=built(
            Link,
            sheet.inter_node,
            bandwidth_bytes_per_s=node_bytes_per_s * family["network_efficiency"] / adapters,
            latency_s=family["network_hop_latency_s"],
        ),
        collective_launch_s=family["collective_launch_s"],
        all_to_all_efficiency=family["all_to_all_efficiency"],
    )
    return cluster


def _software(case: Case, family: Constants, stack: Constants) -> Software:
    kernels = case.strategy.attention_kernel == "plain"
    passes = family["plain_attention_passes"] * (family["torch_attention"] if case.kernel == "torch" else 1.0)
    return Software(
        name=case.stack,
        compute_slowdown=stack["compute_slowdown"],
        link_slowdown=stack["link_slowdown"],
        cpu_s_per_operator=stack["cpu_s_per_operator"],
        replay_slowdown=stack["replay_slowdown"],
        attention_efficiency=None if kernels else family[f"{case.kernel}"],
        wave_elements=family["wave_elements"],
        tensor_overlap=family["tensor_overlap"],
        plain_attention_passes=(passes, 2 * passes),
        misaligned_slowdown=family["misaligned_slowdown"],
        norm_passes=family["norm_passes"] if loose_norms(case) else 1.0,
        loss_passes=family["loss_passes"],
        whole_logits=case.stack.startswith("AA-Scaling"),
        replays_head=case.stack.startswith("AA-Scaling"),
        transfer_share=family["transfer_share"],
        matmul_speedup=family["fp8_speedup"] if case.fp8 else 1.0,
        cast_passes=family["fp8_cast_passes"] if case.fp8 else 0.0,
        overlap=family["sharded_overlap" if case.zero >= 2 else "overlap"] if stack_of(case.stack)[1] else 0.0,
        accumulation_share=0.0 if stack_of(case.stack)[0] in FUSED_ACCUMULATION else 1.0,
        activation_scale=stack["activation_scale"],
        norm_copies=stack["norm_copies"] if loose_norms(case) else 0.0,
        score_copies=stack["score_copies"],
        logits_bytes=stack["logits_bytes"],
        working_scale=stack["working_scale"],
        reserved_bytes=stack["reserved_bytes"],
        hands_over_gradients=case.zero < 2,
        sharded_parameters=case.zero >= 3,
        sharded_gradients=case.zero >= 2,
        step_overhead_s=family["step_overhead_s"],
    )


def loose_norms(case: Case) -> bool:
    """RMS norms are single kernels only where the row says so, or the stack compiles or brings them."""
    return case.model.model_type != "gpt2" and case.stack.startswith("AA-Scaling") and not case.fused_norm


def memory_bytes(case: Case, sheet: Cluster) -> float:
    """The datasheet's, or what the row says where that is another amount (95 GB boards of an 80 GB device)."""
    whole = sheet.device.memory_bytes
    if case.memory_gb and abs(case.memory_gb * 1e9 / whole - 1) > 0.1:
        return case.memory_gb * 1e9
    return whole


_SHEET_LINKS: dict[str, float] = {}


def sheet_link(name: str) -> float:
    """All NVLinks of one GPU, one direction."""
    if name not in _SHEET_LINKS:
        from autoshard.interop.json_file import read_json
        from autoshard.spec.hardware_file import FOLDER, Section

        _SHEET_LINKS[name] = Section(read_json(FOLDER / f"{name}.json", "hardware file", 10**6), name).number(
            "chip_link_bandwidth_bytes_per_s"
        )
    return _SHEET_LINKS[name]
