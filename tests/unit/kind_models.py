"""Small random models whose blocks are of several kinds, and layouts of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from autoshard.backends.rules import Draft, Problem
from autoshard.models.registry import load_model
from autoshard.planner.grid.table import Table
from autoshard.spec.cluster import load_cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec, load_precision

SETS = ("none", "mlp", "full")
FindLayout = Callable[[int, tuple[str, ...]], tuple[Problem, Draft]]
"""Makes a problem with one layout of it. Arguments as of `random_layout`."""


def random_model(choose: random.Random, layers: int) -> ModelSpec:
    """Dense blocks among mixtures, short windows among long ones, or both: two to four kinds."""
    mixture, windows = choose.choice([(True, False), (False, True), (True, True)])
    model = load_model("qwen3-30b-a3b" if mixture else "qwen3-8b")
    hidden, vocab, width = choose.choice([512, 1024]), choose.choice([4096, 32768]), choose.choice([256, 768])
    model = replace(model, num_hidden_layers=layers, hidden_size=hidden, vocab_size=vocab, intermediate_size=width)
    if mixture:
        types = ["dense"] * choose.randint(1, layers - 1)
        types += ["sparse"] * (layers - len(types))
        if choose.random() < 0.4:
            choose.shuffle(types)
        dense = choose.choice([512, 4096])
        model = replace(model, mlp_layer_types=tuple(types), dense_intermediate_size=dense)
    if windows:
        attention = ["full_attention", "sliding_attention", *choose.choices(WINDOWS, k=layers - 2)]
        choose.shuffle(attention)
        model = replace(model, layer_types=tuple(attention), sliding_window=64)
    return model


WINDOWS = ("full_attention", "sliding_attention")


def random_layout(seed: int, schedules: tuple[str, ...], most_extra: int = 4) -> tuple[Problem, Draft]:
    """A problem with one layout of it, whose cut and sets are open. most_extra: blocks beside one a virtual stage."""
    choose = random.Random(seed)
    schedule = choose.choice(schedules)
    pp = choose.choice([2, 2, 3, 3, 4])
    vpp = 2 if schedule == "interleaved" else 1
    layers = pp * vpp + choose.randint(1 if vpp == 1 else 0, most_extra)
    if vpp > 1:
        pp = choose.choice([2, 2, 3, 4])
        layers = min(12, pp * vpp + choose.choice([0, 1, 2, 4]))
    model = random_model(choose, max(3, layers))
    size = choose.choice([1, 2])
    m = pp * choose.choice([1, 2, 3, 8]) if vpp > 1 else choose.choice([1, 2, 3, 4, 8, 32])
    precision = choose.choice(["mixed_precision", "mixed_precision", "bf16_sr"])
    training = TrainingSpec(choose.choice([128, 1024]), 2 * size * m, load_precision(precision))
    cluster = load_cluster("trn1.32xlarge", 1)
    cluster = replace(cluster, devices_per_node=2 * pp, intra_node=((2 * pp, cluster.intra_node[-1][1]),))
    zero = 1 if schedule == "zero_bubble" else choose.choice([0, 1, 1, 2, 3])
    ep = choose.choice([1, 2]) if model.is_moe else 1
    draft = Draft(1, pp, 2, 1, ep, size, vpp, schedule, "flash", sequence_parallel=False, zero=zero)
    return Problem(model, training, cluster, "torch"), draft


def random_wide_layout(seed: int, schedules: tuple[str, ...]) -> tuple[Problem, Draft]:
    """As `random_layout`, of quantised products but for those of some blocks at either end of the model; half of the
    models have blocks that are built alike."""
    problem, draft = random_layout(seed, schedules)
    choose, model, layers = random.Random(seed + 1000), problem.model, problem.model.num_hidden_layers
    if choose.random() < 0.5:
        stages = draft.pp * draft.num_virtual_stages
        layers = layers if draft.num_virtual_stages == 1 else stages * round(layers / stages)
        model = replace(
            load_model("qwen3-8b"),
            num_hidden_layers=layers,
            hidden_size=512,
            vocab_size=4096,
            intermediate_size=768,
            tie_word_embeddings=choose.random() < 0.3,
        )
        draft = draft._replace(ep=1)
    first = choose.randint(0, layers - 1)
    last = choose.randint(first == 0, layers - first - 1)
    precision = load_precision(choose.choice(["fp8", "nvfp4", "mxfp8"]))
    training = replace(problem.training, precision=precision, unquantized_first=first, unquantized_last=last)
    cluster, ranks = load_cluster("b200-180gb", 1), problem.cluster.devices_per_node
    cluster = replace(cluster, devices_per_node=ranks, intra_node=((ranks, cluster.intra_node[-1][1]),))
    return Problem(model, training, cluster, "torch"), draft


def one_layout(model: ModelSpec, pp: int, m: int, zero: int, schedule: str, ep: int) -> tuple[Problem, Draft]:
    """A problem with one layout of a model over two replicas, whose cut and sets are open. m: microbatches."""
    cluster = load_cluster("trn1.32xlarge", 1)
    cluster = replace(cluster, devices_per_node=2 * pp, intra_node=((2 * pp, cluster.intra_node[-1][1]),))
    draft = Draft(1, pp, 2, 1, ep, 1, 1, schedule, "flash", sequence_parallel=False, zero=zero)
    return Problem(model, TrainingSpec(1024, 2 * m, load_precision("mixed_precision")), cluster, "torch"), draft


def table_of(problem: Problem, draft: Draft, sets: tuple[str, ...] = SETS, by_stage: bool = False) -> Table:
    table = Table(problem, sets, by_stage)
    table.add(draft)
    return table
