"""Reads what a row's notes say of its mixture: shared experts, dense blocks, latent attention, where experts lie."""

from __future__ import annotations

import re
from typing import NamedTuple

from autoshard.calibration.results.rows import Row, Unscored, blocks, count, integer


class Extras(NamedTuple):
    """Parts of a model that its columns do not tell.

    shared_width: columns of the experts that every token goes to, all together. dense_share: of all blocks, those with
    one MLP in place of experts. latent: ranks and widths of latent attention, None for the usual one.
    """

    shared_width: int = 0
    dense_share: float = 0.0
    latent: Latent | None = None


class Latent(NamedTuple):
    """Latent attention: columns of the projections, each of a head but the ranks."""

    query_rank: int
    key_value_rank: int
    unturned: int
    turned: int
    value: int

    def weights(self, hidden: int, heads: int) -> int:
        """Elements of its matrices in one block."""
        query = self.query_rank * (hidden + heads * (self.unturned + self.turned))
        keys = hidden * (self.key_value_rank + self.turned)
        return query + keys + self.key_value_rank * heads * (self.unturned + self.value) + heads * self.value * hidden


DEEPSEEK_V3 = Latent(1536, 512, 128, 64, 128)
"""The published ranks, for rows that say MLA without any."""


def extras(row: Row) -> Extras:
    """The extras of a row with experts, from its notes; none where these say nothing.

    DeepSeek's models have one shared expert as wide as the others, whether a row says so or not.
    """
    notes, width = row.get("notes", ""), integer(row, "moe_ffn", 0) or integer(row, "ffn")
    found = re.search(r"(\d+) shared experts?(?: (\d+))?", notes)
    shared = width * ("shared expert" in notes or row.get("model", "").lower().startswith("deepseek"))
    if "no shared expert" in notes:
        shared = 0
    elif found:
        shared = int(found[1]) * int(found[2] or width)
    return Extras(shared, _dense_share(notes, blocks(row)), _latent(notes))


def _dense_share(notes: str, layers: int) -> float:
    if found := re.search(r"MoE every (\d+)(?:nd|rd|th) layer", notes):
        return 1 - 1 / max(1, int(found[1]))
    if found := re.search(r"first (\d+) layers? dense|(\d+) dense layers?\b", notes):
        return min(1.0, int(found[1] or found[2]) / layers)
    return float("first layer dense" in notes) / layers


def _latent(notes: str) -> Latent | None:
    if not re.search(r"\bMLA\b", notes):
        return None
    widths = [re.search(rf"\b{name} (\d+)", notes) for name in ("q_lora", "kv_lora", "qk_nope", "qk_rope", "v")]
    return Latent(*(int(one[1]) for one in widths if one)) if all(widths) else DEEPSEEK_V3


class Spread(NamedTuple):
    """The place of experts. ep: ranks that hold others each. etp: ranks that cut each expert, where these are not the
    tp ranks that cut the rest; else None."""

    ep: int
    etp: int | None


def spread(row: Row, tp: int, dp: int, cp: int) -> Spread:
    """The place of a row's experts: `ep` ranks of the tp x dp x cp that a stage has, each expert on `etp` of them (the
    row's own; tp where it says nothing, as Megatron-Core does).

    Raises Unscored where no part of these ranks is meant.
    """
    ep, etp = count(row, "ep", 1), integer(row, "etp", 0)
    if not etp:  # stated nowhere: tp, unless only the ranks of tp are left for the experts
        etp = 1 if (dp * cp) % ep and ep % tp == 0 else tp
    if etp == tp or ep == 1:
        return Spread(ep, None)
    if tp % etp == 0 and ep % (tp // etp) == 0:
        return Spread(ep, etp)
    raise Unscored(f"etp={etp} must divide tp={tp}, and ep={ep} be a multiple of tp/etp")
