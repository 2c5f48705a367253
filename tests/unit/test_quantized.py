"""Products in 8 and 4 bits: which ones, what they cost by hand, what is kept, held and sent."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.backends.rules import Problem
from autoshard.cost.after import AfterLastMicrobatch
from autoshard.cost.collectives import CollectiveLaw, GroupShape, collective_law
from autoshard.cost.compute import OperatorNeeds, matmul_s, memory_s, quantized_products, seconds_of
from autoshard.cost.estimate import estimate
from autoshard.cost.local_shape import local_shape, strategy_mesh
from autoshard.cost.memory import memory_values
from autoshard.cost.program import ProgramWork, quantized_share
from autoshard.cost.rank_load import rank_load
from autoshard.cost.stacks import COMPILED, Software
from autoshard.cost.stage import stage_parts
from autoshard.cost.stage_program import Rewrites, rewrites, stage_work
from autoshard.cost.zero_sharding import parts_contents, parts_state
from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.graph.count import operand_bytes, operator_steps
from autoshard.graph.ir import CASTS_INPUT, OPERAND_BYTES
from autoshard.graph.quantize import with_quantized_products
from autoshard.graph.recompute import kept_activations
from autoshard.layout.strategy import Strategy
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.planner import priced as pricing
from autoshard.planner.grid.sharding_bounds import LeastTable
from autoshard.planner.grid.unit_costs import part_numbers
from autoshard.planner.priced import Clock, price_layouts
from autoshard.planner.rejections import Tally
from autoshard.planner.search import search
from autoshard.plans.search_result import Pins
from autoshard.spec.cluster import Device, load_cluster
from autoshard.spec.product_format import PRODUCT_FORMATS
from autoshard.spec.training import PRECISIONS, TrainingSpec, load_precision
from tests.cases import some

BF16 = PRECISIONS["mixed_precision"]
B200 = load_cluster("b200-180gb", 1)
TRN2 = load_cluster("trn2.48xlarge", 1)
TINY = replace(
    load_model("llama3-8b"),
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=64,
)
LAYOUT = Strategy(
    tp=2,
    pp=2,
    dp=2,
    cp=1,
    ep=1,
    num_virtual_stages=1,
    microbatch_size=1,
    schedule="1f1b",
    recompute=("none", "none"),
    sequence_parallel=True,
    zero=1,
    attention_kernel="flash",
    stage_layers=(8, 8),
    context_parallel="all_gather",
)


def device_of(name: str) -> Device:
    return TRN2.device if name == "cfp8" else B200.device


# bytes of one element of an operand, and that a cast of a bf16 element moves: read (twice where the largest comes
# first) and written for both directions
BY_HAND = {
    "fp8": (1.0, 2 + 2 * 1.0),
    "fp8_block": (1.03125, 2 + 2 * 1.03125),
    "mxfp8": (1.03125, 2 + 2 * 1.03125),
    "nvfp4": (0.5625, 4 + 2 * 0.5625),
    "cfp8": (1.0, 2 + 2 * 1.0),
}
PEAKS = {"fp8": 4500e12, "fp8_block": 4500e12, "mxfp8": 4500e12, "nvfp4": 9000e12, "cfp8": 1299e12 / 4}


@pytest.mark.parametrize("name", PRODUCT_FORMATS)
def test_the_price_of_one_layer_by_hand(name: str) -> None:
    """4096 tokens through 8192 -> 28672: three products at a share of what bf16 reaches of the format's peak, 0.95
    where nothing is known, the input cast before the first, the gradient of the output before the others."""
    shares = {"float8": 0.9, "mxfp8": 0.8, "nvfp4": 0.6}
    device, (operand, cast) = replace(device_of(name), quantized_efficiency=tuple(shares.items())), BY_HAND[name]
    products = PRODUCT_FORMATS[name]
    assert (products.operand_bytes, products.cast_bytes(2)) == (operand, cast)
    m, n, k = 4096.0, 28672.0, 8192.0
    needs = OperatorNeeds("matmul", m, n, k, 2 * (m * k + n * k + m * n), 0.0, 2 * m * n * k, 2.0, 1.0, 1.0, 1.0)
    found = seconds_of(
        needs, device, device.peak_flops_per_s("bfloat16"), COMPILED, quantized_products(device, load_precision(name))
    )
    rate = shares.get(products.peak, 0.95) * PEAKS[name] * device.matmul_efficiency
    bandwidth = device.memory_bandwidth_bytes_per_s * device.memory_efficiency

    def product_s(contracted: float) -> float:
        return 2 * m * n * k / (rate * contracted / (contracted + device.matmul_k0))

    launch = device.operator_overhead_s
    assert found.forward == pytest.approx(product_s(k) + cast * m * k / bandwidth + launch, rel=1e-12)
    back = product_s(n) + product_s(m) + cast * m * n / bandwidth
    assert found.backward == pytest.approx(back + 2 * launch, rel=1e-12)


def test_what_is_not_quantised_costs_as_before() -> None:
    """A head, and an input that another product has cast."""
    device, products = B200.device, quantized_products(B200.device, PRECISIONS["fp8"])
    m, n, k = 4096.0, 1024.0, 8192.0
    head = OperatorNeeds("matmul", m, n, k, 1.0, 0.0, 0.0, 2.0)
    peak = device.peak_flops_per_s("bfloat16")
    assert seconds_of(head, device, peak, COMPILED, products) == seconds_of(head, device, peak, COMPILED)
    first, second = (head._replace(quantized=1.0, casts=casts) for casts in (1.0, 0.0))
    longer = (
        seconds_of(first, device, peak, COMPILED, products).forward
        - seconds_of(second, device, peak, COMPILED, products).forward
    )
    assert longer == pytest.approx(memory_s(4 * m * k, device))


@pytest.mark.parametrize(("name", "share"), [("mixed_precision", 1.0), ("fp8", 0.5), ("mxfp8", 1.03125 / 2)])
def test_quantised_gathers_by_hand(name: str, share: float) -> None:
    """Between two ranks go 2048 tokens of 2048 elements: a block gathers the inputs of two layers forward and again
    backward, and the gradients of two outputs; what it scatters stays in bf16."""
    training, shape = TrainingSpec(2048, 32, load_precision(name)), local_shape(LAYOUT)
    whole, fewer = (
        stage_parts(TINY, training, B200, shape, "none", Software("s", gathers_quantized=one)).block
        for one in (False, True)
    )
    law = collective_law("all_gather", GroupShape(2, 2, 1, 1, 2, 8), B200)
    saved_s = law.time_s(2 * 2048 * 2048) - law.time_s(share * 2 * 2048 * 2048)
    assert whole.forward.tensor_parallel - fewer.forward.tensor_parallel == pytest.approx(2 * saved_s)
    assert whole.backward.tensor_parallel - fewer.backward.tensor_parallel == pytest.approx(4 * saved_s)
    assert whole.forward.operators == fewer.forward.operators


def test_what_is_not_quantised_is_gathered_as_before() -> None:
    training = TrainingSpec(2048, 32, PRECISIONS["fp8"], unquantized=("attention",))
    stays = TrainingSpec(2048, 32, PRECISIONS["fp8"], unquantized=("attention", "mlp"))
    fewer = Software("s", gathers_quantized=True)
    found = [
        stage_parts(TINY, one, B200, local_shape(LAYOUT), "none", software).block.all_passes.tensor_parallel
        for one, software in ((training, Software("s")), (training, fewer), (stays, fewer))
    ]
    law = collective_law("all_gather", GroupShape(2, 2, 1, 1, 2, 8), B200)
    assert found[0] - found[1] == pytest.approx(3 * (law.time_s(2**23) - law.time_s(2**22)))
    assert found[2] == found[0]


@given(st.tuples(*(st.integers(1, 40_000) for _ in range(3))), st.sampled_from(sorted(PRODUCT_FORMATS)))
def test_products_are_never_slower_and_casts_always_count(shape: tuple[int, int, int], name: str) -> None:
    m, n, k = map(float, shape)
    device = device_of(name)
    products = quantized_products(device, load_precision(name))
    assert products is not None
    fast = products.peak_flops_per_s * products.efficiency
    assert matmul_s(m, n, k, device, fast) <= matmul_s(m, n, k, device, device.peak_flops_per_s("bfloat16"))
    needs = OperatorNeeds("matmul", m, n, k, 0.0, 0.0, 0.0, 2.0, 1.0, 1.0, 1.0)
    found = seconds_of(needs, device, 1.0, COMPILED, products)
    alone = seconds_of(needs, device, 1.0, COMPILED, products._replace(cast_bytes=0.0))
    assert found.forward > alone.forward and found.backward > alone.backward


def marked(model_name: str, unquantized: tuple[str, ...] = (), multiple: int = 16) -> dict[str, bool]:
    """Operator in its block -> whether it casts its input, for those that are quantised."""
    model = load_model(model_name)
    graph = stage_graph(model, dim_sizes(model, 1, 64), range(1), True, True)
    graph = with_quantized_products(graph, 1.0, unquantized, multiple)
    return {
        op.name.removeprefix("model.layers.0."): bool(op.attributes[CASTS_INPUT])
        for op in graph.operators
        if OPERAND_BYTES in op.attributes
    }


def test_linear_layers_of_blocks_are_quantised_and_a_shared_input_is_cast_once() -> None:
    llama = {
        "self_attn.q_proj": True,
        "self_attn.k_proj": False,
        "self_attn.v_proj": False,
        "self_attn.o_proj": True,
        "mlp.gate_proj": True,
        "mlp.up_proj": False,
        "mlp.down_proj": True,
    }
    assert marked("llama3-8b") == llama
    assert marked("llama3-8b", ("attention",)) == {name: llama[name] for name in llama if name.startswith("mlp")}
    assert marked("llama3-8b", ("mlp", "self_attn.q_proj")) == {
        "self_attn.k_proj": True,
        "self_attn.v_proj": False,
        "self_attn.o_proj": True,
    }
    mixtral = marked("mixtral-8x7b")  # experts, without the router
    assert {name for name in mixtral if "moe" in name} == {f"block_sparse_moe.experts.w{i}" for i in (1, 2, 3)}


def test_layers_that_a_format_does_not_divide_stay_in_bf16() -> None:
    """A gate of one output never is in fewer bits."""
    gate = "mlp.shared_expert_gate"
    with_gate, without = (marked("qwen2-57b-a14b", multiple=multiple) for multiple in (1, 16))
    assert gate in with_gate
    assert without == {name: casts for name, casts in with_gate.items() if name != gate}
    assert [one.multiple for one in PRODUCT_FORMATS.values()] == [16, 16, 32, 16, 16]


@pytest.mark.parametrize(("name", "in_bf16"), [("fp8", set()), ("mxfp8", {"gate_proj", "up_proj", "down_proj"})])
def test_a_rank_multiplies_in_bf16_what_its_format_does_not_divide(name: str, in_bf16: set[str]) -> None:
    """Each of 16 ranks has 688 of Llama 2's 11,008: 43 x 16, 21.5 x 32. What is cast, kept, held and sent follows."""
    model, training = load_model("llama2-7b"), load_precision(name)
    shape = replace(local_shape(LAYOUT), tp=16)

    def work_of(products: Rewrites) -> ProgramWork:
        return stage_work(model, 4096, 1.0, "bfloat16", shape, False, (0,), False, False, products)

    found = work_of(rewrites(model, TrainingSpec(4096, 32, training), (), False))
    steps = {one.operator.name.rpartition(".")[2]: one for step in found.program.steps for one in operator_steps(step)}
    layers = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert {layer for layer in layers if operand_bytes(found.program, steps[layer]) is None} == in_bf16
    unquantized = ("mlp",) if in_bf16 else ()
    same = work_of(rewrites(model, TrainingSpec(4096, 32, training, unquantized=unquantized), (), False))
    assert (found.operators, found.quantized) == (same.operators, same.quantized)
    assert kept_activations(found.program, "none") == kept_activations(same.program, "none")
    shares = [{quantized_share(one.program, step) for step in one.program.steps} for one in (found, same)]
    assert shares[0] == shares[1]


def test_bounds_hold_where_a_rank_multiplies_in_bf16() -> None:
    """A rank has 136 of 1088: its products in bf16, without casts and collectives between ranks, take no less than its
    share of what one rank does, whose products are quantised."""
    model = replace(TINY, hidden_size=1024, num_attention_heads=16, num_key_value_heads=16, intermediate_size=1088)
    training, shape = TrainingSpec(4096, 32, load_precision("mxfp8")), replace(local_shape(LAYOUT), tp=8)
    problem = Problem(model, training, B200, "torch")

    def nothing(kind: str, axes: tuple[str, ...]) -> CollectiveLaw:
        return CollectiveLaw(0.0, 0.0)

    table = LeastTable(problem, ("none",), False, {})
    least = table._numbers(8, [shape])[0, 0, 0]
    found = part_numbers(problem, [shape], ("none",), laws=lambda _: nothing)[0, 0, 0]
    assert least[0] <= found[0] and least[1] <= found[1]


def test_what_a_block_keeps_for_backward_by_hand() -> None:
    """The inputs of its linear layers at one byte: both norms' outputs, what attention gives and the product of the
    gate. Attention keeps its own output too, in bf16."""
    shape = replace(local_shape(LAYOUT), tp=1, sequence_parallel=False)

    def kept(name: str) -> float:
        return float(
            stage_parts(TINY, TrainingSpec(2048, 8, load_precision(name)), B200, shape, "none").block.kept_bytes
        )

    hidden, ffn, tokens = TINY.hidden_size, TINY.intermediate_size, 2048
    bf16, fp8 = kept("mixed_precision"), kept("fp8")
    inputs = tokens * (2 * hidden + ffn)
    assert fp8 - bf16 == -inputs + tokens * hidden  # o_proj's copy of what attention keeps


def test_what_backward_gathers_again_is_kept_as_it_is_gathered() -> None:
    """The outputs of both norms, of which a rank keeps its half: in bf16, but where FP8 is gathered."""

    def kept(name: str, software: Software = COMPILED) -> float:
        training = TrainingSpec(2048, 8, load_precision(name))
        return float(stage_parts(TINY, training, B200, local_shape(LAYOUT), "none", software).block.kept_bytes)

    hidden, ffn, tokens = TINY.hidden_size // 2, TINY.intermediate_size // 2, 2048
    bf16, fp8, gathered = kept("mixed_precision"), kept("fp8"), kept("fp8", Software("s", gathers_quantized=True))
    assert fp8 - bf16 == -tokens * ffn + tokens * hidden  # the gate's product; o_proj's copy of what attention keeps
    assert gathered - fp8 == -tokens * 2 * hidden


def test_weights_are_held_cast_and_gathered_by_hand() -> None:
    cluster, training = load_cluster("b200-180gb", 1), TrainingSpec(2048, 16, BF16)
    block = (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192) // 2  # on one of two tensor-parallel ranks

    def found(name: str) -> tuple[float, float, float]:
        spec = replace(training, precision=load_precision(name))
        parts = (stage_parts(TINY, spec, cluster, local_shape(LAYOUT), "none"),) * 2
        mesh = strategy_mesh(TINY, cluster, LAYOUT)
        state = parts_state(parts, 1, spec.precision, mesh, cluster)
        load = rank_load(LAYOUT, parts, 8, 0)
        after = AfterLastMicrobatch(parts_contents(parts, 2), 1, spec.precision, mesh, cluster)
        only = after.of_rank(8, False, False)
        return memory_values(load, state, spec.precision, cluster.device)[0], only.gather_s, only.update_s

    (held, gather_s, update_s), (held8, gather8_s, update8_s) = found("mixed_precision"), found("nvfp4")
    assert held8 - held == pytest.approx(8 * block * 1.125)  # two copies of 0.5625 beside bf16
    assert gather8_s == gather_s  # in bf16
    assert update8_s - update_s == pytest.approx(memory_s(8 * block * (4 + 2 * 0.5625), cluster.device))
    held8, gather8_s, _ = found("fp8")
    assert held8 == held  # once as it is and once transposed
    assert gather8_s < 0.6 * gather_s
    held8, gather8_s, _ = found("mxfp8")
    assert held8 - held == pytest.approx(8 * block * 0.0625)


@pytest.mark.parametrize("name", PRODUCT_FORMATS)
def test_weights_that_are_gathered_in_bf16_are_cast_in_every_pass(name: str) -> None:
    """Under ZeRO-3 each of two replicas casts the block that it has gathered, forward and backward, in every
    microbatch, and holds both copies while the block is at work; FP8 travels cast, once a step by the owners."""
    cluster = TRN2 if name == "cfp8" else B200
    products, training = PRODUCT_FORMATS[name], TrainingSpec(2048, 16, load_precision(name))
    shared = replace(LAYOUT, zero=3)
    assert products.travels_cast == (name in ("fp8", "fp8_block"))
    block = (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192) // 2  # on one of two tensor-parallel ranks
    mesh = strategy_mesh(TINY, cluster, shared)
    parts = (stage_parts(TINY, training, cluster, local_shape(shared), "none"),) * 2
    moved = parts_state(parts, 3, training.precision, mesh, cluster).block.travelling
    cast_s = memory_s(block * BY_HAND[name][1], cluster.device)
    after = AfterLastMicrobatch(parts_contents(parts, 2), 3, training.precision, mesh, cluster)
    plain = AfterLastMicrobatch(parts_contents(parts, 2), 3, BF16, mesh, cluster)
    once_s = after.of_rank(8, False, False).update_s - plain.of_rank(8, False, False).update_s
    terms, unmoved = (
        estimate(TINY, training, cluster, replace(shared, zero=zero)).time_terms[0].value for zero in (3, 2)
    )
    if products.travels_cast:
        assert (moved.cast_s, moved.turns.copies_bytes) == (0.0, 0.0)
        assert once_s == pytest.approx(8 * cast_s / 2)
        assert terms == unmoved
    else:
        assert moved.cast_s == pytest.approx(cast_s)
        assert moved.turns.copies_bytes == block * 2 * BY_HAND[name][0]
        assert once_s == 0.0
        assert terms - unmoved == pytest.approx(8 * 8 * 2 * cast_s)


def test_copies_of_gathered_weights_are_in_the_working_buffers() -> None:
    model = replace(TINY, vocab_size=1024)  # blocks hold the most
    whole = replace(LAYOUT, tp=1, pp=1, dp=8, sequence_parallel=False, stage_layers=(16,), recompute=("full",), zero=3)

    def working_bytes(name: str) -> float:
        terms = estimate(model, TrainingSpec(2048, 16, load_precision(name)), B200, whole).fullest.terms
        return next(term.value for term in terms if term.name == "working buffers")

    block = 2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192
    of_down = 2048 * 8192  # what it read, kept in the format too, is given back before the activation function works
    assert working_bytes("mxfp8") - working_bytes("nvfp4") == (2 * block - of_down) * (1.03125 - 0.5625)


def test_experts_that_no_other_rank_has_are_cast_once_a_step() -> None:
    """ZeRO-3 gathers nothing of an expert that is on one rank alone: it is held with its copies."""
    model, cluster = load_model("mixtral-8x7b"), load_cluster("b200-180gb", 1)
    training = TrainingSpec(4096, 64, load_precision("mxfp8"))
    one = replace(
        LAYOUT, tp=1, pp=1, dp=8, ep=8, sequence_parallel=False, stage_layers=(32,), recompute=("none",), zero=3
    )
    parts = (stage_parts(model, training, cluster, local_shape(one), "none"),)
    mesh = strategy_mesh(model, cluster, one)
    block = parts_state(parts, 3, training.precision, mesh, cluster).block
    expert, attention = 3 * 4096 * 14336, 2 * 4096 * 4096 + 2 * 4096 * 1024
    assert block.copies_bytes == expert * 0.0625
    assert block.travelling.cast_s == pytest.approx(memory_s(attention * BY_HAND["mxfp8"][1], cluster.device))


@pytest.mark.parametrize("name", PRODUCT_FORMATS)
def test_weights_are_held_in_bf16_too_where_no_rank_shares_the_optimizer_state(name: str) -> None:
    """As export to Megatron has them: --fp8-param-gather needs a distributed optimizer."""
    cluster, whole = (TRN2 if name == "cfp8" else B200), replace(LAYOUT, zero=0)
    blocks = 8 * (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192) // 2

    def parameters_bytes(precision: str) -> float:
        terms = estimate(TINY, TrainingSpec(2048, 16, load_precision(precision)), cluster, whole).fullest.terms
        return terms[0].value

    assert parameters_bytes(name) - parameters_bytes("mixed_precision") == blocks * 2 * BY_HAND[name][0]


def test_blocks_in_bf16_by_hand() -> None:
    """Without a pipeline a step is that many blocks of each kind: with all of them in bf16, a step in bf16 but for the
    casts of weights and what is gathered in FP8."""
    whole = replace(LAYOUT, pp=1, dp=4, stage_layers=(16,), recompute=("none",))

    def work_s(training: TrainingSpec) -> float:
        terms = estimate(TINY, training, B200, whole).time_terms
        return sum(term.value for term in terms[:9])

    fp8, bf16 = TrainingSpec(2048, 16, PRECISIONS["fp8"]), TrainingSpec(2048, 16, BF16)
    each_s = (work_s(bf16) - work_s(fp8)) / 16
    assert work_s(replace(fp8, unquantized_first=1)) == pytest.approx(work_s(fp8) + each_s)
    assert work_s(replace(fp8, unquantized_first=2, unquantized_last=3)) == pytest.approx(work_s(fp8) + 5 * each_s)
    assert work_s(replace(fp8, unquantized_last=16)) == pytest.approx(work_s(bf16))


@pytest.mark.parametrize("pp", [1, 4])
@pytest.mark.parametrize("name", ["llama3.2-1b", "qwen3-30b-a3b"])
def test_all_blocks_in_bf16_are_all_linear_layers_in_bf16(name: str, pp: int) -> None:
    """However they are said, tables tied or not."""
    model, cluster = load_model(name), load_cluster("b200-180gb", 1)
    count = model.num_hidden_layers
    layout = replace(LAYOUT, pp=pp, dp=4 // pp, stage_layers=(count // pp,) * pp, recompute=("none",) * pp)
    training = TrainingSpec(2048, 32, PRECISIONS["nvfp4"])
    named = estimate(model, replace(training, unquantized=("attention", "mlp")), cluster, layout)
    for first, last in ((count, 0), (0, count), (3, count - 3)):
        found = estimate(model, replace(training, unquantized_first=first, unquantized_last=last), cluster, layout)
        assert found == named


def test_blocks_in_bf16_count_where_they_are() -> None:
    """With half of them in bf16 two ranks of four are as if all were, and two as if none was; the rank whose work is
    told has nothing more in its head."""
    training = TrainingSpec(2048, 32, PRECISIONS["nvfp4"])
    layout = replace(LAYOUT, tp=1, pp=4, dp=2, stage_layers=(4,) * 4, recompute=("none",) * 4)
    none, half, every = (estimate(TINY, replace(training, unquantized_last=last), B200, layout) for last in (0, 8, 16))
    assert half.memory == none.memory[:2] + every.memory[2:]
    assert none.memory != half.memory != every.memory
    assert none.step_time_s < half.step_time_s < every.step_time_s
    (head_s,) = (term.value for term in half.time_terms if term.name == "embedding and head")
    assert head_s == next(term.value for term in every.time_terms if term.name == "embedding and head")


def test_blocks_in_bf16_are_of_their_own_kind() -> None:
    model = load_model("deepseek-v3")
    assert model.blocks.kinds == (0, 3)
    ends = TrainingSpec(4096, 64, PRECISIONS["fp8"], unquantized_first=1, unquantized_last=2)
    blocks = ends.blocks_of(model.blocks)
    assert dict(zip(blocks.kinds, blocks.counts, strict=True)) == {0: 1, 1: 2, 3: 56, 59: 2}
    assert replace(ends, unquantized_first=61).blocks_of(model.blocks) == model.blocks


@pytest.mark.parametrize("pins", [Pins(tp=1), Pins(pp=2)])
def test_with_blocks_in_bf16_a_search_by_bounds_finds_what_an_exhaustive_one_does(
    pins: Pins, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = TrainingSpec(2048, 32, PRECISIONS["nvfp4"], unquantized_first=1, unquantized_last=3)
    monkeypatch.setattr(pricing, "FEW", 0)
    monkeypatch.setattr(pricing, "FIRST", 20)
    slow, quick = (search(TINY, training, B200, pins, "torch", exhaustive=every) for every in (True, False))
    assert (quick.best, quick.runners_up) == (slow.best, slow.runners_up)
    assert quick.optimality.endswith("(several chunks of a rank have as many blocks each)")


@pytest.mark.parametrize("zero", some([3, 0, 1, 2], 1))
@pytest.mark.parametrize(("name", "last"), [("fp8", 0), ("mxfp8", 0), ("nvfp4", 2)])
def test_the_search_is_brute_force_over_estimates(name: str, last: int, zero: int) -> None:
    training = TrainingSpec(2048, 32, load_precision(name), unquantized_first=min(last, 1), unquantized_last=last)
    cluster = load_cluster("b200-180gb", 1)
    pins = Pins(zero=zero, recompute="none", tp=2)
    found = search(TINY, training, cluster, pins, "torch", top=50)
    for one in (found.best, *found.runners_up):
        assert one.estimate.step_time_s == estimate(TINY, training, cluster, one.strategy).step_time_s
    priced = price_layouts(Problem(TINY, training, cluster, "torch"), pins, Tally(), Clock(1e9), exhaustive=True)
    for chunk in priced.chunks:
        rows = range(0, len(chunk.step_time_s), max(1, len(chunk.step_time_s) // 7))
        for row, exact_s in zip(rows, chunk.exact_s(list(rows)), strict=True):
            again = estimate(TINY, training, cluster, chunk.strategy(row))
            assert exact_s == pytest.approx(again.step_time_s, rel=1e-9)
            assert chunk.memory_bytes[row] == pytest.approx(again.fullest.total_bytes, rel=1e-9)


def test_experts_in_fp8_are_priced_alike_in_search_and_estimate() -> None:
    model, cluster = load_model("mixtral-8x7b"), load_cluster("h100-80gb", 2)
    training = TrainingSpec(4096, 64, PRECISIONS["fp8"], unquantized=("attention",), unquantized_last=1)
    found = search(model, training, cluster, Pins(ep=4), "torch", top=20)
    plain = search(model, TrainingSpec(4096, 64, BF16), cluster, Pins(ep=4), "torch", top=0)
    assert found.best.estimate.step_time_s < plain.best.estimate.step_time_s
    problem = Problem(model, training, cluster, "torch")
    priced = price_layouts(problem, Pins(ep=4, tp=2), Tally(), Clock(1e9))
    for chunk in priced.chunks:
        for row in range(0, len(chunk.step_time_s), max(1, len(chunk.step_time_s) // 3)):
            again = estimate(model, training, cluster, chunk.strategy(row))
            assert chunk.exact_s([row])[0] == pytest.approx(again.step_time_s, rel=1e-9)
            assert chunk.memory_bytes[row] == pytest.approx(again.fullest.total_bytes, rel=1e-9)


def test_a_device_without_the_format_says_what_it_has() -> None:
    with pytest.raises(AutoshardError) as raised:
        quantized_products(load_cluster("h100-80gb", 1).device, PRECISIONS["mxfp8"])
    assert str(raised.value) == (
        "precision mxfp8: h100-80gb lnc 1 has no products in mxfp8; precisions that it has: "
        "mixed_precision, bf16_sr, fp32, fp8, fp8_block"
    )


def test_training_says_what_stays_in_bf16() -> None:
    training = TrainingSpec(2048, 8, PRECISIONS["fp8"], unquantized=("attention",))
    assert rewrites(TINY, training, (3,), False) == Rewrites(1.0, ("attention",), 16, (), 1)
    ends = replace(training, unquantized_first=2, unquantized_last=1)
    assert rewrites(TINY, ends, (1, 2, 15), True) == Rewrites(1.0, ("attention",), 16, (1, 15), 1)
    assert ends.wide_blocks(16) == (0, 1, 15) and ends.wide_blocks(2) == (0, 1)
    assert from_json(TrainingSpec, json.loads(json.dumps(to_json(training))), "training") == training
    assert "unquantized" not in to_json(TrainingSpec(2048, 8, BF16))
    assert "products" not in to_json(BF16)
    with pytest.raises(AutoshardError) as raised:
        TrainingSpec(2048, 8, BF16, unquantized=("mlp", "attention"))
    assert str(raised.value) == (
        "keep_bf16=mlp+attention of the training: precision mixed_precision quantises nothing; "
        "fp8, fp8_block, mxfp8, nvfp4, cfp8 do"
    )
    with pytest.raises(AutoshardError, match=r"^unquantized of the training must be a list of names of modules and "):
        TrainingSpec(2048, 8, PRECISIONS["fp8"], unquantized=("a b",))
