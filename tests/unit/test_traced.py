"""A traced model as data: it plans like any other, and nothing that no trace would give is read."""

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.graph.count import total_flops
from autoshard.graph.pointwise import FUNCTIONS, count, parse, render
from autoshard.interop.export import FORMS, export
from autoshard.models.stage import dim_sizes, parameter_count, stage_graph
from autoshard.planner.input_notes import input_notes
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import plan_to_json, write_plan
from autoshard.plans.validate import read_plan
from autoshard.runtime.rehearse import rehearse
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec, load_precision
from tests.multiprocess.plans import plan_of, strategy
from tests.traced_models import ODD


def odd_plan(**degrees: Any) -> Plan:
    return plan_of(ODD, strategy(**degrees), num_microbatches=4)


def test_parameters_and_flops_of_the_odd_model_by_hand() -> None:
    # Block: qkv 64 x 128; out 64 x 64 + 64; scale 64; up 64 x 96 + 96; down 96 x 64; branch 64 x 32 + 32 x 64 + 64;
    # RMS norm 64; layer norm 2 x 64. Ends: two tables of 96 x 64 and a layer norm.
    matrices = 64 * 128 + 64 * 64 + 2 * 64 * 96 + 2 * 64 * 32
    assert parameter_count(ODD) == 4 * (matrices + 64 + 64 + 96 + 64 + 64 + 2 * 64) + 2 * 96 * 64 + 2 * 64
    # 2 FLOPs a number of a matrix and token; attention: 2 products of 8 heads of 8, 16 / 2 keys a token on average.
    sizes = dim_sizes(ODD, batch=3, seq=16)
    attention = 2 * 2 * 8 * 8 * (16 / 2)
    expected = 3 * 16 * (4 * (2 * matrices + attention) + 2 * 96 * 64)
    assert total_flops(stage_graph(ODD, sizes, range(4), first=True, last=True)) == expected


def test_tensor_parallelism_splits_heads_and_every_inner_dim() -> None:
    found = odd_plan(tp=2).operators
    split = {name: choice["tp"] for name, choice in found.items()}
    assert split["blocks.*.qkv.part1"] == split["blocks.*.core_attention"] == split["blocks.*.out.matmul"] == "kvhead"
    assert split["blocks.*.up.matmul"] == split["blocks.*.down"] == "ffn"
    assert split["blocks.*.branch._0"] == split["blocks.*.branch._2.matmul"] == "ffn2"
    assert split["blocks.*.norm_a"] == split["blocks.*.add"] == "seq"
    assert split["tokens"] == split["vocabulary"] == "vocab"


def test_a_note_says_how_long_the_trace_was_not_the_plan() -> None:
    """A window longer than the trace is in no plan of it, however long its sequences are."""

    def notes(length: int) -> list[str]:
        return [*input_notes(ODD, TrainingSpec(length, 8, load_precision("mixed_precision")), "torch")]

    assert ODD.traced_length == 64
    traced = "OddModel was traced with 64 tokens, without dropout"
    assert notes(32) == notes(64) == [traced]
    beyond = "seq-len 1,024 is beyond the 64 tokens that OddModel was traced for"
    assert notes(1024) == [f"{beyond}: a longer window is not in the plan; plan its module at that length", traced]


def test_plan_satisfies_the_schema_and_comes_back(tmp_path: Path) -> None:
    plan = odd_plan(tp=2, pp=2, dp=2)
    schema = json.loads(files("autoshard.plans").joinpath("plan.schema.json").read_text())
    Draft202012Validator(schema).validate(json.loads(plan_to_json(plan)))
    write_plan(plan, tmp_path / "plan.json")
    again = read_plan(tmp_path / "plan.json")
    assert again == plan
    assert plan_to_json(again) == plan_to_json(plan)


def test_a_rehearsal_narrows_every_dim_and_keeps_the_operators() -> None:
    found = rehearse(odd_plan(tp=2, pp=2, dp=2), max_processes=8, vocab_size=256).plan.model
    assert found.graph is not None and ODD.graph is not None
    assert [op.name for op in found.graph.operators] == [op.name for op in ODD.graph.operators]
    assert (found.hidden_size, found.intermediate_size, found.head_dim) == (64, 96, 8)
    assert dict(found.graph.sizes) == {"ffn2": 32}


@pytest.mark.parametrize("form", FORMS)
def test_other_frameworks_have_no_form_for_it(form: str) -> None:
    with pytest.raises(AutoshardError, match=f"OddModel was traced from its own module, which {form} has no form for"):
        export(odd_plan(tp=2), form)


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The odd model as plain values, one of them changed."""
    values: dict[str, Any] = json.loads(json.dumps(to_json(ODD)))
    change(values["graph"])
    return values


def operator(graph: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (op for section in ("embedding", "block", "head") for op in graph[section] if op["name"] == name)
    result: dict[str, Any] = found
    return result


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda g: g.update(prefix="../x"),
            "graph.prefix='../x' must be names with dots, such as model.layers",
        ),
        (lambda g: g.update(sizes={"embed": 3}), "graph.sizes has 'embed', which is not the name of a dim of its own"),
        (
            lambda g: g.update(sizes={}),
            ("dims='ffn2 embed' of parameter 'branch._0.weight' of the graph must be different dims of the graph"),
        ),
        (
            lambda g: operator(g, "down").update(kind="exec"),
            (
                "kind='exec' of model.graph.block[15] must be one of: einsum, elementwise, norm, rope, attention, "
                "embedding, position_embedding, cross_entropy, top_k_gate, dispatch, combine"
            ),
        ),
        (
            lambda g: operator(g, "down").update(inputs=["later", "down.weight"]),
            "operator 'down' of graph.block reads 'later', which nothing before it gives",
        ),
        (
            lambda g: operator(g, "down").update(dims="batch seq vocab"),
            "operator 'down' of graph.block: einsum does not make [batch seq vocab] of [batch seq ffn], [embed ffn]",
        ),
        (
            lambda g: operator(g, "down").update(module="elsewhere"),
            (
                "module='elsewhere' of operator 'down' of graph.block must be one of: attention_norm, attention, "
                "core_attention, mlp_norm, mlp, residual"
            ),
        ),
        (
            lambda g: operator(g, "pointwise_2")["attributes"].update(expression="(system x0)"),
            "expression '(system x0)' is none: such as (mul (sigmoid x0) x1)",
        ),
        (
            lambda g: operator(g, "pointwise_2")["attributes"].update(expression="(relu x3)"),
            "expression '(relu x3)' of operator 'pointwise_2' of graph.block must read its 1 inputs x0, x1, ...",
        ),
        (
            lambda g: operator(g, "norm_a")["attributes"].update(eps="1"),
            "eps='1' of operator 'norm_a' of graph.block must be a finite number",
        ),
        (
            lambda g: operator(g, "tokens").update(attributes={"padding_idx": -1}),
            "padding_idx=-1 of operator 'tokens' of graph.embedding must be a whole number from 0 to 1,000,000,000",
        ),
        (lambda g: g.update(prefix=3), "graph.prefix=3 must be names with dots, such as model.layers"),
        (lambda g: g.update(block="x"), "model.graph.block is 'x'; it must be a list of at most 2,000 entries"),
        (
            lambda g: operator(g, "down").update(dims=["batch"]),
            "model.graph.block[15].dims is a list of 1; it must be the names of dims, such as 'batch seq embed'",
        ),
        (
            lambda g: g["parameters"][0].update(start=-1),
            "model.graph.parameters[0].start is -1; it must be a whole number of at least 0 and at most 1e+09",
        ),
        (
            lambda g: operator(g, "norm_a")["attributes"].update(code=1),
            "an attribute='code' of operator 'norm_a' of graph.block must be one of: function, eps",
        ),
        (lambda g: g["head"].pop(), "graph.head must end with an operator of dims ''"),
        (lambda g: g.pop("block"), "model.graph lacks block"),
        (
            lambda g: operator(g, "down").update(code="x"),
            (
                "model.graph.block[15] has a field that is not known: 'code'; known: kind, name, module, inputs, dims, "
                "attributes"
            ),
        ),
    ],
    ids=range(19),
)
def test_what_no_trace_would_give_is_one_error(change: Callable[[dict[str, Any]], object], message: str) -> None:
    with pytest.raises(AutoshardError) as error:
        from_json(ModelSpec, changed(change), "model")
    assert str(error.value) == message


def test_only_traced_models_have_a_graph() -> None:
    with pytest.raises(AutoshardError, match="model_type='traced' of OddModel must be one of: llama"):
        from_json(ModelSpec, {**to_json(ODD), "graph": None}, "model")
    with pytest.raises(AutoshardError, match="model_type='llama' of OddModel must be one of: traced"):
        from_json(ModelSpec, {**to_json(ODD), "model_type": "llama"}, "model")


expressions = st.recursive(
    st.sampled_from(["x0", "x1"]) | st.floats(-100, 100),
    lambda inner: st.sampled_from(sorted(FUNCTIONS)).flatmap(
        lambda name: st.tuples(st.just(name), *(inner for _ in range(FUNCTIONS[name])))
    ),
    max_leaves=8,
)


@given(expressions)
def test_an_expression_comes_back(expression: Any) -> None:
    assert parse(render(expression)) == expression


def test_functions_of_an_expression_are_counted() -> None:
    assert count("(mul (sigmoid x0) (add x1 1.0))") == 3


@pytest.mark.parametrize(
    "text", ["", "x", "(mul x0)", "(mul x0 x1", "(mul x0 x1) x0", "(mul x0 inf)", "__import__", "("]
)
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(AutoshardError, match="expression"):
        parse(text)
