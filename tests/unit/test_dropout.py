"""What training drops: how it is asked for, what a plan holds of it, and what it adds to the graph."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from autoshard.errors import AutoshardError
from autoshard.graph.operator_kind import SEQUENCE_KEYS
from autoshard.graph.recompute import kept_activations
from autoshard.interop.export import export
from autoshard.models.registry import load_model, published_dropout
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.planner.options import request_from
from autoshard.planner.planning import plan_for
from autoshard.plans.plan_json import plan_to_json
from autoshard.plans.validate import read_plan
from autoshard.spec.dropout import NO_DROPOUT, Dropout, parse_dropout
from autoshard.spec.model import ModelSpec
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import plan_of, strategy
from tests.spmd.check import microbatch_collectives
from tests.traced_models import ODD

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "found", "written"),
    [
        ("0", NO_DROPOUT, "0"),
        ("0.1", Dropout(0.1, 0.1, 0.1), "embedding=0.1,residual=0.1,attention=0.1"),
        ("lora=0.05", Dropout(lora=0.05), "lora=0.05"),
        ("residual=0.1, attention=0.05", Dropout(0.0, 0.1, 0.05), "residual=0.1,attention=0.05"),
        ("residual=0.12345678", Dropout(residual=0.12345678), "residual=0.12345678"),
        ("residual=0.99999999", Dropout(residual=0.99999999), "residual=0.99999999"),
    ],
)
def test_probabilities_as_text(text: str, found: Dropout, written: str) -> None:
    assert parse_dropout(text) == found
    assert str(found) == written
    assert parse_dropout(written) == found


@pytest.mark.parametrize(
    "text", ["much", "residual=much", "mlp=0.1", "residual=0.1=2", "residual=0.1,residual=0.2", ""]
)
def test_text_that_is_no_dropout(text: str) -> None:
    message = (
        f"dropout='{text}' must be config, a probability such as 0.1, or some of embedding=0.1, residual=0.1, "
        "attention=0.1, lora=0.1 joined by commas"
    )
    with pytest.raises(AutoshardError) as error:
        parse_dropout(text)
    assert str(error.value) == message


@pytest.mark.parametrize("value", [1.0, -0.1, float("nan"), "0.1", True, None])
def test_a_probability_below_one(value: object) -> None:
    with pytest.raises(
        AutoshardError,
        match=r"^residual=.* must be a finite number of at least 0 and below 1(, without quotes)?$",
    ):
        Dropout(residual=value)  # type: ignore[arg-type]


def test_a_traced_module_is_trained_without() -> None:
    with pytest.raises(AutoshardError, match=r"must be 0: a traced module is trained without$"):
        replace(ODD, dropout=Dropout(residual=0.1))
    with pytest.raises(
        AutoshardError, match=r"^dropout=residual=0.1 of mine.py:Net: a traced module is trained without$"
    ):
        plan_for(request_from({"model": "mine.py:Net", "dropout": "residual=0.1"}))


def test_what_configs_publish(tmp_path: Path) -> None:
    """As transformers reads them; a model drops nothing unless asked to."""
    gpt2 = json.loads((REPOSITORY / "models/gpt2/configs/gpt3-175b.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**gpt2, "attn_pdrop": 0.05, "embd_pdrop": 0.2}))
    assert published_dropout(str(tmp_path)) == Dropout(embedding=0.2, residual=0.1, attention=0.05)
    assert load_model(str(tmp_path)).dropout == NO_DROPOUT
    neox = json.loads((REPOSITORY / "models/gpt_neox/configs/gpt-neox-20b.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**neox, "hidden_dropout": 0.3}))
    assert published_dropout(str(tmp_path)) == Dropout(0.3, 0.3, neox.get("attention_dropout", 0.0))
    llama = json.loads((REPOSITORY / "models/llama/configs/llama3-8b.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**llama, "attention_dropout": 0.1}))
    assert published_dropout(str(tmp_path)) == Dropout(attention=0.1)


def test_a_plan_holds_it(tmp_path: Path) -> None:
    asked = {"model": "llama3-8b", "nodes": 1, "dropout": "0.1", "seq_len": 2048, "global_batch": 64}
    plan = plan_for(request_from(asked, top=0))
    assert plan.model.dropout == Dropout(0.1, 0.1, 0.1)
    assert (plan.backend, plan.strategy.attention_kernel) == ("torch", "plain")
    assert (
        "dropout embedding=0.1,residual=0.1,attention=0.1: the same elements in every layout; evaluation drops nothing"
        in plan.notes
    )
    assert export(plan, "megatron").left_out[0] == (
        "dropout embedding=0.1,residual=0.1,attention=0.1: other elements are dropped there"
    )
    text = plan_to_json(plan)
    schema = json.loads((REPOSITORY / "autoshard/plans/plan.schema.json").read_text())
    Draft202012Validator(schema).validate(json.loads(text))
    (tmp_path / "plan.json").write_text(text)
    assert read_plan(tmp_path / "plan.json") == plan
    assert "dropout" not in plan_to_json(plan_for(request_from({**asked, "dropout": "0", "backend": "torch"}, top=0)))


def operators(model: ModelSpec) -> list[tuple[str, str]]:
    sizes = dim_sizes(model, 1, 16, 1, 2.0)
    graph = stage_graph(model, sizes, range(1), True, True, "plain")
    return [(op.kind, op.name) for op in graph.operators if SEQUENCE_KEYS in op.inputs]


def test_where_each_family_drops() -> None:
    """gpt2 and gpt_neox: where transformers' modules of these names do; experts' answers together, as Megatron does."""
    found = {
        name: operators(replace(model, dropout=Dropout(0.1, 0.1, 0.1)))
        for name, model in MODELS.items()
        if name != "odd" and not model.chooses_keys and model.compressed_attention is None  # these drop no probability
    }
    h = "transformer.h.0"
    assert found["gpt2"] == [
        ("dropout", "transformer.drop"),
        ("attention", f"{h}.attn.core_attention"),
        ("dropout", f"{h}.attn.resid_dropout"),
        ("dropout", f"{h}.mlp.dropout"),
    ]
    layer = "gpt_neox.layers.0"
    assert [name for _, name in found["gpt neox"]] == [
        "gpt_neox.emb_dropout",
        f"{layer}.attention.core_attention",
        f"{layer}.post_mlp_dropout",
        f"{layer}.post_attention_dropout",
    ]
    counts = {name: len(one) for name, one in found.items()}
    # their first block has no attention, and they have no shared expert
    without_attention = {"granite hybrid", "granite hybrid, groups", "qwen3.5", "lfm2", "lfm2, biases", "lfm2 moe"}
    without_attention |= {"kimi linear", "kimi linear, 3 heads", "olmo hybrid", "olmo hybrid, 3 heads, positions"}
    without_attention |= {
        "lfm3",
        "ling 3",
        "glm 5.3",
        "glm 5.3, one choice for two blocks",
        "bamba",
        "bamba, 3 heads, biases",
        "jamba",
        "jamba, 6 heads, 54 channels",
        "minimax text",
        "minimax text of 6 heads",
        "qwen4 exp of 6 heads",
    }
    shared = ("qwen2 moe", "qwen2 moe, adapters", "solar open", "hunyuan moe", "granite moe, shared", "granite moe swa")
    expected = {name: 5 if name in shared else 4 - (name in without_attention) for name in counts}
    alone = ("nemotron h", "mamba", "falcon mamba")  # an embedding and one mixer
    expected |= {name: 2 for name in counts if name.startswith(alone)}
    expected |= {name: 5 for name in counts if name.startswith("falcon h1")}  # both mixers
    expected |= {name: 8 for name in counts if name.startswith("longcat")}  # attention and MLP twice, and experts
    twice = {name: 8 for name in counts if "predicting" in name}  # their prediction module is an embedding and a block
    assert twice and counts == expected | twice


def test_a_rate_of_zero_adds_nothing() -> None:
    only = replace(MODELS["gpt2"], dropout=Dropout(attention=0.1))
    assert operators(only) == [("attention", "transformer.h.0.attn.core_attention")]
    assert operators(MODELS["gpt2"]) == []


@pytest.mark.parametrize("recompute", ["none", "core_attention+mlp", "full"])
def test_nothing_more_is_kept_or_moved(recompute: str) -> None:
    """But the 8 bytes of each sequence's key that a replay needs."""
    chosen = strategy(tp=2, kernel="plain", recompute=recompute)
    plans = [plan_of(MODELS[name], chosen, 2) for name in ("gpt2", "gpt2, dropping")]
    without, dropping = (plan.program(range(2), True, True) for plan in plans)
    assert microbatch_collectives(dropping) == microbatch_collectives(without)
    kept = [sum(kept_activations(program, recompute).values()) for program in (without, dropping)]
    assert kept[1] - kept[0] == (0 if recompute == "none" else 8)
