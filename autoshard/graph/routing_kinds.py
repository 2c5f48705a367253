"""Kinds of operators that send tokens to experts and bring them back."""

from __future__ import annotations

from autoshard.graph.ir import Graph, Operator
from autoshard.graph.operator_kind import Extra, Internal, OperatorKind, Sizes, num_elements

AROUND_EXPERTS = ("dispatch", "combine")
"""Kinds that bring tokens to their experts and back. They see whole sequences: of ranks that share one, each gives its
own experts their tokens."""


class TopKGate(OperatorKind):
    """Softmax over the experts in FP32, the top k kept and normalised, zero elsewhere. Works on whole expert rows.

    Attribute router: a Router (spec/router.py) that scores and chooses otherwise; its correction bias [expert] is one
    more input, and only says which experts are chosen. With the attribute hashed, and a router, two more inputs choose
    them: a table [token choice] with a token's experts, and the tokens [batch seq].

    aux_loss_coef: of its load-balancing loss, which is of the means over all tokens: two numbers an expert are summed
    over whatever axes the tokens are split.
    """

    def internal_collectives(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Internal, ...]:
        if not op.attributes.get("aux_loss_coef"):
            return ()
        size = 2.0 * graph.summed_bytes(op.inputs[0]) * graph.sizes[graph.tensors[op.output].dims[-1]]
        return ("all_reduce", "batch", size), ("all_reduce", "seq", size)

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return 8.0 * num_elements(graph, op.inputs[0], sizes)

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0,)

    def passes_gradient(self, op: Operator, index: int) -> bool:
        return index == 0


class SumRest(OperatorKind):
    """The sum of the last dim's numbers from attribute `first` on, [batch seq]: the weight of all experts that hand a
    token back as it is."""

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 1.0

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """One for each number that is added up: a router's row is never split."""
        rest = graph.sizes[graph.tensors[op.inputs[0]].dims[-1]] - int(str(op.attributes["first"]))
        return rest * num_elements(graph, op.output, sizes)


class Dispatch(OperatorKind):
    """Copies each token into a slot of its experts: batch seq embed -> expert batch capacity embed.

    Slots are given in sequence order, so it needs the whole sequence; tokens beyond the capacity are dropped.
    The gates only say which: they are weighed in `combine`, or here with the attribute weighs.
    """

    def passes_gradient(self, op: Operator, index: int) -> bool:
        return index == 0 or bool(op.attributes.get("weighs"))

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0, 1) if op.attributes.get("weighs") else ()

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 1.0

    def extra_saved(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Extra, ...]:
        slots = sizes["batch"] * sizes["expert"] * sizes["capacity"]
        return (Extra("slot_of_token", 8.0 * slots),)


class Combine(OperatorKind):
    """Weighted sum of the experts' answers per token: linear in them, so it can run on partial sums.

    A third input is a bias [expert, embed] of each answer, added once: where the answers are partial sums, by the first
    of the ranks that hold them. With weighs=False the gates only say whose answers are summed. The attribute whole says
    that something other than a product gave the answers, so that they are no partial sums.
    """

    linear_input = 0

    def passes_gradient(self, op: Operator, index: int) -> bool:
        return index != 1 or bool(op.attributes.get("weighs", True))

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return 2.0 * num_elements(graph, op.inputs[0], sizes)

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0, 1) if op.attributes.get("weighs", True) else ()
