"""What `import autoshard` gives: its names and signatures, the same answers as the command line, the same sentences."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import json
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autoshard
from autoshard import AutoshardError, NoLayoutFits
from autoshard.cli import main
from autoshard.interface import watch
from autoshard.interface.inputs import Options
from autoshard.planner.inputs import inputs_of
from autoshard.planner.options import OPTIONS
from autoshard.planner.priced_columns import CHOICES
from autoshard.planner.request import PlanRequest
from autoshard.plans.names import layout_name
from autoshard.spec.dropout import Dropout
from autoshard.spec.prediction import MultiTokenPrediction

SIGNATURES = {
    "audit": "(plan, *, stages=None, use_cache=True)",
    "planbench": "(track=None, *, data='benchmarks/data', out='benchmarks/results', entries=(), evaluations=None, "
    "seeds=None, problems=None, quiet=True)",
    "builtin_models": "()",
    "calibrate": "(*, device=None, results=None, collectives=None, out=None, instance=None, hardware=None, "
    "processes=None, shapes=8, plot=None)",
    "check_machine": "(plan=None)",
    "cluster": "(instance=None, *, nodes=1, lnc=None, hardware=None, sdk=None)",
    "compare": "(one, other=None, *, names=('first', 'second'))",
    "convert_checkpoint": "(source, target, *, adapter=None, plan=None, to=None, dtype=None, model=None, "
    "weights_only=False, xser=False, qkv='gqa', kv_size_multiplier=None)",
    "edit_plan": "(plan, edits=())",
    "explain": "(plan, *, quick=False, time_limit=60.0)",
    "export": "(plan, to)",
    "frontier": "(model, instance=None, *, beaten_path=False, **options)",
    "import_plan": "(file, *, model=None, instance=None, **options)",
    "installed_plugins": "()",
    "instances": "()",
    "list_instances": "(text='')",
    "list_models": "(text='')",
    "launch": "(plan, on='slurm', *, array=None, run=False, program=None, precompile=False, compiled_for=None, "
    "cache=None, partition=None, time_limit=None, image=None, claim=None)",
    "memory": "(plan, *, rank=None)",
    "migrate": "(conf, out='migrated', *, checkpoint=None, model=None, weights_only=False, "
    "instance='trn2.48xlarge', nodes=None, lnc=None, sdk=None, stack='auto')",
    "model": "(given, *, seq_len=None)",
    "plan": "(model, instance=None, *, top=5, exhaustive=False, beaten_path=False, **options)",
    "read_plan": "(path)",
    "replan": "(plan, nodes)",
    "report": "(plan, out=None, *, measured=None, quick=False, time_limit=60.0)",
    "run": "(plan, **options)",
    "score": "(layout, model=None, instance=None, **options)",
    "search": "(model, instance=None, *, top=5, exhaustive=False, beaten_path=False, **options)",
    "sweep": "(grid, out=None, *, run=False, workers=1, scheduler=None, shard=None, wandb=False, "
    "wandb_project='autoshard')",
    "trace": "(plan, out=None, *, measured=None)",
    "validate": "(plan)",
    "why_not": "(plan, layout)",
}
"""Public functions with their arguments. A name that is here stays: people's scripts call it."""
CLASSES = {
    "Audit",
    "AutoshardError",
    "Calibration",
    "Cluster",
    "Comparison",
    "EditedPlan",
    "Explanation",
    "Frontier",
    "Imported",
    "Job",
    "Listing",
    "MachineCheck",
    "Memory",
    "MemoryDiagnosis",
    "Migration",
    "ModelSpec",
    "NoLayoutFits",
    "Plan",
    "Run",
    "Score",
    "SearchResult",
    "Strategy",
    "SweepResult",
    "TrainingSpec",
    "Validation",
    "Why",
}
PUBLIC: Any = autoshard
"""Without its types, to be called wrongly."""
SMALL: dict[str, Any] = {"nodes": 1, "seq_len": 2048, "global_batch": 64}


def test_the_public_names_and_signatures_stay() -> None:
    assert set(PUBLIC.__all__) == {*SIGNATURES, *CLASSES}
    for name, expected in SIGNATURES.items():
        signature = inspect.signature(getattr(autoshard, name))
        bare = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
        assert str(inspect.Signature(bare)) == expected, name


def test_every_public_function_is_documented_with_an_example_or_needs_torch() -> None:
    needs_torch_or_files = {"audit", "calibrate", "convert_checkpoint", "memory", "migrate", "run", "read_plan"}
    needs_torch_or_files |= {"import_plan"}
    for name in set(SIGNATURES) - needs_torch_or_files:
        assert ">>> " in (getattr(autoshard, name).__doc__ or ""), name


def test_options_are_those_of_the_command_line() -> None:
    assert set(Options.__annotations__) == set(OPTIONS) - {"model", "instance"}


@pytest.mark.parametrize(
    "module",
    [
        *("autoshard", "checking", "editing", "exchange", "extensions", "launching", "listing"),
        *("named", "planned", "planning", "questions", "running"),
    ],
)
def test_examples_in_docstrings(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = importlib.import_module(module if module == "autoshard" else f"autoshard.interface.{module}")
    result = doctest.testmod(found)
    assert result.attempted and not result.failed


def test_importing_brings_neither_torch_nor_numpy() -> None:
    code = "import sys, autoshard; sys.exit(bool({'torch', 'numpy', 'jsonargparse', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_plan_is_the_command_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--nodes", "1", "--seq-len", "2048", "--global-batch", "64", "--tp", "8"]
    assert main(["plan", "--model", "llama3-8b", *options]) == 0
    plan = autoshard.plan("llama3-8b", tp=8, **SMALL)
    assert plan == autoshard.read_plan("plan.json")
    assert plan.save("again.json").read_bytes() == Path("plan.json").read_bytes()
    assert plan.step_time_s == plan.estimate.step_time_s and plan.layout.startswith("tp=8 ")
    assert plan.memory_bytes == plan.estimate.fullest.total_bytes
    low, high = plan.step_time_interval_s
    assert low < plan.step_time_s < high


def test_a_table_has_every_priced_layout_and_the_best() -> None:
    result = autoshard.search("llama3-8b", **SMALL)
    columns = result.table()
    assert len({len(column) for column in columns.values()}) == 1
    fitting = columns["fits"] & ~columns["step_time_is_bound"]
    best = result.plan.strategy
    assert columns["step_time_s"][columns["fits"]].min() <= result.plan.step_time_s * (1 + 1e-6)
    assert fitting.any() or best.pp > 1
    devices = columns["tp"] * columns["pp"] * columns["dp"] * columns["cp"]
    assert np.all(devices == result.plan.cluster.world_size)
    for row in np.flatnonzero(columns["pp"] > 1)[:20]:
        assert sum(map(int, columns["stage_layers"][row].split("-"))) == 32
    assert len(result.fastest(3)["tp"]) == 3


def test_a_table_has_the_plan_and_its_runners_up_once_whatever_their_cuts_are() -> None:
    result = autoshard.search("llama3-8b", nodes=4)
    assert result.plan.strategy.stage_layers == (8, 9, 9, 6) and result.plan.strategy.uniform_recompute is None
    fastest, columns = result.fastest(1), result.table()
    assert (fastest["stage_layers"][0], fastest["recompute"][0]) == ("8-9-9-6", "by-stage")
    assert fastest["step_time_s"][0] == pytest.approx(result.plan.step_time_s, rel=1e-5)
    assert not fastest["step_time_is_bound"][0]
    for one in (result.plan.strategy, *(other.strategy for other in result.plan.runners_up)):
        of_it = columns["stage_layers"] == "-".join(map(str, one.stage_layers))
        of_it &= columns["recompute"] == (one.uniform_recompute or "by-stage")
        for name in CHOICES:
            of_it &= columns[name] == getattr(one, name)
        assert (of_it & (columns["axis_order"] == one.axis_order_name)).sum() == 1


def test_no_two_rows_of_a_table_say_the_same_choices() -> None:
    """Choices that are searched only where they are asked for are columns as well."""
    result = autoshard.search("llama3-8b", "h100-80gb", nodes=4, dp_replicate="auto", global_batch=256, tp=1, pp=1)
    columns = result.table()
    assert {*columns["dp_replicate"].tolist()} == {1, 4} and not columns["etp"].any()
    said = [name for name in columns if not name.startswith(("step_time", "memory", "fits"))]
    rows = [*zip(*(columns[name].tolist() for name in said), strict=True)]
    assert len({*rows}) == len(rows)
    experts = autoshard.search("qwen3-30b-a3b", "h100-80gb", nodes=1, etp=1, tp=2, pp=1, cp=1, global_batch=64)
    assert {*experts.table()["etp"].tolist()} == {1}


def test_a_result_is_pickled_with_its_table() -> None:
    result = autoshard.search("llama3-8b", tp=8, cp=1, **SMALL)
    again = pickle.loads(pickle.dumps(result))
    assert again == result and again.page() == result.page()
    assert list(again.table()) == list(result.table())
    assert all(np.array_equal(again.table()[name], column) for name, column in result.table().items())
    assert pickle.loads(pickle.dumps(again)) == result


def test_equal_plans_have_one_hash() -> None:
    one, other = (autoshard.plan("llama3-8b", tp=tp, **SMALL) for tp in (8, 32))
    again = autoshard.read_plan(one.save("plan.json"))
    assert len({one, again, other}) == 2


ROOT = Path(__file__).parents[2]
WORDS = "tp=8 pp=16 mbs=1 recompute=full"


def test_the_best_layout_beside_a_score_fits_as_surely_as_was_asked_for() -> None:
    usual, sure = (
        autoshard.score(WORDS, "llama3-70b", nodes=16, fit_probability=probability) for probability in (None, 0.99)
    )
    assert sure.step_time_s == usual.step_time_s
    assert usual.best is not None and sure.best is not None
    assert usual.best.estimate.fits_probability < 0.99 <= sure.best.estimate.fits_probability
    plan = autoshard.plan("llama3-70b", nodes=16, fit_probability=0.99)
    assert autoshard.score(plan).best == sure.best


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"operators": "solver"}, "operators='solver' of score says how a layout is looked for, and changes no price"),
        ({"objective": "cost"}, "objective='cost' of score says how a layout is looked for"),
        ({"evaluations": 10}, "evaluations=10 of score says how"),
        (
            {"precision": "fp32,mixed_precision"},
            "precision=fp32,mixed_precision: a layout that is given has the price of",
        ),
        ({"precision": "auto"}, "precision=auto: a layout that is given has the price of one precision; give one"),
        ({"lnc": "auto"}, "lnc=auto: a layout that is given has the price of one number of cores; give 1 or 2"),
    ],
)
def test_a_score_refuses_what_would_change_nothing_in_it(option: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        autoshard.score("tp=8 mbs=1", "llama3-8b", "trn2.48xlarge", **option)
    assert str(error.value).startswith(text)
    recipe = ROOT / "recipes" / "llama3_8b_trn1_4nodes.yaml"
    if "lnc" not in option:
        with pytest.raises(AutoshardError, match=r"of score says how|has the price of one precision"):
            autoshard.score(recipe, **option)


@pytest.mark.parametrize(
    "option",
    [
        *({"operators": "solver"}, {"search": "random"}, {"objective": "cost"}, {"tokens": 1e12}),
        *({"fit_probability": 0.5}, {"time_limit": 1.0}),
    ],
)
def test_an_import_refuses_what_it_has_no_use_for(option: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """It searches nothing, not even the best layout that a score has beside it."""
    ((name, value),) = option.items()
    with pytest.raises(AutoshardError) as error:
        autoshard.import_plan("conf.yaml", **option)
    assert str(error.value).startswith(f"{name}={value!r} of import_plan says how a layout is looked for, and changes")
    flag = f"--{name.replace('_', '-')}"
    assert main(["import", "conf.yaml", flag, str(value)]) == 2
    assert capsys.readouterr().err == f"autoshard: error: {flag} is not an option here; see --help\n"


def test_the_score_of_a_recipe_for_the_solver_says_what_it_leaves_out() -> None:
    recipe = ROOT / "recipes" / "operators" / "smollm2_135m_trn1_1chip.yaml"
    text = f"operators=solver: priced as Megatron shards operators; autoshard plan --config {recipe} has the solver's"
    assert text in " ".join(autoshard.score(recipe).page(400, False).split())


def test_a_score_of_words_says_what_it_took_where_they_say_nothing() -> None:
    def said(layout: Any) -> str:
        return " ".join(autoshard.score(layout, "llama3-8b", nodes=4).page(400, False).split())

    both = "taken where the layout does not say: recompute=none and blocks cut evenly into stages; others may be faster"
    assert both in said("tp=8 pp=2")
    assert "taken where the layout does not say: recompute=none; others" in said("tp=8")
    assert "does not say: blocks cut evenly into stages; others" in said("tp=8 pp=2 recompute=full")
    assert "does not say" not in said({"tp": 8, "pp": 2, "stage_layers": (17, 15), "recompute": "full"})


def test_a_score_that_is_faster_than_the_best_says_why() -> None:
    faster = "tp=8 pp=16 mbs=1 recompute=full"
    page = " ".join(autoshard.score(faster, "llama3-70b", nodes=4).page(400, False).split())
    assert "of the best layout: beaten path: the chosen layout has only features of" in page
    too_large = autoshard.score("tp=8 pp=16", "llama3-70b", nodes=16).page(400, False)
    assert "faster, but does not fit" in too_large


def test_a_priced_row_is_what_a_score_says() -> None:
    result = autoshard.search("llama3-8b", pp=1, cp=1, **SMALL)
    columns = result.fastest(1)
    assert not columns["step_time_is_bound"][0]
    words = (
        f"tp={columns['tp'][0]} mbs={columns['microbatch_size'][0]} recompute={columns['recompute'][0]} "
        f"zero={columns['zero'][0]} attention={columns['attention_kernel'][0]}"
    )
    scored = autoshard.score(words, "llama3-8b", **SMALL)
    assert scored.step_time_s == pytest.approx(columns["step_time_s"][0], rel=1e-9)


def test_tables_for_pandas_and_pyarrow() -> None:
    result = autoshard.search("llama3-8b", tp=8, pp=1, **SMALL)
    rows = len(result.table()["tp"])
    pyarrow = pytest.importorskip("pyarrow")
    table = result.table("pyarrow")
    assert isinstance(table, pyarrow.Table) and table.num_rows == rows
    with pytest.raises(AutoshardError, match=r"form='excel' of table must be one of: numpy, pandas, pyarrow"):
        result.table("excel")


def test_models_as_configs_paths_and_values(tmp_path: Path) -> None:
    spec = autoshard.model("llama3.2-1b")
    file = Path(autoshard.__file__).parent / "models/llama/configs/llama3.2-1b.json"
    config = json.loads(file.read_text())
    plans = [autoshard.plan(one, **SMALL) for one in ("llama3.2-1b", file, spec, config)]
    assert len({plan.step_time_s for plan in plans}) == 1
    half = replace(spec, num_hidden_layers=spec.num_hidden_layers // 2)
    assert autoshard.plan(half, **SMALL).step_time_s < plans[0].step_time_s


def test_a_model_as_a_value_keeps_what_training_does_with_it() -> None:
    """The model of a plan with dropout was planned without it, and that of a plan with a prediction module too."""
    dropped = Dropout(embedding=0.1, residual=0.1)
    model = replace(autoshard.model("llama3.2-1b"), dropout=dropped)
    assert inputs_of(PlanRequest(model))[0].dropout == dropped
    assert inputs_of(PlanRequest(model, dropout="0"))[0].dropout == Dropout()
    ahead = replace(autoshard.model("glm-4.5-air"), multi_token_prediction=MultiTokenPrediction(1, 0.3))
    request = PlanRequest(ahead, instance="h100-80gb", nodes=16)
    assert inputs_of(request)[0].multi_token_prediction == MultiTokenPrediction(1, 0.3)
    assert inputs_of(replace(request, mtp_num_layers=1))[0].multi_token_prediction == MultiTokenPrediction(1, 0.3)
    other = inputs_of(replace(request, mtp_loss_scaling_factor=0.2))[0].multi_token_prediction
    assert other == MultiTokenPrediction(1, 0.2)
    assert inputs_of(replace(request, mtp_num_layers=0))[0].multi_token_prediction is None


def test_clusters_are_values() -> None:
    cluster = autoshard.cluster("trn1.32xlarge", nodes=2)
    assert autoshard.plan("llama3-8b", cluster).cluster == cluster
    faster = cluster.with_link(bandwidth=2e10, latency=1e-6)
    assert (faster.inter_node.bandwidth_bytes_per_s, faster.inter_node.latency_s) == (2e10, 1e-6)
    assert faster.with_link(bandwidth=cluster.inter_node.bandwidth_bytes_per_s).inter_node.latency_s == 1e-6
    assert {link.bandwidth_bytes_per_s for _, link in cluster.with_link("intra_node", bandwidth=1e9).intra_node} == {
        1e9
    }
    assert cluster.with_nodes(4) == autoshard.cluster("trn1.32xlarge", nodes=4)


@pytest.mark.parametrize("nodes", [2, 16, 18, 36])
def test_a_rack_is_filled_as_its_file_says(nodes: int) -> None:
    alone = [one for one in autoshard.instances() if autoshard.cluster(one).most_nodes is not None]
    others = [one for one in autoshard.instances() if one not in alone]
    racks = [one for one in others if autoshard.cluster(one, nodes=18).nodes_per_domain > 1]
    assert racks
    for instance in racks:
        assert autoshard.cluster(instance, nodes=18).with_nodes(nodes) == autoshard.cluster(instance, nodes=nodes)


def test_values_show_themselves_in_a_notebook() -> None:
    one, other = (autoshard.plan("llama3-8b", tp=tp, **SMALL) for tp in (8, 32))
    for shown in (one, autoshard.compare(one, other), autoshard.search("llama3-8b", **SMALL)):
        assert repr(shown).startswith(f"<{type(shown).__name__}") and " object at 0x" not in repr(shown)
        page = shown._repr_html_()
        assert "<table>" in page and "tp=8" in page
        assert not any(outside in page for outside in ("http", "src=", "<script", "@import"))
    assert str(one).startswith("llama3-8b on 1 x trn1.32xlarge")
    named = replace(autoshard.model("llama3-8b"), name="<script>alert(1)</script>")
    assert "<script" not in autoshard.plan(named, **SMALL)._repr_html_()


def test_one_line_of_a_table_says_what_it_is_of() -> None:
    models = autoshard.list_models("mixtral")
    assert repr(models) == f"<Listing: mixtral-8x22b and {len(models.rows) - 1} more>"
    assert repr(autoshard.list_models("mixtral 8x7b")) == "<Listing: mixtral-8x7b>"
    plan = autoshard.plan("llama3-8b", **SMALL, tp=8, micro_batch=1, recompute="full")
    edited = autoshard.edit_plan(plan, ["strategy.microbatch_size=2"])
    assert repr(edited) == f"<EditedPlan, fields that changed: 2, {edited.plan!r}>"
    check = autoshard.check_machine(plan)
    assert repr(check) == f"<MachineCheck: {len(check.findings)} findings, of which {len(check.stops)} stop a plan>"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: PUBLIC.plan("llama3-8b", nodess=3), "'nodess' is not an option; did you mean nodes"),
        (lambda: autoshard.plan("llama3-8b", nodes=0), "nodes: 0 must be a whole number of at least 1"),
        (lambda: autoshard.plan("llama3-8b", "trn9"), "instance='trn9' is not known; "),
        (lambda: PUBLIC.plan("llama3-8b", beaten_path="no"), "beaten_path='no' must be True or False"),
        (lambda: PUBLIC.search("llama3-8b", exhaustive=1), "exhaustive=1 must be True or False"),
        (
            lambda: PUBLIC.plan(3),
            "model=3 must be a name, the path or the contents of a config.json, or a torch module",
        ),
        (
            lambda: autoshard.plan("llama3-8b", autoshard.cluster(), lnc=1),
            "lnc=1 beside a cluster, which has decided that; leave it out",
        ),
        (
            lambda: autoshard.plan("llama3-8b", autoshard.cluster(nodes=2), nodes=3),
            "nodes=3 beside a cluster with nodes=2; leave it out, or give cluster.with_nodes(3)",
        ),
        (lambda: autoshard.plan({"model_type": "none"}), "model_type='none' of none is not supported; "),
        (lambda: autoshard.score("tp=8"), "score of a layout in words needs a model: score 'tp=8 pp=4' -"),
        (
            lambda: autoshard.score("tq=8", "llama3-8b"),
            "the layout has 'tq'; a layout has: tp, pp, dp, cp, ep, etp, vpp, mbs",
        ),
        (lambda: autoshard.score("tp=8", "llama3-8b", tp=4), "tp beside a layout, which has it; say it there"),
        (lambda: autoshard.score({"tpp": 8}, "llama3-8b"), "the layout has 'tpp'; a strategy has: attention_kernel"),
        (lambda: autoshard.search("llama3-8b", objective="cost"), "a search has one cluster and one precision"),
        (lambda: autoshard.sweep({"model": "llama3-8b", "nodes": 2}), "sweep sweep must have a grid: option names"),
        (lambda: autoshard.plan("llama3-8b", top=-1), "top: -1 must be a whole number of at least 0"),
        (lambda: autoshard.plan("llama3-8b", top=2.5), "top: 2.5 must be a whole number of at least 0"),  # type: ignore[arg-type]
        (lambda: autoshard.score({"tp": "x"}, "llama3-8b"), "tp='x' of the layout must be a whole number from 1 to "),
        (lambda: autoshard.score({"etp": "x"}, "llama3-8b"), "etp='x' of the layout must be a whole number from 1 to "),
        (lambda: autoshard.score({"axis_order": 5}, "llama3-8b"), "axis_order=5 of the layout must be a word"),
        (
            lambda: autoshard.score({"stage_layers": 5}, "llama3-8b"),
            "stage_layers=5 of the layout must be blocks of each",
        ),
        (lambda: autoshard.read_plan(None), "plan=None must be the path of a file"),  # type: ignore[arg-type]
        (lambda: autoshard.validate(None), "plan=None must be the path of a file"),  # type: ignore[arg-type]
        *(
            (partial(getattr(autoshard, name), "plan.json", *rest), f"plan='plan.json' of {name} must be a plan; ")
            for name, *rest in (
                *(["explain"], ["why_not", "tp=8"], ["compare", "x"], ["trace"], ["audit"], ["memory"]),
                *(["export", "nxdt"], ["replan", "1"], ["report"], ["run"], ["check_machine"]),
            )
        ),
        (
            lambda: autoshard.compare(*[autoshard.plan("llama3-8b", **SMALL)] * 2, names=("a",)),  # type: ignore[arg-type]
            "names=('a',) of compare must be two words, one for each plan",
        ),
        (
            lambda: autoshard.compare(autoshard.plan("llama3-8b", **SMALL)),
            "compare takes two plans, not one: autoshard.compare(plan, other)",
        ),
        (
            lambda: autoshard.why_not(autoshard.plan("llama3-8b", **SMALL), 5),  # type: ignore[arg-type]
            "the layout 5 must be name=value with blanks between, such as 'tp=8 pp=16'",
        ),
        (
            lambda: PUBLIC.cluster(nodes=None),
            "nodes=None of the cluster must be a whole number from 1 to 1,000,000,000",
        ),
        (lambda: PUBLIC.cluster([8]), "instance=a list of 1 is not known; "),
        (lambda: PUBLIC.cluster().with_nodes([8]), "nodes=a list of 1 of cluster trn1.32xlarge must be a whole number"),
        (lambda: PUBLIC.edit_plan(None, ["a=1"]), "plan=None of edit_plan must be a plan, or the path of its file"),
        *(
            (
                partial(PUBLIC.edit_plan, "none.json", edits),
                f"edits={said} of edit_plan must be texts, such as ['strategy.microbatch_size=2']",
            )
            for edits, said in ((5, "5"), ([5], "a list of 1"), ("a=1", "'a=1'"))
        ),
        (lambda: PUBLIC.sweep(None), "grid=None of sweep must be options of plan, or the path of a sweep file"),
        (lambda: autoshard.plan("llama3-8b", tokens=10**400), "... must be at most 1e+100"),
        *(
            (
                partial(PUBLIC.score, {"tp": value}, "llama3-8b"),
                f"tp={said} of the layout must be a plain value",
            )
            for value, said in ((np.full((2, 2), 8), "array([[8, 8], [8, 8]])"), (int, "<class 'int'>"))
        ),
        (lambda: autoshard.read_plan("a\nb"), "plan 'a\\nb' does not exist"),
        (lambda: autoshard.calibrate(hardware="x.json"), "hardware needs results or collectives"),
        (
            lambda: autoshard.cluster("trn1.32xlarge").with_link("x"),
            "which='x' of with_link must be one of: inter_node",
        ),
        (
            lambda: autoshard.cluster("trn1.32xlarge").with_link(latency=-1.0),
            "latency_s=-1.0 of link network adapter must be a finite number of at least 0",
        ),
        (
            lambda: autoshard.cluster("trn1.32xlarge").with_link("intra_domain", bandwidth=1.0),
            "with_link('intra_domain'): trn1.32xlarge has no links between nodes but the network",
        ),
        (lambda: autoshard.export(autoshard.plan("llama3-8b", **SMALL), "x"), "to='x' of export must be one of: nxdt"),
        (lambda: autoshard.read_plan("none.json"), "none.json"),
        (lambda: autoshard.validate("none.json"), "none.json"),
        (lambda: autoshard.launch("none.json", "pbs"), "on='pbs' of launch must be one of: slurm, kubernetes"),
        (lambda: autoshard.launch("none.json"), "none.json"),
        (
            lambda: autoshard.launch(autoshard.plan("llama3-8b", **SMALL)),  # type: ignore[arg-type]
            " of launch must be the path of a file that all nodes see; save of a plan writes one",
        ),
        (
            lambda: autoshard.plan("llama3-8b", tokens=1e308, price_per_node_hour=1e10),
            "tokens: 1e+308 must be at most 1e+100",
        ),
        (lambda: autoshard.convert_checkpoint("none", "new"), "none is not a folder with weights"),
        (
            lambda: autoshard.convert_checkpoint("s3://a", "new"),
            "source=s3://a: convert reads and writes folders of this machine; ",
        ),
        (lambda: autoshard.migrate("none.yaml", "new"), "none.yaml"),
        (
            lambda: autoshard.edit_plan(autoshard.plan("llama3-8b", **SMALL)),
            "edit_plan of a plan needs edits, such as ['strategy.microbatch_size=2']",
        ),
        (
            lambda: autoshard.edit_plan(autoshard.plan("llama3-8b", **SMALL), ["strategy.tpp=2"]),
            "strategy has a field that is not known: 'tpp'; known: tp, ",
        ),
    ],
)
def test_a_mistake_is_one_sentence(call: Any, words: str) -> None:
    with pytest.raises(AutoshardError) as raised:
        call()
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    plain = autoshard.score({"tp": 8, "axis_order": "dp-pp-cp-tp"}, "llama3-8b", **SMALL)
    numpy = {"tp": np.int64(8), "axis_order": ("dp", "pp", "cp", "tp")}
    assert autoshard.score(numpy, "llama3-8b", **SMALL).to_dict() == plain.to_dict()
    found = autoshard.sweep({"model": "llama3-8b", "tp": np.array([8, 32]), **SMALL}, tmp_path)
    assert repr(found) == f"<SweepResult, tp (2): 2 points, {tmp_path}>"
    assert found.table()["tp"] == [8, 32]
    model, layout = autoshard.model("llama3-8b"), autoshard.plan("llama3-8b", tp=8, **SMALL).strategy
    same = replace(model, num_hidden_layers=np.int64(32), rope_theta=np.float32(5e5), dropout=replace(model.dropout))
    assert same == model and type(same.num_hidden_layers) is int and type(same.rope_theta) is float
    assert type(replace(layout, tp=np.int64(8)).tp) is int


def test_a_layout_is_scored_in_the_words_of_a_page() -> None:
    plan = autoshard.plan("llama3-8b", tp=8, **SMALL)
    apart = replace(plan.strategy, sequence_parallel=not plan.strategy.sequence_parallel)
    for strategy in (plan.strategy, apart):
        words = layout_name(strategy)
        assert autoshard.score(words, "llama3-8b", **SMALL).score.strategy == strategy
    assert "sp=off" in layout_name(apart)


def test_memory_says_that_it_needs_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "autoshard.allocations.record", raising=False)
    for name in [name for name in sys.modules if name.startswith("autoshard.audits.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        AutoshardError, match=r"^memory needs torch: pip install 'autoshard\[torch\]' \(torch is missing\)$"
    ):
        autoshard.memory(autoshard.plan("llama3-8b", **SMALL))


def test_what_does_not_fit_is_an_error_of_its_own() -> None:
    with pytest.raises(NoLayoutFits):
        autoshard.plan("llama3.1-405b", "trn1.2xlarge", nodes=1)


def test_an_interrupt_gives_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "is_interactive", lambda: True)
    asked = watch._Watch.__call__

    def interrupted(self: watch._Watch) -> bool:
        if asked(self):
            self.on_interrupt(2, None)
        return asked(self)

    monkeypatch.setattr(watch._Watch, "__call__", interrupted)
    plan = autoshard.plan("llama3-70b", nodes=16)
    assert plan.search is not None and plan.search.optimality.startswith("stopped when it was interrupted: within ")


def test_a_second_interrupt_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    found = watch._Watch("planning", sys.stderr)
    found.on_interrupt(2, None)
    assert not found()
    with pytest.raises(KeyboardInterrupt):
        found.on_interrupt(2, None)


def test_a_search_that_nobody_watches_is_not_interrupted() -> None:
    with watch.watched("planning"):
        from autoshard.planner.watching import goes_on

        assert goes_on()


def test_a_value_that_contradicts_itself_is_not_valid() -> None:
    plan = autoshard.plan("llama3-8b", tp=8, **SMALL)
    assert autoshard.validate(plan).plan == plan
    wrong = replace(plan, strategy=replace(plan.strategy, dp=plan.strategy.dp * 2))
    with pytest.raises(AutoshardError, match="strategy"):
        autoshard.validate(wrong)


def test_prices_of_another_strategy_are_told(tmp_path: Path) -> None:
    plan = autoshard.plan("llama3-8b", tp=8, **SMALL)
    assert autoshard.validate(plan).notes == ()
    other = next(one for one in plan.runners_up if one.strategy.tp == 8)
    changed = replace(plan, strategy=other.strategy, pins=type(plan.pins)(), runners_up=())
    (told,) = autoshard.validate(changed).notes
    expected = f"{other.estimate.step_time_s:.3g} s a step"
    assert told.startswith("its prices are not this cost model's: ") and expected in told
    assert told.endswith("; they are of another strategy, or of another version")
    (told,) = autoshard.validate(changed.save(tmp_path / "changed.json")).notes
    assert "its prices are not this cost model's" in told and expected in told


def test_what_stops_a_plan_here_and_its_job(tmp_path: Path) -> None:
    plan = autoshard.plan("llama3-8b", nodes=2)
    found = autoshard.check_machine(plan)
    assert found.stops and {one["level"] for one in found.to_list()} >= {"stops"}
    assert f"stop {plan.title} on this machine" in found.page().replace("stops", "stop")
    assert autoshard.check_machine().stops == ()
    file = plan.save(tmp_path / "plan.json")
    job = autoshard.launch(file, partition="trn1")
    assert job.save(tmp_path / "job.sh").read_text() == job.text and "#SBATCH --partition=trn1" in job.text
    assert any("never on NeuronCores" in note for note in job.notes)
    assert "kind: PyTorchJob" in autoshard.launch(file, "kubernetes", image="a/b:1").text


def test_no_table_of_a_search_is_sure_that_a_layout_fits() -> None:
    found = autoshard.search("llama3-8b", nodes=4)
    cells = re.findall(r"\| ([^|]*) \|$", found.markdown(), flags=re.MULTILINE)[2:]
    assert len(cells) == 1 + len(found.plan.runners_up)
    assert "more than 99.9 %" in cells and all(cell.endswith(" %") and "100" not in cell for cell in cells)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("audit", {"stages": 0}, "stages=0 of audit must be pipeline ranks, such as [0, 7]"),
        ("audit", {"stages": "0"}, "stages='0' of audit must be pipeline ranks, such as [0, 7]"),
        (
            "convert_checkpoint",
            {"source": None, "target": "out"},
            "source=None of convert_checkpoint must be the path of a folder",
        ),
        (
            "convert_checkpoint",
            {"source": "in", "target": "out", "plan": "plan.json"},
            "plan='plan.json' of convert_checkpoint must be a plan; autoshard.read_plan reads one from its file",
        ),
        (
            "convert_checkpoint",
            {"source": "in", "target": "out", "dtype": ["float32"]},
            "dtype=['float32'] is not one of: bfloat16, float16, float32, float64",
        ),
        ("calibrate", {"results": []}, "results=a list of 0 of calibrate must be paths of CSV files, one at least"),
        ("calibrate", {"results": "a.csv"}, "results='a.csv' of calibrate must be paths of CSV files, one at least"),
    ],
)
def test_values_of_other_types_are_told_in_a_line(name: str, given: dict[str, Any], message: str) -> None:
    if name == "audit":
        given = {"plan": autoshard.plan("llama3-8b", nodes=1)} | given
    with pytest.raises(AutoshardError) as raised:
        getattr(autoshard, name)(**given)
    assert str(raised.value) == message


def test_a_path_no_file_can_have() -> None:
    with pytest.raises(AutoshardError) as raised:
        autoshard.plan("llama3-8b", nodes=1).save("a\0b")
    assert str(raised.value) == "plan a\0b cannot be written: embedded null byte"


WORDS_OF_OPTIONS = {
    *("planner.options", "planner.request", "runtime.options", "runtime.learning_rate", "sweeps.outcome"),
    *("spec.sdk", "spec.stack", "conversion.forms", "migration.target", "interop.export"),
    *("explanation.renderers", "plugins.table"),
}
"""Modules with the values that options take, which a command needs before it is run."""
FOR_COMMANDS = {"interface", "commands", "errors", "units", "files"}


def outside_the_interface(source: str) -> set[str]:
    """What a command imports of autoshard beside the interface, the words of options, and what reads and prints."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("autoshard."):
            names.add(str(node.module).removeprefix("autoshard."))
        elif isinstance(node, ast.Import):
            names |= {one.name.removeprefix("autoshard.") for one in node.names if one.name.startswith("autoshard.")}
    return {name for name in names if name.partition(".")[0] not in FOR_COMMANDS and name not in WORDS_OF_OPTIONS}


@pytest.mark.parametrize(
    "file", sorted(Path(autoshard.__file__).parent.glob("commands/*.py")), ids=lambda file: file.stem
)
def test_the_command_line_calls_nothing_but_the_interface(file: Path) -> None:
    """`serve` starts the server, whose pages call the interface."""
    allowed = {"server.app", "server.isolated"} if file.stem == "serve" else set()
    assert outside_the_interface(file.read_text(encoding="utf-8")) == allowed


def test_a_command_that_goes_past_the_interface_is_seen() -> None:
    late = "def run() -> None:\n    from autoshard.planner.search import search\n    import autoshard.cost\n"
    assert outside_the_interface(late) == {"planner.search", "cost"}
