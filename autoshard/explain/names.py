"""What a layout is called on every page."""

from __future__ import annotations

from autoshard.layout.strategy import Strategy
from autoshard.schedules import NXD_SCHEDULES


def layout_name(strategy: Strategy) -> str:
    """'tp=32 pp=8 dp=2 mbs=1 recompute=none': tp, pp and dp always, the other degrees where they are not 1."""
    return " ".join(layout_words(strategy))


def changed_words(one: Strategy, other: Strategy) -> str:
    """'tp=32 pp=4 dp=4 no vpp': of `other`'s name what is not in `one`'s, then what is gone."""
    ours, theirs = layout_words(one), layout_words(other)
    names = [word.partition("=")[0] for word in theirs]
    gone = [name for name in (word.partition("=")[0] for word in ours) if name not in names]
    return " ".join([*(word for word in theirs if word not in ours), *(f"no {name}" for name in gone)])


def layout_words(strategy: Strategy) -> list[str]:
    """The words of its name."""
    s = strategy
    parts = [f"tp={s.tp}", f"pp={s.pp}", f"dp={s.dp}"]
    optional = (("cp", s.cp), ("ep", s.ep), ("vpp", s.num_virtual_stages))
    parts += [f"{name}={value}" for name, value in optional if value > 1]
    parts += [f"mbs={s.microbatch_size}", f"recompute={s.recompute_name}"]
    parts += [f"schedule={s.schedule}"] if s.schedule not in NXD_SCHEDULES else []
    parts += [f"context={s.context_parallel}"] if s.cp > 1 else []
    parts += ["attention=plain"] if s.attention_kernel == "plain" else []
    parts += ["sp=off"] if s.tp > 1 and not s.sequence_parallel else []
    parts += [f"zero={s.zero}"] if s.zero != 1 else []
    return parts
