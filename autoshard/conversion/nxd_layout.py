"""Describe how NxD's layers hold parameters: names, the dims of which a rank has a part, and fused matrices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from autoshard.checkpoint.boxes import Box
from autoshard.conversion.forms import QKV_STYLES
from autoshard.conversion.places import Place, TensorLayout, part_shape, place_of
from autoshard.errors import AutoshardError
from autoshard.models.weight_names import Part
from autoshard.models.weights import checkpoint_parts, parameter_dims
from autoshard.spec.model import ModelSpec

MODEL_TYPES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gpt_neox", "dbrx")
INTERLEAVED, ADJACENT = "interleaved", "adjacent"
"""Key-value heads beyond those that the model has: K0 K1 K0 K1 as on trn1, or K0 K0 K1 K1 as on trn2.

NxD's own converter 0.18.0 repeats them as on trn1 for trn2 too, beside query heads as its layers have them on trn2."""
_EXPERTS = {"w1": 0, "w3": 1, "v1": 1, "w2": None, "gate_proj": 0, "up_proj": 1, "down_proj": None}
"""Place in the fused matrix of an expert; None: by itself."""
_WIDTHS = ("ffn", "dense_ffn")
"""Dims of which each tensor-parallel rank has a part: the width of an MLP or of experts, and of blocks without
experts among others."""
_MIXTURES = {".block_sparse_moe": ".mlp", ".mlp": ".mlp", ".ffn": ".ffn"}
"""Name of a block's mixture in ours -> in NxD's examples of Mixtral and DBRX."""


def check_model_type(model: ModelSpec) -> None:
    """Raises AutoshardError for a model whose parameters NxD has no layers for."""
    if model.model_type not in MODEL_TYPES:
        raise AutoshardError(
            f"model_type={model.model_type} of {model.name} has no layout for NxD; {', '.join(MODEL_TYPES)} have"
        )


def is_as_published(model: ModelSpec) -> bool:
    """Whether NxD's example of the family has the names and fused matrices of the Hugging Face checkpoint, and a table
    of embedding and head once: that of GPT-NeoX."""
    return model.model_type == "gpt_neox"


@dataclass(frozen=True)
class NxdLayout:
    """The layout of a model over the ranks of one replica of NxD.

    kv_size_multiplier: copies of each key-value head. order: in which these copies lie.
    """

    model: ModelSpec
    tp: int
    ep: int
    kv_size_multiplier: int
    order: str
    qkv: str

    def __post_init__(self) -> None:
        model, tp, multiplier = self.model, self.tp, self.kv_size_multiplier
        if self.qkv not in QKV_STYLES:
            raise AutoshardError(f"qkv={self.qkv!r} is not one of: {', '.join(QKV_STYLES)}")
        check_model_type(model)
        heads, copies = model.num_key_value_heads, model.num_key_value_heads * multiplier
        if copies % tp or model.num_query_groups % multiplier:
            raise AutoshardError(
                f"kv_size_multiplier={multiplier}: tp={tp} must divide {heads} x {multiplier} key-value heads, and "
                f"{multiplier} the {model.num_query_groups} query heads of each"
            )
        if multiplier > 1 and (is_as_published(model) or self.qkv in ("separate", "coalesced")):
            raise AutoshardError(f"kv_size_multiplier={multiplier} needs qkv=gqa or fused, not {self.qkv}")
        if self.qkv == "coalesced" and model.num_query_groups > 1:
            raise AutoshardError(f"qkv=coalesced is for models without grouped queries; {model.name} has them")
        for name, size, ranks in (
            ("tp", model.intermediate_size, tp),
            ("tp", model.dense_intermediate_size, tp),
            ("ep", model.num_local_experts, self.ep),
        ):
            if size % ranks:
                raise AutoshardError(f"{name}={ranks} must divide {size} of {model.name}")

    @cached_property
    def _global(self) -> tuple[dict[str, tuple[str, ...]], dict[str, int]]:
        return parameter_dims(self.model)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parameters' parts of a rank's tensors, in the order of the model; parts of one tensor lie in
        this order.
        """
        dims, _ = self._global
        if is_as_published(self.model):
            published = checkpoint_parts(self.model)
            return tuple(sorted(published, key=lambda part: list(dims).index(part.parameter)))
        return tuple(self._part(name) for name in dims)

    def tensors(self, tp_rank: int, ep_rank: int) -> dict[str, TensorLayout]:
        """The tensors of a tensor- and expert-parallel rank, by name, for all pipeline ranks together."""
        held: dict[str, list[Part]] = {}
        for part in self.parts:
            held.setdefault(part.tensor, []).append(part)
        tensors = {}
        for name, parts in held.items():
            rows = [part_shape(part, self._sizes_on_rank(part.parameter)) for part in parts]
            places, start = [], 0
            for part, shape in zip(parts, rows, strict=True):
                sizes, dims = self._sizes_on_rank(part.parameter), self._global[0][part.parameter]
                assert prod(shape) == part.parts * prod(sizes[dim] for dim in dims), f"{part} does not hold it whole"
                places += self._places(part, tp_rank, ep_rank, start)
                start += prod(shape) if part.parts == 1 else 0
            first = sum(shape[0] for shape in rows) if parts[0].parts == 1 else rows[0][0]
            tensors[name] = TensorLayout(name, (first, *rows[0][1:]), tuple(places))
        if self.model.tie_word_embeddings and not is_as_published(self.model):
            embedding = tensors["model.embed_tokens.weight"]
            tensors["lm_head.weight"] = replace(embedding, name="lm_head.weight")
        return tensors

    def _sizes_on_rank(self, parameter: str) -> dict[str, int]:
        """Size on a rank of each dim of a parameter. A router knows all experts."""
        dims, sizes = self._global
        if "ffn" in dims[parameter]:
            return self._local_sizes
        return self._local_sizes | {dim: sizes[dim] for dim in ("expert",) if dim in sizes}

    @cached_property
    def _local_sizes(self) -> dict[str, int]:
        _, sizes = self._global
        divided = {**dict.fromkeys(_WIDTHS, self.tp), "expert": self.ep, "group": self.kv_size_multiplier}
        local = {dim: size // divided.get(dim, 1) for dim, size in sizes.items()}
        local["vocab"] = -(-sizes["vocab"] // self.tp)
        local["kvhead"] = sizes["kvhead"] * self.kv_size_multiplier // self.tp
        return local

    def _places(self, part: Part, tp_rank: int, ep_rank: int, start: int) -> list[Place]:
        """The places in a tensor where a rank holds its part of a parameter.

        start: elements of the tensor before this part.
        """
        dims, sizes = self._global
        own_dims, mine = dims[part.parameter], self._sizes_on_rank(part.parameter)
        whole = Box((0,) * len(own_dims), tuple(sizes[dim] for dim in own_dims))
        at = {dim: tp_rank * mine[dim] for dim in (*_WIDTHS, "vocab") if dim in mine}
        if "ffn" in own_dims and self.model.is_moe:
            at["expert"] = ep_rank * mine["expert"]
        places = []
        for local, kvhead, group, heads in self._slots(tp_rank):
            at |= {"kvhead": kvhead, "group": group * mine["group"]}
            lengths = mine | {"kvhead": heads}
            box = Box(tuple(at.get(dim, 0) for dim in own_dims), tuple(lengths[dim] for dim in own_dims)).common(whole)
            origin = tuple(local if dim == "kvhead" else 0 for dim in own_dims)
            if box is not None:
                places.append(place_of(part, own_dims, mine, box, origin, start))
            if "kvhead" not in own_dims:
                break
        return places

    def _slots(self, tp_rank: int) -> list[tuple[int, int, int, int]]:
        """The key-value heads on a rank: (place on the rank, head, part of its query heads, how many heads in
        a row).
        """
        heads, count = self.model.num_key_value_heads, self._local_sizes["kvhead"]
        multiplier = self.kv_size_multiplier
        if multiplier == 1:
            return [(0, tp_rank * count, 0, count)]
        slots = range(tp_rank * count, (tp_rank + 1) * count)
        if self.order == INTERLEAVED:
            return [(index, slot % heads, slot // heads, 1) for index, slot in enumerate(slots)]
        return [(index, slot // multiplier, slot % multiplier, 1) for index, slot in enumerate(slots)]

    def _part(self, name: str) -> Part:
        """The tensor and the form in which a rank holds a parameter of the Llama form."""
        dims = self._global[0][name]
        parents, kind = name.rpartition(".")[0], name.rpartition(".")[2]
        module, _, last = parents.rpartition(".")
        flat = " ".join(dims)
        heads = "(kvhead group headdim)" if "group" in dims else "(kvhead headdim)"
        if last in ("q_proj", "k_proj", "v_proj"):
            rows = heads if kind == "bias" else f"{heads} embed"
            return Part(f"{module}.{self._qkv_name(last[0], kind)}", rows, name)
        inside, is_expert, _ = module.partition(".experts")
        mixture = next(
            (inside.removesuffix(own) + theirs for own, theirs in _MIXTURES.items() if inside.endswith(own)), ""
        )
        if is_expert:
            fused = _EXPERTS[last]
            matrix = f"{mixture}.expert_mlps.mlp_op"
            if fused is None:
                return Part(f"{matrix}.down_proj.weight", "expert ffn embed", name)
            return Part(f"{matrix}.gate_up_proj.weight", "expert embed (part ffn)", name, fused, 2)
        if last in ("gate_proj", "up_proj"):
            rows = " ".join([f"(part {dims[0]})", *dims[1:]])
            return Part(f"{module}.gate_up_proj.{kind}", rows, name, int(last == "up_proj"), 2)
        if last == "gate":
            return Part(f"{mixture}.router.linear_router.weight", flat, name)
        if last == "layer" and module.endswith(".router"):
            return Part(f"{module}.linear_router.weight", flat, name)
        if last in ("o_proj", "out_proj") and kind == "weight":
            return Part(f"{module}.o_proj.weight", f"embed {heads}", name)
        return Part(name, flat, name)

    def _qkv_name(self, letter: str, kind: str) -> str:
        match self.qkv:
            case "gqa":
                return f"qkv_proj.{kind}_{letter}"
            case "fused":
                return f"qkv_proj.{kind}_qkv"
            case "coalesced":
                return f"qkv_proj.{kind}"
        return f"{letter}_proj.{kind}"


def is_of_experts(name: str) -> bool:
    """Whether ranks of an expert-parallel group hold different parts of the tensor."""
    return ".expert_mlps." in name
