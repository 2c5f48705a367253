"""Read and write NxD's checkpoints: model/dp_rank_00_tp_rank_TT_pp_rank_PP.pt for each rank of a replica.

They are plain .pt files, or serialized as torch-xla does it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from autoshard.checkpoint.boxes import Box
from autoshard.conversion.dtypes import WIDTHS
from autoshard.conversion.huggingface import CARRIED, CONFIG, common_dtype
from autoshard.conversion.nxd_layout import (
    ADJACENT,
    INTERLEAVED,
    NxdLayout,
    check_model_type,
    is_as_published,
    is_of_experts,
)
from autoshard.conversion.output_file import OutputFile, plain_file
from autoshard.conversion.places import TensorLayout, restrided
from autoshard.conversion.regions import Array, OpenFiles, Region, read_box
from autoshard.conversion.source import Source
from autoshard.conversion.torch_file import state_file, xser_files
from autoshard.conversion.torch_read import FoundTensor, read_state
from autoshard.errors import AutoshardError
from autoshard.models.weights import parameter_dims
from autoshard.plans.plan import Plan
from autoshard.spec.model import ModelSpec

MODEL, DONE, CHECKPOINT = "model", "done", "checkpoint"
"""A folder, and the markers with which NxD knows a whole checkpoint."""
_NAME = re.compile(r"dp_rank_(\d+)(?:_ep_rank_(\d+))?_tp_rank_(\d+)_pp_rank_(\d+)\.pt")
CONSTANTS = re.compile(r".*rotary_emb\.inv_freq")
_EMBEDDINGS = ("embed_tokens.", "embed_in.", ".wte.")
Rank = tuple[int, int, int]
"""(expert, tensor, pipeline) rank."""
States = Mapping[Rank, Mapping[str, FoundTensor]]
"""By rank the tensors of its file, by name."""


@dataclass(frozen=True)
class NxdOptions:
    """Options of NxD's files.

    qkv: one of QKV_STYLES. xser: whether each tensor is a file of its own. kv_size_multiplier: copies of each key-value
    head; None is the smallest that will do.
    """

    qkv: str = "gqa"
    xser: bool = False
    kv_size_multiplier: int | None = None


PLAIN = NxdOptions()


def nxd_files(plan: Plan, dtypes: Mapping[str, str], options: NxdOptions) -> list[OutputFile]:
    """The files that NxD's load_checkpoint reads for the degrees, pipeline cuts and machine of a plan; of adapters it
    has none.

    dtypes: by parameter. Raises AutoshardError for a tensor whose parameters differ in dtype.
    """
    strategy, model = plan.strategy, plan.model.without_adapters
    multiplier = options.kv_size_multiplier or max(1, strategy.tp // model.num_key_value_heads)
    order = INTERLEAVED if plan.cluster.platform.kv_heads_innermost else ADJACENT
    layout = NxdLayout(model, strategy.tp, strategy.ep, multiplier, order, options.qkv)
    files = [plain_file(Path(name), b"1") for name in (CHECKPOINT, DONE)]
    stage_of = {name: _pipeline_rank(plan, name) for name in layout.tensors(0, 0)}
    for tp_rank in range(strategy.tp):
        for ep_rank in range(strategy.ep):
            tensors = layout.tensors(tp_rank, ep_rank)
            for pp_rank in range(strategy.pp):
                held = [one for name, one in tensors.items() if stage_of[name] == pp_rank]
                path = Path(MODEL) / file_name(tp_rank, pp_rank, ep_rank if strategy.ep > 1 else None)
                typed = [(one, common_dtype(one, dtypes)) for one in held]
                if options.xser:
                    of_experts = [is_of_experts(one.name) for one in held]
                    own = [experts or ep_rank == 0 for experts in of_experts]
                    files += xser_files(path, typed, own, of_experts)
                else:
                    files.append(state_file(path, typed))
    return files


def file_name(tp_rank: int, pp_rank: int, ep_rank: int | None = None) -> str:
    experts = "" if ep_rank is None else f"_ep_rank_{ep_rank:02d}"
    return f"dp_rank_00{experts}_tp_rank_{tp_rank:02d}_pp_rank_{pp_rank:02d}.pt"


def _pipeline_rank(plan: Plan, tensor: str) -> int:
    """The pipeline rank that has the tensor.

    A block's tensor is where the block is, the embedding on the first rank, the last norm and the head on the last
    stage's.
    """
    block = re.search(r"\.(?:layers|blocks)\.(\d+)\.", tensor)
    last = len(plan.stages) - 1
    if block is not None:
        index = next(stage.index for stage in plan.stages if int(block[1]) in stage.layers)
    else:
        index = 0 if any(name in tensor for name in _EMBEDDINGS) else last
    return plan.stages[index].pipeline_rank


def nxd_folder(folder: Path) -> Path | None:
    """The folder with the ranks' files; None if there is none.

    It is this folder, `model` in it, or `model` in its newest whole checkpoint.
    """
    whole = [done.parent for done in folder.glob(f"*/{DONE}")]
    newest = max(whole, key=lambda tag: (tag / DONE).stat().st_mtime_ns, default=folder)
    for path in (folder / MODEL, folder, newest / MODEL):
        if path.is_dir() and any(_NAME.fullmatch(one.name) for one in path.iterdir()):
            return path
    return None


def nxd_source(folder: Path, model: ModelSpec) -> Source:
    """The weights in the ranks' files in `folder`.

    Raises AutoshardError naming the file and the tensor that are missing or wrong.
    """
    return weights_of(folder, *open_ranks(folder, model))


def open_ranks(folder: Path, model: ModelSpec) -> tuple[NxdLayout, States]:
    """The layout of the model over the ranks, and the tensors that their files have.

    Raises AutoshardError as `nxd_source`.
    """
    states = _states(folder)
    tp, ep = 1 + max(tp for _, tp, _ in states), 1 + max(ep for ep, _, _ in states)
    return _found_layout(folder, model, tp, ep, states), states


def weights_of(folder: Path, layout: NxdLayout, states: States) -> Source:
    """The weights in the files that `open_ranks` opened. layout, states: its results.

    Raises AutoshardError naming a tensor that is missing, unknown or of another shape or dtype.
    """
    dtypes: dict[str, str] = {}
    regions: dict[str, dict[Box, Region]] = {}
    for ep_rank in range(layout.ep):
        for tp_rank in range(layout.tp):
            for found, held in _tensors(folder, layout, states, ep_rank, tp_rank):
                for place in held.places:
                    if dtypes.setdefault(place.parameter, found.dtype) != found.dtype:
                        raise AutoshardError(
                            f"{found.path}: {held.name} has dtype {found.dtype}, in other ranks' files "
                            f"{dtypes[place.parameter]}"
                        )
                    region = Region.of(place, found.path, held.name, found.offset, WIDTHS[found.dtype])
                    regions.setdefault(place.parameter, {}).setdefault(place.box, region)  # replicas hold the same
    beside = folder.parent if folder.name == MODEL else folder
    carried = tuple(path for name in (CONFIG, *CARRIED) if (path := beside / name).is_file())
    places = {name: tuple(held.values()) for name, held in regions.items()}
    return Source(f"the NxD checkpoint {folder}", layout.model, dtypes, places, carried, place=folder)


def _tensors(
    folder: Path, layout: NxdLayout, states: States, ep_rank: int, tp_rank: int
) -> Iterator[tuple[FoundTensor, TensorLayout]]:
    """(tensor in a file, its place in the model) for each tensor of a tensor- and expert-parallel rank.

    Raises AutoshardError for a tensor that is missing, or that the model does not have.
    """
    expected = layout.tensors(tp_rank, ep_rank)
    tensors = dict(states_of_rank(states, ep_rank, tp_rank))
    name_of_model = layout.model.name
    for name, tensor in tensors.items():
        if name in expected:
            yield tensor, _checked(tensor, expected[name])
        elif not CONSTANTS.fullmatch(name):
            raise AutoshardError(f"{tensor.path} has tensor {name[:200]}, which {name_of_model} does not have")
    for name in expected:
        again = layout.model.tie_word_embeddings and name == "lm_head.weight"
        elsewhere = ep_rank > 0 and not is_of_experts(name)
        if name not in tensors and not again and not elsewhere:
            raise AutoshardError(
                f"{folder} has no tensor {name} of tensor-parallel rank {tp_rank}, which {name_of_model} needs"
            )


def _states(folder: Path) -> dict[Rank, dict[str, FoundTensor]]:
    """The tensors in the file of every (expert, tensor, pipeline) rank, by name.

    Raises AutoshardError if a file is missing.
    """
    paths: dict[Rank, Path] = {}
    for path in sorted(folder.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match is not None and int(match[1]) == 0:
            paths[int(match[2] or 0), int(match[3]), int(match[4])] = path
    if not paths:
        raise AutoshardError(f"{folder} has no files of data-parallel rank 0: {file_name(0, 0)} and so on")
    experts = any("_ep_rank_" in path.name for path in paths.values())
    sizes = [1 + max(rank[index] for rank in paths) for index in range(3)]
    for ep_rank in range(sizes[0]):
        for tp_rank in range(sizes[1]):
            for pp_rank in range(sizes[2]):
                if (ep_rank, tp_rank, pp_rank) not in paths:
                    name = file_name(tp_rank, pp_rank, ep_rank if experts else None)
                    raise AutoshardError(f"{folder / name} is missing: the folder has tp={sizes[1]} pp={sizes[2]}")
    return {rank: read_state(path) for rank, path in paths.items()}


def states_of_rank(states: States, ep_rank: int, tp_rank: int) -> list[tuple[str, FoundTensor]]:
    """(name, tensor) of all pipeline ranks of one tensor- and expert-parallel rank."""
    return [item for (ep, tp, _), state in states.items() if (ep, tp) == (ep_rank, tp_rank) for item in state.items()]


def _checked(found: FoundTensor, expected: TensorLayout) -> TensorLayout:
    if found.shape != expected.shape:
        raise AutoshardError(
            f"{found.path}: {expected.name} has shape {list(found.shape)}; the model's is {list(expected.shape)}"
        )
    places = tuple(restrided(place, found.shape, found.strides) for place in expected.places)
    return replace(expected, places=places)


def _found_layout(folder: Path, model: ModelSpec, tp: int, ep: int, states: States) -> NxdLayout:
    """The layout of queries, keys and values, by the names and shapes of the first block's tensors."""
    first = dict(states_of_rank(states, 0, 0))
    styles = {
        "gqa": "qkv_proj.weight_k",
        "fused": "qkv_proj.weight_qkv",
        "separate": "k_proj.weight",
        "coalesced": "qkv_proj.weight",
    }
    check_model_type(model)
    if is_as_published(model):
        return NxdLayout(model, tp, ep, 1, INTERLEAVED, "separate")
    prefix = _first_attention(model)
    style = next((style for style, name in styles.items() if prefix + name in first), None)
    if style is None:
        raise AutoshardError(
            f"{folder} has no tensor {prefix}{styles['gqa']}, nor a fused one, which {model.name} needs"
        )
    multiplier = 1
    if style in ("gqa", "fused"):
        tensor = first[prefix + styles[style]]
        rows = tensor.shape[0] if tensor.shape else 0
        queries = model.num_attention_heads * model.head_dim if style == "fused" else 0
        copies = 1 if style == "gqa" else 2
        held, single = rows * tp - queries, copies * model.num_key_value_heads * model.head_dim
        if held <= 0 or held % single:
            raise AutoshardError(
                f"{tensor.path}: {prefix}{styles[style]} has shape {list(tensor.shape)}, which tp={tp} does not make "
                f"of {model.num_key_value_heads} key-value heads of {model.head_dim}"
            )
        multiplier = held // single
    layout = NxdLayout(model, tp, ep, multiplier, INTERLEAVED, style)
    return replace(layout, order=_order(layout, states)) if multiplier > 1 else layout


def _first_attention(model: ModelSpec) -> str:
    """The prefix of names in the first block's attention, such as "model.layers.0.self_attn."; NxD's begin alike."""
    keys = "k_proj.weight"
    return next(name for name in parameter_dims(model)[0] if name.endswith(keys)).removesuffix(keys)


def _order(layout: NxdLayout, states: States) -> str:
    """How the first block's keys repeat, K0 K1 K0 K1 or K0 K0 K1 K1; the keys themselves are compared."""
    name = f"{_first_attention(layout.model)}k_proj.weight"
    orders = [order for order in (INTERLEAVED, ADJACENT) if _repeats(replace(layout, order=order), states, name)]
    if not orders:
        raise AutoshardError(
            f"the copies of the key-value heads differ (kv_size_multiplier={layout.kv_size_multiplier}): "
            "the files are damaged, or not of one checkpoint"
        )
    if len(orders) > 1 and layout.model.num_key_value_heads > 1:
        raise AutoshardError("the key-value heads of the first block are all alike: their order cannot be told")
    return orders[0]


def _repeats(layout: NxdLayout, states: States, parameter: str) -> bool:
    """Whether all copies of a parameter's heads are equal if they lie in the order of `layout`."""
    import numpy as np

    first: dict[object, Array] = {}
    files = OpenFiles()
    try:
        for tp_rank in range(layout.tp):
            tensors = dict(states_of_rank(states, 0, tp_rank))
            for name, expected in layout.tensors(tp_rank, 0).items():
                if name in tensors and any(place.parameter == parameter for place in expected.places):
                    for place in _checked(tensors[name], expected).places:
                        if place.parameter == parameter:
                            where = tensors[name]
                            region = Region.of(place, where.path, name, where.offset, WIDTHS[where.dtype])
                            values = np.empty(place.box.sizes, f"u{WIDTHS[where.dtype]}")
                            read_box(files[where.path], region, place.box, values)
                            if not np.array_equal(first.setdefault(place.box, values), values):
                                return False
    finally:
        files.close()
    return True
