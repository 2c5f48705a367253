"""The four states of a tensor along one mesh axis, and what a change from one to another does.

| state   | value                | gradient                                            |
|---------|----------------------|-----------------------------------------------------|
| `<dim>` | split along that dim | split along that dim                                |
| `P`     | partial sum          | replicated                                          |
| `I`     | replicated           | replicated: equal on every rank                     |
| `R`     | replicated           | partial sum: the value is about to be used split    |

Three states, as in GSPMD or DTensor, do not say whether a replicated tensor's gradient still has to be summed;
with four, every backward collective follows from the forward one.
"""

from __future__ import annotations

PARTIAL, INVARIANT, REPLICATED = "P", "I", "R"

State = tuple[str, ...]
"""One entry for each axis of the stage's mesh, in mesh order: a dim's name, `P`, `I` or `R`."""

COLLECTIVES = frozenset({"all_gather", "reduce_scatter", "all_reduce", "all_to_all"})
"""The kinds that move bytes; the others (`slice`, `pad`, `scale`, `identity`) are local."""

_SPLIT = "split"
_TRANSITIONS: dict[tuple[str, str], tuple[str, str]] = {
    (_SPLIT, REPLICATED): ("all_gather", "reduce_scatter"),
    (_SPLIT, INVARIANT): ("all_gather", "slice"),
    (_SPLIT, _SPLIT): ("all_to_all", "all_to_all"),
    (INVARIANT, _SPLIT): ("slice", "all_gather"),
    (INVARIANT, REPLICATED): ("identity", "all_reduce"),
    (PARTIAL, INVARIANT): ("all_reduce", "identity"),
    (PARTIAL, REPLICATED): ("all_reduce", "all_reduce"),
    (PARTIAL, _SPLIT): ("reduce_scatter", "all_gather"),
    (REPLICATED, _SPLIT): ("slice", "pad"),
    (REPLICATED, INVARIANT): ("identity", "scale"),
}


def is_split(entry: str) -> bool:
    """Whether an entry of a state names a dim, of which each rank along the axis holds a piece."""
    return entry not in (PARTIAL, INVARIANT, REPLICATED)


def transition_kinds(source: str, target: str) -> tuple[str, str] | None:
    """(forward, backward) moves of a change of state along one axis; None if there is no such change (nothing becomes
    `P`).
    """
    return _TRANSITIONS.get((_SPLIT if is_split(source) else source, _SPLIT if is_split(target) else target))


def without_gradient(state: State) -> State:
    """The state of a tensor that carries no gradient, for which `R` and `I` are the same: `I` stands for both."""
    return tuple(INVARIANT if entry == REPLICATED else entry for entry in state)
