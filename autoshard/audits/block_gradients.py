"""Bytes at work while a block's backward has the gradient of one operator's weights.

A plan counts the gradients that a compiled backward hands over at its end, all of them. This runtime adds each to its
sum when it is there, so it holds one operator's at a time, beside what that operator's backward works with.
"""

from __future__ import annotations

from autoshard.cost.backward_release import first_saved
from autoshard.cost.working_bytes import working_bytes
from autoshard.graph.count import operator_steps, parameter_elements
from autoshard.graph.partition import Program
from autoshard.graph.recompute import kept_activations, replayed_activations, segments
from autoshard.plans.plan import Plan
from autoshard.schedules import SCHEDULES
from autoshard.spec.training import DTYPE_BYTES


def has_one_for_all(plan: Plan) -> bool:
    """Whether this runtime has the gradient of one operator's weights where the plan has those of all.

    It has not where gradients travel in every microbatch, which the plan counts, where they are put off, and where sums
    have the dtype of the weights: then a plan has no gradients of blocks, and what it lacks is not to be hidden."""
    strategy = plan.strategy
    return plan.training.precision.sums_apart and strategy.zero < 2 and not SCHEDULES[strategy.schedule].weights_apart


def at_block_gradients_bytes(plan: Plan, pipeline_rank: int) -> float:
    """Most bytes beside all that is kept, over the blocks of a rank: of each stage the last one of each kind, the first
    of its kind to run backward, when those behind it have given back what they kept. 0 where not `has_one_for_all`."""
    if not has_one_for_all(plan):
        return 0.0
    strategy = plan.strategy
    most, kinds = 0.0, plan.training.blocks_of(plan.model.blocks).kind_of
    for stage in (one for one in plan.stages if one.pipeline_rank == pipeline_rank):
        recompute, given_back, kept = strategy.recompute[stage.index], 0.0, dict[int, float]()
        for layer in reversed(stage.layers):
            kind = kinds[layer]
            if kind not in kept:
                program = plan.program((layer,), False, False)
                kept[kind] = sum(kept_activations(program, recompute).values())
                most = max(most, _at_work_bytes(plan, program, recompute) - given_back)
            given_back += kept[kind]
    return most


def _at_work_bytes(plan: Plan, program: Program, recompute: str) -> float:
    """Most bytes at work in the backward of one block: gradients of an operator's weights, what its backward works with
    and what was run again for it, less what the operators behind it have given back."""
    kept, elements = kept_activations(program, recompute), parameter_elements(program)
    gradient_bytes = DTYPE_BYTES[plan.training.precision.parameter_dtype]
    saved = first_saved(program)  # what no step saves is kept to run them again, until the first one has
    most = 0.0
    for segment in segments(program, recompute):
        replayed = replayed_activations(program, segment) if segment.recomputed else {}
        there = kept | replayed
        for place in range(segment.start, segment.stop):
            step = program.steps[place]
            weights = {view for one in operator_steps(step) for view in one.inputs if view in elements}
            gradients = gradient_bytes * sum(elements[name] for name in weights)
            given_back = sum(size for name, size in there.items() if name in saved and saved[name][0] > place)
            at_work = gradients + working_bytes(program, step) + sum(replayed.values()) - given_back
            most = max(most, at_work)
    return most
