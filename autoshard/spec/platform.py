"""Platforms: what devices of one generation have in common, whatever their speeds, sizes and numbers are.

Speeds and sizes are in the hardware files, whose `layout_rules` names the platform of an instance. Everything else
that differs from one generation to the next is here, a record a generation. Others ask `cluster.platform` for it.
Sources are in brackets as in backends/rules.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autoshard.spec.sdk import NEWEST, NEWEST_WITH_NXD, RELEASES
from autoshard.spec.stack import STACKS


@dataclass(frozen=True)
class Variable:
    """A variable of the environment of a plan's processes. reason: why it is set, a sentence without a full stop."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True)
class Fold:
    """Ranks that count through the rows of each node in another order than devices do.

    A row is an equal share of a node's devices. Place p of the folded order is rank `rank(p)`.

    devices_per_node: a multiple of the number of rows.
    row_order: the rows as ranks count through them.
    """

    devices_per_node: int
    row_order: tuple[int, ...]

    def rank(self, place: int) -> int:
        """The rank at a place: whole nodes in order, within each of them its rows in `row_order`."""
        size = self.devices_per_node // len(self.row_order)
        row, inside = divmod(place % self.devices_per_node, size)
        return place - place % self.devices_per_node + self.row_order[row] * size + inside

    def place(self, rank: int) -> int:
        """The inverse of `rank`."""
        size = self.devices_per_node // len(self.row_order)
        row, inside = divmod(rank % self.devices_per_node, size)
        return rank - rank % self.devices_per_node + self.row_order.index(row) * size + inside


@dataclass(frozen=True)
class Torus:
    """The links of a node's chips, where groups of tensor parallelism are folded along them.

    chips_per_node: of the nodes that are such a torus; smaller ones of the same generation are not.
    folded_groups_per_node: groups that are folded are those of which so many fill a node.
    row_order: the rows of chips as folded ranks count through them.
    """

    chips_per_node: int
    folded_groups_per_node: int
    row_order: tuple[int, ...]


@dataclass(frozen=True)
class Platform:
    """One generation of devices.

    name: what hardware files and plans call it, in `layout_rules`.
    device: what one device is called.
    default_backend: what plans are made for, where nobody says.
    usual_release: release of the Neuron SDK that plans are for, where nobody says: the newest with `default_backend`.
    first_release: the oldest release of the Neuron SDK that runs there.
    lacks_nxd: neuronx-distributed builds no layer of attention there.
    is_trainium: devices of the Neuron SDK: graphs are compiled ahead, its driver must be there, launches set its
        variables.
    is_cuda: NVIDIA's GPUs: runs in a cluster need torch with CUDA, launches ask for them.
    is_host: its devices are processes on CPUs, which a run starts on the machine that it is on.
    tp_degrees: by LNC (physical cores that a device joins), the tensor-parallel degrees that have groups where an
        instance has as many devices (`Cluster.tp_degrees`). Its keys are the LNCs that there are. Empty where any
        degree will do, and LNC means nothing.
    has_aligned_groups: a group must have as many ranks, at the same places, in each of its nodes.
    has_adjacent_tp_ranks: the ranks of a tensor-parallel group must follow each other.
    torus: None where no group is folded.
    kv_heads_innermost: where tp exceeds the key-value heads, neighbouring ranks hold different heads (K0 K1 K0 K1);
        else they hold copies of one (K0 K0 K1 K1).
    flash_sequence_multiple, ring_sequence_multiple: tokens that the sequence must be a multiple of for the kernel of
        flash attention, and a rank's part of the sequence for that of ring attention; None: of any length.
    variables: set at every launch, beside those that follow from the plan (jobs/variables.py).
    stacks: software stacks of native PyTorch that run there (spec/stack.py), the default first; empty where native
        PyTorch has no device of its own. Plans of backend torch take the first.
    """

    name: str
    device: str
    default_backend: str
    usual_release: str = NEWEST
    first_release: str = RELEASES[0]
    lacks_nxd: bool = False
    is_trainium: bool = False
    is_cuda: bool = False
    is_host: bool = False
    tp_degrees: Mapping[int, tuple[int, ...]] = field(default_factory=dict, hash=False)
    has_aligned_groups: bool = False
    has_adjacent_tp_ranks: bool = False
    torus: Torus | None = None
    kv_heads_innermost: bool = True
    flash_sequence_multiple: int | None = None
    ring_sequence_multiple: int | None = None
    variables: tuple[Variable, ...] = ()
    stacks: tuple[str, ...] = ()

    @property
    def has_lnc_choice(self) -> bool:
        """Whether a device may join more or fewer physical cores: then processes and compiler must be told."""
        return len(self.tp_degrees) > 1

    def fold(self, chips_per_node: int, devices_per_node: int, tp: int) -> Fold | None:
        """How ranks count where groups of so many tensor-parallel ranks are folded; None where they are not."""
        torus = self.torus
        if torus is None or chips_per_node != torus.chips_per_node:
            return None
        is_folded = torus.folded_groups_per_node * tp == devices_per_node
        return Fold(devices_per_node, torus.row_order) if is_folded else None


TRN1 = Platform(
    name="trn1",
    device="NeuronCore",
    default_backend="nxd",
    usual_release=NEWEST_WITH_NXD,
    is_trainium=True,
    # [SDK archive/nxd-training/mlp.rst; NxD parallel_state.py get_logic_chosen] Contiguous on the node; left out: tp=4,
    # whose ranks are strided.
    tp_degrees={1: (1, 2, 8, 32)},
    has_aligned_groups=True,  # [SDK internode-collective-comm.rst]
    has_adjacent_tp_ranks=True,  # [as tp_degrees]
    kv_heads_innermost=True,  # [NxD modules/qkv_linear.py] rank r holds block r % num_key_value_heads
    flash_sequence_multiple=2048,  # [NxD kernels/flash_attn.py]
    ring_sequence_multiple=1024,  # [NxD kernels/ring_attention_kernel.py]
    variables=(
        Variable("MALLOC_ARENA_MAX", "128", "one process for each device: glibc's arenas would fill the host's memory"),
    ),
)
TRN2_TORUS = Torus(chips_per_node=16, folded_groups_per_node=2, row_order=(0, 3, 1, 2))
"""Four rows of four chips [SDK about-neuron/arch/neuron-hardware/trn2-arch.rst], of which a folded group takes two.

Of rows 0 and 1 the next group, rows 2 and 3, would have ranks two hops away, which cannot talk to each other
[NxD parallel_state.py get_logic_chosen]. On the torus rows 0 and 3 are neighbours, and so are 1 and 2; of the two pairs
row 0 has row 1 beside it, and row 3 has row 2.
"""
TRN2 = Platform(
    name="trn2",
    device="logical NeuronCore",
    default_backend="nxd",
    usual_release=NEWEST_WITH_NXD,
    first_release="2.21",  # [SDK release notes of the documentation: 2.21.0 added the architecture of Trn2]
    is_trainium=True,
    # [as trn1's] Contiguous on the torus, or folded; left out: tp=16 at lnc 1 and tp=8 at lnc 2. An UltraServer adds
    # none: every source ends at the cores of one instance [SDK mlp.rst; trn2-llama3.1-405b-tutorial.rst, "up to 64"].
    tp_degrees={1: (1, 4, 8, 32, 64, 128), 2: (1, 4, 16, 32, 64)},
    has_aligned_groups=True,  # [SDK internode-collective-comm.rst]
    has_adjacent_tp_ranks=True,  # [as tp_degrees]
    torus=TRN2_TORUS,
    kv_heads_innermost=False,  # [NxD modules/qkv_linear.py] rank r holds block r // multiplier
    flash_sequence_multiple=TRN1.flash_sequence_multiple,
    ring_sequence_multiple=TRN1.ring_sequence_multiple,
    variables=TRN1.variables,
    stacks=tuple(STACKS),  # [Neuron release notes 2.33, components/torchneuron] Trn2 and Trn3 only
)
TRN3 = replace(TRN2, name="trn3", default_backend="torch", usual_release=NEWEST, lacks_nxd=True, torus=None)
"""Degrees and kernels are those of trn2, a guess. Chips talk through switches: no group is folded along a torus
[SDK about-neuron/arch/neuron-hardware/trn3-arch.rst]. NxD makes weights of keys and values on trn1 and trn2, and raises
elsewhere [NxD modules/qkv_linear.py _initialize_affine_weight]."""
CUDA = Platform(name="cuda", device="GPU", default_backend="torch", is_cuda=True)
"""Any degrees, any groups."""
HOST = replace(CUDA, name="cpu", device="process", is_cuda=False, is_host=True)
OTHER = replace(CUDA, name="none", device="device", is_cuda=False)
"""All that has no platform of its own here; CPUs and GPUs in older plans."""

PLATFORMS: dict[str, Platform] = {platform.name: platform for platform in (TRN1, TRN2, TRN3, CUDA, HOST, OTHER)}
"""By name."""
