"""The indexer of sparse attention: hand-computed numbers, how ranks share its work, and exact refusals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoshard.audits.attention import attention_work
from autoshard.audits.expected import expectation
from autoshard.audits.values import Transfer
from autoshard.cli import main
from autoshard.cost.compute import operator_needs, operator_seconds
from autoshard.cost.estimate import estimate
from autoshard.cost.local_shape import strategy_mesh
from autoshard.cost.step import hop_law
from autoshard.errors import AutoshardError
from autoshard.explanation.describe import _facts
from autoshard.files.codec import from_json, to_json
from autoshard.graph import score_tiles
from autoshard.graph.count import forward_collectives, loop_sizes, operator_work, total_flops
from autoshard.graph.operator_kind import DOCUMENT_STARTS
from autoshard.graph.operators import KINDS
from autoshard.graph.partition import OperatorStep, Program, RedistributeStep
from autoshard.graph.recompute import kept_activations
from autoshard.interop.export import FORMS, export
from autoshard.layout.buckets import read_in_backward
from autoshard.layout.sharding import stage_program
from autoshard.models.huggingface import from_config, to_config
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, learned_count, parameter_count, stage_graph
from autoshard.models.weights import checkpoint_parts, not_learned, parameter_dtypes
from autoshard.planner.inputs import inputs_of
from autoshard.planner.request import PlanRequest
from autoshard.runtime.options import RunOptions
from autoshard.runtime.rehearse import rehearse
from autoshard.runtime.run import _backend
from autoshard.runtime.unpriced import document_mask_bytes
from autoshard.spec.cluster import load_cluster
from autoshard.spec.dropout import Dropout
from autoshard.spec.indexer import Indexer
from autoshard.spec.model import ModelSpec
from autoshard.spec.prediction import MultiTokenPrediction
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import plan_of, strategy
from tests.unit.kind_models import one_layout, table_of
from tests.unit.plan_examples import plan_70b

V32, GLM5 = load_model("deepseek-v3.2"), load_model("glm-5")
TINY = MODELS["deepseek v3.2"]
PREFIX = "model.layers.0.self_attn."
SEQ = 64


def block_program(model: ModelSpec, axes: dict[str, int], sp: bool = True, kernel: str = "flash") -> Program:
    sizes = dim_sizes(model, 1, SEQ, axes.get("tp0", 1))
    return stage_program(stage_graph(model, sizes, (0,), False, False, kernel), axes, sequence_parallel=sp)


def indexer_step(program: Program) -> OperatorStep:
    operators = (step for step in program.steps if isinstance(step, OperatorStep))
    (found,) = (step for step in operators if step.operator.kind == "choose_keys")
    return found


def test_the_matrices_of_an_indexer_are_held_and_not_learned() -> None:
    """Queries, keys, their norm, and weights: 1536 x 8192, 7168 x 128, 2 x 128, 7168 x 64; and 58 routers' biases."""
    of_block = 1536 * 64 * 128 + 7168 * 128 + 2 * 128 + 7168 * 64
    assert parameter_count(V32) == 671_877_944_064
    assert parameter_count(V32) - learned_count(V32) == 61 * of_block + 58 * 256
    assert parameter_count(GLM5) == 743_911_218_432
    of_block = 2048 * 32 * 128 + 6144 * 128 + 2 * 128 + 6144 * 32
    assert parameter_count(GLM5) - learned_count(GLM5) == 78 * of_block + 75 * 256
    held = {f"{PREFIX}indexer.{name}" for name in ("wq_b.weight", "wk.weight", "weights_proj.weight")}
    norm = {f"{PREFIX}indexer.k_norm.{name}" for name in ("weight", "bias")}
    assert {name for name in not_learned(TINY) if name.startswith(PREFIX)} == held | norm
    dtypes = parameter_dtypes(TINY, "BF16")
    assert {dtypes[name] for name in held} == {"BF16"} and {dtypes[name] for name in norm} == {"F32"}


def test_backward_reads_an_indexer_only_where_that_runs_again() -> None:
    """Nothing of what it chooses has a gradient: ZeRO-3 gathers its matrices for forward alone."""
    program = block_program(TINY, {"tp0": 2})
    found = [name for name in program.graph.matrices if not program.tensor(name).differentiable]
    assert len(found) == 3 and {*found} <= not_learned(TINY)
    assert [read_in_backward(program, found, name) for name in ("none", "mlp", "attention")] == [False, False, True]


def test_flops_by_hand() -> None:
    sizes = dim_sizes(V32, 1, 4096)
    graph = stage_graph(V32, sizes, (0,), False, False)
    program = stage_program(graph, {}, sequence_parallel=False)
    work = operator_work(program, indexer_step(program))
    projections = 1536 * 64 * 128 + 7168 * 128 + 7168 * 64
    keys = 4096 / 2  # of a query, on average
    assert work.flops == 2 * 4096 * (projections + keys * 64 * (128 + 1))
    assert work.backward_flops_ratio == 0


def test_mfu_leaves_the_indexer_out() -> None:
    model = load_model("deepseek-v3")
    dense, sparse = (total_flops(stage_graph(one, dim_sizes(one, 1, 4096), (0,), False, False)) for one in (model, V32))
    assert sparse == dense


def test_time_of_a_forward_alone() -> None:
    """Products at the peak's share, and five passes over the scores of 64 heads in FP32."""
    device = load_cluster("h800-80gb", nodes=1).device
    sizes = dim_sizes(V32, 1, 4096)
    program = stage_program(stage_graph(V32, sizes, (0,), False, False), {}, sequence_parallel=False)
    step = indexer_step(program)
    seconds, needs = operator_seconds(program, step, device, "bfloat16"), operator_needs(program, step)
    assert needs.scores_bytes == 4 * 64 * 4096 * 4096 / 2
    assert seconds.backward == 0
    moved = 5 * needs.scores_bytes / (device.memory_bandwidth_bytes_per_s * device.memory_efficiency)
    assert moved < seconds.forward < moved + needs.flops / (0.1 * device.peak_flops_per_s("bfloat16"))


def test_what_attention_keeps_of_its_mask_by_hand() -> None:
    """64 x 64 elements: numbers of 2 bytes for flash attention, none of it for plain; one byte where it runs again."""
    mask, numbers = f"{PREFIX}indexer", f"{PREFIX}core_attention:mask_in_numbers"
    flash = kept_activations(block_program(TINY, {}), "none")
    assert flash[numbers] == 2 * SEQ * SEQ and mask not in flash
    again = kept_activations(block_program(TINY, {}), "attention_up+core_attention")
    assert again[mask] == SEQ * SEQ and numbers not in again
    plain = kept_activations(block_program(TINY, {}, kernel="plain"), "none")
    assert mask not in plain and numbers not in plain
    assert mask not in kept_activations(block_program(TINY, {}), "full")


def test_attention_with_sinks_keeps_the_mask_as_it_is() -> None:
    """64 x 64 of one byte: scores of chosen keys are computed in tiles, for torch's fused attention has no sinks."""
    model, mask = MODELS["hy4"], f"{PREFIX}core_attention:mask_in_numbers"
    assert kept_activations(block_program(model, {}), "none")[mask] == SEQ * SEQ
    assert mask not in kept_activations(block_program(model, {}, kernel="plain"), "none")
    program = block_program(model, {})
    (attends,) = (op for op in program.graph.operators if op.kind == "attention")
    assert [program.graph.tensors[name].dims for name in attends.inputs[3:]] == [
        ("batch", "seq", "key"),
        ("kvhead", "group"),
    ]
    tile = KINDS["attention"].tile_bytes(attends, program.graph, program.graph.sizes)
    assert tile == (2 * 4 + 2) * 8 * 64 * 64  # probabilities, their gradient, and that in BF16, of 8 heads


@pytest.mark.parametrize("sp", [True, False])
def test_ranks_of_tp_share_the_queries_where_they_share_the_sequence(sp: bool) -> None:
    """Each then gathers the keys, which are narrow, and behind it the mask; else each computes the whole of it."""
    program = block_program(TINY, {"tp0": 2}, sp)
    step = indexer_step(program)
    assert step.choice["tp0"] == ("seq" if sp else "I")
    states = {program.states[name] for name in step.operator.inputs[2:]}
    assert states == {("I",)}
    inside = list(forward_collectives(program, step))
    assert inside == ([("all_gather", ("tp0",), 2 * SEQ * 12)] if sp else [])
    moved = [one for one in program.steps if isinstance(one, RedistributeStep) and one.source == f"{PREFIX}indexer"]
    found = [(move.forward, move.payload_bytes) for one in moved for move in one.transitions]
    assert found == ([("all_gather", SEQ * SEQ)] if sp else [])


def test_ranks_that_share_a_sequence_keep_the_mask_of_their_own_queries() -> None:
    program = block_program(TINY, {"cp": 2})
    step = indexer_step(program)
    assert step.choice["cp"] == "seq"
    assert list(forward_collectives(program, step)) == [("all_gather", ("cp",), 2 * SEQ * 12)]
    assert program.local_bytes[f"{PREFIX}indexer"] == SEQ * SEQ / 2
    assert not [one for one in program.steps if isinstance(one, RedistributeStep) and one.source == f"{PREFIX}indexer"]


@pytest.mark.parametrize(
    "name", ["deepseek v3.2", "glm 5", "glm 5.2", "glm 5.3", "glm 5.3 of 6 heads", "glm 5.3, one choice for two blocks"]
)
def test_configs_and_plans_give_the_same_model_back(name: str) -> None:
    model = MODELS[name]
    assert from_config(to_config(model), model.name) == model
    assert from_json(ModelSpec, to_json(model), "model") == model


CONFIG, OTHER = to_config(TINY), to_config(MODELS["glm 5"])


def test_what_a_config_leaves_out() -> None:
    def bare(config: dict[str, Any]) -> ModelSpec:
        return from_config({key: value for key, value in config.items() if not key.startswith("index")}, "m")

    assert bare(CONFIG).indexer == Indexer(64, 128, 2048, indexer_rope_interleave=False)
    assert bare(OTHER).indexer == Indexer(32, 128, 2048, indexer_rope_interleave=True)
    assert bare({**OTHER, "index_topk_freq": 1, "indexer_types": ["full"] * 4}) == bare(OTHER)
    assert bare({**OTHER, "index_topk_pattern": "FFFF"}) == bare(OTHER)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({**OTHER, "rope_interleave": False}, "rope_interleave=False of m is not supported; True is"),
        ({**CONFIG, "index_topk_freq": 4}, "index_topk_freq=4 of m is not supported; 1 is"),
        (
            {**CONFIG, "index_topk_pattern": "FSSF"},
            "index_topk_pattern='FSSF' of m is not supported: an indexer of its own in each block is",
        ),
        (
            {**OTHER, "index_topk_pattern": "FSS"},
            "index_topk_pattern='FSS' of m must be 4 letters, F or S for each block",
        ),
        (
            {**OTHER, "index_topk_pattern": "FSXF"},
            "index_topk_pattern='FSXF' of m must be 4 letters, F or S for each block",
        ),
        (
            {**OTHER, "indexer_types": ["full", "none", "full", "full"]},
            "indexer_types='none' of m must be one of: full, shared",
        ),
        (
            {**OTHER, "indexer_types": ["full"] * 3},
            "indexer_types=a list of 3 of m must be a list of 4 words, one a block",
        ),
        (
            {**OTHER, "indexer_types": ["shared", "full", "full", "full"]},
            "indexer_types of m begins with shared, but must with full: no block before the first one chooses keys",
        ),
        (
            {**CONFIG, "indexer_types": ["full", "shared", "full", "full"]},
            "indexer_types=a list of 4 of m is not supported: an indexer of its own in each block is",
        ),
        (
            {**CONFIG, "indexer_rope_interleave": True},
            "indexer_rope_interleave=True of m is not supported; False is",
        ),
        ({**CONFIG, "index_topk": 0}, "index_topk=0 of m must be a whole number from 1 to 1,000,000,000"),
        (
            {**CONFIG, "q_lora_rank": None},
            "q_lora_rank=null of m is not supported: its indexer reads compressed queries",
        ),
        (
            {**CONFIG, "index_head_dim": 6},
            "index_head_dim=6 of m must be at least qk_rope_head_dim=8, the numbers that positions turn",
        ),
        (
            {**CONFIG, "model_type": "deepseek_v3"},
            (
                "index_topk=5 of m is not a key of model_type=deepseek_v3, which would be another model without it; "
                "deepseek_v32 or glm_moe_dsa or deepseek_v4 or glm5_next_text or hy_v4 "
                "or mistral_large4_text has it"
            ),
        ),
    ],
)
def test_what_a_config_cannot_have_is_named(config: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as raised:
        from_config(config, "m")
    assert str(raised.value) == text


@pytest.mark.parametrize(
    ("keys", "types"),
    [
        ({"index_topk_freq": 2}, "FFSF"),
        ({"index_topk_freq": 3, "index_skip_topk_offset": 1}, "FSSF"),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, "FFFS"),
        ({"index_topk_freq": 0}, "FFFF"),
        ({"index_topk_freq": 2, "index_topk_pattern": "FSSS"}, "FSSS"),
        ({"index_topk_pattern": ["full", "full", "shared", "full"]}, "FFSF"),
        ({"index_topk_pattern": "FSSS", "indexer_types": ["full", "shared", "full", "full"]}, "FSFF"),
    ],
)
def test_which_blocks_of_glm_5_2_choose(keys: dict[str, Any], types: str) -> None:
    """As transformers reads it."""
    model = from_config({**OTHER, **keys}, "m")
    words = {"F": "full", "S": "shared"}
    assert model.indexer_types == (tuple(words[letter] for letter in types) if "S" in types else ())
    assert [model.chooser_of(layer) for layer in range(4)] == [types.rindex("F", 0, end) for end in range(1, 5)]
    assert from_config(to_config(model), "m") == model


def test_blocks_that_see_one_choice_have_one_indexer_and_keep_one_mask() -> None:
    model = replace(MODELS["glm 5"], indexer_types=("full", "shared", "shared", "full"))
    assert model.blocks.kind_of == (0, 1, 2, 3)  # the first one is dense; of two the first counts the mask
    held = {name.split(".")[2] for name in not_learned(model) if ".indexer." in name}
    assert held == {part.tensor.split(".")[2] for part in checkpoint_parts(model) if ".indexer." in part.tensor}
    assert held == {"0", "3"}
    assert parameter_count(MODELS["glm 5"]) - parameter_count(model) == 2 * (24 * 4 * 8 + 64 * 8 + 2 * 8 + 64 * 4)
    mask = "model.layers.0.self_attn.indexer"
    kept = [kept_activations(kinds_program(model, layer), "full").get(mask, 0) for layer in range(3)]
    assert kept == [0, SEQ * SEQ, 0]
    whole = stage_graph(model, dim_sizes(model, 1, SEQ), range(3), False, False)
    assert whole.tensors[mask].role == "activation"
    assert [op.inputs[3] for op in whole.operators if op.kind == "attention"] == [mask] * 3
    found = kept_activations(stage_program(whole, {}, sequence_parallel=False), "full")
    assert found[mask] == SEQ * SEQ


def kinds_program(model: ModelSpec, layer: int) -> Program:
    graph = stage_graph(model, dim_sizes(model, 1, SEQ), (layer,), False, False)
    return stage_program(graph, {}, sequence_parallel=False)


MASK = "model.layers.{}.self_attn.indexer"


@pytest.mark.parametrize(
    ("layers", "sent"), [((1, 1, 1, 1), (0, None, 2)), ((3, 1), (2,)), ((2, 2), (None,)), ((0, 1, 3), (None, 0))]
)
def test_a_stage_sends_the_choice_that_the_next_one_sees(layers: tuple[int, ...], sent: tuple[int | None, ...]) -> None:
    """Blocks 0 and 2 have an indexer, 1 and 3 see what these chose. A choice is a byte for each query and key."""
    plan = plan_of(MODELS["glm 5.2"], strategy(pp=len(layers), layers=layers), 3)
    programs, hidden, choice = plan.stage_programs, 16 * 64 * 8, 16 * 16
    for rank, of in enumerate(sent):
        own, behind = programs[rank], programs[rank + 1]
        named = [] if of is None else [MASK.format(of)]
        assert [own.tensor(view).name for view in own.outputs[1:]] == named
        assert [tensor.name for tensor in behind.graph.inputs() if "indexer" in tensor.name] == named
        assert [behind.states[name] for name in named] == [own.states[view] for view in own.outputs[1:]]
        sizes = (hidden, choice) if named else (hidden,)
        found = expectation(plan, rank).transfers
        assert all(found[Transfer("send", size)] >= 3 for size in sizes)
        assert found[Transfer("send", choice)] == expectation(plan, rank + 1).transfers[Transfer("receive", choice)]
        assert bool(found[Transfer("send", choice)]) == bool(named)


def test_a_choice_goes_on_through_stages_that_only_see_it() -> None:
    model = replace(MODELS["glm 5.2"], indexer_types=("full", "shared", "shared", "shared"))
    plan = plan_of(model, strategy(pp=4), 3)
    for program in plan.stage_programs[1:3]:
        assert program.outputs[1:] == (MASK.format(0),)
        assert MASK.format(0) in [tensor.name for tensor in program.graph.inputs()]


def test_tensor_parallel_ranks_each_send_the_whole_choice() -> None:
    """Queries are split over cp alone."""
    for chosen, rows in ((strategy(tp=2, pp=2, layers=(1, 3)), 16), (strategy(cp=2, pp=2, ep=2, layers=(1, 3)), 8)):
        program = plan_of(MODELS["glm 5.2"], chosen, 3).stage_programs[0]
        assert program.local_bytes[program.outputs[1]] == rows * 16


def test_what_choices_between_stages_take() -> None:
    """Each rank behind the first holds one for each microbatch in flight and the next one that comes, beside hidden
    activations: the next one that comes, and outputs but for the one at work; and each transfer takes as much longer as
    it is larger."""
    model = MODELS["glm 5.2"]
    every = replace(model, indexer_types=())
    plans = [plan_of(one, strategy(pp=4), 8) for one in (model, every)]
    hidden, choice = 16 * 64 * 8, 16 * 16
    for rank, in_flight in enumerate((4, 3, 2, 1)):
        found, other = ({term.name: term.value for term in plan.estimate.memory[rank].terms} for plan in plans)
        buffers = ((rank > 0) + (in_flight - 1) * (rank < 3)) * hidden
        assert other["pipeline buffers"] == buffers
        assert found["pipeline buffers"] == buffers + (in_flight + 1) * choice * (rank > 0)
    hops = []
    for one in (model, every):
        problem, draft = one_layout(one, 4, 8, 1, "1f1b", 1)
        (whole,) = table_of(problem, draft).wholes()
        hops.append(float(whole.hop_s[0]))
    law = hop_law(strategy_mesh(problem.model, problem.cluster, draft), problem.cluster)
    assert hops[1] == pytest.approx(law.time_s(1024 * 64 * 2), rel=1e-12)
    assert hops[0] == pytest.approx(law.time_s(1024 * 64 * 2 + 1024 * 1024), rel=1e-12)


def test_no_choice_goes_where_each_block_has_an_indexer() -> None:
    """Whether a config says so of each block or of none."""
    said, unsaid = (
        plan_of(replace(MODELS["glm 5.2"], indexer_types=types), strategy(pp=4), 8).estimate
        for types in (("full",) * 4, ())
    )
    assert said.step_time_s == pytest.approx(unsaid.step_time_s, rel=1e-12)
    assert [one.total_bytes for one in said.memory] == [one.total_bytes for one in unsaid.memory]


@pytest.mark.parametrize(("schedule", "zero"), [("1f1b", 0), ("1f1b", 3), ("zero_bubble", 1), ("gpipe", 2)])
def test_layouts_with_choices_between_stages_are_priced_as_estimated(schedule: str, zero: int) -> None:
    problem, draft = one_layout(MODELS["glm 5.2"], 3, 8, zero, schedule, 1)
    (priced,) = table_of(problem, draft).price()
    exact_s = priced.exact_s(range(len(priced.draft)))
    for row in range(len(priced.draft)):
        cost = estimate(*problem[:3], priced.strategy(row))
        assert cost.step_time_s == pytest.approx(exact_s[row], rel=1e-12)
        assert cost.fullest.total_bytes == pytest.approx(priced.memory_bytes[row], rel=1e-12)


def test_chosen_keys_are_audited_whole_however_large_their_mask_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 places the last 8 see 8 to 15 keys before them, and half of themselves."""
    monkeypatch.setattr(score_tiles, "MOST_OF_A_MASK", 1)
    plan = plan_of(MODELS["glm 5.2"], strategy(cp=2, ep=2), 2)
    (work,) = attention_work(plan).values()
    assert (work.mean_keys, work.tile_share) == (12.0, 1.0)


def test_a_prediction_module_chooses_for_itself() -> None:
    """As the pattern of GLM-5.2 goes on: 78 blocks, of which 74 is the last with an indexer."""
    model = replace(load_model("glm-5.2"), multi_token_prediction=MultiTokenPrediction())
    assert model.indexer_types[74:] == ("full", "shared", "shared", "shared")
    assert model.with_prediction_block.chooser_of(78) == 78
    indexers = [name for name in not_learned(model) if name.endswith("indexer.wk.weight")]
    assert len(indexers) == 22 and "model.layers.78.self_attn.indexer.wk.weight" in indexers
    without = replace(model, multi_token_prediction=None, indexer_types=())
    more = parameter_count(replace(without, multi_token_prediction=MultiTokenPrediction())) - parameter_count(without)
    assert parameter_count(model) - parameter_count(load_model("glm-5.2")) == more


def test_where_blocks_cannot_see_one_choice() -> None:
    model = MODELS["glm 5.2"]
    with pytest.raises(AutoshardError) as raised:
        replace(TINY, indexer_types=model.indexer_types)
    assert str(raised.value) == (
        "indexer_types of tiny-llama must be absent with model_type=deepseek_v32; that is of glm_moe_dsa, "
        "glm5_next_text, hy_v4, mistral_large4_text"
    )
    mixed = MODELS["glm 5.3, one choice for two blocks"]
    for types, said in (
        (("full", "shared", "full", "full"), "says shared of block 1, which sees the keys that block 0 chose; but"),
        (("full", "full", "full", "shared"), "says shared of block 3, which sees the keys that block 2 chose; but"),
    ):
        with pytest.raises(
            AutoshardError, match=f"^indexer_types of tiny-llama {said} layer_types says linear_attention"
        ):
            replace(mixed, indexer_types=types)
    with pytest.raises(AutoshardError, match=r"^indexer_types='F' of tiny-llama must be one of: full, shared$"):
        replace(model, indexer_types=("F",) * 4)


def test_an_indexer_goes_with_its_families() -> None:
    with pytest.raises(AutoshardError) as raised:
        replace(TINY, indexer=None)
    assert str(raised.value) == "model_type=deepseek_v32 of tiny-llama needs indexer, which is absent"
    with pytest.raises(
        AutoshardError, match=r"^indexer of tiny-llama must be absent with model_type=deepseek_v3; that is of deep"
    ):
        replace(MODELS["deepseek v3"], indexer=TINY.indexer)
    with pytest.raises(AutoshardError) as raised:
        replace(TINY, dropout=Dropout(attention=0.1))
    assert str(raised.value) == (
        "dropout.attention=0.1 of tiny-llama must be 0: no kernel drops probabilities of the keys that an indexer chose"
    )
    assert replace(TINY, dropout=Dropout(residual=0.1)).dropout.residual == 0.1


def without_positions(indexer: Indexer) -> ModelSpec:
    latent, nowhere = TINY.latent_attention, ("nope",) * TINY.num_hidden_layers
    assert latent is not None
    latent = replace(latent, qk_rope_head_dim=0)
    return replace(TINY, latent_attention=latent, position_types=nowhere, indexer=indexer)


def test_pools_are_of_heads_that_nothing_turns() -> None:
    pools = Indexer(6, 12, 8, index_kpool=4)
    model = without_positions(pools)
    assert from_json(ModelSpec, to_json(model), "model") == model
    with pytest.raises(AutoshardError) as raised:
        without_positions(Indexer(6, 12, 8))
    assert str(raised.value) == (
        "index_kpool=None of tiny-llama must be a number of tokens where qk_rope_head_dim=0, and absent where "
        "positions turn a part of each head; it is 0"
    )
    with pytest.raises(AutoshardError, match=r"^index_kpool=4 of tiny-llama must be .* each head; it is 8$"):
        replace(TINY, indexer=pools)
    with pytest.raises(AutoshardError) as raised:
        Indexer(6, 12, 10, index_kpool=4)
    assert str(raised.value) == (
        "index_kpool=4 of indexer must divide index_topk=10, the keys of all pools that a query chooses"
    )
    with pytest.raises(AutoshardError, match=r"^index_kpool=0 of indexer must be a whole number from 1 to "):
        Indexer(6, 12, 8, index_kpool=0)
    assert Indexer(32, 128, 2048, index_kpool=4).shrunk(8, 30) == Indexer(4, 8, 28, index_kpool=4)
    assert Indexer(32, 128, 2048, index_kpool=64).shrunk(8, 32) == Indexer(4, 8, 64, index_kpool=64)


@pytest.mark.parametrize("cp", [1, 2])
def test_flops_of_pools_by_hand(cp: int) -> None:
    """A query scores a fourth of the keys before it; with cp, the second rank's queries see three halves of what all
    see on average. Ranks that share a sequence gather keys and gates."""
    program = block_program(without_positions(Indexer(6, 12, 8, index_kpool=4)), {"cp": cp})
    operators = (step for step in program.steps if isinstance(step, OperatorStep))
    (step,) = (step for step in operators if step.operator.kind == "choose_pools")
    work = operator_work(program, step)
    projections = 24 * 6 * 12 + 12 * 64 + 6 * 64 + 12 * 64
    keys = SEQ / 2 if cp == 1 else SEQ * 3 / 4
    assert work.flops == 2 * SEQ / cp * (projections + keys / 4 * 6 * (12 + 1))
    assert work.backward_flops_ratio == 0
    gathered = [("all_gather", ("cp",), 2 * 2 * SEQ * 12)]
    assert list(forward_collectives(program, step)) == (gathered if cp > 1 else [])
    device = load_cluster("h800-80gb", nodes=1).device
    needs, kind = operator_needs(program, step), KINDS["choose_pools"]
    assert needs.kind == "choice" and needs.scores_bytes == 4 * 6 * SEQ / cp * keys / 4
    assert operator_seconds(program, step, device, "bfloat16").backward == 0
    sizes = loop_sizes(program, step)
    assert kind.tile_bytes(step.operator, program.graph, sizes) == (4 + 2) * 6 * SEQ / cp * SEQ / 4


def test_pools_of_keys_do_not_end_with_documents() -> None:
    with pytest.raises(AutoshardError) as raised:
        _backend(plan_of(MODELS["glm 5.3"], strategy(), 1), RunOptions(document_mask=True), in_cluster=False)
    assert str(raised.value) == (
        "document_mask: the indexer of tiny-llama chooses pools of whole rows; leave it out, or give each document a "
        "row"
    )


def test_an_indexer_knows_documents_and_attention_sees_what_it_chose() -> None:
    """No mask of documents is kept beside its choice, and where documents begin is no weight of it."""
    plan = plan_of(TINY, strategy(), 1)
    without, documents = (plan.program(range(1), False, False, documents=one) for one in (False, True))
    steps = [step for step in documents.steps if isinstance(step, OperatorStep)]
    told = [step.operator.kind for step in steps if DOCUMENT_STARTS in step.operator.inputs]
    assert told == ["choose_keys"]
    work = [operator_work(program, indexer_step(program)) for program in (without, documents)]
    assert work[0].flops == work[1].flops
    assert document_mask_bytes(plan) == 0


@pytest.mark.parametrize("form", FORMS)
def test_no_framework_gets_a_file_that_leaves_it_out(form: str) -> None:
    plan = replace(plan_70b(), model=V32, operators={})
    with pytest.raises(AutoshardError, match=f"^latent_attention of deepseek-v3.2 has no form .* for {form}$"):
        export(plan, form)


def test_a_command_says_it_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "--model", "glm-5", "--instance", "h800-80gb", "--nodes", "32", "--cp", "2"]
    assert main([*asked, "--context-parallel", "zigzag_ring", "--out", str(tmp_path / "plan.json")]) == 2
    said = capsys.readouterr().err
    assert "the indexer of glm-5 chooses among the keys of a whole row; use all_gather" in said


def test_a_plan_says_what_is_not_learned_and_what_mfu_counts() -> None:
    *_, notes = inputs_of(PlanRequest(model="glm-5", nodes=32, instance="h800-80gb"))
    assert notes[0] == (
        "glm-5: a query sees 2,048 keys at most; indexers are loaded, not learned; attention computes the scores of "
        "all keys, and MFU counts it alone"
    )


def test_a_plan_says_which_blocks_choose() -> None:
    *_, notes = inputs_of(PlanRequest(model="glm-5.2", nodes=64, instance="h800-80gb"))
    assert "glm-5.2: a query sees 2,048 keys at most, which 21 of 78 blocks choose; indexers are loaded" in notes[0]


def test_a_plan_says_how_attention_is_computed() -> None:
    found = dict(_facts(plan_of(TINY, strategy(cp=2, ep=2), 2), ("attention",)))
    assert found["attention"] == (
        "flash kernel: scores are never stored; keys and values are gathered over cp; a mask hides all but 5 keys of a "
        "query, which an indexer chose"
    )


def test_what_is_said_of_pools() -> None:
    """512 pools of 4 keys, and up to 3 of the query's own."""
    *_, notes = inputs_of(PlanRequest(model="glm-5.3-flash", nodes=32, instance="h800-80gb"))
    assert "glm-5.3-flash: a query sees 2,051 keys at most; indexers are loaded, not learned" in notes[0]
    found = dict(_facts(plan_of(MODELS["glm 5.3"], strategy(), 1), ("attention",)))
    assert found["attention"].endswith(
        "a mask hides all but 4 keys of a query, which an indexer chose in pools of 2, and its own pool up to itself"
    )


def test_a_rehearsal_chooses_some_of_its_keys() -> None:
    assert V32.indexer is not None
    assert V32.indexer.shrunk(8, 32) == Indexer(4, 8, 32, False)
    original = replace(plan_of(TINY, strategy(tp=2), 2), model=TINY)
    small = rehearse(original, 2, 96).plan
    assert small.model.indexer is not None
    assert small.model.indexer.index_topk < small.training.sequence_length
