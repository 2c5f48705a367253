"""Models with recurrences: what these compute, keep and communicate, and what a stage of them costs."""

from dataclasses import replace
from typing import Any

import pytest

from autoshard.backends.mesh_rules import tp_divides_groups
from autoshard.backends.problem import Draft, Problem
from autoshard.cost.estimate import model_flops_per_step
from autoshard.cost.local_shape import local_shape
from autoshard.cost.stage import block_part
from autoshard.errors import AutoshardError
from autoshard.explanation.describe import _facts
from autoshard.graph.count import forward_collectives, operator_steps, operator_work, saved_activations
from autoshard.graph.partition import OperatorStep, Program
from autoshard.layout.buckets import read_in_backward
from autoshard.layout.context_parallel import with_context_parallel
from autoshard.layout.mesh import build_mesh
from autoshard.layout.sharding import stage_program
from autoshard.models.minimax.graph import rates
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.spec.cluster import load_cluster
from autoshard.spec.linear_attention import LightningAttention, LinearAttention, Mamba, Mamba1
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec, load_precision
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import plan_of, strategy

NEXT, GRANITE, LFM2, KIMI, FALCON = map(
    load_model, ("qwen3-next-80b-a3b", "granite-4.0-h-micro", "lfm2-1.2b", "kimi-linear-48b-a3b", "falcon-h1-7b")
)
MINIMAX, JAMBA = map(load_model, ("minimax-text-01", "jamba-1.5-mini"))
SEQ = 4096
TRAINING = TrainingSpec(SEQ, 16, load_precision("mixed_precision"))
CLUSTER = load_cluster("trn2.48xlarge", nodes=1)


def program(model: ModelSpec, layer: int, tp: int = 1, cp: int = 1) -> Program:
    mesh = build_mesh(tp, 1, cp, cp, cp if model.is_moe else 1, model.num_key_value_heads, False)
    graph = stage_graph(model, dim_sizes(model, cp, SEQ, tp), (layer,), False, False)
    return stage_program(with_context_parallel(graph, "zigzag_ring", cp), mesh.stage_axes, tp > 1)


def step_of(found: Program, kind: str) -> OperatorStep:
    steps = (one for step in found.steps for one in operator_steps(step) if one.operator.kind == kind)
    return next(steps)


def test_kinds_of_blocks_are_those_of_the_config() -> None:
    assert NEXT.kinds == (0, 3)
    assert NEXT.kind_counts(0, 48) == ((0, 36), (3, 12))
    assert [GRANITE.mixer_of(layer) for layer in (4, 5, 6)] == ["mamba", "full_attention", "mamba"]
    assert GRANITE.kind_counts(0, 40) == ((0, 36), (5, 4))
    assert not GRANITE.has_rope(5)


@pytest.mark.parametrize("model", [NEXT, GRANITE, LFM2, KIMI, FALCON, MINIMAX, JAMBA], ids=lambda model: model.name)
def test_backward_reads_every_matrix_of_a_block(model: ModelSpec) -> None:
    """Under ZeRO-3 each is gathered again for it, be it alone in its bucket, such as a convolution's weight."""
    for layer in model.kinds:
        found = program(model, layer)
        matrices = {name for name in found.graph.matrices if found.graph.tensors[name].differentiable}
        assert matrices
        assert all(read_in_backward(found, [name], "none") for name in matrices)


def test_flops_of_the_gated_delta_rule() -> None:
    """32 value heads of 128 by 128; in chunks of 64: two squares of keys, two triangular systems, one of values, three
    products with the state."""
    squares, systems, inside, states = 4 * 64 * 128, 64 * (128 + 128), 2 * 64 * 128, 6 * 128 * 128
    whole, half = program(NEXT, 0), program(NEXT, 0, tp=2)
    work = operator_work(whole, step_of(whole, "gated_delta_rule"))
    assert work.flops == SEQ * 32 * (squares + systems + inside + states)
    assert operator_work(half, step_of(half, "gated_delta_rule")).flops == work.flops / 2
    by_channel = program(KIMI, 0)  # as many heads of the same widths
    assert operator_work(by_channel, step_of(by_channel, "gated_delta_rule")).flops == work.flops


def test_flops_of_the_state_space_scan() -> None:
    """64 heads of 64 with a state of 128; in chunks of 256, of which all heads share the square of B and C."""
    each = 2 * 256 * 64 + 2 * 2 * 64 * 128 + 2 * 256
    whole = program(GRANITE, 0)
    work = operator_work(whole, step_of(whole, "state_space_scan"))
    assert work.flops == SEQ * (64 * each + 2 * 256 * 128)
    assert work.matmul is not None
    assert 2 * work.matmul[0] * work.matmul[1] * work.matmul[2] == pytest.approx(work.flops, rel=1e-12)


def test_flops_of_the_selective_scan() -> None:
    """8,192 channels, each with a state of 16 numbers, of which a token costs seven FLOPs each."""
    whole, half = program(JAMBA, 0), program(JAMBA, 0, tp=2)
    work = operator_work(whole, step_of(whole, "selective_scan"))
    assert work.flops == SEQ * 8192 * 16 * 7
    assert list(work.matmul or ()) == [SEQ * 8192, 16, 3.5]
    assert operator_work(half, step_of(half, "selective_scan")).flops == work.flops / 2


def test_ranks_that_share_channels_sum_what_all_of_them_make() -> None:
    """What time steps are made of, B and C: 256 + 2 x 16 numbers of BF16 of each token."""
    found = program(JAMBA, 0, tp=4)
    sums = [one for step in found.steps for one in forward_collectives(found, step) if "scatter" in one[0]]
    assert (SEQ * (256 + 2 * 16) * 2) in [size for _, _, size in sums]


def test_flops_of_lightning_attention() -> None:
    """64 heads of 128 with a state of 128 by 128; in chunks of 256, each head with a square of its own."""
    each = 2 * 2 * 256 * 128 + 2 * 2 * 128 * 128 + 2 * 256
    whole, half = program(MINIMAX, 0), program(MINIMAX, 0, tp=2)
    work = operator_work(whole, step_of(whole, "lightning_attention"))
    assert work.flops == SEQ * 64 * each
    assert operator_work(half, step_of(half, "lightning_attention")).flops == work.flops / 2


def test_heads_of_lightning_attention_forget_slower_from_block_to_block() -> None:
    """By 2^(-1/8) to 1/256 a token in the first of 80 blocks, and hardly in the last one."""
    first, second, last = (rates(MINIMAX, layer) for layer in (0, 1, 79))
    assert len(first) == 64
    assert first[0] / (1 + 1e-5) == pytest.approx(2 ** (-1 / 8), rel=1e-14)
    assert first[-1] / (1 + 1e-5) == pytest.approx(1 / 256, rel=1e-14)
    assert second[7] / first[7] == pytest.approx(78 / 79, rel=1e-6)
    assert 0 < last[0] < 1.1e-5
    graph = stage_graph(MINIMAX, dim_sizes(MINIMAX, 1, SEQ), (6, 7, 8), False, False)
    told = [op.attributes["rates"] for op in graph.operators if op.kind == "lightning_attention"]
    assert told == [rates(MINIMAX, 6), rates(MINIMAX, 8)]


def test_flops_of_a_convolution() -> None:
    """A product and a sum for each of three taps; with an activation four more. A rank of four has its channels."""
    found = program(LFM2, 0)
    assert operator_work(found, step_of(found, "causal_conv")).flops == SEQ * 2048 * 2 * 3
    part = program(LFM2, 0, tp=4)
    assert operator_work(part, step_of(part, "causal_conv")).flops == SEQ * 2048 * 2 * 3 / 4
    activated = program(GRANITE, 0)
    work = operator_work(activated, step_of(activated, "causal_conv"))  # of x, with a bias
    assert work.flops == SEQ * 64 * 64 * (2 * 4 + 4)


RECURRENT = [
    (NEXT, "gated_delta_rule"),
    (GRANITE, "state_space_scan"),
    (JAMBA, "selective_scan"),
    (LFM2, "causal_conv"),
    (KIMI, "gated_delta_rule"),
    (FALCON, "state_space_scan"),
    (MINIMAX, "lightning_attention"),
]


@pytest.mark.parametrize(("model", "kind"), RECURRENT)
def test_a_recurrence_keeps_its_inputs_and_no_state(model: ModelSpec, kind: str) -> None:
    found = program(model, 0)
    step = step_of(found, kind)
    kept = saved_activations(found, step)
    activations = [name for name in step.inputs if found.tensor(name).role != "parameter"]
    assert kept == {name: found.local_bytes[name] for name in activations}


@pytest.mark.parametrize(("model", "kind"), RECURRENT)
def test_ranks_that_share_a_sequence_each_go_through_all_of_it(model: ModelSpec, kind: str) -> None:
    whole, shared = (program(model, 0, cp=cp) for cp in (1, 2))
    flops = [operator_work(one, step_of(one, kind)).flops for one in (whole, shared)]
    assert flops[0] == flops[1]


def test_model_flops_count_recurrences() -> None:
    model = MODELS["granite hybrid"]
    assert model.mamba is not None
    wider = replace(model, mamba=replace(model.mamba, mamba_chunk_size=16))
    each = SEQ * 16 * 16 * 2 * (8 + 1) + SEQ * 16 * 2 * 12 - SEQ * 16 * 8 * 2 * (8 + 1) - SEQ * 8 * 2 * 12
    longer = model_flops_per_step(wider, TRAINING) - model_flops_per_step(model, TRAINING)
    assert longer == pytest.approx(3 * 3 * 16 * each, rel=1e-9)


@pytest.mark.parametrize(("model", "kind"), [(NEXT, 0), (GRANITE, 0), (KIMI, 0), (FALCON, 0), (MINIMAX, 0), (JAMBA, 0)])
def test_a_block_with_a_recurrence_splits_over_tensor_parallel_ranks(model: ModelSpec, kind: int) -> None:
    one, eight = (
        block_part(model, TRAINING, CLUSTER, local_shape(strategy(tp=tp, dp=64 // tp, layers=(48,))), kind, "none")
        for tp in (1, 8)
    )
    assert one.forward.compute / 8 < eight.forward.compute < one.forward.compute / 3
    assert one.backward.compute > 2 * one.forward.compute


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"linear_attention": None},
            (
                "linear_attention of qwen3-next-80b-a3b must be the sizes of the blocks that are linear_attention in "
                "layer_types, and absent without such blocks"
            ),
        ),
        (
            {"mamba": Mamba(4, 8, 8, 4, 8, True)},
            (
                "mamba of qwen3-next-80b-a3b must be the sizes of the blocks that are mamba in layer_types, and absent "
                "without such blocks"
            ),
        ),
        (
            {"mamba1": Mamba1(64, 8, 8, 4, True)},
            (
                "mamba1 of qwen3-next-80b-a3b must be the sizes of the blocks that are mamba1 in layer_types, and "
                "absent without such blocks"
            ),
        ),
        (
            {"lightning_attention": LightningAttention(256)},
            (
                "lightning_attention of qwen3-next-80b-a3b must be the sizes of the blocks that are "
                "lightning_attention in layer_types, and absent without such blocks"
            ),
        ),
        (
            {"position_types": ("rope",) * 3},
            "position_types of qwen3-next-80b-a3b has 3 entries; num_hidden_layers=48 needs one for each block",
        ),
    ],
)
def test_what_does_not_fit_the_blocks_is_said(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as raised:
        replace(NEXT, **fields)
    assert str(raised.value) == text


def test_a_block_with_both_mixers_is_one_kind() -> None:
    assert FALCON.kinds == (0,)
    found = [step.operator.kind for step in program(FALCON, 0).steps if isinstance(step, OperatorStep)]
    assert (found.count("attention"), found.count("state_space_scan")) == (1, 1)


def test_made_small_they_keep_their_form() -> None:
    assert NEXT.linear_attention is not None
    assert NEXT.linear_attention.shrunk(4) == LinearAttention(4, 8, 8, 8, 4)
    assert GRANITE.mamba is not None
    assert GRANITE.mamba.shrunk(2) == Mamba(4, 8, 8, 4, 8, True)
    groups = replace(GRANITE.mamba, mamba_n_groups=8)
    assert groups.shrunk(1) == Mamba(4, 8, 8, 4, 8, True, 2)
    assert groups.shrunk(4) == Mamba(8, 8, 8, 4, 8, True, 4)
    assert JAMBA.mamba1 is not None
    assert JAMBA.mamba1.shrunk(4) == Mamba1(64, 8, 8, 4, True)
    assert MINIMAX.lightning_attention is not None
    assert MINIMAX.lightning_attention.shrunk() == LightningAttention(8)


def in_groups(model: ModelSpec, groups: int) -> ModelSpec:
    assert model.mamba is not None
    return replace(model, mamba=replace(model.mamba, mamba_n_groups=groups))


def test_flops_of_the_state_space_scan_in_groups() -> None:
    """As above, with a square of B and C for each of 8 groups, which the ranks share."""
    each = 2 * 256 * 64 + 2 * 2 * 64 * 128 + 2 * 256
    whole, half = (program(in_groups(GRANITE, 8), 0, tp=tp) for tp in (1, 2))
    work = operator_work(whole, step_of(whole, "state_space_scan"))
    assert work.flops == SEQ * (64 * each + 8 * 2 * 256 * 128)
    assert operator_work(half, step_of(half, "state_space_scan")).flops == work.flops / 2


def test_ranks_have_whole_groups_of_a_state_space() -> None:
    model = in_groups(GRANITE, 8)
    problem = Problem(model, TRAINING, CLUSTER, "torch")
    assert tp_divides_groups(problem, Draft(8, 1, 8, 1, 1)) is None
    assert tp_divides_groups(problem, Draft(16, 1, 4, 1, 1)) == (
        f"tp=16 must divide mamba_n_groups=8 of {model.name}; degrees that fit here: 1, 4"
    )
    assert tp_divides_groups(problem._replace(model=GRANITE), Draft(16, 1, 4, 1, 1)) is None


def test_groups_divide_the_heads() -> None:
    with pytest.raises(AutoshardError) as raised:
        Mamba(16, 8, 12, 4, 8, True, 3)
    assert str(raised.value) == "mamba_n_groups=3 of mamba must divide mamba_n_heads=16"


def test_value_heads_come_in_whole_groups() -> None:
    with pytest.raises(AutoshardError) as raised:
        LinearAttention(3, 4, 8, 8, 4)
    assert str(raised.value) == "linear_num_key_heads=3 of linear_attention must divide linear_num_value_heads=4"


def test_without_attention_tp_is_one_axis_and_the_page_says_so() -> None:
    plan = plan_of(MODELS["mamba"], strategy(tp=2, cp=2), 2)
    assert "tp" in plan.mesh.stage_axes
    assert dict(_facts(plan, ("attention",)))["attention"] == (
        "none: a state space mixes the tokens of each block; each rank along cp goes through the whole sequence"
    )
