"""Which gradients of a program are one tensor: a step may hand on that of what it wrote as that of what it read."""

from __future__ import annotations

from collections import Counter

from autoshard.graph.partition import GatherEinsumStep, OperatorStep, Program, RedistributeStep, Step


def gradient_storages(program: Program) -> dict[str, str]:
    """View -> the view whose gradient its own is, where one step alone reads it and hands that on."""
    of_steps = [views(step) for step in program.steps]
    readers = Counter(view for inputs, _ in of_steps for view in inputs)
    found: dict[str, str] = {}
    for step, (inputs, outputs) in zip(reversed(program.steps), reversed(of_steps), strict=True):
        for view in inputs:
            if readers[view] == 1 and passes_on(program, step, view) and not is_mask(program, view):
                found[view] = found.get(outputs[0], outputs[0])
    return found


def views(step: Step) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The views that a step reads, and those that it writes."""
    if isinstance(step, RedistributeStep):
        return (step.source,), (step.target,)
    if isinstance(step, GatherEinsumStep):
        return (step.gather.source,), tuple(einsum.operator.output for einsum in step.einsums)
    return tuple(step.inputs), (step.operator.output,)


def is_mask(program: Program, view: str) -> bool:
    """Whether a view was computed and has no gradient."""
    tensor = program.tensor(view)
    return tensor.role == "activation" and not tensor.differentiable


def passes_on(program: Program, step: Step, view: str) -> bool:
    """Whether backward of a step hands the gradient of its output on as that of what it read: a sum does, and a
    redistribution that moves nothing backward."""
    if isinstance(step, RedistributeStep):
        return all(one.backward == "identity" for one in step.transitions)
    if not isinstance(step, OperatorStep) or step.operator.attributes.get("function") != "add":
        return False
    op, first = step.operator, step.inputs[0]
    if ("alpha" in op.attributes and view != first) or step.inputs.count(view) > 1:
        return False
    tensor, output = program.tensor(view), program.tensor(op.output)
    return (tensor.dims, tensor.element_bytes) == (output.dims, output.element_bytes)
