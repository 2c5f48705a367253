"""FLOPs of torch's fused attention, which its own counter skips on CPU. Entries that the mask hides are not counted."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

from autoshard.graph.score_tiles import most_of_a_mask
from autoshard.layout.context_parallel import RINGS, sequence_pieces
from autoshard.layout.mesh import TENSOR_PARALLEL_AXES
from autoshard.models.padding import heads_of_kinds
from autoshard.plans.plan import Plan, operator_templates
from autoshard.runtime.torch_backend.attention import _is_causal_alone
from autoshard.runtime.torch_backend.ring_attention import Ring, spans

_FORWARD = "aten::_scaled_dot_product_flash_attention_for_cpu"
_BACKWARD = _FORWARD + "_backward"


@dataclass(frozen=True)
class AttentionWork:
    """How much of an attention call's products counts as work: its shapes alone do not say.

    mean_keys: keys that a query of this rank sees, where a mask says so. tile_share: of the scores that a ring computes
    in whole tiles, those that the mask lets through; 1 without a ring. value_share: width of a value over that of a
    query; values are padded to it while CPU's kernel runs.
    """

    mean_keys: float
    tile_share: float = 1.0
    value_share: float = 1.0

    def flops(self, func: Any, args: Any, kwargs: Any) -> float:
        """FLOPs of a call of torch; 0 for what is not attention.

        Backward has 5 matrix products against 2 forward (Dao et al. 2022), 3 of which are over the width of keys, 2
        over that of values.
        """
        name = func._schema.name
        if name not in (_FORWARD, _BACKWARD):
            return 0.0
        given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
        query, key = given["query"], given["key"]
        keys = key.shape[-2] / 2 if given.get("is_causal") else float(key.shape[-2])
        if given.get("attn_mask") is not None:
            keys = self.mean_keys
        product: float = 2.0 * query.numel() * keys
        keys_and_values = (1, 1) if name == _FORWARD else (3, 2)
        return product * (keys_and_values[0] + keys_and_values[1] * self.value_share)


class Reach(NamedTuple):
    """The keys that a query sees at most: a window of so many, itself included; those of its own chunk of so many
    places; those of some blocks of so many keys. None is no limit."""

    window: int | None = None
    chunk: int | None = None
    block: int | None = None


def _query_axes(plan: Plan) -> tuple[str, ...]:
    """The axes of the mesh along which some attention of the plan splits its queries: cp, or tensor-parallel ones."""
    kinds = {name: op.kind for name, op in operator_templates(plan.model, plan.training, plan.strategy).items()}
    choices = [choice for name, choice in plan.operators.items() if kinds[name] == "attention"]
    return tuple(axis.name for axis in plan.mesh.axes if any(choice.get(axis.name) == "seq" for choice in choices))


def attention_work(plan: Plan) -> dict[Reach, AttentionWork]:
    """The work of each reach that blocks have, by the runtime's own masks and tiles, where queries see most keys: on
    the last of the ranks that share them. Outside of fake tensors, which have no values."""
    model = plan.model
    reaches = {
        Reach(model.sliding_window),
        *(Reach(model.window_of(kind), model.chunk_of(kind), model.chosen_block_of(kind)) for kind in model.kinds),
    }
    if model.graph is not None:
        reaches |= {Reach(dict(op.attributes).get("sliding_window")) for op in model.graph.operators}
    return {reach: _work(plan, reach) for reach in reaches}


def _work(plan: Plan, reach: Reach) -> AttentionWork:
    """A query's own place counts half, as in seq / 2 keys."""
    strategy, scores = plan.strategy, plan.model.attention_scores
    values = plan.model.value_head_dim / plan.model.head_dim
    seq, count = plan.training.sequence_length, plan.mesh.size(_query_axes(plan))
    position = count - 1
    if count > 1 and strategy.context_parallel in RINGS:
        pieces = sequence_pieces(strategy.context_parallel, strategy.cp)
        neighbours: Any = SimpleNamespace(size=strategy.cp, index=position)
        return AttentionWork(0.0, _tile_share(plan, neighbours, pieces, position, reach))
    if strategy.context_parallel == "ulysses":
        position, count = 0, 1
    # chosen keys without sinks are never computed in tiles: their mask is there anyhow
    is_causal_alone = _is_causal_alone(seq, position, count, reach.window, reach.chunk)
    is_masked = plan.model.indexer is None and not is_causal_alone
    if strategy.attention_kernel == "flash" and (
        scores.attn_logit_softcapping is not None
        or scores.has_sinks(reach.window)
        or reach.block is not None
        or (is_masked and seq // count * seq > most_of_a_mask(on_gpu=False))
    ):
        return AttentionWork(0.0, _tile_share(plan, None, tuple(range(count)), position, reach))
    if is_causal_alone:
        return AttentionWork(seq / 2, value_share=values)
    ring = _ring(plan, None, tuple(range(count)), position, reach)
    return AttentionWork(_seen(ring) / len(_places(ring)), value_share=values)


def _heads(plan: Plan, reach: Reach) -> int:
    """Query heads, as laid out, of the blocks with this reach."""
    kinds = heads_of_kinds(plan.model, plan.strategy.tp)
    return kinds[0 if reach.window is not None else -1].queries


def _tile_share(plan: Plan, neighbours: Any, pieces: tuple[int, ...], position: int, reach: Reach) -> float:
    """Share (0 to 1) of the scores in the tiles that one rank computes that the mask lets through, all hops together;
    a query's own place counts half, unless a window hides keys from it, as the plan counts.

    neighbours: the ring's ranks; None where all keys are on the rank. pieces, position: as in Ring.
    """
    strategy, ring = plan.strategy, _ring(plan, neighbours, pieces, position, reach)
    queries = _query_axes(plan)
    ranks = plan.mesh.size(axis for axis in TENSOR_PARALLEL_AXES if axis not in queries)  # that share the heads
    ranks *= strategy.cp if strategy.context_parallel == "ulysses" else 1
    heads = _heads(plan, reach) // ranks
    several = (spans(ring, source, heads, strategy.microbatch_size) for source in range(ring.size))
    return _seen(ring) / sum(span.scores for of_source in several for span in of_source)


def _ring(plan: Plan, neighbours: Any, pieces: tuple[int, ...], position: int, reach: Reach) -> Ring:
    """The ring whose scores one rank computes, in tiles or at once; with all keys on the rank it has one hop.

    neighbours: the ring's ranks; None where all keys are on the rank. pieces, position: as in Ring.
    """
    seq = plan.training.sequence_length
    window = seq if reach.window is None else reach.window
    return Ring(neighbours, pieces, seq // len(pieces), window, chunk=reach.chunk, position=position)


def _places(ring: Ring) -> list[int]:
    """The places in the sequence of a rank's queries."""
    return [place for start in ring.queries for place in range(start, start + ring.piece_length)]


def _seen(ring: Ring) -> float:
    """Keys that a rank's queries see, all together. The own place of one whose window hides nothing before it counts
    half.

    They are counted by their places: masks are long to count, and of long sequences larger than a machine's memory.
    """
    before = [place + 1 - ring.first_key(place) for place in _places(ring)]
    return sum(min(ring.window, count) - 0.5 * (count <= ring.window) for count in before)
