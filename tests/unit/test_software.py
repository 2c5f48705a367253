"""What a software stack changes: attention kernels by hand, and laws that no stack may break."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.cost.compute import OperatorNeeds, seconds_of
from autoshard.cost.estimate import Estimate, estimate
from autoshard.cost.host_copies import copied_to_host
from autoshard.cost.part import Part, Seconds
from autoshard.cost.stacks import COMPILED, TRACED, TRACED_LORA, Software
from autoshard.cost.step import unhidden_s
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.models.registry import load_model
from autoshard.spec.cluster import Cluster, Link, load_cluster
from autoshard.spec.training import TrainingSpec, load_precision

A100 = replace(load_cluster("a100-80gb", 2).device, operator_overhead_s=0.0)
PEAK = A100.peak_flops_per_s("bfloat16")
MODEL = replace(load_model("llama3-8b"), num_hidden_layers=8, vocab_size=32000)
TRAINING = TrainingSpec(2048, 64, load_precision("mixed_precision"))


def test_a_flash_kernel_reaches_its_share_of_the_peak() -> None:
    needs = OperatorNeeds("flash", 1.0, 1.0, 128.0, 0.0, 0.0, 1e12, 2.5)
    found = seconds_of(needs, A100, PEAK, Software("s", compute_slowdown=1.1, attention_efficiency=0.5))
    assert found.forward == pytest.approx(1.1 * 1e12 / (0.5 * 312e12))
    assert found.backward == pytest.approx(2.5 * found.forward)


def test_norms_and_losses_of_many_kernels_move_more() -> None:
    norm = OperatorNeeds("norm", 0.0, 0.0, 0.0, 1e9, 0.0, 0.0, 2.0)
    once = seconds_of(norm, A100, PEAK, COMPILED)
    assert once.forward == pytest.approx(1e9 / (A100.memory_bandwidth_bytes_per_s * A100.memory_efficiency))
    assert seconds_of(norm, A100, PEAK, Software("s", norm_passes=8.0)).forward == pytest.approx(8 * once.forward)
    loss = norm._replace(kind="loss", n=4.0)
    whole = Software("s", loss_passes=2.0, whole_logits=True)
    assert seconds_of(loss, A100, PEAK, whole).forward == pytest.approx(8 * once.forward)


def test_attention_with_an_odd_head_dim_is_slower() -> None:
    needs = OperatorNeeds("plain", 4096.0, 2048.0, 108.0, 0.0, 0.0, 0.0, 2.5)
    slow = Software("s", plain_attention_passes=(0.0, 0.0), misaligned_slowdown=3.0)
    ordinary = replace(slow, misaligned_slowdown=1.0)
    assert seconds_of(needs, A100, PEAK, slow).forward == pytest.approx(
        3 * seconds_of(needs, A100, PEAK, ordinary).forward
    )
    even = needs._replace(k=112.0)
    assert seconds_of(even, A100, PEAK, slow) == seconds_of(even, A100, PEAK, ordinary)


def test_the_last_wave_of_tiles_is_paid_for() -> None:
    """A square product of 1024 computes as long as one with half as many outputs more."""
    needs = OperatorNeeds("matmul", 1024.0, 1024.0, 1024.0, 0.0, 0.0, 0.0, 2.0)
    with_waves = seconds_of(needs, A100, PEAK, Software("s", wave_elements=2.0**19))
    assert with_waves.forward == pytest.approx(1.5 * seconds_of(needs, A100, PEAK, COMPILED).forward)


def test_gathers_of_backward_hide_behind_its_products() -> None:
    """tp 8 with sequence parallelism: less of the same collectives is seen, and nothing else changes."""
    one, cluster = layout(8, 1, "none"), load_cluster("a100-80gb", 2)
    seen, hidden = (
        {term.name: term.value for term in estimate(MODEL, TRAINING, cluster, one, stack).time_terms}
        for stack in (Software("s"), Software("s", tensor_overlap=0.9))
    )
    name = "tensor-parallel collectives"
    assert 0.3 * seen[name] < hidden[name] < 0.9 * seen[name]
    assert {**seen, name: 0} == pytest.approx({**hidden, name: 0})


def test_gathered_inputs_that_are_kept_are_not_gathered_again() -> None:
    """tp 2 with sequence parallelism: each of 8 blocks gathers twice and the head once, and keeps the other half of
    what it gathers, 2048 x 4096 numbers of 2 bytes. Backward gathers gradients alone: four transfers, not five."""
    one, cluster = layout(2, 1, "none"), load_cluster("a100-80gb", 2)
    again, kept = (
        {term.name: term.value for term in (*found.time_terms, *found.fullest.terms)}
        for found in (
            estimate(MODEL, TRAINING, cluster, one, Software("s", keeps_gathered=keeps)) for keeps in (False, True)
        )
    )
    half = 2048 * 4096 * 2 / 2
    for name, pieces in (("kept activations", 8 * 2), ("embedding, logits and loss", 1)):
        assert kept[name] - again[name] == pieces * half, name
    name = "tensor-parallel collectives"
    assert kept[name] / again[name] == pytest.approx(4 / 5, abs=0.02)  # the ends send besides


def test_shares_that_are_copied_apart() -> None:
    """8 blocks of 7 products and 2 norms, a table, a norm and a head, for each of 16 replicas; without ZeRO none."""
    one, cluster = layout(1, 1, "none"), load_cluster("a100-80gb", 2)
    for zero, copies in ((1, (8 * 9 + 3) * 16), (0, 0)):
        joined, apart = (
            {
                term.name: term.value
                for term in estimate(MODEL, TRAINING, cluster, replace(one, zero=zero), of).time_terms
            }
            for of in (Software("s"), Software("s", copy_launch_s=1e-5))
        )
        assert apart["parameter all-gather"] - joined["parameter all-gather"] == pytest.approx(1e-5 * copies)


def test_collectives_that_stall() -> None:
    """tp 8, 32 microbatches: two all-reduces a block forward, two backward, and 4 at the ends."""
    one, cluster = replace(layout(8, 1, "none"), sequence_parallel=False), load_cluster("a100-80gb", 2)
    name = "tensor-parallel collectives"
    at_once, stalled = (
        {term.name: term.value for term in estimate(MODEL, TRAINING, cluster, one, stack).time_terms}
        for stack in (Software("s"), Software("s", stall_s=1e-4))
    )
    assert stalled[name] - at_once[name] == pytest.approx(32 * (8 * 4 + 4) * 8 * 1e-4)


def test_transfers_that_hide_slow_the_work_down() -> None:
    """Of sharded parameters, all behind the work: by that share of them; where none hides, as if there were none."""
    one, cluster = layout(1, 1, "none"), load_cluster("a100-80gb", 2)

    def sent_s(**how: float) -> float:
        stack = Software("s", sharded_parameters=True, **how)  # type: ignore[arg-type]
        terms = {term.name: term.value for term in estimate(MODEL, TRAINING, cluster, one, stack).time_terms}
        return terms["gradient reduce-scatter"] + terms["parameter all-gather"]

    assert sent_s(overlap=100.0) == 0
    assert sent_s(overlap=100.0, contention=0.25) == pytest.approx(0.25 * sent_s())
    assert sent_s(contention=0.25) == pytest.approx(sent_s())


def test_copies_to_the_host_hide_behind_the_work_and_slow_it_down() -> None:
    zero = Seconds(0.0, 0.0)
    block = replace(Part(zero, zero, zero, 8e9, 0.0, 0.0, {}), forward=Seconds(0.1, 0.0), backward=Seconds(0.2, 0.0))
    software = Software("s", contention=0.25, offloaded=0.5, host_bytes_per_s=64e9)
    # half of 8 GB at 64 GB/s: 62.5 ms each way, of which a quarter shows
    copied = copied_to_host(block, software)
    assert copied.forward_s == pytest.approx(0.1 + 0.25 * 0.0625)
    assert copied.backward_s == pytest.approx(0.2 + 0.25 * 0.0625)
    assert copied.kept_bytes == 4e9
    # at 16 GB/s 250 ms: what the work does not hide shows whole
    slow = copied_to_host(block, replace(software, host_bytes_per_s=16e9))
    assert slow.forward_s == pytest.approx(0.25 + 0.25 * 0.1)
    assert slow.backward_s == pytest.approx(0.25 + 0.25 * 0.2)


def test_transfers_hide_behind_the_chunks_that_follow() -> None:
    """8 s of transfers, work that hides 2 s a microbatch. Four chunks: 2 s each, and each turn of a chunk hides 0.5 s
    for every microbatch that passes: with two, 3 x 1 s before the last chunk's, which hides 0.5 s more."""
    assert unhidden_s(8.0, 2.0, num_chunks=1, run=4) == 6.0
    assert unhidden_s(8.0, 2.0, num_chunks=4, run=2) == 8.0 - 3 * 1.0 - 0.5
    assert unhidden_s(8.0, 2.0, num_chunks=4, run=8) == 2.0 - 0.5  # all but the last chunk's are hidden
    assert unhidden_s(0.5, 2.0, num_chunks=4, run=1) == 0.0


def test_products_that_add_to_the_sum() -> None:
    one, cluster = layout(1, 2, "none"), load_cluster("a100-80gb", 2)
    plain, fused = (
        {term.name: term.value for term in estimate(MODEL, TRAINING, cluster, one, stack).time_terms}
        for stack in (Software("s"), Software("s", accumulation_share=0.0))
    )
    assert plain["gradient accumulation"] > 0 == fused["gradient accumulation"]


STACKS = (
    Software("megatron", 1.05, 1.2, 5e-5, 1.1, plain_attention_passes=(4.0, 8.0), transfer_share=0.3),
    Software("nemo", 1.05, 0.5, 5e-5, wave_elements=7e5, tensor_overlap=0.7, accumulation_share=0.0, overlap=0.3),
    Software("fsdp", 1.1, 1.0, 5e-5, overlap=0.4, contention=0.4, attention_efficiency=0.4, sharded_parameters=True),
    Software("zero2", 1.1, 1.0, 5e-5, overlap=0.9, contention=1.0, attention_efficiency=0.4, sharded_gradients=True),
    Software("whole", 1.0, 1.0, 5e-5, whole_logits=True, replays_head=True, loss_passes=2.0, transfer_share=0.3),
    Software("kept", 1.0, 1.0, 5e-5, keeps_gathered=True),
    Software("beside", 1.0, 1.0, 5e-5, transfer_share=0.3, sends_beside=True),
    Software("copies", 1.0, 1.0, 5e-5, contention=0.3, offloaded=0.5, host_bytes_per_s=64e9),
    Software("nanotron", 1.0, 1.0, 5e-5, copy_launch_s=8e-6, stall_s=2e-4),
)


def layout(tp: int, pp: int, recompute: str) -> Strategy:
    return Strategy(
        tp=tp,
        pp=pp,
        dp=16 // (tp * pp),
        cp=1,
        ep=1,
        num_virtual_stages=1,
        microbatch_size=1,
        schedule="1f1b",
        recompute=(recompute,),
        sequence_parallel=tp > 1,
        zero=1,
        attention_kernel="flash",
        stage_layers=even_stage_layers(8, pp),
    )


LAYOUTS = [layout(tp, pp, recompute) for tp, pp in ((1, 1), (2, 2), (8, 1), (4, 4)) for recompute in ("none", "full")]
FACTOR = st.floats(1.0, 50.0)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(STACKS), st.sampled_from(LAYOUTS), FACTOR, FACTOR, FACTOR, FACTOR)
def test_a_better_machine_is_never_slower_nor_fuller(
    software: Software, one: Strategy, flops: float, memory: float, link: float, network: float
) -> None:
    before = load_cluster("a100-80gb", 2)
    device = before.device
    better = replace(
        device,
        flops_per_s=tuple((dtype, peak * flops) for dtype, peak in device.flops_per_s),
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s * memory,
        memory_bytes=device.memory_bytes * memory,
    )
    after = replace(
        before,
        device=better,
        intra_node=tuple((span, _faster(way, link)) for span, way in before.intra_node),
        inter_node=_faster(before.inter_node, network),
    )
    slow, fast = (estimate(MODEL, TRAINING, cluster, one, software) for cluster in (before, after))
    assert fast.step_time_s <= slow.step_time_s * (1 + 1e-12)
    assert fast.fits_probability >= slow.fits_probability
    assert sum(term.value for term in slow.time_terms) == pytest.approx(slow.step_time_s)
    assert all(term.value >= 0 for term in slow.time_terms)


def _faster(link: Link, factor: float) -> Link:
    return replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * factor)


def test_sharded_parameters_take_a_share_of_the_memory() -> None:
    cluster: Cluster = load_cluster("a100-80gb", 2)
    one = layout(1, 1, "full")
    whole, sharded = (
        {term.name: term.value for term in estimate(MODEL, TRAINING, cluster, one, stack).fullest.terms}
        for stack in (STACKS[0], STACKS[2])
    )
    assert sharded["parameters"] == pytest.approx(whole["parameters"] / 16)
    assert sharded["optimizer state"] == whole["optimizer state"]


def test_frozen_weights_have_no_product_that_makes_their_gradient() -> None:
    needs = OperatorNeeds("matmul", 1024.0, 1024.0, 1024.0, 0.0, 0.0, 0.0, 2.0)
    trained, frozen = (seconds_of(needs, A100, PEAK, Software("s", adapts=of)) for of in (False, True))
    assert frozen.forward == trained.forward == pytest.approx(frozen.backward)
    assert trained.backward == pytest.approx(2 * frozen.backward)


def test_frozen_weights_have_neither_gradients_nor_optimizer_state() -> None:
    """Eight blocks of llama3-8b on one device, without a host: two thirds of the products, and of memory weights."""
    one = replace(
        load_cluster("a100-80gb", 1), devices_per_node=1, intra_node=load_cluster("a100-80gb", 1).intra_node[:1]
    )
    layout = Strategy(1, 1, 1, 1, 1, 1, 1, "1f1b", ("none",), False, 1, "flash", (8,))
    full, adapted = (estimate(MODEL, TRAINING, one, layout, Software("s", adapts=of)) for of in (False, True))

    def terms(found: Estimate) -> dict[str, float]:
        return {term.name: term.value for term in (*found.time_terms, *found.fullest.terms)}

    before, after = terms(full), terms(adapted)
    products = "matrix products and vector operators"
    assert 0.6 < after[products] / before[products] < 0.75
    for name in ("gradient accumulation", "optimizer update", "gradients", "optimizer state"):
        assert before[name] > 0 == after[name], name
    assert after["parameters"] == before["parameters"] > 0


def test_a_host_that_traces_adapters_takes_longer() -> None:
    """TinyLlama on one chip: 3.0 s a step with LoRA, of which the device works 0.7 s; all weights took less."""
    chip = load_cluster("trn2.3xlarge", 1)
    small = replace(MODEL, hidden_size=2048, intermediate_size=5632, head_dim=64, num_key_value_heads=4)
    training = TrainingSpec(2048, 8, load_precision("bf16_sr"))
    layout = Strategy(4, 1, 1, 1, 1, 1, 1, "1f1b", ("full",), True, 0, "flash", (8,))
    full, adapted = (estimate(small, training, chip, layout, of) for of in (TRACED, TRACED_LORA))
    assert adapted.step_time_s > 1.2 * full.step_time_s


@given(st.lists(st.floats(0, 10), min_size=5, max_size=5), st.floats(0, 20), st.floats(0, 20))
def test_no_device_waits_less_than_not_at_all_for_its_host(
    seconds: list[float], forward_s: float, backward_s: float
) -> None:
    """Sums of floats differ by where they begin: a plan with a term below zero is refused when it is read."""
    passes = Seconds(*seconds), Seconds(*seconds[::-1]), Seconds(*(one / 3 for one in seconds))
    part = Part(*passes, 0.0, 0.0, 0.0, {}, (forward_s, backward_s))
    assert part.waiting_s >= 0
    assert part.waiting_s == pytest.approx(
        part.forward_s + part.backward_s - sum(one.total for one in passes), abs=1e-9
    )
