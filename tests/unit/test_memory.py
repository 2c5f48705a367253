"""Bytes on one rank: cases worked by hand against the schedule's own action lists."""

from collections.abc import Sequence
from dataclasses import replace
from operator import mul
from typing import Any

import pytest

from autoshard.cost.estimate import estimate
from autoshard.cost.local_shape import local_shape, strategy_mesh
from autoshard.cost.memory import BUCKET_BYTES, MEMORY_TERMS, memory_values
from autoshard.cost.rank_load import rank_load, telling_ranks
from autoshard.cost.stacks import EAGER
from autoshard.cost.stage import Parts, strategy_parts
from autoshard.cost.stage_program import stage_work
from autoshard.cost.zero_sharding import parts_state
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.models.registry import load_model
from autoshard.models.stage import parameter_count
from autoshard.schedules import Order, actions, held_together, in_flight, weights_waiting
from autoshard.spec.cluster import Cluster, load_cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import DTYPE_BYTES, TrainingSpec, load_precision

MODEL = replace(
    load_model("llama3-8b"),
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=256,
)
TRAINING = TrainingSpec(sequence_length=32, global_batch_size=16, precision=load_precision("mixed_precision"))


def strategy(**changes: Any) -> Strategy:
    fields: dict[str, Any] = dict.fromkeys(("tp", "pp", "dp", "cp", "ep", "num_virtual_stages", "microbatch_size"), 1)
    fields |= {"schedule": "1f1b", "recompute": "none", "sequence_parallel": changes.get("tp", 1) > 1, "zero": 1}
    fields |= {"attention_kernel": "flash", **changes}
    stages = fields["pp"] * fields["num_virtual_stages"]
    return Strategy(**{"stage_layers": even_stage_layers(MODEL.num_hidden_layers, stages), **fields})


def cluster_of(s: Strategy) -> Cluster:
    """As many CPU devices as the strategy has ranks, on one node."""
    cluster = load_cluster("cpu", 1)
    link = cluster.intra_node[-1][1]
    return replace(cluster, devices_per_node=s.world_size, devices_per_chip=1, intra_node=((s.world_size, link),))


def terms(s: Strategy, rank: int = 0, training: TrainingSpec = TRAINING, model: ModelSpec = MODEL) -> dict[str, float]:
    memory = estimate(model, training, cluster_of(s), s).memory[rank]
    return {term.name: term.value for term in memory.terms}


def toy_parts(s: Strategy) -> tuple[Parts, ...]:
    return strategy_parts(MODEL, TRAINING, cluster_of(s), s)


def test_state_of_one_device() -> None:
    count = parameter_count(MODEL)
    one = terms(strategy())
    assert one["parameters"] == 2 * count
    assert one["gradients"] == 4 * count  # the FP32 sum: gradients are added to it one by one
    # FP32 master weights and two FP32 moments
    assert one["optimizer state"] == 12 * count


@pytest.mark.parametrize(
    ("instance", "stack", "of_all"),
    [
        ("trn1.2xlarge", None, True),
        ("trn2.3xlarge", "neuron-stages", True),
        ("trn2.3xlarge", "neuron-compiled", False),
        ("trn2.3xlarge", "neuron-eager", False),
        ("h100-80gb", None, False),
    ],
)
def test_one_graph_of_a_whole_backward_hands_all_gradients_over(instance: str, stack: str | None, of_all: bool) -> None:
    cluster = load_cluster(instance, 1)
    cluster = cluster if stack is None else cluster.under_stack(stack)
    s = strategy(dp=cluster.world_size)
    found = {term.name: term.value for term in estimate(MODEL, TRAINING, cluster, s).fullest.terms}
    assert found["gradients"] == (4 + 2 * of_all) * parameter_count(MODEL)


def test_backward_of_a_block_has_the_gradients_of_one_operator_or_of_one_region() -> None:
    """Of the first of two ranks with a table so small that its blocks need most. 32 tokens in bf16: a hidden activation
    has 4 KiB, one of the MLP 8 KiB."""
    model, kib = replace(MODEL, vocab_size=16), 1024
    s = strategy(pp=2, dp=2)

    def working(stack: str) -> float:
        cluster = load_cluster("trn2.3xlarge", 1, lnc=2).under_stack(stack)
        memory = estimate(model, TRAINING, cluster, s).memory[0]
        return next(term.value for term in memory.terms if term.name == "working buffers")

    # `down` reads 8 KiB and writes 4, whose gradient is that of the sum, which also waits; it has 64 x 128 weights of
    # 2 bytes. When gate and up have theirs, 3 of 8 KiB are given back
    at_work, gradients = (8 + 4) * kib, 64 * 128 * 2
    assert working("neuron-eager") == at_work + gradients
    block = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64  # parameters
    # the activation function works with most: what it wrote, `down` has given back
    assert working("neuron-compiled") == ((3 - 1) * 8 + 4) * kib + 2 * block


def test_the_gradient_of_a_table_of_both_ends_waits_while_blocks_run_backward() -> None:
    def working(is_tied: bool) -> float:
        model = replace(MODEL, vocab_size=16, tie_word_embeddings=is_tied)  # so few words that blocks need most
        return terms(strategy(dp=2), model=model)["working buffers"]

    assert working(True) - working(False) == 16 * 64 * 2  # in bf16


def test_zero_1_shares_the_optimizer_state_and_nothing_else() -> None:
    one, four = terms(strategy()), terms(strategy(dp=4))
    assert four["optimizer state"] == pytest.approx(one["optimizer state"] / 4)
    assert four["parameters"] == one["parameters"] and four["gradients"] == one["gradients"]
    assert terms(strategy(dp=4, zero=0))["optimizer state"] == one["optimizer state"]


def test_context_parallel_ranks_share_the_optimizer_state_too() -> None:
    assert terms(strategy(dp=2, cp=2))["optimizer state"] == pytest.approx(terms(strategy())["optimizer state"] / 4)


def test_everything_in_bf16_has_no_master_and_no_gradients_handed_over() -> None:
    training = replace(TRAINING, precision=load_precision("bf16_sr"))
    one, count = terms(strategy(), training=training), parameter_count(MODEL)
    assert (one["parameters"], one["gradients"], one["optimizer state"]) == (2 * count, 2 * count, 4 * count)


def test_tensor_parallel_norms_are_on_every_rank() -> None:
    # 2 norms a block and the last one are not split; the rest is halved
    norms = (2 * MODEL.num_hidden_layers + 1) * MODEL.hidden_size
    assert terms(strategy(tp=2))["parameters"] == 2 * ((parameter_count(MODEL) - norms) / 2 + norms)


def test_first_of_four_stages_holds_four_microbatches() -> None:
    s = strategy(pp=4)
    kept = toy_parts(s)[0].block.kept_bytes
    assert [terms(s, rank)["kept activations"] for rank in range(4)] == [
        4 * 2 * kept,
        3 * 2 * kept,
        2 * 2 * kept,
        2 * kept,
    ]
    # the head is on the last stage, for one microbatch
    assert [terms(s, rank)["embedding, logits and loss"] > 0 for rank in range(4)] == [False, False, False, True]


def test_full_recompute_keeps_one_hidden_activation_a_block() -> None:
    # 32 tokens x 64 x 2 bytes for each of 8 blocks
    assert terms(strategy(recompute="full"))["kept activations"] == 8 * 32 * 64 * 2
    # of a rank without the loss, which in a model this small needs more than a block
    none, full = (terms(strategy(pp=2, recompute=one)) for one in ("none", "full"))
    assert none["recompute"] == 0 < full["recompute"]


def test_a_first_block_that_keeps_less_than_others_is_no_end_below_zero() -> None:
    """Norms whose input is gathered on every rank: other blocks keep a rank's half and the whole, the first one only
    the whole."""
    small: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
    model = replace(load_model("gpt-neox-20b"), **small, num_key_value_heads=4, head_dim=16, vocab_size=64)
    s = strategy(
        tp=2, sequence_parallel=True, recompute="attention_norm+mlp", attention_kernel="plain", stage_layers=(4,)
    )
    norms = ("input_layernorm", "post_attention_layernorm")
    gathered = tuple((f"gpt_neox.layers.*.{norm}", (("tp", "R"),)) for norm in norms)
    memory = estimate(model, TRAINING, cluster_of(s), s, operators=gathered).memory[0]
    found = {term.name: term.value for term in memory.terms}
    shape = replace(local_shape(s), operators=gathered)

    def kept(layers: tuple[int, ...], first: bool, last: bool) -> float:
        work = stage_work(model, 32, 1.0, TRAINING.precision.compute_dtype, shape, False, layers, first, last)
        return work.recompute(s.recompute[0]).kept_bytes

    assert kept((0,), True, False) == kept((0,), False, False) - 32 * 64 * 2 / 2
    # the loss is over where blocks run backward
    assert found["kept activations"] == kept((0, 1, 2, 3), True, True) - kept((), False, True)
    assert found["embedding, logits and loss"] == 0


def test_the_loss_is_over_where_blocks_run_backward() -> None:
    """What it keeps is beside what the loss works on, or gone: never beside the work of a block."""
    s = strategy(pp=2)
    parts, last = toy_parts(s)[1], terms(s, 1)
    kept, at_loss = parts.head.kept_bytes, parts.head.working_bytes
    in_block = parts.block.working_bytes
    both = last["embedding, logits and loss"] + last["recompute"] + last["working buffers"]
    assert both == pytest.approx(max(kept + at_loss, in_block))


def walked(order: Order, sizes: Sequence[float]) -> float:
    """Most that a rank holds at once, chunk c as sizes[c]."""
    held = most = 0.0
    for action in order:
        held += sizes[action.chunk] * ((action.kind == "F") - (action.kind in "BI"))
        most = max(most, held)
    return most


def test_recompute_by_stage_keeps_what_the_schedule_holds() -> None:
    sets = ("full", "none", "core_attention", "mlp", "none", "full", "full", "none")
    s = strategy(
        pp=2, num_virtual_stages=4, schedule="interleaved", recompute=sets, stage_layers=(1, 2, 1, 1, 1, 1, 1, 2)
    )
    sizes = [one.block.kept_bytes * layers for one, layers in zip(toy_parts(s), s.stage_layers, strict=True)]
    assert len(set(sizes)) > 4
    for rank, order in enumerate(actions("interleaved", 2, 16, 4)):
        assert terms(s, rank)["kept activations"] == pytest.approx(walked(order, sizes[rank::2]))


@pytest.mark.parametrize(("vocab_size", "at_the_loss"), [(256, False), (65536, True)])
def test_blocks_are_held_at_other_moments_than_the_head(vocab_size: int, at_the_loss: bool) -> None:
    """The last rank holds three microbatches of its first chunk while none is in its second one, which has the head,
    and two when the loss is at work. Audits of mixtures with such cuts found 17 % less than was planned."""
    model = replace(MODEL, vocab_size=vocab_size)
    s = strategy(pp=2, num_virtual_stages=2, schedule="interleaved", stage_layers=(2, 3, 3, 0))
    parts = strategy_parts(model, TRAINING, cluster_of(s), s)
    block, head = parts[1].block, parts[3].head
    held, most = [0, 0], {True: 0.0, False: 0.0}
    for kind, _, chunk in actions("interleaved", 2, 16, 2)[1]:
        held[chunk] += 1 if kind == "F" else -1
        has_head = held[1] > 0
        most[has_head] = max(most[has_head], held[0] * 3 * block.kept_bytes)
    assert most == {True: 6 * block.kept_bytes, False: 9 * block.kept_bytes}
    with_head = most[True] + head.kept_bytes + max(head.working_bytes, block.working_bytes - head.kept_bytes)
    back, made = block.moments.weights  # gradients of gate and up are there a little later than most activations
    in_block = max(block.working_bytes, block.working_bytes - back + 2 * sum(made.values()))
    without = most[False] + in_block
    assert (with_head > without) == at_the_loss
    found = terms(s, 1, model=model)
    names = ("kept activations", "embedding, logits and loss", "recompute", "working buffers")
    assert sum(found[name] for name in names) == pytest.approx(max(with_head, without))


IDS = 32 * 8
"""Bytes of the tokens of a microbatch."""


@pytest.mark.parametrize("count", [2, 4, 16])
@pytest.mark.parametrize(
    "sets", [("none",) * 4, ("none", "none", "full", "full"), ("full", "full", "none", "none")], ids=["alike", "2", "1"]
)
def test_the_embedding_runs_backward_beside_what_is_held_then(count: int, sets: tuple[str, ...]) -> None:
    """The first rank of two with two chunks. Of two microbatches all forwards come first, and chunk 1 is through with
    both when chunk 0 begins; of more there is room for one hidden activation. There are the gradients of the table and
    of its output, IDS, and the outputs of what is held but this microbatch's; chunk 0 has given back what it kept of
    it."""
    model, training = replace(MODEL, vocab_size=65536), replace(TRAINING, global_batch_size=count)
    s = strategy(pp=2, num_virtual_stages=2, schedule="interleaved", recompute=sets)
    parts = strategy_parts(model, training, cluster_of(s), s)
    sizes = [2 * parts[stage].block.kept_bytes for stage in (0, 2)]
    held, most, hidden = [0, 0], 0.0, 32 * 64 * 2
    for kind, _, chunk in actions("interleaved", 2, count, 2)[0]:
        if (kind, chunk) == ("B", 0):
            most = max(most, sum(map(mul, held, sizes)) - sizes[0] + sum(held) * hidden)
        held[chunk] += 1 if kind == "F" else -1
    found = terms(s, 0, training, model)
    names = ("kept activations", "embedding, logits and loss", "recompute", "working buffers", "pipeline buffers")
    assert not parts[0].embedding.kept_bytes
    room = int(count > 2)
    assert sum(found[name] for name in names) == pytest.approx(most + 65536 * 64 * 2 + (1 + room - 1) * hidden + IDS)


LEFT_OF_HEAD = 2 * (32 * 64 * 2) + 32 * (4 + 8)
"""Bytes that are there when the table leaves: what the norm of a head read, and a gradient like it; for each token what
the norm kept in FP32, and a label."""


@pytest.mark.parametrize("zero", [1, 3])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_rank_without_blocks_works_on_its_end_alone(zero: int, recompute: str) -> None:
    """Audits of mixtures found a third of what was planned as if there were a block. Under ZeRO-3 among 4 most is there
    when the gradient of the table, 256 x 64, leaves: as backward left it, in FP32 as it is sent, and the quarter that
    arrives; behind a head beside LEFT_OF_HEAD. Else it is there with the gradient of the embedding's output and
    IDS, or the loss is at work."""
    first, last = (
        strategy(pp=2, dp=4, zero=zero, recompute=recompute, stage_layers=layers) for layers in ((0, 8), (8, 0))
    )
    table, hidden, head = 256 * 64, 32 * 64 * 2, toy_parts(last)[1].head
    leaving = table * (2 + 4 + 4 / 4)
    for s, rank, at_most in ((first, 0, 2 * table + hidden + IDS), (last, 1, head.kept_bytes + head.working_bytes)):
        found = terms(s, rank)
        assert (found["kept activations"], found["recompute"]) == (0, 0)
        at_end = found["embedding, logits and loss"] + found["working buffers"]
        assert at_end == (leaving + (LEFT_OF_HEAD if rank else 0) if zero == 3 else at_most)


def test_the_gradient_of_an_embedding_is_gathered_where_ranks_share_the_sequence() -> None:
    """An audit of Hunyuan-0.5B among 16 found 4 % more than was planned with a rank's share of it."""
    found = terms(strategy(tp=2, pp=2, stage_layers=(0, 8)))
    assert found["working buffers"] == 2 * (256 * 64 / 2) + 32 * 64 * 2 + IDS


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize(("words", "positions"), [(256, 32), (32, 256)])
def test_tables_of_an_embedding_leave_one_after_the_other(zero: int, words: int, positions: int) -> None:
    """The audit of GPT-3's first rank without blocks found 4 % less than was planned as if both left together."""
    model = replace(
        load_model("gpt3-175b"),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        vocab_size=words,
        max_position_embeddings=positions,
    )
    found = terms(strategy(pp=2, dp=4, zero=zero, stage_layers=(0, 8)), model=model)
    assert found["working buffers"] == 256 * 64 * (2 + 4 + 4 / 4)


@pytest.mark.parametrize(("layers", "gathered"), [((1, 1, 1, 0), 0), ((1, 1, 0, 1), 1)])
def test_a_head_alone_on_its_chunk_has_no_block_in_front(layers: tuple[int, ...], gathered: int) -> None:
    """Of the last rank most is there when the gradient of the head's table, 8,192 x 64, leaves: as backward left it, in
    FP32 as it is sent, and the quarter that arrives, beside LEFT_OF_HEAD: audits found 0.3 to 0.7 % more than planned
    without that. Under ZeRO-3 the matrices of a block in front of it are there by then, but not those of a block on
    another chunk: audits found up to 21 % less than planned with these."""
    s = strategy(pp=2, dp=4, zero=3, num_virtual_stages=2, schedule="interleaved", stage_layers=layers)
    model = replace(MODEL, vocab_size=8192, intermediate_size=1024)
    table, block = 8192 * 64, (64 + 2 * 32 + 64) * 64 + 3 * 64 * 1024
    found = terms(s, 1, model=model)
    at_head = table * (2 + 4 + 4 / 4) + LEFT_OF_HEAD + gathered * 2 * block
    assert found["embedding, logits and loss"] + found["working buffers"] == at_head


def test_recompute_of_one_stage_leaves_the_others_alone() -> None:
    none, full = strategy(pp=2), strategy(pp=2, recompute="full")
    mixed = strategy(pp=2, recompute=("full", "none"))
    assert terms(mixed, 0) == terms(full, 0)
    assert terms(mixed, 1) == terms(none, 1)
    assert mixed.recompute_name == "full*1,none*1"


@pytest.mark.parametrize(("pp", "vpp"), [(2, 2), (2, 3), (3, 2), (4, 2), (4, 3)])
def test_four_rounds_of_microbatches_show_all_that_is_held_together(pp: int, vpp: int) -> None:
    longer = actions("interleaved", pp, 9 * pp, vpp)
    for rank, moments in enumerate(held_together("interleaved", pp, 9 * pp, vpp)):
        for sizes in ((1.0, 10.0, 100.0), (100.0, 10.0, 1.0), (1.0, 1.0, 1.0), (5.0, 0.1, 7.0)):
            most = max(sum(map(mul, moment, sizes)) for moment in moments)
            assert most == pytest.approx(walked(longer[rank], sizes))


def test_logits_are_kept_in_fp32() -> None:
    # probabilities 32 x 256 x 4 bytes, the norm's input and the projection's 32 x 64 x 2 each, one FP32 statistic a row
    assert terms(strategy())["embedding, logits and loss"] == 32 * 256 * 4 + 2 * 32 * 64 * 2 + 32 * 4


def test_one_device_has_neither_pipeline_buffers_nor_buckets() -> None:
    one = terms(strategy())
    assert one["pipeline buffers"] == one["collective buckets"] == 0
    # on the first rank the output of one of the two microbatches in flight, whose blocks are not at work; on the last
    # one, which has no outputs, what is received next: 32 x 64 x 2 bytes each
    for rank in (0, 1):
        assert terms(strategy(pp=2), rank)["pipeline buffers"] == 32 * 64 * 2


def test_the_ranks_between_have_what_comes_and_outputs_but_for_the_one_at_work() -> None:
    """A gradient has left when the forward is over that comes before the next backward. Audits found one hidden
    activation less on each rank than was planned."""
    # 4, 3, 2 and 1 microbatches in flight
    found = [terms(strategy(pp=4), rank)["pipeline buffers"] / (32 * 64 * 2) for rank in range(4)]
    assert found == [3, 1 + 2, 1 + 1, 1]


@pytest.mark.parametrize(("schedule", "count"), [("gpipe", 8), ("gpipe", 1), ("zero_bubble", 4)])
def test_where_all_microbatches_are_there_nothing_comes_and_nothing_leaves(schedule: str, count: int) -> None:
    """But for outputs, except that of the one at work. The second rank of a zero-bubble pipeline of four holds three,
    and the fourth waits for gradients of weights. Audits found two hidden activations less than was planned."""
    training = replace(TRAINING, global_batch_size=count)
    hidden = [terms(strategy(pp=4, schedule=schedule), rank, training)["pipeline buffers"] for rank in (1, 3)]
    in_flight = count if schedule == "gpipe" else 3
    assert hidden == [(in_flight - 1) * 32 * 64 * 2, 0]


def test_a_backward_that_is_one_graph_holds_an_output_and_the_gradient_of_it_to_its_end() -> None:
    """As in NxD, whose passes XLA compiles."""
    training = replace(TRAINING, global_batch_size=8 * TRAINING.global_batch_size)
    memory = estimate(MODEL, training, load_cluster("trn1.32xlarge", 1), strategy(pp=4, dp=8)).memory
    found = [{term.name: term.value for term in one.terms}["pipeline buffers"] / (32 * 64 * 2) for one in memory]
    assert found == [1 + 3 + 2, 1 + 1 + 2 + 2, 1 + 1 + 1 + 2, 1 + 1]


def test_other_stacks_hold_an_output_and_the_gradient_of_it_until_a_backward_is_over() -> None:
    s = strategy(pp=4)
    memory = estimate(MODEL, TRAINING, cluster_of(s), s, EAGER).memory
    found = [{term.name: term.value for term in one.terms}["pipeline buffers"] / (32 * 64 * 2) for one in memory]
    assert found == [1 + 3 + 2, 1 + 1 + 2 + 2, 1 + 1 + 1 + 2, 1 + 1]


def test_buckets_count_as_far_as_activations_leave_no_room() -> None:
    s = strategy(dp=4)
    one = terms(s)
    in_work = ("kept activations", "embedding, logits and loss", "recompute", "working buffers", "pipeline buffers")
    # FP32 gradients and bf16 parameters on their way: less than a bucket each
    wanted = (4 + 2) * parameter_count(MODEL)
    assert wanted < BUCKET_BYTES
    assert one["collective buckets"] == pytest.approx(max(0, wanted - sum(one[name] for name in in_work)))


@pytest.mark.parametrize(
    ("schedule", "pp", "count", "vpp"),
    [
        *(("1f1b", *size, 1) for size in ((1, 4), (4, 2), (4, 16))),
        *(("interleaved", *size) for size in ((2, 2, 2), (2, 8, 4), (4, 4, 2), (4, 8, 2))),
        *((name, 4, count, 1) for name in ("gpipe", "zero_bubble") for count in (1, 2, 8)),
    ],
)
def test_microbatches_in_flight_are_those_of_the_schedule(schedule: str, pp: int, count: int, vpp: int) -> None:
    s = strategy(pp=pp, num_virtual_stages=vpp, schedule=schedule)
    orders = actions(schedule, pp, count, vpp)
    peaks = in_flight(orders)
    for rank in range(pp):
        load = rank_load(s, toy_parts(s), count, rank)
        held, waiting, most = 0, 0, 0
        for action in orders[rank]:
            held += (action.kind == "F") - (action.kind in "BI")
            waiting += (action.kind == "I") - (action.kind == "W")
            most = max(most, held)
            assert held < load.in_flight or waiting <= load.weights_waiting
        assert load.in_flight == most
        assert load.weights_waiting == max(weights_waiting(orders)[rank][0] - 1, 0)
        assert load.embeddings_in_flight == (peaks[rank][0] if rank == 0 else 0)
        assert load.heads_in_flight == (peaks[rank][-1] if rank == pp - 1 else 0)


def test_what_waits_for_gradients_of_weights_is_kept() -> None:
    """The last of two ranks lets one wait: each projection's input and the gradient of its output."""
    s = strategy(pp=2, schedule="zero_bubble")
    hidden, q, kv, ffn, vocab = (
        2 * TRAINING.sequence_length * size
        for size in (MODEL.hidden_size, 64, 2 * 16, MODEL.intermediate_size, MODEL.vocab_size)
    )
    # q, k, v read one input, gate and up another; o and down read their own
    block = (hidden + q + 2 * kv) + (q + hidden) + (hidden + 2 * ffn) + (ffn + hidden)
    apart, together = terms(s, 1), terms(replace(s, schedule="1f1b"), 1)
    assert apart["kept activations"] - together["kept activations"] == s.stage_layers[1] * block
    more = apart["embedding, logits and loss"] - together["embedding, logits and loss"]
    assert more == hidden + vocab
    first, other = terms(s), terms(replace(s, schedule="1f1b"))
    assert first.pop("working buffers") != other.pop("working buffers")
    assert first.pop("pipeline buffers") == other.pop("pipeline buffers") + 32 * 64 * 2
    assert first == other


@pytest.mark.parametrize("layers", [(2, 2, 2, 2), (1, 2, 3, 2), (2, 3, 2, 1), (3, 1, 1, 3)])
def test_telling_ranks_hold_the_fullest(layers: tuple[int, ...]) -> None:
    s = strategy(pp=4, stage_layers=layers)
    mesh, parts = strategy_mesh(MODEL, cluster_of(s), s), toy_parts(s)
    precision, cluster = TRAINING.precision, cluster_of(s)
    state = parts_state(parts, 1, precision, mesh, cluster)
    totals = [sum(memory_values(rank_load(s, parts, 16, rank), state, precision, cluster.device)) for rank in range(4)]
    assert max(totals[rank] for rank in telling_ranks(s, parts, 16)) == max(totals)


def test_gradients_of_experts_are_not_put_off() -> None:
    """Those of w2 come while backward goes on, where the schedule puts those of projections off: audits of mixtures
    with one block on a stage found 2 to 5 % more than was planned. A block without experts has none by then."""
    sizes: dict[str, Any] = {"num_hidden_layers": 2, "intermediate_size": 1024}
    names = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    small: dict[str, Any] = {name: getattr(MODEL, name) for name in names} | {"num_local_experts": 4}
    s = strategy(pp=2, schedule="zero_bubble", stage_layers=(1, 1))
    for model, w2 in (
        (replace(load_model("mixtral-8x7b"), **sizes, **small), 4 * 64 * 1024),
        (replace(MODEL, **sizes), 0),
    ):
        block = strategy_parts(model, TRAINING, cluster_of(s), s)[0].block
        (back, made), of_backward = block.moments.weights, block.working_bytes + block.for_weights_bytes
        of_weights = 2 * sum(made.values())
        if w2:
            assert of_weights == 2 * w2 > back
            expected = of_backward + of_weights - back
        else:
            expected = max(of_backward, of_weights - (block.kept_bytes - block.weights_waiting_bytes))
        assert terms(s, 0, model=model)["working buffers"] == expected


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_gradients_that_were_put_off_come_one_by_one(recompute: str) -> None:
    """Gate and up read one gathered input, 8 tokens of 64 numbers, and each has 64 x 512 weights on a rank. Of the
    microbatch all that waits is there by then, and nothing that its block kept: an audit of a block of Llama 3 70B
    found 5 % less than was planned, one of its head 3 % more."""
    model = replace(MODEL, num_hidden_layers=2, intermediate_size=1024, vocab_size=16)
    s = strategy(tp=2, pp=2, sequence_parallel=True, schedule="zero_bubble", stage_layers=(1, 1), recompute=recompute)
    training = replace(TRAINING, sequence_length=8)
    block = strategy_parts(model, training, cluster_of(s), s)[0].block
    of_gate, gathered = 64 * 512 * 2, 8 * 64 * 2
    first = terms(s, 0, training, model)
    left = block.weights_waiting_bytes - block.kept_bytes
    assert first["recompute"] + first["working buffers"] == of_gate + gathered + left


@pytest.mark.parametrize("zero", [2, 3])
def test_gradients_of_experts_that_no_two_ranks_have_do_not_travel(zero: int) -> None:
    """Those of one product with them are there before they are added to their sum, beside what travels: audits of
    mixtures found up to 3 % more than was planned."""
    sizes = {"intermediate_size": 1024, "num_local_experts": 4, "num_hidden_layers": 2, "vocab_size": 16}
    names = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    model = replace(load_model("mixtral-8x7b"), **sizes, **{name: getattr(MODEL, name) for name in names})  # type: ignore[arg-type]
    for ep, elements in ((4, 1 * 64 * 1024), (2, 0)):
        s = strategy(pp=2, dp=4, ep=ep, zero=zero, stage_layers=(1, 1))
        parts = strategy_parts(model, TRAINING, cluster_of(s), s)
        state_of = parts, zero, TRAINING.precision, strategy_mesh(model, cluster_of(s), s), cluster_of(s)
        state = parts_state(*state_of)
        assert state.block.at_once == elements
        of_regions = parts_state(*state_of, hands_over="regions").block
        assert of_regions.at_once == 3 * elements and not of_regions.in_backward
        if elements:
            gradients = DTYPE_BYTES[TRAINING.precision.parameter_dtype] * elements
            block = parts[0].block
            at_work = block.working_bytes - block.moments.weights.given_back
            assert terms(s, model=model)["working buffers"] >= at_work + gradients


def test_terms_are_named_once_and_end_with_the_reserve() -> None:
    assert tuple(terms(strategy())) == MEMORY_TERMS
    assert len(set(MEMORY_TERMS)) == len(MEMORY_TERMS)
    assert terms(strategy())["runtime and compiler reserve"] == cluster_of(strategy()).device.reserved_memory_bytes
