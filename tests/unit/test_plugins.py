"""Other people's packages: those of examples/plugins installed and used, and what is said of broken ones."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import autoshard
from autoshard import AutoshardError, NoLayoutFits
from autoshard.cli import main
from autoshard.cost.interval import fits_probability
from autoshard.errors import NoneFound
from autoshard.explanation.renderers import RENDERERS
from autoshard.models.families import FAMILIES, Family, config_files
from autoshard.models.plugin_family import check_family
from autoshard.models.registry import load_model
from autoshard.models.stage import parameter_count, published_sizes, stage_graph
from autoshard.planner.searchers import SEARCHERS
from autoshard.planner.space import BudgetSpent
from autoshard.plans.search_result import OPTIMAL
from autoshard.plugins.found import GROUPS, _entries
from autoshard.plugins.version import version_with_plugins
from autoshard.schedules import SCHEDULES, Schedule, actions, check_schedule
from autoshard.spec.model import ModelSpec
from autoshard.units import format_bytes, format_seconds
from autoshard.version import program_version

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
MOST_LINES = 60
SMALL = ["--model", "llama3-8b", "--seq-len", "2048", "--global-batch", "64"]
TINY = {
    "model_type": "parallel_llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the examples, built and installed by pip without a network."""
    sources, target = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("packages")
    shutil.copytree(EXAMPLES, sources / "plugins", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "-qq", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", target, *(sources / "plugins").iterdir()], check=True)
    return target


@pytest.fixture
def installed(packages: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The examples on sys.path, and an empty folder to work in."""
    monkeypatch.syspath_prepend(packages)
    monkeypatch.chdir(tmp_path)
    return packages


def package(folder: Path, name: str, group: str, entry: str, code: str) -> None:
    """An installed package with one module and one entry point."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[autoshard.{group}]\n{entry}\n")
    (folder / f"{name.replace('-', '_')}.py").write_text(code)


def test_every_group_has_an_example_of_at_most_sixty_lines() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} == set(GROUPS)
    for folder in EXAMPLES.iterdir():
        lines = [len(path.read_text().splitlines()) for path in folder.rglob("*") if path.suffix in (".py", ".toml")]
        assert len(lines) == 2 and max(lines) <= MOST_LINES


def test_a_new_process_finds_them(packages: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    command = [sys.executable, "-m", "autoshard", "plugins"]
    found = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = [line.split() for line in found.stdout.splitlines()]
    assert [line[0] for line in lines if len(line) == 1] == [f"autoshard.{group}" for group in GROUPS]
    entries = [line for line in lines if len(line) > 1]
    expected = ["parallel_llama", "more_adapters", "eager", "tabu", "roofline", "one_line", "nearest"]
    assert [line[0] for line in entries] == expected
    assert all(line[-1] == "loads" for line in entries)
    without = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert without.stdout == "no plug-ins are installed; CONTRIBUTING.md shows how one is made\n"


def test_an_instance_is_listed(installed: Path) -> None:
    *packaged, own = autoshard.list_instances().rows
    assert tuple(one.name for one in packaged) == autoshard.instances()
    assert own.name == "trn1.more" and own.network_bytes_per_s > packaged[0].network_bytes_per_s


def test_a_family_is_planned(installed: Path) -> None:
    Path("tiny.json").write_text(json.dumps(TINY))
    assert main(["plan", "--model", "tiny.json", "--global-batch", "64"]) == 0
    plan = autoshard.read_plan("plan.json")
    assert plan.model.model_type == "parallel_llama" and plan.backend == "torch"
    assert any("parallel_llama" in note for note in plan.notes)  # NxD has no layers for it
    with pytest.raises(AutoshardError, match=r"^hidden_act='gelu' of m must be one of: silu$"):
        autoshard.model({**TINY, "hidden_act": "gelu", "_name_or_path": "m"})
    assert "parallel_llama" not in tuple(FAMILIES)


MIXTURE = """
from autoshard.models.dropping import residual
from autoshard.models.families import Family
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.models.llama.graph import attention, embedding, gated_mlp, head, rms_norm
from autoshard.models.mixtral.graph import mixture

FAMILY = Family("", package="their_mixture", activations=("silu",), experts=("routed", "shared"))
ROUTED = Family("", package="their_mixture", activations=("silu",), experts=("routed",))
ARCHITECTURES = {"their_mixture": "TheirMixtureForCausalLM"}
SIZES = ("num_local_experts", "num_experts_per_tok", "shared_expert_intermediate_size")


def block(b, model, x, layer, kernel):
    name = f"model.layers.{layer}"
    x = attention(b, model, x, layer, kernel)
    b.module = "mlp_norm"
    h = rms_norm(b, model, f"{name}.post_attention_layernorm", x)
    b.module = "mlp"
    parts = [(mixture(b, model, h, f"{name}.mlp", "gate_proj", "up_proj", "down_proj"), f"{name}.mlp.dropout")]
    if model.shared_expert_intermediate_size:
        shared = gated_mlp(b, model, h, f"{name}.mlp.shared_expert", "shared_ffn")
        parts.append((shared, f"{name}.mlp.shared_dropout"))
    return residual(b, model, f"{name}.mlp_residual", x, *parts)


def read(config, model_type):
    more = {name: config.value(name, 0) for name in SIZES}
    return read_as_llama(config, model_type, Defaults(norm_eps=1e-5, rope_theta=10_000.0), **more)


def write(model):
    return written_as_llama(model) | {name: getattr(model, name) for name in SIZES}
"""
"""A family with a router, experts and a shared expert, as a package describes one."""


def test_a_family_with_experts_is_planned_and_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("their", "FAMILY"), ("routed", "ROUTED")):
        package(tmp_path, f"{name}-mixture", "models", f"{name}_mixture = their_mixture:{value}", MIXTURE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    config = {**TINY, "model_type": "their_mixture", "_name_or_path": "m", "num_local_experts": 8}
    config |= {"num_experts_per_tok": 2, "shared_expert_intermediate_size": 2048}
    model = autoshard.model(config)
    hidden, layers = 1024, 8
    attention = hidden * (1024 + 2 * 512) + 1024 * hidden
    mlp = 8 * 3 * hidden * 4096 + 8 * hidden + 3 * hidden * 2048  # experts, router, shared expert
    assert parameter_count(model) == layers * (attention + mlp + 2 * hidden) + 2 * 32000 * hidden + hidden
    few: dict[str, Any] = {"nodes": 1, "global_batch": 64, "ep": 4, "tp": 1, "pp": 2, "cp": 1}
    plan = autoshard.plan(model, **few)
    assert plan.strategy.ep == 4 and plan.backend == "torch"
    assert autoshard.read_plan(plan.save("mixture.json")) == plan
    assert autoshard.validate(plan).plan == plan
    assert autoshard.audit(plan, stages=[0], use_cache=False).agrees
    dense = autoshard.model({**config, "model_type": "routed_mixture", "shared_expert_intermediate_size": 0})
    assert autoshard.plan(dense, **few).model.is_moe
    for changes, said in (
        ({"num_local_experts": 1}, "num_experts_per_tok=2 of m must be from 1 to num_local_experts=1"),
        (
            {"model_type": "routed_mixture"},
            "shared_expert_intermediate_size=2048 of m must be 0 with model_type=routed_mix",
        ),
    ):
        with pytest.raises(AutoshardError) as refused:
            autoshard.model({**config, **changes})
        assert said in str(refused.value)


LATENT = """
from autoshard.models.deepseek.attention import latent_attention
from autoshard.models.families import Family
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.models.llama.graph import block as llama_block, embedding, head, mlp
from autoshard.spec.latent_attention import LatentAttention

FAMILY = Family("", package="latent_llama", needs=("latent_attention",), may_have=("multi_token_prediction",))
TRAITS = {"normalization": "layernorm", "qk_norm": "each_head", "has_unit_offset": True, "turns_neighbours": True}
NORMS = Family("", package="latent_llama", **TRAITS)
ARCHITECTURES = {"latent_llama": "LatentLlamaForCausalLM", "norms": "NormsForCausalLM"}


def block(b, model, x, layer, kernel):
    if model.latent_attention is None:
        return llama_block(b, model, x, layer, kernel)
    return mlp(b, model, latent_attention(b, model, x, layer, kernel), layer)


def read(config, model_type):
    more = {"latent_attention": LatentAttention(None, 128, 32, 64)} if model_type == "latent_llama" else {}
    return read_as_llama(config, model_type, Defaults(norm_eps=1e-5, rope_theta=10_000.0), **more)


def write(model):
    return written_as_llama(model)
"""
"""Two families that say by data what only built-in names said once: compressed keys; norms and rotary positions."""


def test_a_family_has_the_traits_of_those_that_are_built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(
        tmp_path, "latent-llama", "models", "latent_llama = latent_llama:FAMILY\nnorms = latent_llama:NORMS", LATENT
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    config = {**TINY, "model_type": "latent_llama", "_name_or_path": "m", "num_key_value_heads": 16}
    model, hidden, layers, heads = autoshard.model(config), 1024, 8, 16
    ends, rest = 2 * 32000 * hidden + hidden, 3 * hidden * 4096 + 2 * hidden  # MLP, norms
    # queries of 64; a vector of 128 with 32 that are turned, and its norm, to keys' other 32 and values of 64; output
    latent = heads * 64 * hidden + 160 * hidden + 128 + heads * (32 + 64) * 128 + hidden * heads * 64
    assert parameter_count(model) == layers * (latent + rest) + ends
    plan = autoshard.plan(model, nodes=1, global_batch=64, tp=2, pp=2, mtp_num_layers=1)
    assert plan.model.multi_token_prediction is not None and plan.backend == "torch"
    assert autoshard.read_plan(plan.save("latent.json")) == plan
    with pytest.raises(AutoshardError, match=r"^model_type=latent_llama of m needs latent_attention, which is absent$"):
        replace(model, latent_attention=None)

    norms = autoshard.model({**config, "model_type": "norms"})
    operators = {op.name: op for op in stage_graph(norms, published_sizes(norms), (0,), True, True).operators}
    attention = "model.layers.0.self_attn"
    assert operators[f"{attention}.q_rope"].attributes["interleaved"]
    functions = {f"{attention}.q_norm": "rms", "model.layers.0.input_layernorm": "layer", "model.norm": "layer"}
    for name, function in functions.items():
        assert (operators[name].attributes["function"], operators[name].attributes["unit_offset"]) == (function, True)
    with pytest.raises(AutoshardError, match=r"^multi_token_prediction of m must be absent with model_type=norms"):
        autoshard.plan(norms, nodes=1, global_batch=64, mtp_num_layers=1)


@pytest.mark.parametrize(
    ("traits", "said"),
    [
        ("experts=('shared',)", "experts=('shared',) of family bad must be routed and shared, routed, or none"),
        ("activations='silu'", "activations='silu' of family bad must be a tuple of words"),
        ("has_gate=1", "has_gate=1 of family bad must be true or false"),
        ("normalization='rms'", "normalization='rms' of family bad must be one of: rmsnorm, layernorm"),
        (
            "has_unit_offset=True, qk_norm='all_heads'",
            "has_unit_offset=True of family bad has no kernel with qk_norm=all_heads; False has",
        ),
        (
            "has_norm_weight=False, qk_norm='all_heads'",
            "has_norm_weight=False of family bad has no kernel with qk_norm=all_heads; True has",
        ),
        (
            "has_norm_weight=False, has_unit_offset=True",
            "has_norm_weight=False of family bad has no kernel with has_unit_offset=True; True has",
        ),
        (
            "weighs_each_head=True, qk_norm='all_heads'",
            "weighs_each_head=True of family bad needs qk_norm=each_head, or use_qk_norm in may_have",
        ),
        (
            "weighs_each_head=True, qk_norm='each_head', has_unit_offset=True",
            "weighs_each_head=True of family bad has no kernel with has_unit_offset=True; False has",
        ),
        (
            "weighs_each_head=True, may_have=('use_qk_norm',), has_norm_weight=False",
            "weighs_each_head=True of family bad has no kernel with has_norm_weight=False; True has",
        ),
        (
            "has_qk_norm_weight=False",
            "has_qk_norm_weight=False of family bad has no kernel with qk_norm=None; each_head has",
        ),
        (
            "has_qk_norm_weight=False, qk_norm='each_head', weighs_each_head=True",
            "has_qk_norm_weight=False of family bad has no kernel with weighs_each_head=True; False has",
        ),
        ("qk_norm='heads'", "qk_norm='heads' of family bad must be one of: each_head, all_heads"),
        (
            "needs=('router',)",
            (
                "needs='router' of family bad must be one of: latent_attention, indexer, chunked_attention, "
                "branch_multipliers, compressed_attention, hyper_connections, branch_norms, moe_latent_size, "
                "weighted_residual, gated_residual"
            ),
        ),
        (
            "may_have=('mtp',)",
            (
                "may_have='mtp' of family bad must be one of: multi_token_prediction, use_parallel_residual, "
                "use_qk_norm, use_rms_norm, averages_shared_expert, moe_latent_size, clamped_gate, global_attention, "
                "v_head_dim, indexer_types, zero_expert_num, block_indexer, indexer, ngram_embedding, "
                "hidden_size_per_layer_input, num_kv_shared_layers, kv_source_layers"
            ),
        ),
    ],
)
def test_a_trait_that_is_none_is_refused(
    traits: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"bad_{traits.split('=')[0]}"
    code = f"from autoshard.models.families import Family\nFAMILY = Family('', package='bad', {traits})\n"
    package(tmp_path, name.replace("_", "-"), "models", f"{name} = {name}:FAMILY", code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AutoshardError) as refused:
        autoshard.model({**TINY, "model_type": name})
    assert str(refused.value) == f"plug-in {name} of {name.replace('_', '-')} 1.0 does not load: {said}"


FAMILY_WITH_MISTAKE = """
from autoshard.models.families import Family
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.models.llama.graph import attention, embedding, gated_mlp, head

FAMILY = Family("", package=__name__, activations=("silu",))
ARCHITECTURES = {}


def read(config, model_type):
    return read_as_llama(config, model_type, Defaults(norm_eps=1e-5, rope_theta=10_000.0))


def write(model):
    return written_as_llama(model)


def added(b, name, x, function="add", **attributes):
    return b.elementwise(function, name, x, x, **attributes)


def block(b, model, x, layer, kernel):
    name = f"model.layers.{layer}"
    x = attention(b, model, x, layer, kernel)
    b.module = "mlp"
"""
"""A family of a package, whose block goes on as a test says."""


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        (
            "none",
            "return None",
            "block 0 of m: block returned None; it must return the name of an operator's output of",
        ),
        ("same", "return 'hidden'", "block 0 of m: block returned 'hidden'; it must return the name of an operator's"),
        ("bug", "raise RuntimeError('a bug')", "block 0 of m: RuntimeError: a bug"),
        (
            "kind",
            "return b.operator('fancy', name, (x,), b.dims(x), b.dims(x))",
            "block 0 of m: kind='fancy' of operator model.layers.0 must be one of: einsum, elementwise, norm, ",
        ),
        (
            "function",
            "return added(b, name, x, 'tan')",
            "block 0 of m: function='tan' of operator model.layers.0 must be one of: add, silu_mul, ",
        ),
        (
            "pointwise",
            "return b.pointwise(name, '(tan x0)', x)",
            "block 0 of m: expression '(tan x0)' is none: such as (mul (sigmoid x0) x1)",
        ),
        ("unmade", "return b.operator('norm', name, ('h',), b.dims(x), b.dims(x))", "block 0 of m: KeyError: 'h'"),
        (
            "unread",
            "return b.pointwise(name, '(neg x1)', x, x)",
            "block 0 of m: expression '(neg x1)' of operator model.layers.0 must read its 2 inputs x0, x1, ...",
        ),
    ],
)
def test_a_family_that_does_not_build_its_blocks_is_refused(
    name: str, code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AutoshardError) as refused:
        parameter_count(mistaken_model(name, code, tmp_path, monkeypatch))
    entry = f"mistaken_{name}"
    assert str(refused.value).startswith(f"family {entry} (mistaken-{name} 1.0) does not build {said}")


def mistaken_model(name: str, code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSpec:
    """A model of a family of its own whose block goes on with this line."""
    entry = f"mistaken_{name}"
    package(folder, f"mistaken-{name}", "models", f"{entry} = {entry}:FAMILY", f"{FAMILY_WITH_MISTAKE}    {code}\n")
    monkeypatch.syspath_prepend(folder)
    return autoshard.model({**TINY, "model_type": entry, "_name_or_path": "m"})


@pytest.mark.parametrize("first", [1, 7])
def test_blocks_that_differ_unsaid_are_refused(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"return x if layer < {first} else added(b, name, x)"
    model = mistaken_model(f"from_{first}", code, tmp_path, monkeypatch)
    said = (
        f"blocks 0 and {first} of m are of one kind by layer_types, mlp_layer_types, position_types, gate_types, "
        f"indexer_types and ngram_types, but family mistaken_from_{first} (mistaken-from_{first} 1.0) builds different "
        "ones; one of these fields must tell them apart"
    )
    known = autoshard.plan({**TINY, "model_type": "llama", "_name_or_path": "m"}, nodes=1, global_batch=64)
    for use in (
        lambda: autoshard.plan(model, nodes=1, global_batch=64, backend="torch"),
        lambda: autoshard.score(known.strategy, model, nodes=1, global_batch=64, backend="torch"),
        lambda: autoshard.validate(replace(known, model=model)),
    ):
        with pytest.raises(AutoshardError) as refused:
            use()
        assert str(refused.value).endswith(said)


def test_blocks_may_differ_in_a_factor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "return b.pointwise(name + '.more', f'(mul {1 / (1 + layer)!r} x0)', added(b, name, x, alpha=0.5**layer))"
    assert parameter_count(mistaken_model("factor", code, tmp_path, monkeypatch)) > 0


def test_blocks_that_share_a_parameter_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mistaken_model("shared", "return gated_mlp(b, model, x, 'model.shared.mlp')", tmp_path, monkeypatch)
    with pytest.raises(AutoshardError) as refused:
        autoshard.plan(model, nodes=1, global_batch=64, backend="torch")
    assert str(refused.value) == (
        "block 0 and block 1 of m both have model.shared.mlp.gate_proj.weight in family mistaken_shared "
        "(mistaken-shared 1.0); names of a block's parameters and operators must have its layer in them"
    )


@pytest.mark.parametrize("folder", sorted({one.folder for one in FAMILIES.values() if one.is_published}))
def test_what_is_built_in_would_pass(folder: str) -> None:
    model = load_model(config_files(Family(folder))[0].stem)
    check_family(model, published_sizes(model))


def test_hardware_is_known_by_its_instance(installed: Path) -> None:
    assert main(["plan", *SMALL, "--instance", "trn1.more", "--nodes", "2"]) == 0
    plan = autoshard.read_plan("plan.json")
    assert (plan.cluster.instance, plan.cluster.adapters_per_node) == ("trn1.more", 16)
    with pytest.raises(AutoshardError, match=r"did you mean trn1\.more\?.* trn1\.more, or a hardware file of"):
        autoshard.cluster("trn1.mor")


def hardware_package(folder: Path, name: str, files: dict[str, str], code: str = "") -> None:
    """An installed package with a folder of hardware files: name of a file -> its text."""
    package(folder, name, "hardware", f"{name} = {name}:FOLDER", code or f"FOLDER = {str(folder / 'of' / name)!r}\n")
    (folder / "of" / name).mkdir(parents=True)
    for file, text in files.items():
        (folder / "of" / name / file).write_text(text)


def like(instance: str, **others: object) -> str:
    return json.dumps({"format_version": 1, "like": "trn1.32xlarge", "instance": instance, **others})


def test_one_plug_ins_hardware_is_apart_from_another_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hardware_package(tmp_path, "own_hw", {"a.json": like("own.fast"), "b.json": like("own.both")})
    hardware_package(tmp_path, "other_hw", {"c.json": like("own.both")})
    hardware_package(tmp_path, "wrong_hw", {"wrong.json": "{]", "rules.json": like("own.rules", layout_rules="own9")})
    hardware_package(tmp_path, "proud_hw", {"mine.json": like("trn1.32xlarge"), "p5.json": like("p5.48xlarge")})
    hardware_package(tmp_path, "absent_hw", {}, "import not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert autoshard.cluster("own.fast").instance == "own.fast"  # by its instance, not by its file's name
    both = "instance own.both comes from c.json of other_hw 1.0 and from b.json of own_hw 1.0; "
    both += "uninstall or rename one of them"
    with pytest.raises(AutoshardError, match=f"^{both}$"):
        autoshard.cluster("own.both")
    rules = "layout_rules='own9' of cluster own.rules must be one of: trn1, trn2, trn3, cuda, cpu, none"
    with pytest.raises(AutoshardError, match=f"^{rules}$"):
        autoshard.cluster("own.rules")
    absent = "plug-in absent_hw of absent_hw 1.0 does not load: ModuleNotFoundError: No module named 'not_there'"
    with pytest.raises(AutoshardError, match=rf"^instance='a' is not known; .*own\.fast.*; {absent}$"):
        autoshard.cluster("a")
    problems = {one.name: one.problem for one in autoshard.installed_plugins() if one.group == "hardware"}
    wrong = f"hardware file {tmp_path / 'of' / 'wrong_hw' / 'wrong.json'}, line 1, column 2: not JSON: "
    assert (problems.pop("wrong_hw") or "").startswith(f"{rules}; {wrong}")
    taken = "is built in, and what is built in is taken; give it another name"
    assert problems == {
        "absent_hw": absent,
        "other_hw": both,
        "own_hw": both,
        "proud_hw": f"trn1.32xlarge of mine.json {taken}; p5.48xlarge of p5.json {taken}",
    }


def test_a_schedule_is_searched_only_where_it_is_asked_for(installed: Path) -> None:
    options = [*SMALL, "--backend", "torch", "--pp", "4", "--tp", "8"]
    assert main(["plan", *options, "--schedule", "eager", "-o", "eager.json"]) == 0
    assert autoshard.read_plan("eager.json").strategy.schedule == "eager"
    assert main(["plan", *options, "-o", "usual.json"]) == 0
    assert autoshard.read_plan("usual.json").strategy.schedule in tuple(SCHEDULES)
    assert "eager" not in tuple(SCHEDULES) and "eager" in SCHEDULES


def test_a_plan_claims_only_what_was_tried_of_its_schedule(installed: Path) -> None:
    """Without a closed form no cut is tried but an even one and one by balance."""

    def claimed(schedule: str) -> str:
        return autoshard.search("llama3.2-1b", backend="torch", pp=4, tp=8, schedule=schedule).optimality

    tried = "(pipelines of schedule eager are cut evenly or by balance, and recompute alike in all stages)"
    assert claimed("eager").endswith(f"proven {tried}") or claimed("eager") == f"{OPTIMAL} {tried}"
    assert "pipelines of schedule" not in claimed("1f1b")
    assert "pipelines of schedule zero_bubble are cut" in claimed("zero_bubble")


SCHEDULES_WITH_MISTAKES = """
from dataclasses import replace

from autoshard.schedules.orders import SCHEDULES, Schedule

USUAL, APART = SCHEDULES["1f1b"].orders, SCHEDULES["zero_bubble"].orders


def schedule(make, **more):
    return Schedule("mistaken", lambda pp, m, vpp: "" if vpp == 1 else "one chunk", make, **more)


def each(orders, change):
    return lambda pp, m, vpp: [change(order) for order in orders(pp, m, vpp)]


MISSING = schedule(each(USUAL, lambda order: order[:-1]))
TWICE = schedule(each(USUAL, lambda order: order + order[-1:]))
SHORT = schedule(lambda pp, m, vpp: USUAL(pp, m, vpp)[:-1])
UNKNOWN = schedule(each(USUAL, lambda order: [("X" if one.kind == "B" else one.kind, *one[1:]) for one in order]))
NUMBERED = schedule(each(USUAL, lambda order: [one._replace(microbatch=one.microbatch + 1) for one in order]))
NO_WEIGHTS = schedule(each(APART, lambda order: [one for one in order if one.kind != "W"]), weights_apart=True)
UNSAID = schedule(APART)
WARM = schedule(SCHEDULES["gpipe"].orders, warm_up=SCHEDULES["1f1b"].warm_up)
RAISING = schedule(lambda pp, m, vpp: 1 / 0)
FLOATS = schedule(each(USUAL, lambda order: [one._replace(microbatch=float(one.microbatch)) for one in order]))
NUMBER = replace(schedule(USUAL), objection=lambda pp, m, vpp: 7)
NO_ORDERS = schedule(lambda pp, m, vpp: None)
OBJECTING = replace(RAISING, objection=lambda pp, m, vpp: {}["pp"])
"""
"""Schedules of a package, each with one mistake."""
A_STEP = "a step needs F and then B"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("MISSING", f"has F7.0 of microbatch 7 in chunk 0 of rank 0; {A_STEP}"),
        ("TWICE", f"has F7.0 B7.0 B7.0 of microbatch 7 in chunk 0 of rank 0; {A_STEP}"),
        ("SHORT", "has the orders of 3 ranks; it needs those of pp=4"),
        ("UNKNOWN", f"has F0.0 X0.0 of microbatch 0 in chunk 0 of rank 0; {A_STEP}"),
        ("NUMBERED", f"has nothing of microbatch 0 in chunk 0 of rank 0; {A_STEP}"),
        ("NO_WEIGHTS", f"has F0.0 I0.0 of microbatch 0 in chunk 0 of rank 0; {A_STEP}, or F, I and W"),
        (
            "UNSAID",
            f"has F0.0 I0.0 W0.0 of microbatch 0 in chunk 0 of rank 0; {A_STEP}; I and W go with weights_apart=True",
        ),
        (
            "WARM",
            (
                "has orders of rank 0 that are not those of `alternate` with its warm_up=4; without warm_up what a "
                "rank holds is counted from the orders"
            ),
        ),
        ("RAISING", "fails with pp=4, num_microbatches=8 and vpp=1: ZeroDivisionError: division by zero"),
        ("NO_ORDERS", "fails with pp=4, num_microbatches=8 and vpp=1: TypeError: 'NoneType' object is not iterable"),
        (
            "FLOATS",
            (
                "fails with pp=4, num_microbatches=8 and vpp=1: TypeError: 'float' object cannot be interpreted as an "
                "integer"
            ),
        ),
        ("NUMBER", "has the objection 7; it must be a text, or None"),
        ("OBJECTING", "fails with pp=4, num_microbatches=8 and vpp=1: KeyError: 'pp'"),
    ],
)
def test_a_schedule_with_wrong_orders_is_refused_wherever_it_is_used(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = f"mistaken_{name.lower()}"
    package(tmp_path, "mistaken-orders", "schedules", f"{entry} = mistaken_orders:{name}", SCHEDULES_WITH_MISTAKES)
    monkeypatch.syspath_prepend(tmp_path)
    inputs: dict[str, Any] = {"nodes": 1, "seq_len": 2048, "global_batch": 32, "backend": "torch"}
    known = autoshard.plan("llama3.2-1b", tp=8, pp=4, micro_batch=4, schedule="1f1b", **inputs)
    written = json.loads(known.save(tmp_path / "plan.json").read_text())
    written["strategy"]["schedule"] = written["inputs"]["pins"]["schedule"] = written["schedule"]["name"] = entry
    (tmp_path / "mistaken.json").write_text(json.dumps(written))
    for use in (
        lambda: autoshard.plan("llama3.2-1b", tp=8, pp=4, micro_batch=4, schedule=entry, **inputs),
        lambda: autoshard.score(replace(known.strategy, schedule=entry), "llama3.2-1b", **inputs),
        lambda: autoshard.validate(tmp_path / "mistaken.json"),
        lambda: actions(entry, 4, 8),
    ):
        with pytest.raises(AutoshardError) as refused:
            use()
        assert str(refused.value).endswith(f"schedule {entry} (mistaken-orders 1.0) {said}")


def test_a_schedule_that_waits_for_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    turned = Schedule("turned", SCHEDULES["1f1b"].objection, lambda *sizes: SCHEDULES["1f1b"].orders(*sizes)[::-1])
    monkeypatch.setitem(SCHEDULES, "turned_around", turned)
    with pytest.raises(
        AutoshardError, match=r"^schedule turned_around deadlocks: rank 0 before B0\.0, rank 1 before F1\.0,"
    ):
        autoshard.plan("llama3.2-1b", nodes=1, backend="torch", tp=8, pp=4, schedule="turned_around")


def raising(*_: Any) -> Any:
    raise RuntimeError("of\nthem")


NOT_SECONDS = "has a closed_form that gives seconds that are negative or not finite"
RAISES = r"fails with pp=4, num_microbatches=\d+ and vpp=1: RuntimeError: of them"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"closed_form": lambda work: None}, r"has a closed_form that gives None; it wants \(\) or \(\d+,\)"),
        (
            {"closed_form": lambda work: np.zeros((2, 3))},
            r"has a closed_form that gives seconds of shape \(2, 3\); it wants \(\) or \(\d+,\)",
        ),
        ({"closed_form": lambda work: "fast"}, r"has a closed_form that gives 'fast'; it wants \(\) or \(\d+,\)"),
        ({"closed_form": lambda work: 1j}, r"has a closed_form that gives 1j; it wants \(\) or \(\d+,\)"),
        (
            {"closed_form": lambda work: [[1.0], [1.0, 2.0]]},
            "fails with pp=4 and vpp=1: ValueError: setting an array element with a sequence.*",
        ),
        ({"closed_form": lambda work: work.forward_s[0] * np.nan}, NOT_SECONDS),
        ({"closed_form": lambda work: -work.forward_s[0]}, NOT_SECONDS),
        ({"closed_form": raising}, "fails with pp=4 and vpp=1: RuntimeError: of them"),
        (
            {"closed_form": lambda work: 1e6},
            (
                r"has a closed_form of 1e\+06 s for a step that takes \d[\d.]* s on the clock with pp=4, "
                r"num_microbatches=\d+ and vpp=1; it must give that or less"
            ),
        ),
        (
            {"closed_form": lambda work: work.forward_s[0], "exact_without_transfers": True},
            (
                r"has a closed_form of 0\.\d+ s for a step that takes \d[\d.]* s on the clock with pp=4, "
                r"num_microbatches=\d+ and vpp=1; it must give just that: exact_without_transfers=True"
            ),
        ),
        ({"warm_up": raising}, RAISES),
        (
            {"warm_up": lambda rank, pp, m, vpp: "two"},
            r"fails with pp=4, num_microbatches=\d+ and vpp=1: TypeError: 'str' object cannot be .*",
        ),
        (
            {"warm_up": lambda rank, pp, m, vpp: pp / 2},
            r"fails with pp=4, num_microbatches=\d+ and vpp=1: TypeError: 'float' object cannot be .*",
        ),
        ({"most_waiting": raising}, RAISES),
        (
            {"most_waiting": lambda rank, pp, m, vpp: -rank},
            (
                r"says most_waiting=-\d of rank \d, whose orders have \d with pp=4, num_microbatches=\d+ and vpp=1; "
                "without most_waiting they are counted"
            ),
        ),
    ],
    ids=[
        "None",
        "shape",
        "text",
        "complex",
        "ragged",
        "nan",
        "negative",
        "raises",
        "too long",
        "not exact",
        "warm-up",
        "warm-up in words",
        "warm-up of a half",
        "waiting",
        "waiting less",
    ],
)
def test_what_a_schedule_says_is_held_against_its_orders(
    wrong: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    apart = SCHEDULES["zero_bubble"]
    like = replace(apart, closed_form=None, warm_up=None, most_waiting=None)
    name = f"says_{request.node.callspec.id.replace(' ', '_')}"
    monkeypatch.setitem(SCHEDULES, name, replace(like, **wrong))
    with pytest.raises(AutoshardError, match=f"schedule {name} {words}$"):
        autoshard.plan("llama3.2-1b", nodes=1, backend="torch", tp=8, pp=4, schedule=name, global_batch=32)


def test_a_schedule_that_says_what_is_true_is_planned_like_the_same_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("1f1b", "zero_bubble"):
        monkeypatch.setitem(SCHEDULES, f"true_{name}", replace(SCHEDULES[name], label="true"))
        asked: dict[str, Any] = {"nodes": 1, "backend": "torch", "tp": 8, "pp": 4, "global_batch": 32}
        usual, same = (autoshard.plan("llama3.2-1b", schedule=one, **asked) for one in (name, f"true_{name}"))
        assert (same.step_time_s, same.memory_bytes) == (usual.step_time_s, usual.memory_bytes)


def test_an_objection_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULES, "two_lines", replace(SCHEDULES["1f1b"], objection=lambda pp, m, vpp: "one\ntwo"))
    with pytest.raises(AutoshardError, match=r"^one two$"):
        check_schedule("two_lines", 4, 8, 1)


def test_an_empty_objection_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of reasons that are joined is empty where there is none."""
    monkeypatch.setitem(SCHEDULES, "no_reason", replace(SCHEDULES["1f1b"], objection=lambda pp, m, vpp: ""))
    schedule = SCHEDULES["no_reason"]
    assert schedule.accepts_chunks(4, 1) and schedule.objection_to(4, 8, 1) is None
    check_schedule("no_reason", 4, 8, 1)
    plan = autoshard.plan("llama3.2-1b", nodes=1, backend="torch", tp=8, pp=4, schedule="no_reason", vpp=1)
    assert plan.strategy.schedule == "no_reason"


@pytest.mark.parametrize("label", ["with {nothing}", "with {}", "with {", "with {vpp.more}"])
def test_a_label_names_what_a_page_knows(label: str) -> None:
    with pytest.raises(AutoshardError) as refused:
        Schedule(label, lambda pp, m, vpp: None, SCHEDULES["1f1b"].orders)
    assert str(refused.value) == f"label={label!r} of a Schedule may have {{vpp}} alone in braces"


def test_a_plan_says_who_searched_and_loads_without_it(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as here:
        here.syspath_prepend(packages)
        assert main(["plan", *SMALL, "--search", "tabu", "--evaluations", "100"]) == 0
        page = capsys.readouterr().out
        assert main(["plan", *SMALL, "--search", "taboo"]) == 2
        assert capsys.readouterr().err.endswith(", coordinate_descent, optuna; of plug-ins: tabu\n")
    assert "found by tabu (autoshard-tabu 1.0) with 100 of" in " ".join(page.split())
    plan = autoshard.read_plan("plan.json")
    assert plan.search is not None and plan.search.searcher == "tabu (autoshard-tabu 1.0)"
    assert json.loads(Path("plan.json").read_text())["search"]["searcher"] == "tabu (autoshard-tabu 1.0)"
    assert main(["plan", *SMALL, "--search", "tabu"]) == 2
    assert "--search: tabu must be one of: exact, random," in capsys.readouterr().err


def test_tabu_ends_where_it_has_been_at_every_layout(installed: Path) -> None:
    """A budget ends a searcher when it prices a layout; one that only draws them would go on for ever."""
    drawn: list[int] = []
    asked: list[int] = []

    def random(rng: Random) -> int:
        drawn.append(rng.randrange(2))
        assert len(drawn) <= 100, "it draws and prices nothing"
        return drawn[-1]

    def price(layout: int) -> SimpleNamespace:
        asked.append(layout)
        if len(asked) > 50:
            raise BudgetSpent
        return SimpleNamespace(cost=1.0 + layout)

    space = SimpleNamespace(random=random, price=price, neighbours=lambda layout: [1 - layout])
    with pytest.raises(BudgetSpent):
        SEARCHERS.get("tabu")(space, Random(0))
    assert {*asked} == {0, 1}


def test_a_cost_model_chooses_and_the_estimate_stays_ours(installed: Path) -> None:
    plan = autoshard.plan("llama3-8b", seq_len=2048, global_batch=64, cost_model="roofline")
    assert plan.search is not None and plan.search.cost_model == "roofline (autoshard-roofline 1.0)"
    assert plan.search.searcher == "exact"
    (note,) = (one for one in plan.notes if one.startswith("cost model roofline (autoshard-roofline 1.0): "))
    assert note.endswith("it chose the layout, the estimate in this plan is autoshard's")
    scored = autoshard.score(plan)
    assert plan.step_time_s == pytest.approx(scored.step_time_s, rel=1e-5)
    best = autoshard.search("llama3-8b", seq_len=2048, global_batch=64, cost_model="roofline").fastest(1)
    assert best["tp"] == plan.strategy.tp
    needed = best["memory_bytes"][0], plan.cluster.device.memory_bytes, plan.cluster
    assert best["fits_probability"][0] == fits_probability(*needed)
    assert f" {format_seconds(best['step_time_s'][0])} a step and {format_bytes(best['memory_bytes'][0])}; " in note


def test_a_renderer_shows_a_plan(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *SMALL]) == 0
    capsys.readouterr()
    assert main(["explain", "plan.json", "--format", "one_line"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("llama3-8b: tp=") and line.count("\n") == 1
    assert main(["explain", "plan.json", "--format", "one_line", "--schedule"]) == 2
    assert capsys.readouterr().err == (
        "autoshard: error: --format one_line shows whole plans; --schedule takes text, json, markdown\n"
    )


def test_a_plan_looks_at_no_entry_points(packages: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from autoshard.cli import main; main(sys.argv[1:]); "
        "from autoshard.plugins.found import _entries; sys.exit(_entries.cache_info().misses)"
    )
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    command = [sys.executable, "-c", code, "plan", *SMALL]
    assert subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False).returncode == 0


def test_the_version_holds_the_sources_of_plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps and audits keep what was computed under a version; nothing is imported to say it."""
    versions = [version_with_plugins()]
    for number, code in enumerate(["", "HIDDEN = 1\n", "HIDDEN = 2\n"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        package(folder, "kept-apart", "cost_models", "kept = kept_apart.prices:price", "")
        (folder / "kept_apart.py").unlink()
        (folder / "kept_apart").mkdir()
        (folder / "kept_apart/__init__.py").write_text("raise RuntimeError\n")
        (folder / "kept_apart/sizes.py").write_text(code)
        with monkeypatch.context() as only_here:
            only_here.syspath_prepend(folder)
            versions.append(version_with_plugins())
    assert len(set(versions)) == 4
    assert versions[0] == program_version() and all(one.startswith(f"{versions[0]}.") for one in versions[1:])
    assert version_with_plugins() == versions[0]
    package(tmp_path, "gone-away", "cost_models", "gone = gone_away:price", "")
    (tmp_path / "gone_away.py").unlink()
    monkeypatch.syspath_prepend(tmp_path)
    assert version_with_plugins().startswith(f"{versions[0]}.")


def test_what_fails_to_load_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package(tmp_path, "broken-one", "searchers", "broken = broken_one:go", "import not_there\n")
    package(tmp_path, "number-one", "schedules", "number = number_one:FIVE", "FIVE = 5\n")
    package(tmp_path, "proud", "schedules", "1f1b = proud:MINE", "MINE = None\n")
    package(tmp_path, "twin-a", "renderers", "twin = twin_a:show", "def show(d): return 5\n")
    package(tmp_path, "twin-b", "renderers", "twin = twin_b:show", "def show(d): return 5\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    problems = {(one.group, one.package): one.problem for one in autoshard.installed_plugins()}
    assert problems == {
        (
            "searchers",
            "broken-one 1.0",
        ): "plug-in broken of broken-one 1.0 does not load: ModuleNotFoundError: No module named 'not_there'",
        (
            "schedules",
            "number-one 1.0",
        ): "plug-in number of number-one 1.0 gives 5; autoshard.schedules wants a Schedule",
        ("schedules", "proud 1.0"): "1f1b is built in, and what is built in is taken; give it another name",
        ("renderers", "twin-a 1.0"): "twin-b 1.0 gives the same name; uninstall one of them",
        ("renderers", "twin-b 1.0"): "twin-a 1.0 gives the same name; uninstall one of them",
    }
    assert main(["plugins"]) == 1
    assert "broken  broken-one 1.0, broken_one:go: plug-in broken" in capsys.readouterr().out
    assert main(["plugins", "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["name"] == "1f1b"
    assert main(["plan", *SMALL, "--search", "broken"]) == 2
    assert "plug-in broken of broken-one 1.0 does not load: ModuleNotFoundError" in capsys.readouterr().err
    assert main(["plan", *SMALL, "--schedule", "1f1b"]) == 0  # ours
    with pytest.raises(AutoshardError, match=r"^plug-in twin of autoshard.renderers comes from twin-a 1.0 and from"):
        assert "twin" in RENDERERS
    package(tmp_path, "single-r", "renderers", "single = single_r:show", "def show(d): return 5\n")
    _entries.cache_clear()
    assert "single" in RENDERERS
    assert main(["plan", *SMALL]) == 0
    capsys.readouterr()
    assert main(["explain", "plan.json", "--format", "single"]) == 2
    said = "renderer single (single-r 1.0) gave 5; it must give text"
    assert capsys.readouterr().err == f"autoshard: error: {said}\n"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def go(p, c): return c['tp']", "cost model bad must return (step_time_s, memory_bytes), not ndarray"),
        (
            "def go(p, c): return 1.0, 2.0",
            "cost model bad returned step_time_s of shape (); it wants (N,), one for",
        ),
        (
            "def go(p, c): return c['tp'] * 0, c['tp']",
            "cost model bad returned step_time_s=0 for layout 0; it must be a finite number above 0",
        ),
        (
            "def go(p, c): return c['tp'], c['tp'] * 1e12",
            "fits by the cost model bad (bad-cost 1.0): the smallest",
        ),
    ],
)
def test_a_cost_model_that_is_none_is_refused(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "bad-cost", "cost_models", "bad = bad_cost:go", code + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "bad_cost", raising=False)
    _forget()
    with pytest.raises(AutoshardError) as refused:
        autoshard.plan("llama3.2-1b", nodes=1, seq_len=2048, global_batch=64, backend="nxd", cost_model="bad")
    assert said in re.sub(r"\(\d+,\)", "(N,)", str(refused.value))
    assert isinstance(refused.value, NoLayoutFits) == ("smallest" in said)


TINY_MEMORY = """
import numpy
def tiny(p, c): return c["tp"] * c["pp"] * 1.0, numpy.ones(len(c["tp"]))
def huge(p, c): return numpy.full(len(c["tp"]), 1e308), numpy.ones(len(c["tp"]))
"""


def test_a_cost_model_says_alone_what_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layout that autoshard's memory rules out is asked for, and may be taken."""
    package(tmp_path, "tiny-cost", "cost_models", "tiny = tiny_cost:tiny\nhuge = tiny_cost:huge", TINY_MEMORY)
    monkeypatch.syspath_prepend(tmp_path)
    every: tuple[dict[str, Any], ...] = ({}, {"tp": 1, "pp": 1})
    for pins in every:
        plan = autoshard.plan("llama3-8b", nodes=4, backend="nxd", cost_model="tiny", **pins)
        assert (plan.strategy.tp, plan.strategy.pp) == (1, 1)
        assert any("the layout does not fit, it needs " in note for note in plan.notes)
    slow = autoshard.plan("llama3-8b", nodes=4, cost_model="huge")  # its prices add up to more than a float holds
    assert any("cost model huge (tiny-cost 1.0): " in note for note in slow.notes)


def test_a_searcher_cannot_change_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "def memory(space, rng): space.memory_bytes[:] = 1.0\ndef time(space, rng): space.at_least_s[:] = 1.0\n"
    package(tmp_path, "eraser", "searchers", "memory = eraser:memory\ntime = eraser:time", code)
    package(tmp_path, "plain-cost", "cost_models", "plain = plain_cost:go", "def go(p, c): return c['tp'], c['tp']\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, cost_model in (("memory", "autoshard"), ("time", "autoshard"), ("memory", "plain"), ("time", "plain")):
        said = f"^plug-in {name} of eraser 1.0 fails: ValueError: assignment destination is read-only$"
        with pytest.raises(AutoshardError, match=said):
            autoshard.plan("llama3.2-1b", seq_len=2048, global_batch=64, search=name, cost_model=cost_model, tp=8)


def test_a_searcher_that_returns_no_layout_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "bad-search", "searchers", "bad = bad_search:go", "def go(space, rng): return len(space)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AutoshardError, match=r"^searcher bad returned \d+, which is no layout: 0 to [\d,]+$"):
        autoshard.plan("llama3-8b", seq_len=2048, global_batch=64, search="bad")


def test_a_plan_of_a_plug_in_that_is_missing_says_so(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "eager.json"
    with monkeypatch.context() as there:
        there.syspath_prepend(packages)
        autoshard.plan("llama3-8b", seq_len=2048, global_batch=64, backend="torch", pp=4, schedule="eager").save(file)
    told = "schedule='eager' is not one of: 1f1b, interleaved, gpipe, zero_bubble, or that of an installed plug-in"
    with pytest.raises(AutoshardError, match=f"^{file}: strategy: {told}$"):
        autoshard.read_plan(file)


def test_a_searcher_that_returns_what_it_did_not_price_and_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(
        tmp_path, "blind", "searchers", "blind = blind:go", "def go(space, rng): return space.memory_bytes.argmax()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    said = (
        r"^search=blind returned layout \d+ of llama3-8b on 4 x trn1.32xlarge, which it did not price and which needs "
        r"[\d.]+ GB of [\d.]+ GB; space.price says what fits, search=exact finds one$"
    )
    with pytest.raises(NoneFound, match=said):
        autoshard.plan("llama3-8b", nodes=4, search="blind")


def test_a_searcher_that_prices_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "lazy-one", "searchers", "lazy = lazy_one:go", "def go(space, rng): return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    for limit, cure in ((None, ""), (60.0, "use a time limit above 60 s, or ")):
        with pytest.raises(NoneFound) as refused:
            autoshard.plan("llama3.2-1b", seq_len=2048, global_batch=64, search="lazy", time_limit=limit)
        assert str(refused.value) == (
            "search=lazy priced none of 440 layouts of llama3.2-1b on 1 x trn1.32xlarge; "
            f"{cure}space.price says what fits, search=exact finds one"
        )


def test_a_family_that_fails_to_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = FAMILY_WITH_MISTAKE.split("def read")[0]
    for name, body in (("unread", "return config['nothing']"), ("unmade", "return None")):
        text = f"{code}def read(config, model_type): {body}\n"
        package(tmp_path, f"{name}-family", "models", f"{name} = {name}_family:FAMILY", text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AutoshardError, match=r"^plug-in unread of unread-family 1.0 fails: TypeError: "):
        autoshard.model({**TINY, "model_type": "unread"})
    said = r"^family unmade \(unmade-family 1.0\) reads m as None, which is no ModelSpec$"
    with pytest.raises(AutoshardError, match=said):
        autoshard.model({**TINY, "model_type": "unmade", "_name_or_path": "m"})


@pytest.mark.parametrize(
    ("family", "code", "said"),
    [
        (
            'Family("", package="nowhere_at_all")',
            "",
            (
                "package='nowhere_at_all' of a plug-in's family does not load: ModuleNotFoundError: No module named "
                "'nowhere_at_all'"
            ),
        ),
        (
            'Family("", package="{}_code")',
            "def (\n",
            "package='{}_code' of a plug-in's family does not load: SyntaxError: invalid syntax ({}_code.py, line 1)",
        ),
        (
            'Family("nope", package="{}_code")',
            "",
            (
                "folder='nope' of a plug-in's family needs a package to lie in, and package='{}_code' is a module "
                "alone; folder='' is of such a one"
            ),
        ),
        (
            'Family("", package="{}_code")',
            "",
            "module {}_code of a plug-in's family has no function read; it needs one",
        ),
    ],
)
def test_a_family_whose_modules_are_none_is_said(
    family: str,
    code: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = f"none{len(said)}"
    family, said = family.replace("{}", name), said.replace("{}", name)
    entry = f"from autoshard.models.families import Family\nFAMILY = {family}\n"
    package(tmp_path, name, "models", f"{name} = {name}:FAMILY", entry)
    (tmp_path / f"{name}_code.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    problems = [one.problem for one in autoshard.installed_plugins() if one.package == f"{name} 1.0"]
    assert problems == [said]
    Path("m.json").write_text(json.dumps({**TINY, "model_type": name}))
    assert main(["plan", "--model", "m.json"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("autoshard: error: model config m.json: ") and told.count("\n") == 1
    assert main(["plan", "--model", "not-a-model"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_searcher_may_return_a_number_of_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import numpy\ndef go(space, rng): return numpy.int64(space.fastest())\ndef yes(space, rng): return True\n"
    package(tmp_path, "number-search", "searchers", "number = number_search:go\nyes = number_search:yes", code)
    monkeypatch.syspath_prepend(tmp_path)
    asked: dict[str, Any] = {"seq_len": 2048, "global_batch": 64}
    found = autoshard.plan("llama3.2-1b", **asked, search="number")
    assert found.search is not None and found.search.searcher == "number (number-search 1.0)"
    with pytest.raises(AutoshardError, match=r"^searcher yes returned True, which is no layout: 0 to 439$"):
        autoshard.plan("llama3.2-1b", **asked, search="yes")


def test_what_a_plug_in_raises_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package(tmp_path, "raising-s", "searchers", "raising = raising_s:go", "def go(space, rng): return {}['nope']\n")
    package(tmp_path, "outside-s", "searchers", "outside = outside_s:go", "def go(space, rng): space.price(-1)\n")
    package(tmp_path, "own-words", "searchers", "wordy = own_words:go", OWN_WORDS)
    package(
        tmp_path, "raising-c", "cost_models", "raising = raising_c:go", "def go(p, c): raise ValueError('a\\n\\x1bb')\n"
    )
    package(tmp_path, "raising-r", "renderers", "raising = raising_r:go", "def go(d): return d.nothing\n")
    package(tmp_path, "leaving-s", "searchers", "leaving = leaving_s:go", "def go(space, rng): raise SystemExit(0)\n")
    package(tmp_path, "leaving-l", "cost_models", "leaving = leaving_l:go", "raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    small = ["--model", "llama3.2-1b", "--seq-len", "2048", "--global-batch", "64"]
    few = ["--tp", "2", "--cp", "1", "--pp", "1"]
    autoshard.plan("llama3.2-1b", seq_len=2048, global_batch=64).save("plan.json")
    nothing = "AttributeError: 'Description' object has no attribute 'nothing'"
    for command, said in (
        (["plan", *small, "--search", "raising"], "plug-in raising of raising-s 1.0 fails: KeyError: 'nope'"),
        (
            ["plan", *small, "--search", "outside"],
            "plug-in outside of outside-s 1.0 fails: IndexError: -1 is no layout: 0 to 439",
        ),
        (["plan", *small, "--search", "wordy"], "my words"),
        (["plan", *small, *few, "--cost-model", "raising"], "plug-in raising of raising-c 1.0 fails: ValueError: a b"),
        (["plan", *small, "--search", "leaving"], "plug-in leaving of leaving-s 1.0 fails: SystemExit: 0"),
        (
            ["plan", *small, *few, "--cost-model", "leaving"],
            "plug-in leaving of leaving-l 1.0 does not load: SystemExit: 0",
        ),
        (["explain", "plan.json", "--format", "raising"], f"plug-in raising of raising-r 1.0 fails: {nothing}"),
    ):
        assert main(command) == 2
        assert capsys.readouterr().err == f"autoshard: error: {said}\n"
    grid = {"model": "llama3.2-1b", "seq_len": 2048, "global_batch": 64, "search": ["raising", "random"]}
    for workers in (1, 2):
        table = autoshard.sweep(grid, tmp_path / str(workers), workers=workers).table()
        told = dict(zip(table["search"], zip(table["status"], table["reason"], strict=True), strict=True))
        assert told == {
            "raising": ("invalid", "plug-in raising of raising-s 1.0 fails: KeyError: 'nope'"),
            "random": ("ok", ""),
        }


OWN_WORDS = "import autoshard\ndef go(space, rng): raise autoshard.AutoshardError('my words')\n"


def _forget() -> None:
    """Forgets what was loaded from a package of the same name in another folder."""
    from autoshard.planner.cost_models import COST_MODELS

    COST_MODELS._loaded.clear()
    _entries.cache_clear()


def test_the_roofline_counts_as_by_hand(installed: Path) -> None:
    plan = autoshard.search("llama3-8b", seq_len=2048, global_batch=64, cost_model="roofline", tp=8, pp=1).plan
    columns = {name: np.array([value]) for name, value in _columns(plan).items()}
    from autoshard_roofline import roofline  # type: ignore[import-not-found]

    seconds, _ = roofline((plan.model, plan.training, plan.cluster, plan.backend), columns)
    flops = (6 if plan.strategy.recompute[0] == "none" else 8) * 8_030_261_248 * 64 * 2048
    assert seconds[0] == pytest.approx(flops / (32 * 95e12))


def _columns(plan: autoshard.Plan) -> dict[str, object]:
    strategy = plan.strategy
    names = ("tp", "pp", "dp", "cp", "num_virtual_stages", "microbatch_size", "zero")
    own = {name: getattr(strategy, name) for name in names}
    return {**own, "recompute": strategy.recompute[0], "num_microbatches": plan.num_microbatches}
