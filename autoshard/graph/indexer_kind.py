"""The indexer of sparse attention, which chooses the keys that a query attends to (DeepSeek-V3.2, 2512.02556), each by
itself, in pools (GLM-5.3, Qwen4-Exp), or in blocks for each key-value head (MiniMax-M3)."""

from __future__ import annotations

from math import prod

from autoshard.graph.attention_kind import mean_keys
from autoshard.graph.ir import FLOAT32_BYTES, Graph, Operator
from autoshard.graph.operator_kind import Internal, OperatorKind, Sizes, num_elements
from autoshard.graph.score_tiles import most_choice_scores


class ChooseKeys(OperatorKind):
    """A mask of the keys that each query attends to: those before it, itself included, that score most.

    Inputs: the hidden state [batch seq embed], the compressed queries [batch seq q_rank], or the hidden state again
    where queries are made of that, and weights that are not learned: wq_b [index_head index_dim q_rank], wk [index_dim
    embed], weight and bias of a LayerNorm [index_dim], weights_proj [index_head embed]. Output: bool [batch seq key],
    True where the query sees the key.

        q = rope(wq_b c), k = rope(norm(wk h)), w = weights_proj h
        score(query, key) = sum over heads of w relu(q k) / sqrt(index_dim index_head)

    Attributes: top_k, keys that are chosen, of equal scores the first; eps, of the norm; those of Rope, of which
    rotary_dim may be 0. A query that has no more keys before it sees all of them. Further inputs, in this order, come
    with an attribute each. norms: weight and bias of a LayerNorm of what queries are made of, as wide as that. grows:
    two numbers of each head [index_head], by the first of which times log(place + 1) plus the second its queries are
    multiplied. scales: the second input of ScaledRope. documents: DOCUMENT_STARTS; a query has the keys of its own
    document alone, and places count from its start.

    Split over the sequence, each rank scores its own queries, and gathers the keys, which all heads share. Nothing has
    a gradient, nothing is kept, and backward does nothing: the mask is kept by who reads it.
    """

    def passes_gradient(self, op: Operator, index: int) -> bool:
        return False

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Projections, and the scores of the keys before each query, of the fullest rank: where the sequence is split,
        the last one has most."""
        tokens = prod(sizes[dim] for dim in op.loop_dims)
        parameters = (graph.tensors[name] for name in op.inputs if graph.tensors[name].role == "parameter")
        weights = (num_elements(graph, one.name, sizes) for one in parameters if len(one.dims) > 1)
        heads, width = sizes["index_head"], sizes["index_dim"]
        keys = seen_keys(graph, sizes)
        return 2.0 * tokens * (sum(weights) + keys * heads * (width + 1))

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 0.0

    def tile_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of the scores of some heads: as the product gives them, and in FP32, in which heads are added up."""
        scores = most_choice_scores(sizes["index_head"], self._columns(op, graph), sizes["seq"])
        element_bytes = graph.tensors[op.inputs[0]].element_bytes
        return (graph.summed_bytes(op.inputs[0]) + element_bytes * (element_bytes < FLOAT32_BYTES)) * scores

    def _columns(self, op: Operator, graph: Graph) -> float:
        """Columns that a query scores at most: keys, or pools of `rate` keys."""
        return float(graph.sizes["seq"] // int(str(op.attributes.get("rate", 1))))

    def internal_collectives(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Internal, ...]:
        if sizes["seq"] == graph.sizes["seq"]:
            return ()
        keys = sizes["batch"] * graph.sizes["seq"] * sizes["index_dim"]
        return (("all_gather", "seq", keys * graph.tensors[op.inputs[0]].element_bytes),)


class ChoosePools(ChooseKeys):
    """A mask of the keys that each query attends to: those of the pools before it that score most, and those of its own
    pool up to itself.

    Inputs and output are those of ChooseKeys, with two more weights that are not learned: gate [index_dim embed], and
    the bias [index_pool index_dim] of a token's place in its pool. A pool is `rate` tokens that follow one another, and
    has one key: in each number the sum of its tokens' k, weighed by the softmax of their gates gate h plus the bias.

        q = wq_b c, k = norm(wk h), w = weights_proj h

    A query scores the pools that end with it or before. Attributes: top_k, keys of the pools that are chosen, of equal
    scores the first; rate; eps, of the norm. Tokens behind the last whole pool are in none.
    """

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Projections, and the scores of the pools before each query, of the fullest rank."""
        tokens = prod(sizes[dim] for dim in op.loop_dims)
        weights = sum(num_elements(graph, op.inputs[index], sizes) for index in (2, 3, 6, 7))
        heads, width = sizes["index_head"], sizes["index_dim"]
        pools = seen_keys(graph, sizes) / float(str(op.attributes["rate"]))
        return 2.0 * tokens * (weights + pools * heads * (width + 1))

    def internal_collectives(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Internal, ...]:
        """Ranks that share the sequence gather gates too, as many numbers as keys."""
        return tuple((kind, dim, 2 * size) for kind, dim, size in super().internal_collectives(op, graph, sizes))


class ChooseMeans(ChooseKeys):
    """A mask of the keys that each query attends to: those of the pools before it that score most, and those of its own
    pool up to itself. A pool has the mean of its tokens' keys.

    Inputs: the hidden state [batch seq embed], and weights that are not learned: q_proj [index_head index_dim embed],
    k_proj [index_dim embed], and those of RMS norms of queries and of pools [index_dim], which multiply by 1 plus them.
    Output: bool [batch seq key]. A pool is `rate` tokens that follow one another; those behind the last whole one are
    in none.

        q = rope(norm(q_proj h)), k = rope(norm(mean over the pool of k_proj h))     at the place of its first token
        score(query, pool) = sum over heads of relu(q k) / sqrt(index_dim)

    A query scores the pools that end with it or before. Attributes: top_k, keys of the pools that are chosen, of equal
    scores the first; rate; eps, of the norms; those of Rope.
    """

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Projections, and the scores of the pools before each query, of the fullest rank."""
        tokens = prod(sizes[dim] for dim in op.loop_dims)
        weights = sum(num_elements(graph, op.inputs[index], sizes) for index in (1, 2))
        pools = seen_keys(graph, sizes) / float(str(op.attributes["rate"]))
        return 2.0 * tokens * (weights + pools * sizes["index_head"] * (sizes["index_dim"] + 1))


class ChooseBlocks(ChooseKeys):
    """A mask of the blocks of keys that the queries of each key-value head attend to: those that score most.

    Inputs: the hidden state [batch seq embed], and weights that are not learned: q_proj [kvhead index_dim embed],
    k_proj [index_dim embed], and those of RMS norms of queries and keys [index_dim]. Output: bool [batch seq kvhead
    key_block], True where queries of the head see the block, as far as it lies before them.

        q = rope(norm(q_proj h)), k = rope(norm(k_proj h))
        score(query, block) = the largest q k of its keys before the query, itself included

    Attributes: block, keys of a block; top_k, blocks that are chosen, of equal scores the first; local, of these the
    query's own block and those right before it, whatever they score; eps, of the norms, which multiply by 1 plus their
    weights; those of Rope. Of a rank's sequence the last block may be shorter.

    Split over key-value heads each rank has their queries, and all keys; over the sequence, it gathers the keys, which
    all heads share. Nothing has a gradient, nothing is kept, and backward does nothing.
    """

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Projections, and the scores of the keys before each query, of the fullest rank."""
        tokens, width = sizes["batch"] * sizes["seq"], sizes["index_dim"]
        weights = sum(num_elements(graph, op.inputs[index], sizes) for index in (1, 2))
        return 2.0 * tokens * (weights + seen_keys(graph, sizes) * sizes["kvhead"] * width)

    def tile_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of the scores of some heads, as the product gives them."""
        scores = most_choice_scores(sizes["kvhead"], float(graph.sizes["seq"]), sizes["seq"])
        return graph.tensors[op.inputs[0]].element_bytes * scores


def seen_keys(graph: Graph, sizes: Sizes) -> float:
    """Keys before a query, itself by half, on average over the queries of the rank that has the end of the sequence."""
    whole, local = float(graph.sizes["seq"]), sizes["seq"]
    return mean_keys(whole - local, local, whole)
