"""ZeRO-2 and ZeRO-3: what a rank holds, what its passes wait for, which collectives carry it; by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoshard.cost.backward_release import Moments
from autoshard.cost.collectives import collective_time_s, group_shape
from autoshard.cost.estimate import Estimate, estimate
from autoshard.cost.local_shape import mesh_order, strategy_mesh
from autoshard.cost.part import Part
from autoshard.cost.passes import Passes, block_passes, end_passes, exposed, stage_passes
from autoshard.cost.rank import NEXT_TO_ALIKE, next_to
from autoshard.cost.stage import mean_part, strategy_parts
from autoshard.cost.travelling_bytes import Ends, FrozenAround, Loss, Sizes, block_bytes, blocks_around, in_work_bytes
from autoshard.cost.zero_sharding import Frozen, Travelling, Turns, Unit, frozen_in_turns, in_turns, moved
from autoshard.errors import AutoshardError
from autoshard.graph.count import Collective
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.models.registry import load_model
from autoshard.models.stage import parameter_count
from autoshard.planner.search import search
from autoshard.plans.plan import make_plan
from autoshard.plans.search_result import Pins
from autoshard.plans.step_collectives import step_collectives
from autoshard.runtime.rehearse import local_cluster
from autoshard.spec.blocks import Blocks
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision

LLAMA = load_model("llama3-8b")
TRAINING = TrainingSpec(4096, 32, load_precision("mixed_precision"))
NORMS = (2 * 32 + 1) * 4096
TABLE = 128256 * 4096
BLOCK = (parameter_count(LLAMA) - 2 * TABLE - NORMS) // 32


def strategy(**changes: Any) -> Strategy:
    fields: dict[str, Any] = dict.fromkeys(("tp", "pp", "dp", "cp", "ep", "num_virtual_stages", "microbatch_size"), 1)
    fields |= {"schedule": "1f1b", "recompute": "full", "zero": 1, "sequence_parallel": False, **changes}
    layers = even_stage_layers(32, fields["pp"])
    return Strategy(**fields, attention_kernel="flash", stage_layers=layers)


def cost(**changes: Any) -> Estimate:
    one = strategy(**changes)
    return estimate(LLAMA, TRAINING, local_cluster(one.world_size), one)


def test_a_stage_shares_what_the_one_before_kept_whole() -> None:
    matrices = parameter_count(LLAMA) - NORMS
    held = {}
    for zero in (1, 2, 3):
        held[zero] = {term.name: term.value for term in cost(dp=8, zero=zero).fullest.terms}
    assert held[1]["parameters"] == held[2]["parameters"] == 2 * parameter_count(LLAMA)
    assert held[3]["parameters"] == 2 * (matrices / 8 + NORMS)
    assert held[1]["gradients"] == 4 * parameter_count(LLAMA)
    assert held[2]["gradients"] == held[3]["gradients"] == 4 * (matrices / 8 + NORMS)
    assert held[1]["optimizer state"] == held[2]["optimizer state"] == held[3]["optimizer state"]


@pytest.mark.parametrize("precision", ["mixed_precision", "fp32"])
def test_a_rank_alone_shares_nothing(precision: str) -> None:
    training = replace(TRAINING, precision=load_precision(precision))
    every = [strategy(pp=2, zero=zero) for zero in (1, 2, 3)]
    held = [estimate(LLAMA, training, local_cluster(2), one).memory for one in every]
    assert held[0] == held[1] == held[2]


def turns(block: int, larger: int, other: int, **changes: Any) -> Turns:
    """Early in the turn no activation has been given back and all gradients are there, unless it is said. Two ranks
    share all of it."""
    shared = {"larger_share": 0.5, "other_share": 0.5, "after": block, "together": float(larger == block)}
    shared["back_later"] = changes.get("back_after", 0.0)
    shared["last_on_its_way"] = 1.5 * (larger if changes.get("is_last") else other)
    return Turns(block, larger, other, larger, larger, 0.0, 0.0, 0.0)._replace(**shared | changes)


def in_work(
    gathers: int,
    block: Turns,
    ends: Ends,
    at_work: tuple[float, float, float, float],
    gone_bytes: tuple[float, float],
    blocks: int,
    hidden_bytes: float,
    opens: bool = True,
    before: float = 0.0,
    behind: float = 0.0,
) -> float:
    """Bytes of blocks of one kind between ends of the model. Two ranks, two-byte weights, four-byte sums. at_work: of
    block_bytes, and the loss. gone_bytes: when the embedding runs backward, and what the loss kept. opens: whether the
    head is right behind these blocks."""
    sizes, (*works, loss_work), (gone_at_embedding, kept_by_loss) = Sizes(2, gathers * 2, 4), at_work, gone_bytes
    before += opens * ends.last * 1.5
    around = blocks_around([block], 0, NEXT_TO_ALIKE, [[blocks - 1]], [behind])
    of_block = block_bytes(block, works, before, around, sizes, hidden_bytes)
    loss, last = Loss(loss_work, 0.0, 0.0, kept_by_loss), block.last_on_its_way
    found: float = in_work_bytes(of_block, ends, sizes, 2, loss, gone_at_embedding, opens * block.larger, last)
    return found


def test_the_worst_moment() -> None:
    # blocks of 10 elements between tables of 100; two-byte weights, four-byte sums, two ranks
    def at_worst(gathers: int, **changes: Any) -> float:
        given = {
            "block": turns(10, 10, 10),
            "ends": Ends(100, 100, 0),
            "at_work": (5.0, 5.0, 5.0, 600.0),
            "gone_bytes": (50.0, 400.0),
            "blocks": 4,
            "hidden_bytes": 10.0,
            **changes,
        }
        return in_work(gathers, **given)

    sent = 4 + 2
    # the embedding, when all blocks are through and, on its rank, the loss
    assert at_worst(0, ends=Ends(100, 0, 0), gone_bytes=(50.0, 0.0)) == 100 * (2 + sent) - 50
    assert at_worst(0, ends=Ends(200, 100, 0)) == 200 * (2 + sent) - 50 - 400
    # few elements of it: its gradient while the last bucket of the block is on its way
    nothing_else: dict[str, Any] = {
        "block": turns(10, 10, 10, early=0, late=0, back_after=2.0, back_leaving=3.0),
        "at_work": (0.0, 0.0, 0.0, 0.0),
        "gone_bytes": (0.0, 0.0),
    }
    assert at_worst(0, ends=Ends(5, 0, 0), **nothing_else) == 5 * 2 + 10 * sent
    # where the head has its table: whole weights and two gradients are less than one that leaves
    assert 100 * (2 + 2 * 2) + 10 * sent < 100 * (2 + sent)
    assert at_worst(1, ends=Ends(100, 0, 1)) == 100 * (2 + sent) - 50 - 400
    many_logits = (5.0, 5.0, 5.0, 6000.0)  # beside the gradient of these, the table and its gradient, which both stay
    assert at_worst(1, ends=Ends(100, 0, 1), at_work=many_logits) == 6000 * 2 / 6 + 100 * (2 + 2) - 400
    assert at_worst(0, ends=Ends(0, 100, 0)) == 100 * (2 + sent) - 400  # the head, when the loss is through
    without = Ends(0, 0, 0)
    assert at_worst(0, ends=without, gone_bytes=(50.0, 0.0)) == 600 * 2 / 6  # the gradient of the logits
    alone: dict[str, Any] = {"at_work": (500.0, 500.0, 500.0, 0.0), "gone_bytes": (50.0, 0.0), "ends": without}
    assert at_worst(1, **alone) == 500 + 2 * 20 + 2 * 10 + 10 * sent
    # what the block behind no longer keeps; without it the first block is the worst, whose gradients then leave
    assert at_worst(1, **alone, behind=7.0) == 500 + 2 * 20 + 2 * 10 + 10 * sent - 7
    assert at_worst(1, **alone, behind=90.0) == 500 + 2 * 10 + 2 * 10 + 10 * sent
    early = turns(10, 10, 10, early=4, back_late=3.0, back_after=20.0)  # half of the gradients, then fewer activations
    assert at_worst(1, block=early, **alone) == 500 + 2 * 20 + max(2 * 4, 2 * 10 - 30) + 10 * sent
    # of several segments that run again, in the second one's all that the larger one saved may be there, 23 bytes more;
    # behind it, all but what was given back of both: 40 more and 20 units of 10 less
    several = alone | {"at_work": (480.0, 503.0, 520.0, 0.0)}
    early = early._replace(back_leaving=20.0)
    assert at_worst(1, block=early, **several) == max(480 + 2 * 4, 503 + 2 * 10 - 30) + 2 * 20 + 10 * sent
    soon = early._replace(back_late=9.0, back_after=1.0)
    assert at_worst(1, block=soon, **several) == max(480 + 2 * 4, 520 + 2 * 10 - 10) + 2 * 20 + 10 * sent
    assert at_worst(1, **several) == 480 + 2 * 20 + 2 * 10 + 10 * sent
    # eight of ten elements are experts: their gradients while those of the other two leave, or the other way round
    experts = turns(10, 8, 2, back_after=49.0, back_leaving=49.0)
    assert at_worst(1, block=experts, **alone) == 500 + 2 * (10 + 8) + 8 * 2 + 2 * sent
    assert (
        at_worst(1, block=experts, **alone | {"at_work": (490.0, 490.0, 490.0, 0.0)})
        == 490 + 2 * (10 + 8) + 8 * 2 + 2 * sent
    )
    # where backward asks for the other two when it is through with the experts, the next ones are not there yet
    waiting = experts._replace(waits=1.0)
    assert at_worst(1, block=waiting, **alone) == 500 + 2 * 10 + 8 * 2 + 2 * sent
    assert at_worst(1, block=waiting.run_again(True, False), **alone) == at_worst(1, block=experts, **alone)
    assert at_worst(0, block=turns(10, 8, 2), **alone) == 500 + 8 * (2 + sent)  # there twice
    # a block that runs again as a whole sends them at its end, with fewer activations and all of its gradients
    at_once = turns(10, 8, 2, back_after=6.0, back_leaving=1.0, back_end=3.0)
    assert at_worst(0, block=at_once.run_again(True, False), **alone) == 500 - 10 + 8 * (2 + sent)
    assert at_worst(0, block=at_once.run_again(True, True), **alone) == 500 - 30 + 10 * 2 + 8 * sent
    # of a bucket that five ranks share this one gets less: a fifth of its sums
    assert at_worst(0, block=turns(10, 8, 2, larger_share=0.2), **alone) == 500 + 8 * (2 + 4 + 4 / 5)
    few_logits: dict[str, Any] = {"at_work": (5.0, 5.0, 5.0, 6.0), "gone_bytes": (900.0, 0.0)}
    assert at_worst(1, ends=Ends(100, 0, 1), **few_logits) == 5 + 2 * 20 + 20 + 10 * sent + 100 * (2 + 2)


def test_the_worst_moment_of_a_block_whose_experts_leave_first() -> None:
    # two of ten elements are experts; work of 500, of which 10 bytes a unit have been given back later
    def at_worst(block: Turns, last: int = 0, **changes: Any) -> float:
        ends = Ends(0, last, 0)
        given: dict[str, Any] = {
            "at_work": (500.0, 500.0, 500.0, 0.0),
            "gone_bytes": (50.0, 0.0),
            "blocks": 4,
            "hidden_bytes": 10.0,
        }
        return in_work(1, block, ends, **given | changes)

    sent = 4 + 2
    experts = turns(10, 8, 2, early=1, late=2, back_late=50.0, back_leaving=50.0, is_last=1.0)
    # all of the block, the next one's experts, the other block's rest on its way; one gradient is there
    most_before = experts._replace(back_after=20.0)
    assert at_worst(most_before) == 500 + 2 * 10 + 2 * 1 + 2 * 2 + 8 * sent
    assert at_worst(most_before, behind=7.0) == at_worst(most_before) - 7
    # the head leaves before the first block only: then the block is of another kind
    assert at_worst(most_before, last=20) == 500 + 2 * 10 + 2 * 1 + 2 * 2 + 20 * sent
    assert at_worst(most_before, last=20, opens=False) == at_worst(most_before)
    assert at_worst(most_before, opens=False, before=9 * 1.5) == 500 + 2 * 10 + 2 * 1 + 2 * 2 + 9 * sent
    # most when the experts are on their way: the rest and the next one's experts are whole
    assert at_worst(experts._replace(back_before=30.0)) == 500 + 2 * (8 + 2) + 8 * 2 + 2 * sent
    # at the end
    late = experts._replace(back_before=30.0, back_after=45.0, back_leaving=1.0)
    assert at_worst(late) == 500 - 10 + 2 * (8 + 2) + 8 * (2 + sent)


def test_the_worst_moment_of_few_blocks() -> None:
    def at_worst(blocks: int, last: int, given_back: float = 0.0) -> float:
        block = turns(10, 10, 10, back_leaving=given_back)
        return in_work(1, block, Ends(0, last, 0), (50.0, 50.0, 50.0, 0.0), (0.0, 0.0), blocks, hidden_bytes=1)

    sent = 4 + 2
    assert at_worst(1, 0) == 50 + 10 * (2 + sent)  # its gradients leave: its weights are gone
    assert at_worst(1, 0, given_back=45.0) == 50 + 10 * 2 + 10 * 2  # nothing arrives, nothing leaves
    assert at_worst(1, 7, given_back=45.0) == 50 + 10 * 2 + 10 * 2 + 7 * sent  # those of the head leave
    assert at_worst(2, 0) == 50 + 10 * 2 + 10 * 2 + 10 * sent  # of the first one, when the other's have left or leave
    assert at_worst(2, 9) == 50 + 10 * 2 + 10 * 2 + max(10 * 2 + 9 * sent, 10 * sent)
    assert at_worst(3, 0) == at_worst(80, 0) == 50 + 2 * 10 * 2 + 10 * 2 + 10 * sent


def test_the_worst_moment_of_a_block_between_others() -> None:
    """Blocks of 10 elements in turns with blocks of 4, which keep 3 bytes."""
    kinds, every = [turns(10, 10, 10, back_leaving=30.0), turns(4, 4, 4)], Blocks((0, 1) * 4)

    def at_worst(in_front: list[int], before: float, kept: float = 0.0, blocks: Blocks = every) -> float:
        around = blocks_around(kinds, 0, next_to(0, (0, 1), blocks), [in_front], [kept, 3.0])
        return float(block_bytes(kinds[0], (50.0, 50.0, 50.0), before, around, Sizes(2, 2, 4), 1.0))

    own, arrives, leaves, leaving = 50 + 10 * (2 + 2), 4 * 2, 4 * (4 + 2), 50 - 30 + 10 * (2 + 4 + 2)
    assert at_worst([0, 0], 0.0) == leaving  # alone, when its gradients leave
    assert at_worst([0, 1], 20.0) == own + arrives + 20 * 4  # the last one, with what is on its way behind it
    assert at_worst([2, 2], 20.0) == own + arrives + 20 * 4
    assert at_worst([2, 2], 0.0) == own + arrives + leaves - 3  # one between two small ones
    assert at_worst([2, 2], 0.0, kept=5.0) == own + arrives + leaves - 3 - 5
    assert at_worst([1, 0], 0.0, kept=5.0) == leaving  # none of the others is on its chunk
    runs = Blocks((0, 0, 1, 0, 0, 1))  # one of its own kind in front or behind, never both
    assert at_worst([3, 1], 0.0, blocks=runs) == own + max(10 * 2 + leaves - 3, arrives + 10 * (4 + 2))


def test_what_is_read_first_is_on_its_way_into_the_next_block() -> None:
    """Experts, and what tensor-parallel ranks hold alike of latent attention, whose gradients they sum besides. An
    audit of GLM-4.7-Flash found 6 % less than was planned, with the experts on their way."""
    mesh = strategy_mesh(LLAMA, local_cluster(8), strategy(tp=2, dp=4))
    matrices = {("dp",): 90.0, ("dp", "tp"): 10.0}
    for read, elements in (((("dp", "tp"), ("dp",)), 10), ((("dp",), ("dp", "tp")), 90)):
        assert in_turns(matrices, mesh, Moments(read=read)).last_on_its_way == elements * 5 / 4
    glm = load_model("glm-4.7-flash")
    one = replace(strategy(tp=2, dp=4, sequence_parallel=True), stage_layers=(glm.num_hidden_layers,))
    block = strategy_parts(glm, TRAINING, local_cluster(8), one)[0].of_kinds[1]
    assert block.moments.read == (("dp", "tp"), ("dp",))


def test_weights_that_are_not_trained_come_in_turns() -> None:
    """Experts, shared by 2 of 4 ranks, and the rest of their block. What forward used before a bucket comes while that
    is at work; one that backward is through with is gone when the next one is asked for."""
    mesh = strategy_mesh(LLAMA, local_cluster(4), strategy(dp=4, ep=2))
    rest, experts = ("dp", "ep"), ("dp",)
    matrices = {rest: 10.0, experts: 90.0}
    one = frozen_in_turns({rest: 100.0}, mesh, [(rest, 0, 9)])
    assert one == Frozen(all=100, most=100, beside=100, first=100, opening=100, closing=100)
    behind = frozen_in_turns(matrices, mesh, [(rest, 0, 5), (experts, 6, 9)])  # the router is the last of the rest
    assert behind == Frozen(all=100, most=100, beside=10, first=90, opening=10, closing=90)
    between = frozen_in_turns(matrices, mesh, [(rest, 0, 9), (experts, 6, 8)])  # shared experts are
    assert between == Frozen(all=100, most=100, beside=100, first=90, opening=10, closing=100)
    assert frozen_in_turns({("tp",): 10.0}, mesh, [(("tp",), 0, 1)]) == Frozen()  # no other rank has them


def test_what_is_not_trained_is_gathered_and_not_scattered() -> None:
    cluster, precision = local_cluster(4), TRAINING.precision
    mesh = strategy_mesh(LLAMA, cluster, strategy(dp=4))
    group, dp = group_shape(mesh_order(mesh), ("dp",), cluster), ("dp",)
    gathers_s = [collective_time_s("all_gather", 2 * count, group, cluster) for count in (1e6, 1e9)]
    for zero, gather_s in ((2, 0.0), (3, sum(gathers_s))):
        found = moved({dp: 1e6}, zero, precision, mesh, cluster, {}, {dp: 1e9})
        assert found == (gather_s, collective_time_s("reduce_scatter", 4e6, group, cluster))


def test_gradients_that_have_come_when_most_is_there() -> None:
    """Ten gradients come one after the other. Behind the MLP's six, one more is there when attention works with most;
    all are when it works with less."""

    def at_worst(block: Turns) -> float:
        return in_work(0, block, Ends(0, 0, 0), (500.0, 500.0, 500.0, 0.0), (50.0, 0.0), 1, hidden_bytes=1.0)

    given: dict[str, Any] = {"early": 0, "back_late": 30.0, "back_after": 1.0, "back_leaving": 100.0}
    block = turns(10, 10, 10, late=6, after=7, **given)
    assert at_worst(block._replace(back_later=5.0)) == 500 - 5 + 2 * 10
    assert at_worst(block._replace(back_later=26.0)) == 500 - 1 + 2 * 7
    # eight of ten are experts', which leave before attention runs backward, but not where all runs again at once
    experts = turns(10, 8, 2, late=8, after=9, back_end=100.0, **given)._replace(back_later=26.0)
    assert at_worst(experts) == 500 - 1 + 2 * 1 + 8 * (4 + 2)
    assert at_worst(experts.run_again(True, True)) == 500 - 1 + 2 * 9


def test_the_worst_moment_with_a_prediction_module() -> None:
    # tables of 100, of which the module has been through both; its last bucket has 20; two-byte weights, two ranks
    def at_worst(ends: Ends, loss: float, kept: float) -> float:
        return in_work(1, turns(10, 10, 10), ends, (5.0, 5.0, 5.0, loss), (50.0, kept), 4, 10.0)

    sent, logits = 4 + 2, 600
    one_rank, last_rank = Ends(100, 100, 0, 100, 20, 20), Ends(0, 100, 0, 0, 100, 20)
    # the model's own loss, with the probabilities that it kept: the next block's weights, the head's weights and its
    # first gradient, and that of the embedding, which waits for the embedding or leaves
    assert at_worst(one_rank, logits, 0.0) == logits * (1 + 4 / 6) + 10 * 2 + 100 * (2 + 2) + 100 * 2 + 20 * sent
    assert at_worst(last_rank, logits, 0.0) == logits * (1 + 4 / 6) + 10 * 2 + 100 * (2 + 2) + 100 * sent
    # few tokens: the head's gradient leaves, and the embedding's waits
    assert at_worst(one_rank, 6, 0.0) == 10 * 2 + 100 * (2 + sent) + 100 * 2
    # many: the module's head, where all is kept but the probabilities of the module's loss
    wide = one_rank._replace(last=1000)
    assert at_worst(wide, logits, 1e6) == logits * (2 - 4) / 6 + 1000 * (2 + 2) + 20 * 2


def test_what_a_head_has_between_its_table_and_the_blocks() -> None:
    """A table of 100 and four more elements, which travel apart: the table leaves while these are at work."""

    def at_worst(between: int, opening: int) -> float:
        ends, loss = Ends(0, 100, 0, between=between), Loss(600.0, 0.0, 50.0, 0.0)
        found: float = in_work_bytes(0.0, ends, Sizes(2, 2, 4), 2, loss, 0.0, opening, 0.0)
        return found

    sent = 4 + 2
    assert at_worst(0, 10) == 10 * 2 + 100 * (2 + sent)  # the next block's weights are there
    assert at_worst(4, 10) == 4 * 2 + 100 * (2 + sent) + 50
    assert at_worst(4, 200) == 200 * 2 + 4 * (2 + 2) + 100 * sent + 50


def test_an_end_that_is_not_trained() -> None:
    """The head's weights are there with gradients of logits and what comes of the block in front; the embedding's in
    forward; a table that both have, all the time that blocks run backward."""
    around, loss = (
        FrozenAround(in_front=20, behind=7, embedding_bytes=30, head_bytes=640.0),
        Loss(600.0, 0.0, 0.0, 50.0),
    )

    def at_worst(of_blocks: float, ends: Ends) -> float:
        found: float = in_work_bytes(of_blocks, ends, Sizes(2, 2, 4), 2, loss, 500.0, 0.0, 0.0, around)
        return found + 50

    assert at_worst(0, Ends(0, 0, 0, frozen_last=100)) == 640 + 2 * (100 + 20)
    assert at_worst(0, Ends(0, 0, 1, frozen_last=100)) == 640 + 2 * 100
    assert at_worst(700, Ends(0, 0, 1, frozen_last=100)) == 700 + 2 * 100
    assert at_worst(0, Ends(0, 0, 0, frozen_first=1000)) == 2 * (1000 + 7) + 30 - 500


def test_blocks_of_two_kinds_need_what_one_of_them_needs_at_a_time() -> None:
    one = strategy_parts(LLAMA, TRAINING, local_cluster(1), strategy())[0].block
    kinds = [replace(one, replay_bytes=10.0, working_bytes=5.0), replace(one, replay_bytes=4.0, working_bytes=13.0)]
    both = mean_part(kinds, (1, 1))
    assert (both.replay_bytes, both.working_bytes) == (10.0, 4.0 + 13.0 - 10.0)  # not 10 + 13
    alone = mean_part(kinds, (1, 0))
    assert (alone.replay_bytes, alone.working_bytes) == (10.0, 5.0)


def test_moments_of_a_block() -> None:
    # Mixtral's: activations are most at the experts' activation function, when w2 alone has its gradient
    model = replace(load_model("mixtral-8x7b"), num_hidden_layers=2)
    one = strategy(dp=8, ep=4)
    one = replace(one, stage_layers=(2,), recompute=("none",))
    block = strategy_parts(model, TRAINING, local_cluster(8), one)[0].block
    early, late, after, end, before, weights, *_ = block.moments
    matrix = 8 // 4 * 4096 * 14336
    assert sum(early.made.values()) == matrix
    experts = max(late.made, key=lambda axes: late.made[axes])
    assert late.made[experts] == block.matrices[experts] == 3 * matrix
    assert after.made == late.made and end.made == block.moments.later.made == block.matrices
    assert before == early  # before the experts have their gradients
    assert sum(weights.made.values()) == matrix and weights.given_back > 0  # one of three as large
    gone = [moment.given_back for moment in (early, late, after, block.moments.later, end)]
    assert gone == sorted(gone) and 0 == gone[0] < gone[1] < gone[2]


def test_moments_of_a_block_without_an_mlp() -> None:
    """Nemotron-H's first block is a state space alone: its scan works with most, when the projection behind it alone
    has its gradient."""
    model = load_model("nemotron-h-8b").some_blocks(range(2))
    one = replace(strategy(dp=8, zero=2), stage_layers=(2,), recompute=("none",))
    block = strategy_parts(model, TRAINING, local_cluster(8), one)[0].blocks[0]
    early, late, after, end, *_ = block.moments
    assert early.made == {("dp",): 128 * 64 * model.hidden_size}  # 128 heads of 64 numbers
    assert late.made == end.made == block.matrices
    assert 0 == early.given_back < late.given_back < after.given_back


def test_a_tile_of_scores_beside_the_gradients_of_a_block() -> None:
    """Gemma 2's MLP works with more than its attention does, but for a tile. When that is there, all gradients are."""
    model = replace(load_model("gemma2-9b").some_blocks(range(2)), sliding_window=2048)
    one, cluster = replace(strategy(dp=8, zero=2), stage_layers=(2,), recompute=("none",)), local_cluster(8)
    for microbatch in (1, 2):
        training = replace(TRAINING, sequence_length=2048, global_batch_size=8 * microbatch)
        of_size = replace(one, microbatch_size=microbatch)
        parts = strategy_parts(model, training, cluster, of_size)
        times, hidden_bytes = parts[0].block.moments, parts[0].hidden_bytes
        assert hidden_bytes == microbatch * 2048 * model.hidden_size * 2
        heads = model.num_attention_heads + 2 * model.num_key_value_heads
        of_projections = heads * model.head_dim * model.hidden_size  # they have no gradients yet
        assert times.tiled.made == {("dp",): times.end.made["dp",] - of_projections}
        # of the scores of all 16 heads, 512 queries and 2,048 keys, three numbers in FP32 and one in bf16
        assert times.tile_bytes == (3 * 4 + 2) * 16 * 512 * 2048
        assert 0 < times.after.given_back <= times.tiled.given_back
        turns_of = in_turns(parts[0].block.matrices, strategy_mesh(model, cluster, of_size), times, hidden_bytes)
        assert turns_of.tile_bytes == times.tile_bytes and turns_of.leaving_tile_bytes == 0
        assert turns_of.working * hidden_bytes == times.most
        assert turns_of.tiled == turns_of.all - of_projections


def test_the_worst_moment_with_a_tile_of_scores() -> None:
    # a block alone of 10 elements; the MLP works with 500; attention with 30 units of 10 less, and with a tile of 250
    def at_worst(block: Turns, of_block: tuple[float, float, float] = (500.0, 500.0, 500.0)) -> float:
        work = (*of_block, 0.0)
        return in_work(0, block, Ends(0, 0, 0), work, (50.0, 0.0), 1, hidden_bytes=10.0)

    block = turns(10, 10, 10, early=4, late=8, back_late=20.0, back_after=29.0, back_leaving=45.0)
    tiled = block._replace(back_tiled=30.0, tile_bytes=250.0, tiled=9)
    assert at_worst(block) == 500 + 2 * 4
    assert at_worst(tiled) == 500 + 2 * 4
    assert at_worst(tiled._replace(tile_bytes=295.0)) == 500 - 300 + 295 + 2 * 9
    # where attention works with most, what segments save that run again is not beside its tile twice
    assert at_worst(tiled._replace(tile_bytes=320.0), (520.0, 500.0, 500.0)) == 500 - 300 + 320 + 2 * 9
    assert at_worst(tiled._replace(tile_bytes=295.0), (480.0, 490.0, 510.0)) == 510 - 300 + 295 + 2 * 9
    # eight of ten elements are experts, whose gradients leave while attention runs backward, or behind it
    experts = turns(10, 8, 2, early=4, late=8, back_late=20.0, back_after=29.0, back_leaving=29.0, back_end=45.0)
    leaving = experts._replace(back_tiled=30.0, tile_bytes=295.0, leaving_tile_bytes=295.0)
    assert at_worst(experts) == 500 + 2 * 4
    assert at_worst(leaving) == 500 - 300 + 295 + 8 * 2 + 8 * (4 + 2)
    assert at_worst(leaving._replace(tiled=9).run_again(True, True)) == 500 - 300 + 295 + 2 * 9


def test_what_hides_behind_a_block() -> None:
    cluster, one = local_cluster(8), strategy(dp=8, zero=3)
    block = strategy_parts(LLAMA, TRAINING, cluster, one)[0].block
    ahead, back = block.forward_s, block.backward_s

    def waits(
        part: Part, gather_s: float, again_s: float, scatter_s: float, cast_s: float = 0.0
    ) -> tuple[Passes, Passes]:
        """(as a block, as an end)."""
        unit = Unit(8.0, 1.0, Travelling(1.0, 1.0, gather_s, again_s, scatter_s, cast_s, turns(8, 8, 8)))
        return block_passes(part, unit), end_passes(part, unit)

    def unhidden(gather_s: float, scatter_s: float, cast_s: float = 0.0) -> tuple[float, float]:
        unit = Unit(8.0, 1.0, Travelling(1.0, 1.0, gather_s, gather_s, scatter_s, cast_s, turns(8, 8, 8)))
        return exposed(block, unit, block_passes(block, unit))

    assert waits(block, 0.5 * ahead, 0.5 * ahead, 0.0)[0] == (ahead, back)
    assert unhidden(0.5 * ahead, 0.0) == (0.0, 0.0)
    assert waits(block, 3 * ahead, 3 * ahead, 0.0)[0].forward_s == pytest.approx(3 * ahead)
    assert waits(block, back, back, 2 * back)[0] == pytest.approx((max(ahead, back), 3 * back))
    assert unhidden(back, 2 * back) == pytest.approx((max(0, back - ahead) + 2 / 3 * back, 4 / 3 * back))
    # an embedding's backward does not read its table; nothing of an end hides
    assert waits(block, 1.0, 0.0, 2.0)[1] == pytest.approx((ahead + 1, back + 2))
    assert waits(block, 1.0, 1.0, 2.0)[1] == pytest.approx((ahead + 1, back + 3))
    # to cast what was gathered is work, which others hide behind
    assert waits(block, 0.5 * ahead, 0.5 * ahead, 0.0, ahead)[0] == (2 * ahead, back + ahead)
    assert unhidden(2 * ahead, 0.0, ahead) == (0.0, 0.0)
    assert waits(block, 1.0, 1.0, 2.0, 0.5)[1] == pytest.approx((ahead + 1.5, back + 3.5))


def test_a_stage_without_blocks_gathers_nothing_at_first() -> None:
    """Others wait for the weights of their first block in each pass, and for the last gradients to leave."""
    device = replace(local_cluster(8).device, pass_launch_s=0.25)
    unit = Unit(8.0, 1.0, Travelling(1.0, 1.0, 3.0, 3.0, 5.0, 0.0, turns(8, 8, 8)))
    block = Passes(10.0, 20.0)
    assert stage_passes(0, block, unit, device, 0.0) == (0.25, 0.25)
    assert stage_passes(2, block, unit, device, 0.0) == (0.25 + 3 + 2 * 10, 0.25 + 3 + 5 + 2 * 20)
    one = replace(strategy(pp=2, dp=4, zero=3), stage_layers=(32, 0))
    bare = estimate(LLAMA, TRAINING, local_cluster(8), one)
    assert sum(term.value for term in bare.time_terms) == pytest.approx(bare.step_time_s)


def test_terms_add_up_and_waiting_is_named() -> None:
    for changes in ({"dp": 8}, {"pp": 2, "dp": 4}):
        one, other = cost(zero=1, **changes), cost(zero=3, **changes)
        assert sum(term.value for term in other.time_terms) == pytest.approx(other.step_time_s)
        work = {term.name: term.value for term in one.time_terms}, {term.name: term.value for term in other.time_terms}
        for name in ("matrix products and vector operators", "attention", "recompute", "launches"):
            assert work[0][name] == work[1][name]
        assert work[1]["parameter all-gather"] > 0 < work[1]["gradient reduce-scatter"]


@pytest.mark.parametrize("zero", [2, 3])
def test_collectives_of_a_step(zero: int) -> None:
    one = strategy(dp=8, zero=zero)
    cluster = local_cluster(8)
    plan = make_plan(LLAMA, TRAINING, cluster, "torch", one, estimate(LLAMA, TRAINING, cluster, one))
    found, m = step_collectives(plan, 0), 4
    expected = {
        Collective("backward", "reduce_scatter", ("dp",), 4 * BLOCK): 32 * m,
        Collective("backward", "reduce_scatter", ("dp",), 4 * TABLE): 2 * m,
        Collective("sync", "reduce_scatter", ("dp",), 4 * NORMS): 1,
        Collective("sync", "all_gather", ("dp",), 2 * NORMS): 1,
    }
    if zero == 2:
        expected[Collective("sync", "all_gather", ("dp",), 2 * BLOCK)] = 32
        expected[Collective("sync", "all_gather", ("dp",), 2 * TABLE)] = 2
    else:
        for phase, tables in (("forward", 2), ("backward", 1)):  # the embedding's backward does not read its table
            expected[Collective(phase, "all_gather", ("dp",), 2 * BLOCK)] = 32 * m
            expected[Collective(phase, "all_gather", ("dp",), 2 * TABLE)] = tables * m
    assert dict(found) == expected


def test_one_rank_has_nothing_to_share() -> None:
    whole = cost(dp=1, pp=4, zero=1)
    assert replace(cost(dp=1, pp=4, zero=3), step_time_low_s=0, step_time_high_s=0) == replace(
        whole, step_time_low_s=0, step_time_high_s=0
    )


def test_a_pin_is_kept_and_nxd_refuses_it() -> None:
    cluster = load_cluster("trn2.48xlarge", 1)
    small = replace(LLAMA, num_hidden_layers=4)
    assert search(small, TRAINING, cluster, Pins(zero=3, tp=4), "torch").best.strategy.zero == 3
    with pytest.raises(AutoshardError) as error:
        search(small, TRAINING, cluster, Pins(zero=2), "nxd")
    assert str(error.value) == "zero=2: NxD shards the optimizer state alone; use zero=1 or backend torch"
    with pytest.raises(AutoshardError) as error:
        search(small, TRAINING, cluster, Pins(zero=3, schedule="zero_bubble"), "torch")
    assert str(error.value) == ("schedule=zero_bubble puts off gradients that zero=3 sends at once; use 1f1b or zero=1")
