"""The loss in chunks: the graph, what a rank keeps and computes, and when a search gives a plan chunks."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autoshard.backends.problem import Problem
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError, NoLayoutFits
from autoshard.files.codec import from_json, to_json
from autoshard.graph.chunked_loss import with_chunked_loss
from autoshard.graph.count import operator_work, saved_activations
from autoshard.graph.ir import Graph, GraphBuilder
from autoshard.graph.operators import KINDS
from autoshard.graph.partition import OperatorStep, partition
from autoshard.interop.exported import common_left_out
from autoshard.layout.strategy import Strategy
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.planner import loss_chunks
from autoshard.planner.answer import answer
from autoshard.planner.compiling import Compiling
from autoshard.planner.loss_chunks import chunks_that_compile, faster_in_chunks, smallest_useful
from autoshard.planner.planning import plan_for
from autoshard.planner.request import PlanRequest
from autoshard.planner.search import Searched
from autoshard.plans.search_result import Candidate
from autoshard.precedents.graph_size import head_regions
from autoshard.precedents.will_compile import Verdict, judge
from autoshard.runtime.rehearse import rehearse
from autoshard.spec.cluster import load_cluster
from autoshard.spec.prediction import MultiTokenPrediction
from autoshard.spec.training import TrainingSpec, load_precision
from tests.unit.plan_examples import by_hand

BF16 = load_precision("mixed_precision")
ROWS, VOCAB, EMBED = 2 * 2048, 128_256, 4096


def head(name: str, chunks: int) -> Graph:
    """The end of a model, for two sequences of 2,048 tokens."""
    model = load_model(name)
    graph = stage_graph(model, dim_sizes(model, 2, 2048), (), False, True)
    return with_chunked_loss(graph, chunks)


def loss_step(graph: Graph) -> OperatorStep:
    (step,) = (
        one
        for one in partition(graph, {}, {op.name: {} for op in graph.operators}).steps
        if isinstance(one, OperatorStep) and one.operator.name == "loss"
    )
    return step


def test_the_product_and_the_loss_are_one_operator() -> None:
    before, after = head("llama3-8b", 1), head("llama3-8b", 8)
    assert [op.name for op in before.operators] == ["model.norm", "lm_head", "loss"]
    assert [(op.name, op.kind) for op in after.operators] == [("model.norm", "norm"), ("loss", "linear_cross_entropy")]
    assert after.operators[-1].inputs == ("model.norm", "lm_head.weight", "labels")
    assert after.operators[-1].attributes == {"valid_vocab": VOCAB, "chunks": 8}
    assert set(before.tensors) - set(after.tensors) == {"lm_head"}
    assert after.matrices == before.matrices and after.parameters() == before.parameters()
    assert with_chunked_loss(before, 1) is before
    blocks = stage_graph(load_model("llama3-8b"), dim_sizes(load_model("llama3-8b"), 1, 64), (0,), True, False)
    assert with_chunked_loss(blocks, 8) is blocks


def test_functions_of_logits_are_computed_in_their_order() -> None:
    (loss,) = (op for op in head("gemma2-2b", 4).operators if op.name == "loss")
    assert loss.attributes["expression"] == "(mul 30.0 (tanh (div x0 30.0)))"
    b = GraphBuilder({"batch": 1, "seq": 4, "embed": 2, "vocab": 8}, 4)
    x, w = b.hidden_input("hidden", "batch seq embed"), b.parameter("w", "vocab embed")
    logits = b.scaled("half", b.einsum("head", "batch seq embed, vocab embed -> batch seq vocab", x, w), 0.5)
    logits = b.pointwise("cap", "(mul 30.0 (tanh (div x0 30.0)))", logits)
    labels, loops = b.index_input("labels", "batch seq"), ("batch", "seq", "vocab")
    b.operator("cross_entropy", "loss", (logits, labels), (), loops, element_bytes=4, valid_vocab=8)
    (loss,) = with_chunked_loss(b.build(), 2).operators
    assert loss.attributes["expression"] == "(mul 30.0 (tanh (div (mul 0.5 x0) 30.0)))"


def test_both_losses_of_a_prediction_module_come_in_chunks() -> None:
    model = replace(load_model("deepseek-v3"), multi_token_prediction=MultiTokenPrediction())
    graph = with_chunked_loss(stage_graph(model, dim_sizes(model, 1, 64), (), False, True), 4)
    losses = [op for op in graph.operators if op.kind == "linear_cross_entropy"]
    assert [op.inputs[3:] for op in losses] == [(), ("loss",)]
    assert [op.attributes.get("weight") for op in losses] == [None, 0.1]
    assert not any(op.kind == "cross_entropy" for op in graph.operators)


def test_what_reads_the_logits_besides_is_named() -> None:
    b = GraphBuilder({"batch": 1, "seq": 4, "embed": 2, "vocab": 8}, 4)
    x, w = b.hidden_input("hidden", "batch seq embed"), b.parameter("w", "vocab embed")
    logits = b.einsum("head", "batch seq embed, vocab embed -> batch seq vocab", x, w)
    labels, loops = b.index_input("labels", "batch seq"), ("batch", "seq", "vocab")
    b.operator("cross_entropy", "loss", (logits, labels), (), loops, element_bytes=4, valid_vocab=8)
    alone = b.build()
    b.scaled("other", logits, 2.0)
    with pytest.raises(AutoshardError) as raised:
        with_chunked_loss(b.build(), 2)
    assert str(raised.value) == "loss_chunks=2: head is read by more than the loss; use loss_chunks=1"
    between = GraphBuilder(alone.sizes, 4)
    x, w = between.hidden_input("hidden", "batch seq embed"), between.parameter("w", "vocab embed")
    logits = between.einsum("head", "batch seq embed, vocab embed -> batch seq vocab", x, w)
    logits = between.elementwise("add", "bias", logits, between.parameter("b", "vocab"))
    labels = between.index_input("labels", "batch seq")
    between.operator("cross_entropy", "loss", (logits, labels), (), loops, element_bytes=4, valid_vocab=8)
    with pytest.raises(AutoshardError) as raised:
        with_chunked_loss(between.build(), 2)
    assert str(raised.value) == (
        "loss_chunks=2: bias, which reads b, lies between the product with the vocabulary and the loss; use "
        "loss_chunks=1"
    )


def test_a_rank_keeps_the_rows_and_one_number_each_and_works_on_one_chunk() -> None:
    graph = head("llama3-8b", 8)
    program, step = partition(graph, {}, {op.name: {} for op in graph.operators}), loss_step(graph)
    assert saved_activations(program, step) == {"model.norm": 2.0 * ROWS * EMBED, "loss:log_sum_exp": 4.0 * ROWS}
    work = operator_work(program, step)
    assert (work.matmul, work.flops) == ((ROWS, VOCAB, EMBED), 2.0 * ROWS * VOCAB * EMBED)
    assert work.backward_flops_ratio == 3.0  # the logits once more
    assert work.bytes_moved == 2 * ROWS * EMBED + 8 * 2 * VOCAB * EMBED + 8 * ROWS + 4  # each chunk reads the weights
    kind = KINDS["linear_cross_entropy"]
    assert kind.inner_backward_bytes(step.operator, graph, graph.sizes) == (2 + 4) * ROWS / 8 * VOCAB
    capped, sizes = head("gemma2-2b", 8), {"batch": 2.0, "seq": 2048.0, "vocab": 256_000.0, "embed": 2304.0}
    assert kind.inner_backward_bytes(loss_step(capped).operator, capped, sizes) == (2 + 4 + 2 + 2) * ROWS / 8 * 256_000


def layout(**changes: object) -> Strategy:
    fields: dict[str, object] = dict.fromkeys(("tp", "pp", "dp", "cp", "ep", "num_virtual_stages"), 1)
    fields |= {"microbatch_size": 1, "schedule": "1f1b", "recompute": ("full",), "zero": 1, "stage_layers": (32,)}
    fields |= {"attention_kernel": "flash", "sequence_parallel": False, **changes}
    return Strategy(**fields)  # type: ignore[arg-type]


def test_more_chunks_take_less_memory_and_more_time() -> None:
    model, cluster = load_model("llama3-8b"), load_cluster("h100-80gb", 1)
    found = []
    for chunks in (2, 4, 8, 16):
        training = TrainingSpec(8192, 64, BF16, loss_chunks=chunks)
        found.append(estimate(model, training, cluster, layout(dp=8, zero=3)))
    sizes, times = [one.fullest.total_bytes for one in found], [one.step_time_s for one in found]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[1]
    assert times == sorted(times) and times[0] < times[-1] < 1.02 * times[0]
    whole = estimate(model, TrainingSpec(8192, 64, BF16), cluster, layout(dp=8, zero=3))
    assert whole.fullest.total_bytes > sizes[0] and whole.step_time_s < times[0] < 1.05 * whole.step_time_s


@pytest.mark.parametrize(("tokens", "chunks"), [(8192, 32), (9, 8), (1, 1)])
def test_logits_of_a_chunk_need_be_no_larger_than_what_they_come_from(tokens: int, chunks: int) -> None:
    """128,256 columns over 4,096 are 31.3; there are no more chunks than tokens."""
    assert smallest_useful(load_model("llama3-8b"), TrainingSpec(tokens, 8, BF16)) == chunks


def test_a_model_that_fits_in_chunks_alone_gets_them() -> None:
    """Qwen3-0.6B has 151,936 columns over 1,024: of all logits at once the head alone needs 20 GB."""
    card = load_cluster("h100-80gb", 1)
    cluster = replace(card, device=replace(card.device, memory_bytes=16_000_000_000))
    pins = {"tp": 1, "pp": 1, "cp": 1, "zero": 1}
    request = PlanRequest("qwen3-0.6b", cluster=cluster, backend="torch", top=0, pins=pins)
    with pytest.raises(NoLayoutFits):
        answer(replace(request, loss_chunks=1))
    found = answer(request)
    assert found.problem.training.loss_chunks == 64  # the most that a search gives
    assert found.result.best.estimate.fullest.total_bytes < 16e9
    (note,) = (one for one in found.notes if one.startswith("loss in"))
    assert note.startswith("loss in 64 chunks: of all logits at once no layout fits, the smallest looked at needs ")
    assert note.endswith(" a device, which has 16.0 GB")
    small = replace(card, device=replace(card.device, memory_bytes=2_000_000_000))
    with pytest.raises(NoLayoutFits):
        answer(replace(request, cluster=small))


@pytest.mark.parametrize(
    "pins", [{"tp": 1, "cp": 1, "microbatch_size": 32}, {"tp": 1, "cp": 1, "pp": 4, "schedule": "gpipe"}]
)
def test_logits_of_all_that_a_device_holds_are_chunked(pins: dict[str, int | str]) -> None:
    """A device that holds the logits of 32 sequences at once, or of all microbatches as GPipe does, has room for none
    of them whole: 10 bytes x 8,192 tokens x 128,256 columns are 10.5 GB a sequence."""
    request = PlanRequest("llama3.2-1b", "h100-80gb", global_batch=512, backend="torch", top=0, pins=pins)
    with pytest.raises(NoLayoutFits):
        answer(replace(request, loss_chunks=1))
    assert answer(request).problem.training.loss_chunks == 64


@pytest.mark.parametrize(
    ("memory_bytes", "told"),
    [
        (16_000_000_000, "use more nodes, or the logits in chunks, loss_chunks=64 with backend torch"),
        (8_000_000_000, "; in chunks, loss_chunks=64 with backend torch, the logits need less; "),
    ],
)
def test_another_searcher_names_the_chunks_that_the_exact_search_takes(memory_bytes: int, told: str) -> None:
    """At 16 GB it prices layouts and none fits, at 8 GB none is left to price; at 2 GB chunks would not help."""
    card = load_cluster("h100-80gb", 1)
    pins = {"tp": 1, "pp": 1, "cp": 1, "zero": 1}
    request = PlanRequest("qwen3-0.6b", backend="torch", top=0, pins=pins, search="random", evaluations=20)
    for size, is_told in ((memory_bytes, True), (2_000_000_000, False)):
        cluster = replace(card, device=replace(card.device, memory_bytes=size))
        with pytest.raises(NoLayoutFits) as error:
            answer(replace(request, cluster=cluster))
        assert (told in str(error.value)) is is_told


def test_what_would_do_where_nothing_fits_in_chunks_is_in_chunks_too() -> None:
    pins = {"tp": 1, "cp": 1, "microbatch_size": 64}
    request = PlanRequest("llama3.2-1b", "h100-80gb", backend="torch", top=0, pins=pins)
    with pytest.raises(NoLayoutFits) as raised:
        answer(request)
    assert " with tp=1 cp=1 microbatch_size=64 loss_chunks=64: the smallest looked at needs " in str(raised.value)
    assert "; 2 nodes would fit (" in str(raised.value)
    assert answer(replace(request, nodes=2)).problem.training.loss_chunks == 64


def test_the_backend_that_steps_in_may_chunk_the_loss() -> None:
    """NxD has no chunks; where nothing fits with it, torch is tried as if the user had named it."""
    pins = {"tp": 2, "cp": 1}
    request = PlanRequest("llama3.2-1b", "trn1.32xlarge", seq_len=32_768, top=0, pins=pins)
    stepped_in, named = answer(request), answer(replace(request, backend="torch"))
    assert stepped_in.problem.backend == "torch" and stepped_in.problem.training.loss_chunks == 64
    assert stepped_in.result.best == named.result.best
    assert any(one.startswith("backend torch, because nxd has none that fits: ") for one in stepped_in.given)
    assert any(one.startswith("loss in 64 chunks: ") for one in stepped_in.notes)


def test_a_chunk_is_a_graph_of_its_own() -> None:
    model, cluster = load_model("llama3-8b"), replace(load_cluster("trn2.48xlarge", 1), stack="neuron-eager")
    one, four = (
        head_regions(model, TrainingSpec(8192, 64, BF16, loss_chunks=chunks), cluster, layout()) for chunks in (1, 4)
    )
    of_one = max(region.operator_tiles for region in one)
    assert max(region.operator_tiles for region in four) == of_one / 4
    assert max(region.graph.logits for region in four) == max(region.graph.logits for region in one) / 4


def test_the_fewest_chunks_are_taken_with_which_every_graph_compiles() -> None:
    training = TrainingSpec(8192, 64, BF16)
    cluster = replace(load_cluster("trn2.48xlarge", 1), stack="neuron-compiled")
    problem = Problem(load_model("llama3-8b"), training, cluster, "torch")
    assert Compiling(problem).refuses(layout(dp=64))
    found = chunks_that_compile(problem, layout(dp=64))
    assert found is not None and found.training.loss_chunks > 1
    half = found._replace(training=replace(training, loss_chunks=found.training.loss_chunks // 2))
    assert not Compiling(found).refuses(layout(dp=64)) and Compiling(half).refuses(layout(dp=64))


TWO = {"dp": 32, "microbatch_size": 2}
"""Fields of a layout of which a block is refused with any chunks."""


@pytest.mark.parametrize(
    ("fastest", "in_chunks", "step_s", "is_taken"),
    [
        ({"dp": 64}, {"dp": 64}, 9.9, True),
        ({"dp": 64}, {"dp": 64}, 10.0, False),  # no faster than the layout that compiles without
        ({"dp": 64}, TWO, 9.9, False),  # refused with these chunks
        ({"dp": 64}, None, 9.9, False),  # nothing was found with these chunks
        ({"dp": 64, "tp": 64}, {"dp": 64}, 9.9, False),  # the compiler takes it, so that other reasons put it behind
        (None, {"dp": 64}, 9.9, False),
    ],
)
def test_chunks_are_taken_where_the_layout_in_them_is_faster_and_compiles(
    fastest: dict[str, int] | None,
    in_chunks: dict[str, int] | None,
    step_s: float,
    is_taken: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without chunks the plan takes 10 s; `fastest` is the layout that was passed over for it."""
    cluster = replace(load_cluster("trn2.48xlarge", 1), stack="neuron-compiled")
    problem = Problem(load_model("llama3-8b"), TrainingSpec(8192, 64, BF16), cluster, "torch")
    asked = list[int]()

    def result(taken: Strategy, seconds: float, passed_over: Strategy | None = None) -> Searched:
        taking = replace(by_hand(*problem[:3], taken), step_time_s=seconds)
        return Searched(Candidate(taken, taking), (), 1, 1, (), fastest=passed_over)

    def search(chunked: Problem) -> Searched:
        asked.append(chunked.training.loss_chunks)
        if in_chunks is None:
            raise AutoshardError("nothing fits")
        return result(layout(**in_chunks), step_s)

    before = result(layout(tp=64), 10.0, None if fastest is None else layout(**fastest))
    found = faster_in_chunks(problem, before, search)
    assert asked == ([] if fastest is None or "tp" in fastest else [2])
    if not is_taken:
        assert found is None
        return
    assert found is not None and found[0] == problem._replace(training=replace(problem.training, loss_chunks=2))
    assert found[1].best.estimate.step_time_s == 9.9
    whole = "of all logits at once the fastest layout that is expected to compile takes 10.0 s"
    assert found[2] == (f"loss in 2 chunks: 9.90 s a step; {whole}",)
    assert faster_in_chunks(problem._replace(cluster=replace(cluster, stack=None)), before, search) is None
    monkeypatch.setattr(loss_chunks, "MOST_CHUNKS", 1)  # so that none change what is refused
    assert faster_in_chunks(problem, before, search) is None and asked == [2]


def test_where_a_block_is_refused_too_the_head_alone_says_how_many_chunks() -> None:
    """Two sequences a microbatch make a block's graph too large, with any chunks."""
    training = TrainingSpec(8192, 64, BF16)
    cluster = replace(load_cluster("trn2.48xlarge", 1), stack="neuron-compiled")
    problem, two = Problem(load_model("llama3-8b"), training, cluster, "torch"), layout(**TWO)
    found = chunks_that_compile(problem, two)
    assert found is not None and Compiling(found).refuses(two)

    def refused(chunks: int) -> bool:
        asked = replace(training, loss_chunks=chunks)
        return any(judge(one).verdict is Verdict.REFUSED for one in head_regions(problem.model, asked, cluster, two))

    fewest = found.training.loss_chunks
    assert fewest == 4 and not refused(fewest) and refused(fewest // 2)


def test_another_layout_than_the_fastest_may_need_chunks_to_be_the_plan() -> None:
    """The fastest has a block that is refused, too; one with context parallelism has none."""
    request = PlanRequest("command-a", "trn2.48xlarge", nodes=4, backend="torch", top=0)
    chosen, whole = answer(request), answer(replace(request, loss_chunks=1))
    assert chosen.problem.training.loss_chunks == 4
    assert chosen.result.best.estimate.step_time_s < 0.97 * whole.result.best.estimate.step_time_s
    assert not Compiling(chosen.problem).refuses(chosen.result.best.strategy)


def test_logits_with_a_bias_have_no_chunks() -> None:
    cluster = replace(load_cluster("trn2.48xlarge", 1), stack="neuron-compiled")
    problem = Problem(load_model("phi-2"), TrainingSpec(2048, 64, BF16), cluster, "torch")
    assert chunks_that_compile(problem, layout(dp=64)) is None
    said = "loss_chunks=4: lm_head, which reads lm_head.bias, lies between the product with the vocabulary and the loss"
    with pytest.raises(AutoshardError, match=said):
        plan_for(PlanRequest("phi-2", "trn2.48xlarge", backend="torch", top=0, loss_chunks=4))


def test_both_backends_say_why_they_have_no_chunks() -> None:
    """NxD's rules name backend torch as a way out, which refuses chunks of this model too."""
    with pytest.raises(AutoshardError) as error:
        plan_for(PlanRequest("phi-2", "trn2.48xlarge", top=0, loss_chunks=4))
    assert str(error.value) == (
        "no layout of phi-2 on 1 x trn2.48xlarge is legal: backend=nxd has no layers for model_type=phi of phi-2; use "
        "backend torch; loss_chunks=4: NxD computes the loss of all logits at once; use loss_chunks=1 or backend torch"
        "; with backend torch loss_chunks=4: lm_head, which reads lm_head.bias, lies between the product with the "
        "vocabulary and the loss; use loss_chunks=1"
    )


def test_a_faster_layout_that_compiles_in_chunks_alone_is_the_plan() -> None:
    request = PlanRequest("gemma3-27b", "trn3-gen2", nodes=8, backend="torch", top=0)
    chosen, whole = answer(request), answer(replace(request, loss_chunks=1))
    chunks = chosen.problem.training.loss_chunks
    assert chunks > 1 and whole.problem.training.loss_chunks == 1
    assert chosen.result.best.estimate.step_time_s < whole.result.best.estimate.step_time_s
    assert any(one.startswith(f"loss in {chunks} chunks: ") and "at once the fastest" in one for one in chosen.notes)
    assert not Compiling(chosen.problem).refuses(chosen.result.best.strategy)
    given = answer(replace(request, loss_chunks=chunks))
    assert given.result.best == chosen.result.best


def test_wrong_numbers_of_chunks_are_refused() -> None:
    with pytest.raises(AutoshardError) as raised:
        TrainingSpec(2048, 8, BF16, loss_chunks=4096)
    assert str(raised.value) == (
        "loss_chunks=4096 of the training: a sequence has 2048 tokens, and a chunk has one at least"
    )
    with pytest.raises(AutoshardError, match="loss_chunks=0 of the training"):
        TrainingSpec(2048, 8, BF16, loss_chunks=0)


def test_a_plan_says_its_chunks() -> None:
    plan = plan_for(PlanRequest("llama3-8b", "h100-80gb", top=0, loss_chunks=8))
    assert plan.training.loss_chunks == 8 and "lm_head" not in plan.operators
    written = json.loads(json.dumps(to_json(plan.training)))
    assert written["loss_chunks"] == 8 and from_json(TrainingSpec, written, "training") == plan.training
    assert "loss_chunks" not in to_json(TrainingSpec(2048, 8, BF16))
    assert "loss_chunks=8: all logits are there at once, which takes more memory" in common_left_out(plan)


def test_a_rehearsal_has_no_more_chunks_than_tokens() -> None:
    plan = plan_for(PlanRequest("llama3-8b", "h100-80gb", top=0, loss_chunks=4096))
    training = rehearse(plan, 2, 256).plan.training
    assert training.loss_chunks == training.sequence_length < 4096


def test_nxd_has_no_chunks() -> None:
    with pytest.raises(AutoshardError) as raised:
        plan_for(PlanRequest("llama3-8b", backend="nxd", top=0, loss_chunks=4))
    assert "loss_chunks=4: NxD computes the loss of all logits at once; use loss_chunks=1 or backend torch" in str(
        raised.value
    )
    assert plan_for(PlanRequest("llama3-8b", top=0, loss_chunks=4)).backend == "torch"
