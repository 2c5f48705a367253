"""Layouts that the nxd backend must train as the torch backend does. Imported by the processes too."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from autoshard.cost.estimate import estimate
from autoshard.layout.strategy import Strategy
from autoshard.plans.plan import Plan, make_plan
from autoshard.runtime.rehearse import local_cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import Precision, TrainingSpec, load_precision
from benchmarks.random_layouts import legal
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import strategy

FP32 = load_precision("fp32")
MASTERS = Precision("FP32 under FP64 masters", "float32", "float32", "float64", "float64", "float64", "float64")
"""Weights rounded from wider masters, gradients summed wider, as with bf16 and FP32, but nearer than 1e-5."""

CASES: dict[int, dict[str, dict[str, Any]]] = {
    1: {
        "one process": {},
        "recompute core attention and mlp": {"recompute": "core_attention+mlp"},
        "tied gpt2": {"model": "gpt2", "kernel": "plain"},
        "mixture": {"model": "mixtral"},
        "dbrx": {"model": "dbrx"},
        "adapters, full recompute": {"model": "llama, adapters", "recompute": "full"},
        "adapters, mixture": {"model": "qwen2 moe, adapters"},
    },
    2: {
        "tp2": {"tp": 2},
        "tp2, no sequence parallelism": {"tp": 2, "sp": False},
        "tp2, no ZeRO-1": {"tp": 2, "zero": 0},
        "tp2, recompute core attention": {"tp": 2, "recompute": "core_attention"},
        "tp2, recompute core attention and mlp": {"tp": 2, "recompute": "core_attention+mlp"},
        "tp2, full recompute": {"tp": 2, "recompute": "full"},
        "tp2, one key-value head": {"model": "one kv head", "tp": 2},
        "tp2, one key-value head, no ZeRO-1": {"model": "one kv head", "tp": 2, "zero": 0},
        "tp2, mistral": {"model": "mistral", "tp": 2},
        "tp2, gpt2": {"model": "gpt2", "tp": 2, "kernel": "plain"},
        "tp2, gpt neox": {"model": "gpt neox", "tp": 2},
        "tp2, qwen2": {"model": "qwen2", "tp": 2},
        "tp2, qwen3": {"model": "qwen3", "tp": 2},
        "tp2, qwen3, no sequence parallelism": {"model": "qwen3", "tp": 2, "sp": False},
        "tp2, mixtral": {"model": "mixtral", "tp": 2},
        "tp2, qwen2 moe": {"model": "qwen2 moe", "tp": 2},
        "tp2, dbrx": {"model": "dbrx", "tp": 2},
        "tp2, dbrx, no sequence parallelism, recompute": {"model": "dbrx", "tp": 2, "sp": False, "recompute": "full"},
        "ep2": {"model": "mixtral", "dp": 2, "ep": 2},
        "ep2, dbrx": {"model": "dbrx", "dp": 2, "ep": 2},
        "pp2, dbrx": {"model": "dbrx", "pp": 2},
        "dp2": {"dp": 2},
        "dp2, no ZeRO-1": {"dp": 2, "zero": 0},
        "cp2": {"cp": 2, "attention": "ring"},
        "pp2": {"pp": 2},
        "pp2, no ZeRO-1": {"pp": 2, "zero": 0},
        "pp2, uneven cuts": {"pp": 2, "layers": (1, 3)},
        "pp2, interleaved": {"pp": 2, "vpp": 2},
        "pp2, full recompute": {"pp": 2, "recompute": "full"},
        "pp2, one stage recomputes": {"pp": 2, "recompute": ("full", "none"), "layers": (3, 1)},
        "tp2, recompute of some operators": {"tp": 2, "recompute": "core_attention+mlp.act_fn"},
        "pp2, interleaved, sets by virtual stage": {
            "pp": 2,
            "vpp": 2,
            "recompute": ("full", "core_attention", "core_attention+mlp", "none"),
        },
        "pp2, interleaved, two microbatches": {"pp": 2, "vpp": 2, "mbs": 4},
        "tp2, adapters": {"model": "llama, adapters", "tp": 2},
        "tp2, adapters, no sequence parallelism": {"model": "llama, adapters", "tp": 2, "sp": False},
        "tp2, adapters, no ZeRO-1": {"model": "llama, adapters", "tp": 2, "zero": 0},
        "tp2, adapters, recompute": {"model": "llama, adapters", "tp": 2, "recompute": "core_attention+mlp"},
        "tp2, adapters, one key-value head": {"model": "llama, adapters of one kv head", "tp": 2},
        "tp2, adapters, mixture": {"model": "qwen2 moe, adapters", "tp": 2},
        "tp2, adapters beside shared keys": {"model": "qwen2 moe, adapters of one kv head", "tp": 2},
        "pp2, adapters": {"model": "llama, adapters", "pp": 2},
        "pp2, adapters, interleaved, full recompute": {
            "model": "llama, adapters",
            "pp": 2,
            "vpp": 2,
            "recompute": "full",
        },
        "dp2, adapters, no ZeRO-1": {"model": "llama, adapters", "dp": 2, "zero": 0},
        "cp2, adapters": {"model": "llama, adapters", "cp": 2, "attention": "ring"},
    },
    4: {
        "tp4": {"tp": 4},
        "tp4, two key-value heads": {"model": "few kv heads", "tp": 4},
        "tp4, one key-value head, biases": {"model": "qwen2 one kv head", "tp": 4},
        "pp4": {"pp": 4},
        "tp2 x pp2": {"tp": 2, "pp": 2},
        "tp2 x pp2, one key-value head": {"model": "one kv head", "tp": 2, "pp": 2},
        "dp4": {"dp": 4},
        "dp2 x pp2": {"dp": 2, "pp": 2},
        "dp2 x pp2, interleaved, recompute": {"dp": 2, "pp": 2, "vpp": 2, "recompute": "core_attention+mlp"},
        "tp2 x dp2, one key-value head": {"model": "one kv head", "tp": 2, "dp": 2},
        "tp2 x cp2": {"tp": 2, "cp": 2, "attention": "ring"},
        "tp2 x ep2": {"model": "mixtral", "tp": 2, "dp": 2, "ep": 2},
        "tp2 x ep2, dbrx": {"model": "dbrx", "tp": 2, "dp": 2, "ep": 2},
        "tp2 x ep2, one key-value head": {"model": "mixtral one kv head", "tp": 2, "dp": 2, "ep": 2},
        "tp2 x ep2, one key-value head, no ZeRO-1": {
            "model": "mixtral one kv head",
            "tp": 2,
            "dp": 2,
            "ep": 2,
            "zero": 0,
        },
        "ep2 x dp2, no ZeRO-1": {"model": "mixtral", "dp": 4, "ep": 2, "zero": 0},
        "ep2 x pp2": {"model": "mixtral", "dp": 2, "ep": 2, "pp": 2},
        "ep2 x pp2, blocks without experts on both ranks": {"model": "dense and sparse", "dp": 2, "ep": 2, "pp": 2},
        "tp2 x pp2, adapters": {"model": "llama, adapters", "tp": 2, "pp": 2},
        "tp2 x dp2, adapters, masters": {"model": "llama, adapters", "tp": 2, "dp": 2, "precision": MASTERS},
        "tp4, adapters, two key-value heads": {"model": "llama, adapters of two kv heads", "tp": 4},
        "pp2 x dp2, masters": {"pp": 2, "dp": 2, "precision": MASTERS},
        "tp2 x dp2, masters": {"tp": 2, "dp": 2, "precision": MASTERS},
        "tp2 x dp2, bf16": {"tp": 2, "dp": 2, "precision": load_precision("mixed_precision")},
    },
}
"""World size -> name -> what differs from one process of a small Llama in FP32."""

RESHARDED: dict[str, list[tuple[str, dict[str, Any]]]] = {}
RESHARDED["few kv heads"] = [
    ("nxd", {"tp": 4}),
    ("nxd", {"pp": 4}),
    ("nxd", {"dp": 4}),
    ("nxd", {"dp": 4, "zero": 0}),
    ("nxd", {"tp": 2, "pp": 2}),
    ("nxd", {"tp": 2, "dp": 2}),
    ("nxd", {"tp": 2, "dp": 2, "zero": 0, "sp": False}),
    ("nxd", {"dp": 2, "pp": 2}),
    ("nxd", {"dp": 2, "pp": 2, "vpp": 2}),
    ("nxd", {"dp": 2, "pp": 2, "layers": (1, 3)}),
    ("nxd", {"tp": 2, "cp": 2, "attention": "ring"}),
    ("nxd", {"pp": 2, "cp": 2, "attention": "ring"}),
    ("torch", {"tp": 4}),
    ("torch", {"dp": 2, "pp": 2, "layers": (3, 1)}),
    ("torch", {"tp": 2, "cp": 2}),
]
RESHARDED["qwen2 moe, adapters"] = [
    ("nxd", {"tp": 4}),
    ("nxd", {"tp": 2, "dp": 2}),
    ("nxd", {"dp": 2, "pp": 2, "layers": (1, 3)}),
    ("nxd", {"dp": 4, "zero": 0}),
    ("torch", {"tp": 2, "dp": 2, "ep": 2, "zero": 3}),
]
"""Model -> (backend, layout) of 4 processes whose checkpoints are read by each other."""

SEQUENCE_LENGTH, GLOBAL_BATCH_SIZE = 32, 8


def plan_of(model: str = "llama", precision: Precision = FP32, **layout: Any) -> Plan:
    """A small plan on processes of this machine."""
    spec, chosen = _model(model), strategy(**layout)
    return on_this_machine(spec, precision, chosen)


def random_plan(seed: int, processes: int) -> Plan:
    """A small plan of a layout that nobody chose, on processes of this machine; the same for the same seed."""
    return legal(Random(seed), MODELS, local_cluster(processes), SEQUENCE_LENGTH, FP32, "nxd")[1]


def on_this_machine(spec: ModelSpec, precision: Precision, chosen: Strategy) -> Plan:
    training = TrainingSpec(SEQUENCE_LENGTH, GLOBAL_BATCH_SIZE, precision, 2.0)
    cluster = local_cluster(chosen.world_size)
    return make_plan(spec, training, cluster, "nxd", chosen, estimate(spec, training, cluster, chosen))


KEY_VALUE_HEADS = {" one kv head": 1, " of one kv head": 1, " of two kv heads": 2}


def _model(name: str) -> ModelSpec:
    if name in MODELS:
        return MODELS[name]
    end = max((end for end in KEY_VALUE_HEADS if name.endswith(end)), key=len)
    return replace(MODELS[name.removesuffix(end)], num_key_value_heads=KEY_VALUE_HEADS[end])
