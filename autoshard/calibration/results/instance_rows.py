"""Reads results on named instance types, where each pass is one compiled graph as autoshard runs it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from autoshard.calibration.results.rows import Row, Unscored, blocks, count, fields_left_open, integer, number, pipeline
from autoshard.cost.stacks import COMPILED, EAGER, TRACED, TRACED_LORA, XLA_FSDP, Software
from autoshard.errors import AutoshardError
from autoshard.graph.recompute import BLOCK_MODULES, canonical
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.schedules import usual_schedule
from autoshard.spec.cluster import Cluster, load_cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.sdk import RELEASES, stack_slowdown
from autoshard.spec.stack import STACKS as NATIVE_STACKS
from autoshard.spec.training import PRECISIONS, Precision, TrainingSpec, load_precision

COLUMNS = (
    *("instance", "nodes", "model", "layers", "hidden", "heads", "ffn", "vocab", "seq_len", "global_batch"),
    *("precision", "tp", "pp", "dp", "micro_batch", "sp", "zero1", "recompute", "flash_attn"),
)
"""Columns that a row must have, beside step_time_s or seq_per_s."""
NXD = "neuronx-distributed"
STACKS = (
    ("nemo-megatron", "neuronx-nemo-megatron"),
    ("reference-for-megatron", "megatron-lm"),
    ("axlearn", "axlearn"),
    ("optimum-neuron", "optimum-neuron"),
)
"""(word in a row without a column `stack`, the stack that it tells of); without any it is NXD."""
SOFTWARE = {"optimum-neuron": TRACED, "axlearn": XLA_FSDP, "eager": EAGER, "compiled": COMPILED}
"""Stacks that cost otherwise than one compiled graph a pass without sharded weights."""
STACK_NAMES = tuple(dict.fromkeys((NXD, *(stack for _, stack in STACKS), *SOFTWARE, *NATIVE_STACKS)))
"""What a column `stack` may say."""
YES, NO = ("yes", "y", "true", "on", "1"), ("", "no", "n", "false", "off", "0")
CONTRADICTS = 1.05
"""Ratio of step_time_s and of what seq_per_s says from which on one of the two must be wrong."""
OUTER_LAYERS = "attention_norm+core_attention+mlp_norm+mlp"
"""Recompute of all but the projections of attention."""


@dataclass(frozen=True)
class InstanceCase:
    """One measured row.

    group: all rows of one model and tp, which several releases were measured with. cluster: as the row's release and
    stack leave it. alike: the same under the newest release and NxD. stack, software: what ran, and how it costs. sdk:
    its release, None where the row does not say. doubt: why nothing is fitted to the row; "" where nothing is wrong.
    """

    key: str
    group: str
    model: ModelSpec
    training: TrainingSpec
    cluster: Cluster
    strategy: Strategy
    time_s: float
    alike: Cluster
    stack: str = NXD
    software: Software = COMPILED
    sdk: str | None = None
    doubt: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether the row trains all weights and nothing about it is in doubt."""
        return not (self.doubt or self.software.adapts)


def instance_case(row: Row, hardware_file: Path | None = None) -> InstanceCase:
    """The case of one row. hardware_file: describes the row's instance, in place of the packaged file.

    Raises Unscored where something that the model needs is missing.
    """
    time_s = _time_s(row)
    try:
        training = TrainingSpec(integer(row, "seq_len"), integer(row, "global_batch"), row_precision(row))
        lnc = integer(row, "lnc", 0) or None
        alike = load_cluster(row["instance"].split("/")[0], integer(row, "nodes"), lnc, hardware_file)
        stack, sdk = row_stack(row), row_sdk(row) if alike.platform.is_trainium else None
        cluster = alike if sdk is None else load_cluster(alike.instance, alike.nodes, lnc, hardware_file, sdk)
        if stack in NATIVE_STACKS:
            alike, cluster = alike.under_stack(stack), cluster.under_stack(stack)
        cluster = cluster.slowed(stack_slowdown(cluster.layout_rules, stack))
        model, strategy, software = row_model(row), row_strategy(row), SOFTWARE.get(stack, COMPILED)
        if "lora" in row["model"].lower():
            if software is not TRACED:
                raise Unscored(f"LoRA of {stack}: only that of optimum-neuron was measured")
            software = TRACED_LORA
        if software.sharded_parameters:
            strategy = replace(strategy, zero=1)
    except AutoshardError as error:
        raise Unscored(str(error)) from error
    if strategy.world_size != cluster.world_size:
        raise Unscored(f"tp x pp x dp x cp = {strategy.world_size} is not the cluster's {cluster.world_size}")
    if training.global_batch_size % (replicas := strategy.dp * strategy.microbatch_size):
        raise Unscored(f"dp x micro_batch = {replicas} must divide global_batch={training.global_batch_size}")
    return InstanceCase(
        row.get("id") or row.get("line", "?"),
        row_group(model, strategy),
        model,
        training,
        cluster,
        strategy,
        time_s,
        alike,
        stack,
        software,
        sdk,
        row_doubt(row),
    )


def _time_s(row: Row) -> float:
    """The row's step time, which its rate must not contradict."""
    said_s, rate, batch = number(row, "step_time_s"), number(row, "seq_per_s"), number(row, "global_batch")
    found_s = batch / rate if rate is not None and batch is not None else None
    if said_s is not None and found_s is not None and not 1 / CONTRADICTS < said_s / found_s < CONTRADICTS:
        raise Unscored(
            f"step_time_s={said_s:g} contradicts seq_per_s={rate:g}, with which a step takes {found_s:.4g} s"
        )
    time_s = found_s if said_s is None else said_s
    if time_s is None:
        cells = {name: row.get(name) for name in ("step_time_s", "seq_per_s")}
        unread = [f"{name}={cell!r} is no number above 0" for name, cell in cells.items() if cell]
        raise Unscored(" and ".join(unread) or "neither step_time_s nor seq_per_s was measured")
    return time_s


def row_group(model: ModelSpec, strategy: Strategy) -> str:
    """The model's shape and tp: tables spell one model in several ways, and pad its vocabulary."""
    size = f"{model.num_hidden_layers} x {model.hidden_size}"
    return f"{model.model_type} {size}, {round(model.vocab_size / 1000)}k words, tp{strategy.tp}"


def row_stack(row: Row) -> str:
    """The training stack that a row names or tells of."""
    said = " ".join(row.get(name, "") for name in ("config_source", "model", "source", "note", "sp")).lower()
    named = row.get("stack", "").strip()
    if named and named not in STACK_NAMES:
        raise Unscored(f"stack={named!r} is none of {', '.join(STACK_NAMES)}")
    return named or next((stack for word, stack in STACKS if word in said), NXD)


def row_sdk(row: Row) -> str | None:
    """The known release of the SDK that a row begins to name ("2.10 or 2.11" is 2.10), None where it names none."""
    found = re.match(r"\s*(?:neuron )?(?:sdk )?v?(\d+\.\d+)", row.get("sdk", ""), re.IGNORECASE)
    if found is not None and found[1] not in RELEASES:
        raise Unscored(f"sdk={row['sdk']!r} is no release that is known, which are {RELEASES[0]} to {RELEASES[-1]}")
    return None if found is None else found[1]


def row_doubt(row: Row) -> str:
    """Why a row must not be fitted to: its own words, or that its layout is not all stated; "" where it is whole."""
    note, complete = row.get("note", ""), row.get("config_complete", "") or "yes"
    if "SUSPECT" in note:
        return f"suspect{note.partition('SUSPECT')[2]}"
    if complete != "yes":
        return f"its layout is not all stated (config_complete={complete}): {note or row.get('config_source', '')}"
    return ""


def row_precision(row: Row) -> Precision:
    """The row's precision, given by name or as AWS's tables write it."""
    text = row.get("precision", "").strip()
    if text in PRECISIONS:
        return load_precision(text)
    if "FP32Optimizer" in text or "fp32 params" in text or "fp32 master" in text:
        return load_precision("mixed_precision")
    if text == "bf16" or "BF16+SR" in text:
        return load_precision("bf16_sr")
    raise Unscored(f"precision={text!r} is none of {', '.join(PRECISIONS)}, and not as AWS's tables write it")


def row_model(row: Row) -> ModelSpec:
    """The model in the row. What it leaves open (norms, positions, biases) follows from the family."""
    gpt = row["model"].startswith("GPT")
    heads, hidden = count(row, "heads"), count(row, "hidden")
    return ModelSpec(
        name=row["model"],
        model_type="gpt2" if gpt else "llama",
        hidden_size=hidden,
        intermediate_size=integer(row, "ffn"),
        num_hidden_layers=blocks(row),
        num_attention_heads=heads,
        num_key_value_heads=integer(row, "kv_heads", heads),
        head_dim=hidden // heads,
        vocab_size=integer(row, "vocab"),
        max_position_embeddings=integer(row, "seq_len"),
        tie_word_embeddings=False,
        **fields_left_open(gpt),
    )


def row_strategy(row: Row) -> Strategy:
    """The layout in the row, with stages as even as can be."""
    pp, vpp = pipeline(row)
    return Strategy(
        tp=count(row, "tp", 1),
        pp=pp,
        dp=count(row, "dp", 1),
        cp=count(row, "cp", 1),
        ep=count(row, "ep", 1),
        num_virtual_stages=vpp,
        microbatch_size=count(row, "micro_batch", 1),
        schedule=usual_schedule(vpp),
        recompute=(_recompute(row.get("recompute", "")),),
        sequence_parallel=_yes(row, "sp"),
        zero=_zero(row),
        attention_kernel="flash" if _yes(row, "flash_attn") else "plain",
        stage_layers=even_stage_layers(blocks(row), pp * vpp),
    )


def _yes(row: Row, name: str) -> bool:
    """Whether a cell begins with yes; one that leaves it open is no."""
    text = row.get(name, "").strip().lower()
    first = re.match(r"\w+", text)
    word = text if first is None else first[0]
    if word in YES:
        return True
    if word in NO or "default" in text or "not " in text:
        return False
    raise Unscored(f"{name}={row[name]!r} is neither yes nor no")


def _zero(row: Row) -> int:
    """The stage of ZeRO: a number, yes or no of ZeRO-1, or a sentence that names ZeRO-3."""
    text = row.get("zero1", "").strip()
    found = re.search(r"^(?:ZeRO-?)?([0-3])\b|ZeRO-(3)", text, re.IGNORECASE)
    return int(found[1] or found[2]) if found else int(_yes(row, "zero1"))


def _recompute(text: str) -> str:
    """A set as plans write it, or what published tables say in words."""
    lowered = text.lower()
    if {*text.split("+")} <= {*BLOCK_MODULES}:
        return canonical(text)
    if "saves q/k/v/o" in lowered:
        return OUTER_LAYERS
    if "full" in lowered:
        return "full"
    if "mlp" in lowered:
        return "core_attention+mlp"
    if "selective" in lowered or lowered == "core_attention":
        return "core_attention"
    if lowered in ("", "no", "none"):
        return "none"
    raise Unscored(f"recompute={text!r} is none of none, full, and modules joined by + ({', '.join(BLOCK_MODULES)})")
