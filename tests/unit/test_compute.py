"""One operator on one device: cases worked by hand, and laws."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.cost.compute import matmul_s, memory_s, operator_seconds
from autoshard.cost.stacks import COMPILED
from autoshard.graph.ir import GraphBuilder
from autoshard.graph.partition import OperatorStep, Program
from autoshard.layout.sharding import stage_program
from autoshard.models.llama.graph import core_attention
from autoshard.models.registry import load_model
from autoshard.spec.cluster import Device, load_cluster
from autoshard.units import GB, TFLOPS

# 100 TFLOP/s, half of it reached by a contraction of 128; 100 GB/s; no tiles, no launches
TOY = replace(
    load_cluster("cpu", 1).device,
    flops_per_s=(("bfloat16", 100 * TFLOPS),),
    memory_bandwidth_bytes_per_s=100 * GB,
    matmul_efficiency=1.0,
    matmul_k0=128.0,
    tile_rows=1,
    tile_columns=1,
    memory_efficiency=1.0,
    operator_overhead_s=0.0,
)
SIZES = {"batch": 1, "seq": 1000, "embed": 128, "ffn": 500, "kvhead": 1, "group": 1, "headdim": 128}


def only_step(b: GraphBuilder) -> tuple[Program, OperatorStep]:
    program = stage_program(b.build(), {}, sequence_parallel=False)
    (step,) = program.steps
    assert isinstance(step, OperatorStep)
    return program, step


def linear() -> tuple[Program, OperatorStep]:
    b = GraphBuilder(SIZES, element_bytes=2)
    x, w = b.hidden_input("hidden", "batch seq embed"), b.parameter("w", "ffn embed")
    b.einsum("up", "batch seq embed, ffn embed -> batch seq ffn", x, w)
    return only_step(b)


def grouped(experts: int = 4, tokens: int = 250) -> tuple[Program, OperatorStep]:
    b = GraphBuilder({"expert": experts, "slot": tokens, "embed": 128, "ffn": 500}, element_bytes=2)
    x, w = b.hidden_input("hidden", "expert slot embed"), b.parameter("w", "expert ffn embed")
    b.einsum("up", "expert slot embed, expert ffn embed -> expert slot ffn", x, w)
    return only_step(b)


def attention(kernel: str) -> tuple[Program, OperatorStep]:
    b = GraphBuilder(SIZES, element_bytes=2)
    q = b.hidden_input("q", "batch seq kvhead group headdim")
    k, v = (b.hidden_input(name, "batch seq kvhead headdim") for name in "kv")
    core_attention(b, load_model("llama2-7b"), "attention", q, k, v, kernel)
    return only_step(b)


def test_a_contraction_of_k0_reaches_half_of_the_peak() -> None:
    # 2 * 1000 * 500 * 128 = 128 MFLOP at 50 TFLOP/s
    assert matmul_s(1000, 500, 128, TOY, 100 * TFLOPS) == pytest.approx(128e6 / 50e12)


def test_output_is_computed_in_whole_tiles() -> None:
    tiled = replace(TOY, tile_rows=128, tile_columns=128)
    # 1000 x 500 takes 8 x 4 tiles, as much as 1024 x 512
    assert matmul_s(1000, 500, 128, tiled, TFLOPS) == matmul_s(1024, 512, 128, tiled, TFLOPS)


def test_memory_bandwidth_is_what_operators_reach() -> None:
    assert memory_s(1 * GB, replace(TOY, memory_efficiency=0.5)) == pytest.approx(1 / 50)


def test_linear_layer_bound_by_memory() -> None:
    # reads 1000 x 128 + 500 x 128, writes 1000 x 500, 2 bytes each: 1.384 MB at 100 GB/s = 13.84 us, more than 2.56 us
    seconds = operator_seconds(*linear(), TOY, "bfloat16")
    assert seconds.forward == pytest.approx(13.84e-6)
    assert seconds.backward == pytest.approx(2 * 13.84e-6)


def test_linear_layer_bound_by_the_matrix_unit() -> None:
    fast = replace(TOY, memory_bandwidth_bytes_per_s=1e6 * GB)
    seconds = operator_seconds(*linear(), fast, "bfloat16")
    assert seconds.forward == pytest.approx(128e6 / 50e12)
    # backward contracts over the 500 columns, then over the 1000 rows
    assert seconds.backward == pytest.approx(128e6 / 100e12 * (628 / 500 + 1128 / 1000))


def test_each_product_is_launched() -> None:
    slow = replace(TOY, operator_overhead_s=1.0)
    seconds = operator_seconds(*linear(), slow, "bfloat16")
    assert seconds.forward == pytest.approx(1, abs=1e-4)
    assert seconds.backward == pytest.approx(2, abs=1e-4)


def test_flash_attention_skips_what_the_mask_hides() -> None:
    fast = replace(TOY, memory_bandwidth_bytes_per_s=1e9 * GB, matmul_k0=0.0)
    flash = operator_seconds(*attention("flash"), fast, "bfloat16")
    plain = operator_seconds(*attention("plain"), fast, "bfloat16")
    # 4 * 1000 * 128 * 500 keys on average = 256 MFLOP; backward 5 products against 2
    assert flash.forward == pytest.approx(256e6 / 100e12)
    assert flash.backward == pytest.approx(2.5 * 256e6 / 100e12)
    # plain attention multiplies the whole square
    assert plain.forward == pytest.approx(2 * flash.forward, rel=1e-3)


def test_products_of_experts_are_priced_by_the_tokens_of_one() -> None:
    """4 experts with 250 tokens each against 1,000 rows of one matrix: as many FLOPs."""
    fast = replace(TOY, memory_bandwidth_bytes_per_s=1e9 * GB)
    one, four = (operator_seconds(*case, fast, "bfloat16") for case in (linear(), grouped()))
    assert four.forward == pytest.approx(one.forward) == pytest.approx(128e6 / 50e12)
    # the gradient of the input contracts 500 in both; that of a weight 250 tokens of its expert, not 1,000
    to_input = 128e6 / (100e12 * 500 / 628)
    assert one.backward == pytest.approx(to_input + 128e6 / (100e12 * 1000 / 1128))
    assert four.backward == pytest.approx(to_input + 128e6 / (100e12 * 250 / 378))


def test_rows_of_each_expert_are_rounded_up_to_tiles() -> None:
    tiled = replace(TOY, tile_rows=128)
    # 250 tokens take 2 tiles of 128 for each of 4 experts; 1,000 rows of one product 8 as well; 10 experts of 100, 10
    assert matmul_s(1000, 500, 128, tiled, TFLOPS, groups=4) == matmul_s(1024, 500, 128, TOY, TFLOPS)
    assert matmul_s(1000, 500, 128, tiled, TFLOPS, groups=10) == matmul_s(1280, 500, 128, TOY, TFLOPS)


def test_a_flash_kernel_whose_share_of_the_peak_was_measured() -> None:
    """Backward is 2.5 times forward; a stack's own share goes before the device's, and plain attention has neither."""
    fast = replace(TOY, memory_bandwidth_bytes_per_s=1e9 * GB, attention_efficiency=0.5)
    flash = operator_seconds(*attention("flash"), fast, "bfloat16")
    assert (flash.forward, flash.backward) == pytest.approx((256e6 / 50e12, 2.5 * 256e6 / 50e12))
    stack = replace(COMPILED, attention_efficiency=0.25)
    assert operator_seconds(*attention("flash"), fast, "bfloat16", stack).forward == pytest.approx(2 * flash.forward)
    without = replace(fast, attention_efficiency=None)
    plain = [operator_seconds(*attention("plain"), device, "bfloat16") for device in (fast, without)]
    assert plain[0] == plain[1]


def test_plain_attention_moves_its_scores_through_memory() -> None:
    fast = replace(TOY, flops_per_s=(("bfloat16", 1e9 * TFLOPS),))
    plain = operator_seconds(*attention("plain"), fast, "bfloat16")
    # forward writes 1000 x 1000 probabilities of 2 bytes; q, k, v and the output are 4 x 1000 x 128 x 2 bytes
    assert plain.forward == pytest.approx((2e6 + 1.024e6) / 100e9, rel=1e-3)
    assert plain.backward == pytest.approx((4e6 + 2.048e6) / 100e9, rel=1e-3)


FACTORS = st.floats(1.0, 100.0)
SHAPES = st.tuples(*(st.integers(1, 4096) for _ in range(3)))


@given(SHAPES, FACTORS)
def test_more_flops_are_never_slower(shape: tuple[int, int, int], factor: float) -> None:
    device = load_cluster("trn1.32xlarge", 1).device
    assert matmul_s(*shape, device, factor * TFLOPS) <= matmul_s(*shape, device, TFLOPS)


@given(FACTORS, FACTORS, st.sampled_from(["flash", "plain"]))
def test_a_faster_device_is_never_slower(flops: float, bandwidth: float, kernel: str) -> None:
    def faster(device: Device) -> Device:
        peaks = tuple((dtype, peak * flops) for dtype, peak in device.flops_per_s)
        speed = device.memory_bandwidth_bytes_per_s * bandwidth
        return replace(device, flops_per_s=peaks, memory_bandwidth_bytes_per_s=speed)

    for operator in (linear(), attention(kernel)):
        before, after = (operator_seconds(*operator, device, "bfloat16") for device in (TOY, faster(TOY)))
        assert after.forward <= before.forward and after.backward <= before.backward


@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 300))
def test_more_experts_on_a_rank_are_never_faster(few: int, more: int, tokens: int) -> None:
    """The same tokens over more experts, each with a matrix of its own."""
    few, more = sorted((few, more))
    device, rows = load_cluster("h100-80gb", 1).device, 2**6 * tokens
    of_few, of_more = (
        operator_seconds(*grouped(2**count, rows // 2**count), device, "bfloat16") for count in (few, more)
    )
    assert of_few.forward <= of_more.forward * (1 + 1e-12) and of_few.backward <= of_more.backward * (1 + 1e-12)
