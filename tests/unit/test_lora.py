"""Low-rank adapters: how they are asked for, what they add to a graph, and what a plan counts of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from autoshard.backends.rules import Problem
from autoshard.cost.estimate import model_flops_per_step
from autoshard.cost.memory import MEMORY_TERMS
from autoshard.errors import AutoshardError
from autoshard.explanation.describe import describe
from autoshard.explanation.summary import summary
from autoshard.graph.adapters import RANK
from autoshard.graph.recompute import kept_activations
from autoshard.layout.buckets import BucketKey, bucket_key, units
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, learned_count, linear_layers, parameter_count, stage_graph
from autoshard.planner.options import OPTIONS, request_from
from autoshard.planner.planning import plan_for
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import plan_to_json
from autoshard.plans.step_collectives import step_collectives
from autoshard.plans.validate import read_plan
from autoshard.spec.dropout import Dropout
from autoshard.spec.lora import Lora, parse_lora
from autoshard.spec.model import ModelSpec
from autoshard.spec.prediction import MultiTokenPrediction
from autoshard.spec.training import TrainingSpec, load_precision
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import plan_of, strategy
from tests.traced_models import ODD

LLAMA = MODELS["llama"]
ADAPTED = replace(LLAMA, lora=Lora(4, 8.0, ("down_proj", "q_proj")))
ALL = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")


def adapted(model: ModelSpec, *modules: str, rank: int = 4) -> ModelSpec:
    return replace(model, lora=Lora(rank, 8.0, modules))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("16", Lora(16, 16.0, ALL)),
        ("r=8", Lora(8, 8.0, ALL)),
        ("r=8,lora_alpha=32", Lora(8, 32.0, ALL)),
        ("r=8,lora_alpha=2.5,target_modules=v_proj+q_proj", Lora(8, 2.5, ("q_proj", "v_proj"))),
    ],
)
def test_adapters_as_text(text: str, found: Lora) -> None:
    assert parse_lora(text, linear_layers(LLAMA)) == found
    assert parse_lora(str(found), ()) == found


@pytest.mark.parametrize("text", ["", "many", "lora_alpha=8", "r=x", "r=8,rank=8", "r=8,lora_alpha=much", "r=4,r=8"])
def test_text_that_is_no_adapter(text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        parse_lora(text, ALL)
    form = "a rank such as 16, or r=16,lora_alpha=32,target_modules=q_proj+v_proj, of which r alone is needed"
    assert str(error.value) == f"lora='{text}' must be {form}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("r=0", "r=0 of lora must be a whole number from 1 to "),
        ("r=4,lora_alpha=-1", "lora_alpha=-1.0 of lora must be "),
        ("r=4,target_modules=q-proj", "target_modules=q-proj of lora must be names of linear layers such as q_proj"),
        (
            "r=4,target_modules=q\nproj",
            r"target_modules='q\nproj' of lora must be names of linear layers such as q_proj",
        ),
    ],
)
def test_numbers_and_names_that_no_adapter_has(text: str, message: str) -> None:
    with pytest.raises(AutoshardError) as error:
        parse_lora(text, ALL)
    assert str(error.value).startswith(message)


def test_names_are_sorted() -> None:
    with pytest.raises(AutoshardError) as error:
        Lora(4, 4.0, ("v_proj", "q_proj"))
    assert str(error.value) == "target_modules=v_proj+q_proj of lora must be sorted, each name once"


def test_routers_and_experts_have_none() -> None:
    assert linear_layers(LLAMA) == ALL
    assert linear_layers(MODELS["mixtral"]) == ("k_proj", "o_proj", "q_proj", "v_proj")
    assert "gate" not in linear_layers(MODELS["deepseek v3"])
    assert "o_a_proj" not in linear_layers(MODELS["deepseek v4"])  # a matrix for each group of heads


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.graph is None and not model.lora])
def test_adapters_of_every_family(name: str) -> None:
    """Each product has the dims of what it reads, and each layer gives what it gave."""
    model = replace(MODELS[name], multi_token_prediction=None)
    one = adapted(model, *linear_layers(model))
    blocks = range(model.num_hidden_layers)
    before = stage_graph(model, dim_sizes(model, 2, 16), blocks, first=True, last=True)
    graph = stage_graph(one, dim_sizes(one, 2, 16), blocks, first=True, last=True)
    assert {name: one for name, one in graph.tensors.items() if one.role == "activation"}.items() >= {
        name: one for name, one in before.tensors.items() if one.role == "activation"
    }.items()
    for op in graph.operators:
        if ".lora_" in op.name and op.kind == "einsum":
            x, weight, output = (set(graph.tensors[name].dims) for name in (*op.inputs, op.output))
            assert x ^ weight == output and {*op.loop_dims} == x | weight


@pytest.mark.parametrize(
    ("model", "modules", "message"),
    [
        (
            LLAMA,
            ("q_proj", "w1"),
            "target_modules of lora of tiny-llama has w1, no linear layer of its blocks beside experts and routers; ",
        ),
        (
            MODELS["qwen3 next"],
            ("o_proj",),
            "target_modules=o_proj of lora of tiny-llama: block 0 has none of them, and would learn nothing; it has ",
        ),
    ],
)
def test_layers_that_blocks_lack(model: ModelSpec, modules: tuple[str, ...], message: str) -> None:
    one = adapted(model, *modules)
    with pytest.raises(AutoshardError) as error:
        stage_graph(one, dim_sizes(one, 1, 16), (0,), first=False, last=False)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("model", "field"),
    [(ODD, "graph"), (replace(MODELS["deepseek v3"], multi_token_prediction=MultiTokenPrediction()), None)],
)
def test_models_that_have_none(model: ModelSpec, field: str | None) -> None:
    with pytest.raises(AutoshardError) as error:
        adapted(model, "o_proj")
    assert str(error.value) == f"{field or 'multi_token_prediction'} of {model.name} must be absent with lora"


def test_the_graph_of_an_adapter() -> None:
    graph = stage_graph(ADAPTED, dim_sizes(ADAPTED, 2, 16), (3,), first=False, last=False)
    layer = "model.layers.3.self_attn.q_proj"
    found = [(op.name.removeprefix(layer), op.kind, op.inputs) for op in graph.operators if op.name.startswith(layer)]
    weight = f"{layer}.weight"
    norm = "model.layers.3.input_layernorm"
    assert found == [
        (".lora_A", "einsum", (norm, f"{layer}.lora_A.weight")),
        (".lora_scaled", "elementwise", (f"{layer}.lora_A",)),
        (".lora_B", "einsum", (f"{layer}.lora_scaled", f"{layer}.lora_B.weight")),
        (".base_layer", "einsum", (norm, weight)),
        ("", "elementwise", (f"{layer}.lora_B", f"{layer}.base_layer")),
    ]
    assert graph.tensors[f"{layer}.lora_A.weight"].dims == (RANK, "embed")
    assert graph.tensors[f"{layer}.lora_B.weight"].dims == ("kvhead", "group", "headdim", RANK)
    assert next(op for op in graph.operators if op.name == f"{layer}.lora_scaled").attributes["factor"] == 2.0
    assert [one.name.rpartition("layers.3.")[2] for one in graph.learned()] == [
        f"{name}.lora_{matrix}.weight" for name in ("self_attn.q_proj", "mlp.down_proj") for matrix in "AB"
    ]
    assert all(graph.rounded(one) for one in graph.parameters())


def test_what_is_learned() -> None:
    hidden, inner, layers, rank = LLAMA.hidden_size, LLAMA.intermediate_size, LLAMA.num_hidden_layers, 4
    expected = layers * rank * ((hidden + hidden) + (inner + hidden))
    assert learned_count(ADAPTED) == expected
    assert parameter_count(ADAPTED) == parameter_count(LLAMA) + expected


def test_flops_of_a_step() -> None:
    """Products with weights that are not learned run once forward and once backward, all others twice backward."""
    training = TrainingSpec(16, 2, load_precision("fp32"))
    tokens, learned = 32, learned_count(ADAPTED)
    in_products = parameter_count(LLAMA) - 9 * LLAMA.hidden_size - LLAMA.vocab_size * LLAMA.hidden_size
    full = model_flops_per_step(LLAMA, training)
    assert model_flops_per_step(ADAPTED, training) == full - 2 * tokens * in_products + 3 * 2 * tokens * learned


def kept(model: ModelSpec) -> set[str]:
    program = plan_of(model, strategy(), 1).program((1,), False, False)
    return {name.rpartition("layers.1.")[2] for name in kept_activations(program, "none")}


def test_products_of_frozen_weights_keep_nothing() -> None:
    """The input of the output projection is kept by attention, that of gate and up by nobody."""
    assert kept(LLAMA) - kept(ADAPTED) == {"post_attention_layernorm"}
    assert kept(ADAPTED) - kept(LLAMA) == {"self_attn.q_proj.lora_scaled", "mlp.down_proj.lora_scaled"}


NORMS = (2 * LLAMA.num_hidden_layers + 1) * LLAMA.hidden_size


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_state_is_that_of_the_adapters(zero: int) -> None:
    """ZeRO-3 shares what is not learned as well, but for norms."""
    plan = plan_of(ADAPTED, strategy(dp=2, zero=zero), 2, load_precision("mixed_precision"))
    terms = {term.name: term.value for term in plan.estimate.memory[0].terms}
    learned, whole = learned_count(ADAPTED), parameter_count(ADAPTED)
    weights, sums, state = (2 if zero >= stage else 1 for stage in (3, 2, 1))
    expected = 2 * (NORMS + (whole - NORMS) / weights), 4 * learned / sums, 12 * learned / state
    assert [terms[name] for name in MEMORY_TERMS[:3]] == pytest.approx(expected, rel=1e-5)


def test_replicas_of_shards_hold_as_much() -> None:
    one, replicated = (plan_of(ADAPTED, strategy(dp=2 * n, zero=3, dp_replicate=n), 2) for n in (1, 2))
    held = [[term.value for term in plan.estimate.memory[0].terms][:3] for plan in (one, replicated)]
    assert held[0] == held[1]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_weights_that_zero_3_shares(zero: int) -> None:
    """Those of matrices that are not learned have buckets of their own, whatever tensor parallelism does to them."""
    plan = plan_of(ADAPTED, strategy(tp=2, dp=2, zero=zero), 2)
    program = plan.program((1,), False, False)
    names = [tensor.name for tensor in program.graph.parameters()]
    keys = {name: bucket_key(program, name, plan.mesh, frozenset(), zero) for name in names}
    frozen = {name: key for name, key in keys.items() if not key.learned}
    shared = {key for name, key in frozen.items() if name in program.graph.matrices}
    whole = {key for name, key in frozen.items() if name not in program.graph.matrices}
    assert whole == {BucketKey((), (), 1, True, learned=False)}
    of_block = BucketKey((), ("dp",), 1, True, "model.layers.1", learned=False)
    assert shared == ({of_block} if zero == 3 else whole)
    travels = {name for several in units(program, plan.mesh, frozenset(), zero).values() for name in several}
    sent = {name for name, key in keys.items() if name in program.graph.matrices and zero >= (2 if key.learned else 3)}
    assert travels == sent


def collectives(model: ModelSpec, zero: int) -> dict[tuple[str, str], int]:
    """Bytes of a step by phase and kind."""
    plan = plan_of(model, strategy(dp=2, zero=zero), 1, load_precision("mixed_precision"))
    found: dict[tuple[str, str], int] = {}
    for one, count in step_collectives(plan, 0).items():
        found[one.phase, one.kind] = found.get((one.phase, one.kind), 0) + count * one.bytes
    return found


def test_what_is_gathered_and_what_is_summed() -> None:
    """Weights for both passes, the embedding's for forward alone; gradients of adapters."""
    found, learned = collectives(ADAPTED, 3), learned_count(ADAPTED)
    matrices, table = parameter_count(ADAPTED) - NORMS, LLAMA.vocab_size * LLAMA.hidden_size
    assert found["forward", "all_gather"] == 2 * matrices
    assert found["backward", "all_gather"] == 2 * (matrices - table)
    assert found["backward", "reduce_scatter"] == 4 * learned
    assert collectives(ADAPTED, 2).keys() == {("backward", "reduce_scatter"), ("sync", "all_gather")}


def planned(**asked: object) -> Plan:
    return plan_for(request_from({"model": "llama3.2-1b", "nodes": 1, "backend": "torch", **asked}))


def test_a_plan_says_what_is_learned(tmp_path: Path) -> None:
    plan = planned(lora="r=16,target_modules=q_proj+v_proj")
    text = (
        "LoRA of rank 16 (lora_alpha 16) beside q_proj, v_proj; 1.70 M of 1.24 B parameters are learned, the others "
        "lie whole on each rank that has them"
    )
    assert dict(describe(plan).facts)["adapters"] == text
    sharded = dict(describe(planned(lora="r=16,target_modules=q_proj+v_proj", zero=3)).facts)["adapters"]
    assert sharded.endswith("of 1.24 B parameters are learned, ZeRO-3 shards the others, too")
    note = "adapters: no result with any was measured under this software; intervals are those of all weights trained"
    assert note in plan.notes
    assert "adapters" not in dict(describe(planned()).facts)
    (tmp_path / "plan.json").write_text(plan_to_json(plan))
    assert read_plan(tmp_path / "plan.json") == plan


def test_the_first_screen_of_a_plan_names_its_adapters() -> None:
    page = summary(describe(planned(lora="r=16,target_modules=q_proj+v_proj")), 80, color=False)
    assert "          adapters: LoRA of rank 16 (lora_alpha 16) beside q_proj, v_proj\n" in page
    assert "adapters" not in summary(describe(planned()), 80, color=False)


def test_adapters_may_be_given_as_a_value() -> None:
    parse = OPTIONS["lora"].parse
    assert parse(Lora(16, 16.0, ("q_proj", "v_proj"))) == "r=16,lora_alpha=16,target_modules=q_proj+v_proj"


def test_what_adapters_read_is_dropped_before_their_first_product_alone() -> None:
    """Each by a mask of its own; the layer itself reads all."""
    drops = replace(ADAPTED, dropout=Dropout(lora=0.25))
    sizes = dim_sizes(ADAPTED, 2, 16)
    before, graph = (stage_graph(model, sizes, (0,), first=False, last=False) for model in (ADAPTED, drops))
    operators = {op.name: op for op in graph.operators}
    for layer in ("model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"):
        read = operators[f"{layer}.base_layer"].inputs[0]
        dropped = operators[f"{layer}.lora_dropout"]
        assert (dropped.kind, dropped.inputs) == ("dropout", (read, "sequence_keys"))
        assert dropped.attributes == {"rate": 0.25}
        assert operators[f"{layer}.lora_A"].inputs[0] == dropped.output
    assert operators.keys() - {op.name for op in before.operators} == {
        f"model.layers.0.{name}.lora_dropout" for name in ("self_attn.q_proj", "mlp.down_proj")
    }
    assert drops.without_adapters == LLAMA


def test_nothing_drops_what_no_adapter_reads() -> None:
    with pytest.raises(AutoshardError) as error:
        replace(LLAMA, dropout=Dropout(lora=0.05))
    assert str(error.value) == f"dropout.lora=0.05 of {LLAMA.name} must be 0: it has no adapters (lora)"
    with pytest.raises(AutoshardError) as error:
        planned(lora=16, dropout="lora=0.05", backend="nxd")
    assert "backend=nxd trains llama3.2-1b without dropout lora=0.05; use backend torch" in str(error.value)
    pins = {"tp": 1, "pp": 1, "cp": 1, "dp": 32, "micro_batch": 1, "zero": 1, "recompute": "none"}
    dry, dropping = (planned(lora=16, dropout=rate, **pins) for rate in ("0", "lora=0.05"))
    needed = (sum(term.value for term in one.estimate.fullest.terms) for one in (dropping, dry))
    assert next(needed) > 1.05 * next(needed)  # a copy for each adapter
    assert dropping.estimate.step_time_s > dry.estimate.step_time_s


def test_nxd_trains_adapters_and_says_what_its_own_get_wrong() -> None:
    plan = planned(lora=16, backend="nxd", nodes=1, instance="trn1.32xlarge", tp=8)
    assert plan.strategy.sequence_parallel
    assert any(note.startswith("adapters of NxD 0.18.0 (neuronx_distributed.modules.lora)") for note in plan.notes)
    assert not any("modules.lora" in note for note in planned(backend="nxd", instance="trn1.32xlarge").notes)


def test_a_model_given_as_a_value_keeps_its_own() -> None:
    model = adapted(load_model("llama3.2-1b"), "q_proj")
    assert planned(model=model).model.lora == model.lora
    assert planned(model=model, lora="r=8,target_modules=k_proj").model.lora == Lora(8, 8.0, ("k_proj",))


def test_a_problem_without_adapters_is_another() -> None:
    training = TrainingSpec(16, 2, load_precision("fp32"))
    plan = plan_of(ADAPTED, strategy(), 1)
    assert Problem(ADAPTED, training, plan.cluster, "torch") != Problem(LLAMA, training, plan.cluster, "torch")
