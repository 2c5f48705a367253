"""The name of a layout on every page."""

from __future__ import annotations

import re
from itertools import groupby

from autoshard.graph.recompute import FULL_RECOMPUTE, NO_RECOMPUTE, members
from autoshard.layout.mesh import AXIS_ORDER
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.schedules import NXD_SCHEDULES

BY_STAGE = "by-stage"
"""Stands for recompute sets that differ from stage to stage: `recompute_by_stage` says which."""
_MODULES = {
    "attention": "attention projections",
    "attention_up": "attention up-projections",
    "core_attention": "core attention",
    "mlp": "MLP",
}
_NORMS = {"attention_norm": "attention norm", "mlp_norm": "MLP norm"}


def layout_name(strategy: Strategy) -> str:
    """'tp=32 pp=8 dp=2 mbs=1 recompute=none': tp, pp and dp always, the other degrees where they are not 1; the
    blocks of each virtual stage, 'stages=9-8-8-7', where the cut is not even."""
    cut = strategy.stage_layers
    is_even = cut == even_stage_layers(sum(cut), len(cut))
    return " ".join([*layout_words(strategy), *([] if is_even else [f"stages={'-'.join(map(str, cut))}"])])


def all_degrees(strategy: Strategy) -> str:
    """'tp=8 pp=4 dp=2 cp=1 ep=1': all of them, also those that are 1; then etp and dp_replicate where it has any."""
    degrees = f"tp={strategy.tp} pp={strategy.pp} dp={strategy.dp} cp={strategy.cp} ep={strategy.ep}"
    degrees += f" etp={strategy.etp}" if strategy.etp is not None else ""
    return degrees + (f" dp_replicate={strategy.dp_replicate}" if strategy.dp_replicate > 1 else "")


def short_name(strategy: Strategy) -> str:
    """The same for pages that say elsewhere, or not at all, what differs from stage to stage."""
    return shortened(layout_name(strategy))


def shortened(name: str) -> str:
    """A `layout_name` as a `short_name`: of recompute sets that differ from stage to stage there are several, of the
    cut there is nothing."""
    return re.sub(r" stages=\S*$", "", re.sub(r"\brecompute=\S*,\S*", f"recompute={BY_STAGE}", name))


def changed_words(one: Strategy, other: Strategy) -> str:
    """'tp=32 pp=4 dp=4 no vpp': what `other` has that `one` has not, then what is gone.

    Recompute sets that differ from stage to stage are listed where nothing else differs.
    """
    ours, theirs = layout_words(one), layout_words(other)
    changed, names = [word for word in theirs if word not in ours], [word.partition("=")[0] for word in theirs]
    usual = {
        "schedule": f"schedule={other.schedule}",
        "attention": f"attention={other.attention_kernel}",
        "sp": "sp=on",
        "zero": f"zero={other.zero}",
        "dp_replicate": f"dp_replicate={other.dp_replicate}",
        "order": f"order={other.axis_order_name}",
        "context": "",  # goes with cp
    }
    gone = [name for name in (word.partition("=")[0] for word in ours) if name not in names]
    words = [word for word in (*changed, *(usual.get(name, f"no {name}") for name in gone)) if word]
    if other.uniform_recompute is None:
        if words == [f"recompute={other.recompute_name}"]:
            return f"recompute by stage: {recompute_by_stage(other)}"
        words = [f"recompute={BY_STAGE}" if word.startswith("recompute=") else word for word in words]
    return " ".join(words)


def recompute_words(name: str) -> str:
    """One recompute set in words: 'core attention and MLP', 'nothing'. name: as in Strategy.recompute."""
    if name in (NO_RECOMPUTE, FULL_RECOMPUTE):
        return "nothing" if name == NO_RECOMPUTE else "all of a block"
    named = members(name)
    both = set(_NORMS) <= named
    words = ["both norms"] if both else [text for norm, text in _NORMS.items() if norm in named]
    words += [text for module, text in _MODULES.items() if module in named]
    words += sorted(named.difference(_NORMS, _MODULES))
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def recompute_by_stage(strategy: Strategy) -> str:
    """'0 all of a block; 1-4 MLP; 5-7 nothing': virtual stages in model order."""
    parts, first = [], 0
    for name, run in groupby(strategy.recompute):
        count = len(list(run))
        stages = f"{first}-{first + count - 1}" if count > 1 else f"{first}"
        parts.append(f"{stages} {recompute_words(name)}")
        first += count
    return "; ".join(parts)


ZERO_NAMES = {1: "ZeRO-1", 2: "ZeRO-2", 3: "FSDP (ZeRO-3)"}


def sharding_name(strategy: Strategy) -> str:
    """The field's name of what data-parallel ranks share: 'ZeRO-1', 'FSDP (ZeRO-3)', or where groups of them hold all
    shards 'HSDP: shards over 8, 4 replicas'; 'DDP' where they share nothing."""
    s = strategy
    if s.zero == 0:
        return "DDP"
    if s.dp_replicate == 1:
        return ZERO_NAMES[s.zero]
    stage = "" if s.zero == 3 else f" with {ZERO_NAMES[s.zero]}"
    return f"HSDP{stage}: shards over {s.dp_shard * s.cp}, {s.dp_replicate} replicas"


def layout_words(strategy: Strategy) -> list[str]:
    """The words of its name but the cut."""
    s = strategy
    parts = [f"tp={s.tp}", f"pp={s.pp}", f"dp={s.dp}"]
    parts += [f"{name}={value}" for name, value in (("cp", s.cp), ("ep", s.ep)) if value > 1]
    parts += [f"etp={s.etp}"] if s.etp is not None else []
    parts += [f"vpp={s.num_virtual_stages}"] if s.num_virtual_stages > 1 else []
    parts += [f"dp_replicate={s.dp_replicate}"] if s.dp_replicate > 1 else []
    parts += [f"mbs={s.microbatch_size}", f"recompute={s.recompute_name}"]
    parts += [f"schedule={s.schedule}"] if s.schedule not in NXD_SCHEDULES else []
    parts += [f"context={s.context_parallel}"] if s.cp > 1 else []
    parts += ["attention=plain"] if s.attention_kernel == "plain" else []
    parts += ["sp=off"] if s.tp > 1 and not s.sequence_parallel else []
    parts += [f"zero={s.zero}"] if s.zero != 1 else []
    parts += [f"order={s.axis_order_name}"] if s.axis_order != AXIS_ORDER else []
    return parts
