"""What is there of a microbatch, step by step of its backward: by hand, and simulated buffer by buffer."""

from __future__ import annotations

import pytest

from autoshard.cost.local_shape import LocalShape
from autoshard.cost.program import ProgramWork
from autoshard.cost.stage_program import shape_program
from autoshard.cost.working_bytes import at_steps, working_bytes
from autoshard.graph.count import saved_activations
from autoshard.graph.partition import OperatorStep, Program, RedistributeStep
from autoshard.graph.recompute import (
    COMMON_SETS,
    FULL_RECOMPUTE,
    NO_RECOMPUTE,
    held_bytes,
    kept_activations,
    recomputing,
    replayed_activations,
    segments,
    waiting_twice_bytes,
)
from autoshard.layout.sharding import stage_program
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.units import MIB
from tests.multiprocess.models import MODELS

BATCH, SEQ = 2, 32
SETS = (*COMMON_SETS, "mlp", "attention_norm+attention", "mlp_norm+residual")


def program_of(name: str, kernel: str = "flash", tp: int = 1) -> Program:
    """Two blocks of a small model, in bf16."""
    model = MODELS[name]
    sizes = dim_sizes(model, BATCH, SEQ, tp)
    graph = stage_graph(model, sizes, range(2), False, False, kernel, element_bytes=2)
    return stage_program(graph, {"tp": tp} if tp > 1 else {}, tp > 1)


def simulated(program: Program, recompute: str) -> list[float]:
    """`held_bytes`, one step after the other, by the names of what still has a use."""
    known, sizes = recomputing(program), dict[str, float]()
    saved = [saved_activations(program, step) for step in program.steps]
    for of_step in (*saved, kept_activations(program, recompute)):
        sizes.update(of_step)
    found = []
    for index in range(len(program.steps)):  # all steps behind it have run backward
        there = set[str]()
        for one in segments(program, recompute):
            if one.start > index:
                continue
            if one.recomputed and index >= one.stop:  # it has not run again
                there |= known.named(known.pattern.kept_of(one.start, one.stop, True)).keys()
            if index < one.stop or not one.recomputed:
                there |= {name for of_step in saved[one.start : min(one.stop, index + 1)] for name in of_step}
        found.append(sum(sizes[name] for name in there))
    return found


@pytest.mark.parametrize("recompute", SETS)
@pytest.mark.parametrize("name", ["llama", "mixtral", "gpt2"])
def test_what_is_held_is_what_still_has_a_use(name: str, recompute: str) -> None:
    program = program_of(name, "plain" if name == "gpt2" else "flash")
    assert held_bytes(program, recompute) == simulated(program, recompute)


@pytest.mark.parametrize("tp", [1, 2])
def test_all_that_is_kept_is_there_first_and_all_that_runs_again_with_it(tp: int) -> None:
    program = program_of("llama", tp=tp)
    kept = {name: sum(kept_activations(program, name).values()) for name in SETS}
    assert held_bytes(program, NO_RECOMPUTE)[-1] == kept[NO_RECOMPUTE]
    assert held_bytes(program, NO_RECOMPUTE) == sorted(held_bytes(program, NO_RECOMPUTE))
    last = [one for one in segments(program, FULL_RECOMPUTE) if one.recomputed][-1]
    both = kept_activations(program, FULL_RECOMPUTE) | replayed_activations(program, last)
    assert held_bytes(program, FULL_RECOMPUTE)[-1] == sum(both.values())


def test_the_fullest_step_of_each_set() -> None:
    """Kept, replayed and working bytes are, together, what is there at the fullest step."""
    program = program_of("llama")
    work, at_work = ProgramWork(program), at_steps(program)
    for recompute in SETS:
        held = held_bytes(program, recompute)
        steps = map(sum, zip(held, at_work.working, at_work.tiles, strict=True))
        found = work.recompute(recompute)
        assert found.kept_bytes + found.replay_bytes + work.working_bytes == max(steps)
    assert work.recompute(NO_RECOMPUTE).replay_bytes == 0


def test_the_fullest_moment_may_be_forward_that_runs_again() -> None:
    """A mixture over tp and ep: of a microbatch 4,096 tokens by 2,048 numbers are 16 MiB, the slots of 8 of 128 experts
    for 1.25 times as many tokens 160. When their answers go back, there is what the exchange reads, its copy in pieces
    for each rank and what it writes, and gathered gates (a MiB), as in its backward; but also the gradients with which
    the block's began: of the sum over experts, which each rank has gathered whole, and of a quarter of the residual."""
    shape = LocalShape(tp=4, cp=1, ep=8, microbatch_size=1, sequence_parallel=True, attention_kernel="flash")
    program = shape_program(
        load_model("qwen3-30b-a3b"), 4096, 1.25, "bfloat16", shape, True, (0,), first=False, last=False
    )
    back = next(
        index
        for index, step in enumerate(program.steps)
        if isinstance(step, RedistributeStep) and step.source.endswith("experts.down_proj")
    )
    work, steps = ProgramWork(program), at_steps(program)
    assert steps.forward[back] == 3 * 160 * MIB + MIB
    held = held_bytes(program, FULL_RECOMPUTE)
    found = work.recompute(FULL_RECOMPUTE)
    expected = held[back] + steps.forward[back] + (16 + 4) * MIB
    assert found.kept_bytes + found.replay_bytes + work.working_bytes == expected
    backward = max(map(sum, zip(held, steps.working, steps.tiles, strict=True)))
    assert expected - backward == 16 * MIB
    assert work.recompute(NO_RECOMPUTE).replay_bytes == 0  # forward has no gradients beside it


def test_forward_that_writes_scores_out_may_be_the_fullest_moment() -> None:
    """Of 4,096 tokens two heads' scores are 64 MiB in bf16, and there until their probabilities are, which are kept; in
    FP32 those of one head are 64 MiB, and a mask and its complement 16 each. There is no output then. Where it runs
    again, the gradients wait with which the block's began: of the sum over the MLP's ranks, 32 MiB, and of a 16th of
    the residual, 2."""
    shape = LocalShape(tp=16, cp=1, ep=1, microbatch_size=1, sequence_parallel=True, attention_kernel="plain")
    program = shape_program(load_model("llama3-8b"), 4096, 1.25, "bfloat16", shape, True, (0,), first=False, last=False)
    names = [step.operator.name if isinstance(step, OperatorStep) else "" for step in program.steps]
    place = names.index("model.layers.0.self_attn.core_attention")
    work, steps = ProgramWork(program), at_steps(program)
    assert steps.forward[place] == 64 * MIB
    assert steps.forward_tiles[place] == (2 * 64 + 2 * 16) * MIB
    for recompute, gradients in ((NO_RECOMPUTE, 0), (FULL_RECOMPUTE, 32 + 2)):
        held, found = held_bytes(program, recompute), work.recompute(recompute)
        at_scores = held[place] + steps.forward[place] + steps.forward_tiles[place] + gradients * MIB
        assert found.kept_bytes + found.replay_bytes + work.working_bytes == at_scores
        backward = max(map(sum, zip(held, steps.working, steps.tiles, strict=True)))
        assert at_scores > backward


def test_what_is_there_with_gradients_of_weights() -> None:
    """Those of gate and up, which one gathered input feeds, are the largest of a block, but where those of `down` come
    nothing has been given back. Plans had what is there with the largest ones alone, and ranks between the ends were
    planned 2 % above to 2 % below their audits. Core attention has not run again by then, where it does; a whole block
    has, and holds there what it would have kept."""
    shape = LocalShape(tp=8, cp=1, ep=1, microbatch_size=1, sequence_parallel=True, attention_kernel="flash")
    program = shape_program(load_model("llama3-8b"), 4096, 1.25, "bfloat16", shape, True, (0,), first=False, last=False)
    work = ProgramWork(program)
    none, core, full = (work.recompute(name) for name in (NO_RECOMPUTE, "core_attention", FULL_RECOMPUTE))
    # gathered, the hidden activations have 32 MiB, the MLP's 14336 / 8 = 1792 numbers a token 14; of a rank's own
    # tokens they have 4. At `down` there is the gradient of its output, gathered, that of its input and that which
    # waits at the residual
    weight_bytes = 1792 * 4096 * 2
    assert weight_bytes == 14 * MIB
    assert none.at_weights_bytes == (32 + 14 + 4) * MIB + weight_bytes - 2 * weight_bytes
    # at gate and up their input is gathered again, and the gradient of that is a rank's own already, beside those of
    # both outputs and that at the residual; `down` and the activation have given back what was between
    (gate,) = (one for one in work.at_weights if one.gradient_bytes == 0)
    at_gate = held_bytes(program, NO_RECOMPUTE)[gate.place] + at_steps(program).working[gate.place]
    assert at_gate + gate.activation_bytes - none.kept_bytes == (32 + 4 + 2 * 14 + 4 - 3 * 14) * MIB
    assert core.kept_bytes < none.kept_bytes and core.at_weights_bytes == none.at_weights_bytes
    assert full.kept_bytes + full.at_weights_bytes == none.kept_bytes + none.at_weights_bytes


def test_what_runs_again_in_front_of_an_mlp_is_there_again_and_no_more() -> None:
    """There is as much in front of an MLP as if nothing ran again: beyond what is kept, what is kept less. Plans had
    all that segments save, with what they read and keep, and were up to 4 % above their audits under ZeRO-2 and -3."""
    shape = LocalShape(tp=8, cp=1, ep=1, microbatch_size=1, sequence_parallel=True, attention_kernel="flash")
    program = shape_program(load_model("llama3-8b"), 4096, 1.25, "bfloat16", shape, True, (0,), first=False, last=False)
    work = ProgramWork(program)
    none, full = work.recompute(NO_RECOMPUTE), work.recompute(FULL_RECOMPUTE)
    for name in ("core_attention", "attention_norm+core_attention", "mlp", "attention+residual", FULL_RECOMPUTE):
        found = work.recompute(name)
        assert found.again_bytes == none.kept_bytes - found.kept_bytes < found.segment_bytes
    assert full.again_bytes == full.segment_bytes - full.kept_bytes
    # the input of the block, 4 MiB, is there to the end if another stage has sent it, with its gradient
    times = work.moments
    assert times.most + none.kept_bytes - times.over.given_back == 2 * 4 * MIB


def test_forward_that_moves_nothing_writes_nothing() -> None:
    """Without sequence parallelism the ranks of tp have the norm's whole output, 32 MiB, which each reads as it is."""
    shape = LocalShape(tp=8, cp=1, ep=1, microbatch_size=1, sequence_parallel=False, attention_kernel="flash")
    program = shape_program(load_model("llama3-8b"), 4096, 1.25, "bfloat16", shape, True, (0,), first=False, last=False)
    norm, given, *_ = at_steps(program).forward
    assert (norm, given) == (32 * MIB, 32 * MIB)


def test_a_view_that_is_the_same_is_kept_once() -> None:
    """Without sequence parallelism the ranks of tp read the norm's output, 64 MiB, as it is: attention that runs again
    keeps what the MLP keeps."""
    shape = LocalShape(tp=8, cp=1, ep=1, microbatch_size=1, sequence_parallel=False, attention_kernel="flash")
    model = load_model("command-r-08-2024")
    program = shape_program(model, 4096, 1.25, "bfloat16", shape, True, (0,), first=False, last=False)
    kept = kept_activations(program, "attention")
    assert [name for name, size in kept.items() if size == 64 * MIB] == ["hidden", "model.layers.0.input_layernorm"]


def test_gradients_wait_for_steps_in_front() -> None:
    """The gradient of a block's input waits from the residual's sum on, until the norm in front adds its own; that
    of the gate's output while `up` runs, and that of the norm's output, which both read, while the gate does. The sum
    has one gradient, that of all it adds, which `down` reads."""
    program = program_of("llama")
    hidden_bytes, gate_bytes = (
        BATCH * SEQ * size * 2 for size in (MODELS["llama"].hidden_size, MODELS["llama"].intermediate_size)
    )
    waiting = {
        step.operator.name.removeprefix("model.layers.1."): working - working_bytes(program, step)
        for step, working in zip(program.steps, at_steps(program).working, strict=True)
        if hasattr(step, "operator") and "layers.1." in step.operator.name
    }
    assert waiting["mlp_residual"] == -2 * hidden_bytes
    assert waiting["mlp.down_proj"] == 0.0
    assert waiting["mlp.act_fn"] == waiting["self_attn.core_attention"] == hidden_bytes
    assert waiting["mlp.up_proj"] == hidden_bytes + gate_bytes
    assert waiting["mlp.gate_proj"] == 2 * hidden_bytes
    assert waiting["input_layernorm"] == hidden_bytes


def test_a_sum_s_gradient_is_that_of_branches_that_ranks_have_summed() -> None:
    """Without sequence parallelism the ranks of tp sum what Command R's attention and MLP give. The residual has one
    gradient of 64 MiB for all three that it adds, which waits for the input, too, while `down` reads it."""
    shape = LocalShape(tp=8, cp=1, ep=1, microbatch_size=1, sequence_parallel=False, attention_kernel="flash")
    model = load_model("command-r-08-2024")
    program = shape_program(model, 4096, 1.25, "bfloat16", shape, True, (0,), first=False, last=False)
    working = {
        step.operator.name.removeprefix("model.layers.0."): size
        for step, size in zip(program.steps, at_steps(program).working, strict=True)
        if hasattr(step, "operator")
    }
    assert working["residual"] == 64 * MIB
    width = model.intermediate_size // 8 * 2 * 4096
    assert working["mlp.down_proj"] == 64 * MIB + width


def test_what_waits_for_gradients_of_weights() -> None:
    """Behind the activation `down` alone has run backward, in front of it gate and up, whose outputs' gradients came
    from it, too. The gradient of down's output is the residual's until the norm's is added, and is there anyway."""
    program = program_of("llama")
    model = MODELS["llama"]
    by_name = {
        step.operator.name: size
        for step, size in zip(program.steps, at_steps(program).put_off, strict=True)
        if hasattr(step, "operator")
    }
    tokens_bytes = BATCH * SEQ * 2
    assert by_name["model.layers.1.mlp.down_proj"] == 0.0
    ffn, hidden = tokens_bytes * model.intermediate_size, tokens_bytes * model.hidden_size
    assert by_name["model.layers.1.mlp.act_fn"] == ffn
    assert by_name["model.layers.1.mlp.up_proj"] == ffn
    assert by_name["model.layers.1.mlp.gate_proj"] == 2 * ffn
    assert by_name["model.layers.1.post_attention_layernorm"] == 3 * ffn + hidden
    assert by_name["model.layers.1.self_attn.o_proj"] == 3 * ffn + 2 * hidden


def test_one_gradient_of_two_branches_waits_once() -> None:
    """Attention and MLP side by side end in one sum, whose gradient is that of what both put out."""
    model = MODELS["cohere"]
    hidden, ffn, kv = model.hidden_size, model.intermediate_size, model.num_key_value_heads * model.head_dim
    inputs, gradients = 2 * hidden + ffn, (hidden + 2 * kv) + 2 * ffn + hidden
    assert at_steps(program_of("cohere")).waiting_bytes == 2 * (BATCH * SEQ * 2) * (inputs + gradients)


@pytest.mark.parametrize(
    ("recompute", "sequence_parallel", "twice_mib"),
    [
        ("attention", True, 64),
        ("attention+core_attention", True, 64),
        ("attention+mlp", True, 64),
        ("attention+core_attention+mlp", True, 0),
        ("mlp", True, 0),
        (NO_RECOMPUTE, True, 0),
        (FULL_RECOMPUTE, True, 0),
        ("attention", False, 0),
    ],
)
def test_a_norm_that_is_gathered_again_waits_twice(recompute: str, sequence_parallel: bool, twice_mib: int) -> None:
    """Command R's attention and MLP read one norm, 64 MiB when it is gathered. Attention that runs again gathers it
    anew for its weights, and the MLP, which does not run again with it, has kept the first one for its own: both wait
    when the backward of the block is over. Ranks that read the norm's output as it is gather nothing."""
    shape = LocalShape(8, 1, 1, 1, sequence_parallel, "flash")
    model = load_model("command-r-08-2024")
    program = shape_program(model, 4096, 1.25, "bfloat16", shape, True, (0,), first=False, last=False)
    work = ProgramWork(program)
    once = work.recompute(NO_RECOMPUTE).weights_waiting_bytes
    assert work.recompute(recompute).weights_waiting_bytes - once == twice_mib * MIB


def test_what_a_step_behind_has_kept_waits_beside_what_runs_again() -> None:
    """`o_proj` has read attention's output and keeps it for its weight, while attention that runs again has another
    one; in front of attention only one of the two is left."""
    program = program_of("llama")
    twice = {
        step.operator.name.removeprefix("model.layers.1."): size
        for step, size in zip(program.steps, waiting_twice_bytes(program, "core_attention"), strict=True)
        if hasattr(step, "operator") and "layers.1." in step.operator.name
    }
    model = MODELS["llama"]
    output_bytes = BATCH * SEQ * 2 * model.num_attention_heads * model.head_dim
    assert {name: size for name, size in twice.items() if size} == {"self_attn.core_attention": output_bytes}


@pytest.mark.parametrize("recompute", [NO_RECOMPUTE, FULL_RECOMPUTE])
def test_what_waits_is_there_with_a_tile_of_scores(recompute: str) -> None:
    """At attention that writes scores out, of 4,096 tokens, the inputs of gate and up, down and o_proj wait, 2, 7 and 2
    MiB, and the gradients of their outputs: 7 each of gate and up, 32 of down and of o_proj, whose ranks sum them.
    Forward, for the first time or again, needs more than backward where nothing waits, but nothing waits there."""
    shape = LocalShape(tp=16, cp=1, ep=1, microbatch_size=1, sequence_parallel=True, attention_kernel="plain")
    program = shape_program(load_model("llama3-8b"), 4096, 1.25, "bfloat16", shape, True, (0,), first=False, last=False)
    work, steps, held = ProgramWork(program), at_steps(program), held_bytes(program, recompute)
    place = work.fullest.place
    assert place is not None
    step = program.steps[place]
    assert isinstance(step, OperatorStep) and step.operator.kind == "attention"
    found, waiting_bytes = work.recompute(recompute), (2 + 7 + 2 + 2 * 7 + 2 * 32) * MIB
    assert found.replay_bytes > 0 and found.for_weights_bytes < waiting_bytes
    most = found.kept_bytes + found.replay_bytes + work.working_bytes + found.for_weights_bytes
    assert most == held[place] + steps.working[place] + steps.tiles[place] + waiting_bytes
