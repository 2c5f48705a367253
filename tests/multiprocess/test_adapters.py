"""Low-rank adapters do what W + scale * B A in place of W does, and an audit finds what a plan counts of them."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from autoshard.audits.roles import roles
from autoshard.audits.run import audit_role, held_orders
from autoshard.cost.estimate import estimate
from autoshard.graph.adapters import DOWN, UP
from autoshard.layout.strategy import Strategy
from autoshard.models.registry import load_model
from autoshard.models.stage import published_sizes, stage_graph
from autoshard.plans.plan import make_plan
from autoshard.runtime.rehearse import local_cluster
from autoshard.runtime.torch_backend.parameters import initial_parameter
from autoshard.spec.lora import Lora
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec, load_precision
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import plan_of, strategy
from tests.multiprocess.whole_module import whole_module

LLAMA_1B = load_model("llama3.2-1b")
NAMES = ("llama, adapters", "qwen2 moe, adapters")


def parameters(model: ModelSpec) -> dict[str, torch.Tensor]:
    """Those of a model at its start, in FP64, with matrices B that are not zero."""
    sizes = published_sizes(model)
    graph = stage_graph(model, sizes, range(model.num_hidden_layers), first=True, last=True)
    made = {one.name: initial_parameter(model, one, sizes, seed=0).double() for one in graph.parameters()}
    torch.manual_seed(0)
    return {name: torch.randn_like(value) / 8 if f".{UP}." in name else value for name, value in made.items()}


def adapters(made: Mapping[str, torch.Tensor]) -> list[str]:
    """The names of the layers that have one."""
    return [name.partition(f".{DOWN}.")[0] for name in made if f".{DOWN}." in name]


def products(b: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """B A, with the dims of both but for the rank."""
    return torch.tensordot(b, a, 1)


@pytest.mark.parametrize("name", NAMES)
def test_merged_weights_do_the_same(name: str) -> None:
    model = MODELS[name]
    assert model.lora is not None
    scale, made, whole = model.lora.scale, parameters(model), replace(model, lora=None)
    merged = {key: value.clone() for key, value in made.items() if ".lora_" not in key}
    for layer in adapters(made):
        merged[f"{layer}.weight"] += scale * products(made[f"{layer}.{UP}.weight"], made[f"{layer}.{DOWN}.weight"])
    ids = torch.randint(0, model.vocab_size, (2, 17))
    losses, modules = [], []
    for one, weights in ((model, made), (whole, merged)):
        module = whole_module(one, weights, (2, 16))
        losses.append(module(ids[:, :-1], ids[:, 1:]))
        losses[-1].backward()
        modules.append(module)
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-12)
    low, full = modules
    assert {key for key in made if low.parameter(key).grad is None} == {key for key in made if ".lora_" not in key}
    for layer in adapters(made):
        a, b, gradient = (
            made[f"{layer}.{DOWN}.weight"],
            made[f"{layer}.{UP}.weight"],
            full.parameter(f"{layer}.weight").grad,
        )
        assert gradient is not None
        given, read = gradient.flatten(0, b.dim() - 2), a.flatten(1)
        given = given.reshape(b.flatten(0, -2).shape[0], -1)
        of_b, of_a = low.parameter(f"{layer}.{UP}.weight").grad, low.parameter(f"{layer}.{DOWN}.weight").grad
        assert of_a is not None and of_b is not None
        torch.testing.assert_close(of_b.flatten(0, -2), scale * given @ read.T, rtol=1e-9, atol=1e-14)
        torch.testing.assert_close(of_a.flatten(1), scale * b.flatten(0, -2).T @ given, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(
    "one",
    [
        strategy(tp=2, dp=2, recompute="full"),
        strategy(pp=2, dp=2, schedule="zero_bubble", recompute=("full", "mlp")),
        strategy(cp=2, dp=2, zero=3, attention="ring"),
        strategy(tp=2, pp=2, dp=2, zero=3, recompute=("full", "none")),
    ],
    ids=["tp", "pp", "cp", "ZeRO-3"],
)
def test_an_audit_agrees(one: Strategy) -> None:
    """Of a size at which tables of positions, which plans leave out, are little."""
    model = replace(LLAMA_1B.some_blocks(range(4)), lora=Lora(16, 32.0, ("gate_proj", "o_proj", "q_proj")))
    training = TrainingSpec(1024, 2 * one.dp, load_precision("mixed_precision"))
    cluster = local_cluster(one.world_size)
    plan = make_plan(model, training, cluster, "torch", one, estimate(model, training, cluster, one))
    every, held = roles(plan), held_orders(plan)
    assert [audit_role(plan, role, held).differences for role in every] == [()] * len(every)


def test_weights_of_what_runs_again_are_gathered_once() -> None:
    """What runs again asks for adapters and weights at once; adapters that are read first release no weights then."""
    model = replace(MODELS["llama"], lora=Lora(4, 8.0, ("q_proj",)))
    plan = plan_of(model, strategy(dp=2, zero=3, recompute="attention"), 1)
    rows = audit_role(plan, roles(plan)[0], held_orders(plan)).rows
    gathered = [one for one in rows if one.what == "collectives" and "all_gather" in one.name]
    assert gathered and all(one.planned == one.measured for one in gathered)
