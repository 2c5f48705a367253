"""Builds the Cluster and the Software that a measured row ran on, from constants and datasheets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from autoshard.calibration.results.constants import (
    COPIES_SHARES,
    FUSED_ACCUMULATION,
    KEEPS_GATHERED,
    LOOSE_NORMS,
    OVERLAPS_WITHOUT_ZERO,
    SENDS_BESIDE,
    STALLS,
    SYNCS,
    is_compiled,
    stack_of,
)
from autoshard.calibration.results.gpu_rows import Case
from autoshard.calibration.results.rows import Unscored
from autoshard.cost.stacks import Software
from autoshard.spec.cluster import Cluster, Link, load_cluster
from autoshard.spec.hardware_file import FOLDER, Section, read_content
from autoshard.spec.model_types import LAYER_NORM

Constants = Mapping[str, Any]

GPUS = (
    ("a100", 40, "a100-40gb"),
    ("a100", 80, "a100-80gb"),
    ("h100", 80, "h100-80gb"),
    ("h200", 141, "h200-141gb"),
    ("h800", 80, "h800-80gb"),
    ("gb200", 186, "gb200-186gb"),
    ("b200", 180, "b200-180gb"),
    ("gb300", 288, "gb300-288gb"),
    ("b300", 288, "b300-288gb"),
)
"""(word that the row's gpu begins a word with, GB, hardware file). Of those that match, the one with the nearest memory
is taken."""
FAMILIES = {
    "a100": "a100",
    "h100": "h100",
    "h200": "h100",
    "h800": "h100",
    "b200": "blackwell",
    "gb200": "blackwell",
    "b300": "blackwell",
    "gb300": "blackwell",
}
"""Name in GPUS -> device family whose fitted constants it takes."""


POWER_BOUND = {"blackwell": "gb200-186gb"}
"""Family -> the hardware file whose matmul_efficiency is the family's. Of Blackwell a B200 of 1,000 W takes 1.22 times
as long as a GB200 of 1,200 W for one layout (nemo-docs, FP8), a GB300 of 1,400 W 0.82 times (mbridge, MXFP8). Not sure
of a B200: those results are of NeMo 25.02 and 25.04. Within Megatron-Bridge 25.09 and 25.11 Llama-3-8B takes it 1.01 to
1.05 times as long on 8 of each, in FP8 and MXFP8 alike [docs/performance-summary-archive.md]; no row here has these."""


HOST_LINK = "host_link_bandwidth_bytes_per_s"
"""The key of a hardware file that says what a chip sends to its host."""


class Board(NamedTuple):
    """A board that is not as its device's datasheet says. power_share: of the datasheet's watts, and so of the FLOP/s
    of products: see power_share. bandwidth_bytes_per_s: of its memory; None: the datasheet's."""

    power_share: float = 1.0
    bandwidth_bytes_per_s: float | None = None


BOARDS = {"H100-96GB-HBM2e(500W)": Board(500 / 700, 2.4e12)}
"""By a row's gpu. Meta's Grand Teton: H100 with 96 GB of HBM2e, 2.4 TB/s, and a power limit of 500 W
[pytorch/torchtitan, docs/performance.md]; NVIDIA's H100 SXM has 700 W."""


def board_of(case: Case) -> Board:
    return BOARDS.get(case.gpu, Board())


def hardware(case: Case) -> tuple[str, str]:
    """(hardware file, family). Raises Unscored for a device without a file."""
    text = case.gpu.lower()
    known = [entry for entry in GPUS if re.search(rf"\b{entry[0]}", text)]
    if not known:
        raise Unscored(f"gpu={case.gpu!r} has no hardware file; known: {', '.join(name for _, _, name in GPUS)}")
    wanted = case.memory_gb or known[-1][1]
    name = min(known, key=lambda entry: abs(entry[1] - wanted))
    return name[2], FAMILIES[name[0]]


def built(cls: type, like: Any, **changes: Any) -> Any:
    """A copy of `like` with other values. They are not checked, since they may be numbers that carry derivatives."""
    copy: Any = object.__new__(cls)
    for name in cls.__dataclass_fields__:  # type: ignore[attr-defined]
        object.__setattr__(copy, name, changes.get(name, getattr(like, name)))
    return copy


def machine(case: Case, family: Constants, stack: Constants) -> tuple[Cluster, Software]:
    """The cluster and software of a row. family, stack: constants by name, see constants.py."""
    name, _ = hardware(case)
    return _cluster(case, family, load_cluster(name, case.nodes)), _software(case, family, stack)


def _cluster(case: Case, family: Constants, sheet: Cluster) -> Cluster:
    file, family_name = hardware(case)
    device = built(
        type(sheet.device),
        sheet.device,
        matmul_efficiency=family["matmul_efficiency"] * power_share(file, family_name) * board_of(case).power_share,
        matmul_k0=family["matmul_k0"],
        memory_efficiency=family["memory_efficiency"],
        memory_bandwidth_bytes_per_s=board_of(case).bandwidth_bytes_per_s or sheet.device.memory_bandwidth_bytes_per_s,
        operator_overhead_s=0.0,
        pass_launch_s=family["pass_launch_s"] + (family["sync_s"] if syncs(case) else 0.0),
        memory_bytes=memory_bytes(case, sheet),
        reserved_memory_bytes=0.0 if case.allocated_only else sheet.device.reserved_memory_bytes,
    )
    adapters_bytes_per_s = sheet.adapters_per_node * _sheet_number(file, "adapter_bandwidth_bytes_per_s")
    node_bytes_per_s = case.network_bytes_per_s or adapters_bytes_per_s
    adapters = min(case.gpus_per_node, sheet.adapters_per_node)
    link, near = sheet.intra_node[-1][1], sheet.intra_domain
    hop_s = family["hop_latency_s"]
    link_bytes_per_s = _sheet_number(file, "chip_link_bandwidth_bytes_per_s") * family["link_efficiency"]
    cluster: Cluster = built(
        Cluster,
        sheet,
        devices_per_node=case.gpus_per_node,
        nodes_per_domain=max(1, sheet.nodes_per_domain * sheet.devices_per_node // case.gpus_per_node) if near else 1,
        device=device,
        intra_node=(
            (
                case.gpus_per_node,
                built(Link, link, bandwidth_bytes_per_s=link_bytes_per_s, latency_s=hop_s),
            ),
        ),
        intra_domain=near and built(Link, near, latency_s=hop_s),
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
    power = power_share(*hardware(case)) * board_of(case).power_share
    return Software(
        name=case.stack,
        compute_slowdown=stack["compute_slowdown"],
        link_slowdown=stack["link_slowdown"],
        cpu_s_per_operator=0.0 if case.cuda_graphs else family["cpu_s_per_operator"],
        group_launch_s=family["group_launch_s"] if case.dispatch.dropless else 0.0,
        replay_slowdown=family["replay_slowdown"],
        attention_efficiency=None if kernels else family[f"{case.kernel}"] * power,
        wave_elements=family["wave_elements"],
        tensor_overlap=family["tensor_overlap"] if case.overlaps else 0.0,
        plain_attention_passes=(passes, 2 * passes),
        misaligned_slowdown=family["misaligned_slowdown"],
        norm_passes=family["norm_passes"] if loose_norms(case) else 1.0,
        loss_passes=family["loss_passes"],
        route_passes=1.0 if case.dispatch.permutes else family["route_passes"],
        activation_passes=family["clamped_passes"] if case.dispatch.clamped else 1.0,
        whole_logits=case.stack.startswith("AA-Scaling"),
        replays_head=case.stack.startswith("AA-Scaling"),
        keeps_gathered=stack_of(case.stack)[0] in KEEPS_GATHERED,
        stall_s=family["stall_s"] if stalls(case) else 0.0,
        splits_dispatch=True,
        sends_once=case.dispatch.sends_once,
        neighbours=case.dispatch.neighbours,
        sorts_copies=not case.dispatch.sends_once,
        expert_overlap=family["expert_overlap"] if case.dispatch.overlaps else 0.0,
        reads_back=case.dispatch.reads_back,
        graphs=case.dispatch.graphs,
        copy_launch_s=family["copy_launch_s"] if stack_of(case.stack)[0] in COPIES_SHARES else 0.0,
        transfer_share=family["transfer_share"],
        sends_beside=sends_beside(case),
        quantized_efficiency=family[f"{case.low_precision or 'fp8'}_efficiency"],
        overlap=_overlap(case, family),
        contention=family["contention"],
        accumulation_share=0.0 if stack_of(case.stack)[0] in FUSED_ACCUMULATION else 1.0,
        activation_scale=stack["activation_scale"],
        norm_copies=family["norm_copies"] if loose_norms(case) else 0.0,
        score_copies=family["score_copies"],
        logits_bytes=stack["logits_bytes"],
        working_scale=family["working_scale"],
        reserved_bytes=0.0 if case.allocated_only else stack["reserved_bytes"],
        gathers_quantized=case.gathers_quantized,
        keeps_loss=True,
        hands_over="stages" if case.zero < 2 and stack_of(case.stack)[0] not in FUSED_ACCUMULATION else "nothing",
        sharded_parameters=case.zero >= 3,
        sharded_gradients=case.zero >= 2,
        step_overhead_s=family["step_overhead_s"],
        offloaded=case.offloaded,
        host_bytes_per_s=_sheet_number(hardware(case)[0], HOST_LINK) if case.offloaded else 0.0,
    )


def syncs(case: Case) -> bool:
    """Whether the host waits for each transfer between stages: see SYNCS."""
    return stack_of(case.stack)[0] in SYNCS and case.strategy.pp > 1


def sends_beside(case: Case) -> bool:
    """Whether stages send beside the work: see SENDS_BESIDE."""
    return case.overlaps and case.strategy.num_virtual_stages > 1 and stack_of(case.stack)[0] in SENDS_BESIDE


def stalls(case: Case) -> bool:
    """Whether collectives inside a microbatch stall: see STALLS."""
    return stack_of(case.stack)[0] in STALLS and (case.nodes >= 64 or (case.strategy.pp > 1 and case.nodes > 1))


def _overlap(case: Case, family: Constants) -> Any:
    """The value of Software.overlap: the share of transfers that is hidden behind work."""
    stack, overlaps = stack_of(case.stack)
    if not overlaps or not case.overlaps or (case.zero and stack in OVERLAPS_WITHOUT_ZERO):
        return 0.0
    return family["sharded_overlap" if case.zero >= 2 else "overlap"]


def loose_norms(case: Case) -> bool:
    """Whether RMS norms run as several kernels: see LOOSE_NORMS. They are single ones where the row says so."""
    fused = case.model.normalization == LAYER_NORM or case.fused_norm or is_compiled(case.stack)
    return stack_of(case.stack)[0] in LOOSE_NORMS and not fused


def memory_bytes(case: Case, sheet: Cluster) -> float:
    """Bytes of a device: the datasheet's, or the row's where it names another amount (95 GB boards of an 80 GB
    device)."""
    whole = sheet.device.memory_bytes
    if case.memory_gb and abs(case.memory_gb * 1e9 / whole - 1) > 0.1:
        return case.memory_gb * 1e9
    return whole


@lru_cache
def power_share(file: str, family: str) -> float:
    """Share of the peak that a device reaches against that of its family's first one in POWER_BOUND, 1 for families
    that are not there: where products are bound by power, FLOP/s are as the watts, whatever the peak says."""
    if family not in POWER_BOUND:
        return 1.0
    return _watts_a_flop(file) / _watts_a_flop(POWER_BOUND[family])


def _watts_a_flop(file: str) -> float:
    section = Section(read_content(FOLDER / f"{file}.json"), file)
    return section.number("power_w") / section.child("lnc").child("1").child("flops_per_s").number("bfloat16")


@lru_cache
def _sheet_number(file: str, name: str) -> float:
    """A number of a hardware file as it stands there, before fitted constants are applied."""
    return Section(read_content(FOLDER / f"{file}.json"), file).number(name)
