"""A plan that anything is wrong with is refused in one line that names field, value and what would work."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoshard.cli import main
from autoshard.errors import AutoshardError
from autoshard.layout.strategy import Strategy
from autoshard.plans.plan import Plan, made_by
from autoshard.plans.plan_json import SECTIONS, digest, plan_to_dict, plan_to_json, write_plan
from autoshard.plans.prices import other_prices, priced
from autoshard.plans.search_result import Pins
from autoshard.plans.validate import MAX_PLAN_BYTES, chosen_from_dict, plan_from_dict, read_plan, read_plan_and_notes
from autoshard.spec.cluster import Cluster, Device
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MODEL_TYPES
from autoshard.spec.training import Precision, TrainingSpec
from tests.cases import ALL
from tests.multiprocess.models import LLAMA
from tests.multiprocess.plans import plan_of
from tests.multiprocess.plans import strategy as small_strategy
from tests.traced_models import ODD
from tests.unit.plan_examples import plan_70b, plan_interleaved, plan_mixtral, plan_one_device, strategy
from tests.unit.plan_mutations import meaning, mutated

EXAMPLES = {
    make.__name__: json.loads(plan_to_json(make()))
    for make in (plan_70b, plan_mixtral, plan_interleaved, plan_one_device)
}
REMOVED = type("Removed", (), {"__repr__": lambda self: "removed"})()


def changed(path: str, value: object, plan: str = "plan_70b") -> dict[str, Any]:
    """A copy with one field changed or removed. path: 'stages.3.first_layer'."""
    data: dict[str, Any] = copy.deepcopy(EXAMPLES[plan])
    *parents, last = [int(part) if part.isdecimal() else part for part in path.split("/")]
    node: Any = data
    for part in parents:
        node = node[part]
    if value is REMOVED:
        del node[last]
    else:
        node[last] = value
    return data


CASES: list[tuple[str, object, str]] = [
    ("format_version", 9, "plan.json has format_version 9; this autoshard reads 1 and 2"),
    ("format_version", "1", "plan.json has format_version '1'; this autoshard reads 1 and 2"),
    ("format_version", True, "plan.json has format_version True; this autoshard reads 1 and 2"),
    ("format_version", REMOVED, "this is not a plan: it lacks format_version"),
    ("mesh", REMOVED, "plan lacks mesh"),
    ("extra", 1, f"plan has a field that is not known: 'extra'; known: {', '.join(SECTIONS)}"),
    ("backend", "jax", "backend='jax' must be one of: nxd, torch"),
    ("inputs/model/hidden_size", REMOVED, "inputs.model lacks hidden_size"),
    ("strategy/tp", "32", "strategy: tp='32' must be a whole number of at least 1"),
    ("strategy/tp", REMOVED, "strategy has no tp"),
    ("strategy", [], "strategy must be an object with named fields, not a list of 0"),
    (
        "strategy/dp",
        4,
        "strategy: tp=32 x pp=8 x dp=4 x cp=1 is 1,024 devices; 16 x trn1.32xlarge has 512",
    ),
    (
        "inputs/cluster/nodes",
        8,
        "strategy: tp=32 x pp=8 x dp=2 x cp=1 is 512 devices; 8 x trn1.32xlarge has 256",
    ),
    (
        "inputs/training/global_batch_size",
        1023,
        "strategy: dp=2 x microbatch_size=1 must divide global_batch_size=1023",
    ),
    (
        "inputs/model/intermediate_size",
        28671,
        "strategy: tp=32 must divide intermediate_size=28671 of llama3-70b",
    ),
    (
        "strategy/stage_layers",
        [10] * 7 + [9],
        "strategy: stage_layers=[10, 10, 10, 10, 10, 10, 10, 9] is 79 blocks; llama3-70b has 80",
    ),
    (
        "strategy/stage_layers",
        [10] * 7,
        "strategy: stage_layers has 7 stages; pp=8 x num_virtual_stages=1 needs 8, such as [8, 9, 9, 9, 9, 9, 9, 8]",
    ),
    ("stages/3/first_layer", 31, "stages[3].first_layer is 31, but strategy.stage_layers gives 30"),
    ("stages/3/stop_layer", 41, "stages[3].stop_layer is 41, but strategy.stage_layers gives 40"),
    ("stages/7", REMOVED, "stages has 7 entries, but strategy.stage_layers gives 8"),
    ("stages/0/has_head", 0, "stages[0].has_head is 0, but strategy.stage_layers gives False"),
    ("mesh/axes/0/size", 4, "mesh.axes[0].size is 4, but the degrees in strategy give 2"),
    ("mesh/pp", 4, "mesh.pp is 4, but the degrees in strategy give 8"),
    ("schedule/num_microbatches", 256, "schedule.num_microbatches is 256, but inputs and strategy give 512"),
    ("schedule/extra", 1, "schedule has 'extra', which does not belong there; inputs and strategy give name, num_microbatches, num_virtual_stages"),  # noqa: E501
    ("recompute/core_attention/0", "x", "recompute.core_attention[0] is 'x', but strategy.recompute gives 'model.layers.*.self_attn.core_attention'"),  # noqa: E501
    ("optimizer/zero", 0, "optimizer.zero is 0, but strategy and inputs.training.precision give 1"),
    ("precision/compute_dtype", "float32", "precision.compute_dtype is 'float32', but inputs.training.precision gives 'bfloat16'"),  # noqa: E501
    (
        "operators/model.layers.*.mlp.up_proj/choice/tp0",
        "I",
        "operators.model.layers.*.mlp.up_proj.choice.tp0 is 'I'; with this strategy and backend nxd it can be: ffn",
    ),
    (
        "operators/model.layers.*.mlp.up_proj/choice/dp",
        "seq",
        "operators.model.layers.*.mlp.up_proj.choice.dp is 'seq'; with this strategy and backend nxd it can be: batch",
    ),
    (
        "operators/model.layers.*.mlp.up_proj/choice/tp0",
        REMOVED,
        "operators.model.layers.*.mlp.up_proj.choice lacks 'tp0'; strategy gives 'ffn'",
    ),
    (
        "operators/model.norm/choice/tp0",
        "I",
        "parameters.model.norm.weight.gradient_sync has 3 entries, but inputs, strategy and operators give 2",
    ),
    (
        "parameters/lm_head.weight/shape/0",
        128000,
        "parameters.lm_head.weight.shape[0] is 128000, but inputs, strategy and operators give 128256",
    ),
    ("activations/loss", REMOVED, "activations lacks 'loss'; inputs, strategy and operators give an object of 2"),
    ("collectives/0/forward/0/bytes", 1, "collectives[0].forward[0].bytes is 1, but inputs, strategy and operators give 134217728"),  # noqa: E501
    ("inputs/pins/tp", 8, "inputs.pins.tp is 8, but strategy.tp is 32"),
    ("estimate/step_time_s", 300, "estimate.time_terms add up to 180 s, but estimate.step_time_s is 300 s"),
    ("estimate/step_time_s", None, "estimate.step_time_s is None; it must be a finite number above 0"),
    ("estimate/time_terms", {}, "estimate.time_terms is empty; it must hold at least one term"),
    ("estimate/time_terms/attention", -1, "estimate.time_terms.attention is -1; it must be a finite number of at least 0"),  # noqa: E501
    ("estimate/time_terms/attention", math.inf, "estimate.time_terms.attention is inf; it must be a finite number of at least 0"),  # noqa: E501
    ("estimate/tokens_per_s", 1, "estimate.tokens_per_s is 1, but inputs and estimate.step_time_s give 46512.2"),
    ("estimate/mfu", 0.5, "estimate.mfu is 0.5, but inputs and estimate.step_time_s give 0.249511"),
    ("estimate/memory/7", REMOVED, "estimate.memory has 7 pipeline ranks, but pp=8"),
    ("estimate/memory/1/pipeline_rank", 0, "estimate.memory[1].pipeline_rank is 0, but its place in the list gives 1"),
    ("estimate/memory/0/total_bytes", 1e9, "estimate.memory[0].terms add up to 7,335,155,000 bytes, but total_bytes is 1,000,000,000"),  # noqa: E501
    ("search/fit_probability", 1, "search.fit_probability is 1; it must be below 1: nothing fits for sure"),
    ("search/fitting", 1251, "search.considered is 1,250, but search.fitting and search.rejections add up to 2,451"),
    ("search/rejections/0/count", -1, "search.rejections[0].count is -1; it must be a whole number of at least 0"),
    ("runners_up/0/loses", "nothing", "runners_up[0].loses is 'nothing', but the rest of the plan gives '+16.0 s recompute, +5.33 s tensor-parallel collectives'"),  # noqa: E501
    ("runners_up/1/strategy/tp", 5, "runners_up[1].strategy: tp=5 x pp=4 x dp=4 x cp=1 is 80 devices; 16 x trn1.32xlarge has 512"),  # noqa: E501
    ("runners_up", {}, "runners_up is an object of 0; it must be a list"),
    ("notes/0", "two\nlines", "notes[0] is 'two\\nlines'; it must be 1 to 2,000 printable characters"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value", "message"), CASES, ids=[f"{path}={value!r}"[:60] for path, value, _ in CASES]
)
def test_one_line_names_what_is_wrong(path: str, value: object, message: str) -> None:
    with pytest.raises(AutoshardError) as caught:
        plan_from_dict(changed(path, value))
    assert str(caught.value) == message


def test_stages_that_share_a_table_hold_the_same_pieces_of_it() -> None:
    plan = plan_of(replace(LLAMA, tie_word_embeddings=True), small_strategy(tp=2, pp=2), 2)
    others = {**plan.operators, "lm_head": {**plan.operators["lm_head"], "tp": "embed"}}
    with pytest.raises(AutoshardError) as caught:
        plan_from_dict(plan_to_dict(priced(replace(plan, operators=others))))
    assert str(caught.value) == (
        "operators: the first and the last stage share model.embed_tokens.weight, which they would hold as tp=vocab "
        "and tp=embed, or sum its gradient over other axes; its operators must choose alike, as by Megatron's rule"
    )


def test_not_an_object() -> None:
    with pytest.raises(AutoshardError, match=r"^a plan must be an object with named fields, not a list of 0$"):
        plan_from_dict([])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\x00\xff\xfe", "is not UTF-8; save it as UTF-8"),
        (b"[" * 100_000, "nested deeper than 100 levels"),
        (plan_to_json(plan_70b())[:5000].encode(), "the JSON ends too early; the file was cut off"),
        (plan_to_json(plan_70b()).replace('"mfu": ', '"mfu": NaN, "x": ', 1).encode(), "NaN is not a finite number of a usable size"),  # noqa: E501
        (plan_to_json(plan_70b()).replace('"format_version": 2,', '"format_version": 2, "format_version": 1,').encode(), "'format_version' is given twice in one object; keep one"),  # noqa: E501
        (b'{"format_version": 9}', "plan.json has format_version 9; this autoshard reads 1 and 2"),
    ],
    ids=["empty", "binary", "deep", "truncated", "nan", "twice", "version"],
)  # fmt: skip
def test_broken_files(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(AutoshardError) as caught:
        read_plan(path)
    assert str(path) in str(caught.value)
    assert str(caught.value).endswith(message)
    assert "\n" not in str(caught.value)


def test_a_200_mb_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with path.open("wb") as file:
        file.truncate(200_000_000)
    with pytest.raises(
        AutoshardError, match=rf"^plan {path} has 200 MB, more than the 8.00 MB that are read; is it the right file\?$"
    ):
        read_plan(path)
    assert MAX_PLAN_BYTES == 8e6


def leaves(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(node, dict):
        return [leaf for key, child in node.items() for leaf in leaves(child, (*path, key))]
    if isinstance(node, list):
        return [leaf for index, child in enumerate(node) for leaf in leaves(child, (*path, index))]
    return [path]


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.integers(0, 64),
    st.floats(),
    st.sampled_from(
        ["", "tp", "dp", "seq", "I", "R", "none", "full", "flash", "plain", "float32", "bfloat16", "trn2", "gpt2"]
    ),
    st.text(max_size=5),
    st.sampled_from([[], {}, [1], {"a": 1}]),
)


@settings(max_examples=400 if ALL else 100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), name=st.sampled_from(sorted(EXAMPLES)))
def test_any_changed_leaf_is_refused_or_kept(data: st.DataObject, name: str) -> None:
    """Never another exception, and never a plan that says other than the file."""
    plan = copy.deepcopy(EXAMPLES[name])
    *parents, last = data.draw(st.sampled_from(leaves(plan)))
    node = plan
    for part in parents:
        node = node[part]
    old = node[last]
    near = [st.just(old * 2), st.just(old + 1), st.just(old - 1)] if type(old) in (int, float) else []
    node[last] = data.draw(st.one_of(values, *near))
    try:
        read = plan_from_dict(plan)
    except AutoshardError as error:
        assert str(error).isprintable()  # noqa: PT017 - both ways out are right
        return
    assert plan_to_dict(read) == plan


LONGEST_ERROR = len(", ".join(MODEL_TYPES)) + 200
"""Characters: one error names all families, and says little else."""
WRONG: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    math.inf,
    "",
    "x",
    "a" * 5000,
    [],
    [1],
    ["x"],
    [[]],
    [{}],
    [["a", "b"]],
    {},
    {"a": 1},
)
"""Values that most fields do not take, and some do."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_field_of_a_request_takes_a_wrong_value_with_another_exception_than_a_short_error(name: str) -> None:
    """Every field of every object that a plan was searched for, also those that this plan leaves out."""
    plan = {part: copy.deepcopy(EXAMPLES[name][part]) for part in ("inputs", "strategy", "backend")}
    inputs = plan["inputs"]
    kinds: dict[type[Any], dict[str, Any]] = {
        ModelSpec: inputs["model"],
        TrainingSpec: inputs["training"],
        Precision: inputs["training"]["precision"],
        Cluster: inputs["cluster"],
        Device: inputs["cluster"]["device"],
        Pins: inputs["pins"],
        Strategy: plan["strategy"],
    }
    for kind, said in kinds.items():
        for field in (field.name for field in fields(kind)):
            before = dict(said)
            for value in WRONG:
                said[field] = value
                try:
                    chosen_from_dict(plan)
                except AutoshardError as error:
                    assert str(error).isprintable() and len(str(error)) < LONGEST_ERROR, (field, value)  # noqa: PT017
            said.clear()
            said.update(before)


CHANGED = f"the file was changed after {made_by()} made it; `autoshard replan` makes such changes on purpose"


@lru_cache
def real_plans() -> dict[str, Plan]:
    """With the cost model's own estimates: NxD with recompute by stage, experts, ZeRO-3 with cp, a traced module."""
    by_stage = strategy(recompute=("core_attention",) * 3 + ("none",) * 5)
    sharded = small_strategy(dp=2, cp=2, zero=3, attention="ring", layers=(4,))
    return {
        "dense": priced(replace(plan_70b(), strategy=by_stage)),
        "experts": priced(plan_mixtral()),
        "zero-3 and cp": plan_of(LLAMA, sharded, 2),
        "traced": plan_of(ODD, small_strategy(tp=2, pp=2, dp=2), 4),
    }


@lru_cache
def real_texts() -> dict[str, str]:
    return {name: plan_to_json(plan) for name, plan in real_plans().items()}


EDITS: list[tuple[str, object, str]] = [
    ("inputs/model/norm_eps", 1e-4, ""),
    ("inputs/model/rope_theta", 10000, ""),
    ("inputs/model/sliding_window", 8192, ""),
    ("inputs/training/expert_capacity_factor", 2, ""),
    ("inputs/cluster/inter_node/bandwidth_bytes_per_s", 1e9, "estimate"),
    ("inputs/cluster/intra_node/3/link/bandwidth_bytes_per_s", 1e9, "estimate"),
    ("inputs/cluster/price_per_node_hour_usd", 1, ""),
    ("inputs/pins/dp", 2, ""),
    ("estimate/fits_probability", 0.5, "estimate.fits_probability"),
    ("estimate/step_time_low_s", 1, "estimate.step_time_low_s"),
    ("search/optimality", "it is", ""),
    ("notes/0", "another note", ""),
    ("made_by", "autoshard 0.0.9", ""),
    ("sha256", "0" * 64, ""),
]
"""Fields that nothing else in the plan contradicts. What the error begins with, where prices tell of the change."""


@pytest.mark.parametrize(("path", "value", "begins"), EDITS, ids=[path for path, _, _ in EDITS])
def test_a_field_that_nothing_contradicts_is_refused(path: str, value: object, begins: str) -> None:
    plan = json.loads(real_texts()["dense"])
    *parents, last = [int(part) if part.isdecimal() else part for part in path.split("/")]
    node = plan
    for part in parents:
        node = node[part]
    node[last] = value
    with pytest.raises(AutoshardError) as caught:
        plan_from_dict(plan)
    assert str(caught.value).startswith(begins or "sha256 is not that of the other fields: ")
    assert str(caught.value).endswith(CHANGED.replace(made_by(), plan["made_by"]))


def test_recompute_reversed_is_told_by_its_price() -> None:
    plan = json.loads(real_texts()["dense"])
    plan["strategy"]["recompute"].reverse()
    said = real_plans()["dense"].estimate.step_time_s
    with pytest.raises(AutoshardError) as caught:
        plan_from_dict(plan)
    prefix = f"estimate.step_time_s is {said:.6g}, but inputs and strategy give "
    assert str(caught.value).startswith(prefix)
    assert float(str(caught.value)[len(prefix) :].partition(":")[0]) != said


def test_lnc_of_a_trn1_is_1() -> None:
    with pytest.raises(AutoshardError) as caught:
        plan_from_dict(changed("inputs/cluster/lnc", 2))
    assert str(caught.value) == "lnc=2 of cluster trn1.32xlarge must be 1, as its layout_rules=trn1 say"


def test_what_means_the_same_is_read() -> None:
    """Other blanks, order of names, and 1.0 for 1."""
    plan = json.loads(real_texts()["dense"])
    plan["inputs"]["model"]["rope_theta"] = float(plan["inputs"]["model"]["rope_theta"])
    again = json.loads(json.dumps(plan, sort_keys=True, indent=4))
    assert plan_to_dict(plan_from_dict(again)) == plan_to_dict(real_plans()["dense"])
    assert other_prices(plan_from_dict(again)) is None


def test_the_digest_by_hand() -> None:
    # sha256sum of {"a":1.0,"b":["\u00e9",true,null,0.0,1e+20]}
    values = {"b": ["é", True, None, -0.0, 10**20], "sha256": "not of itself", "a": 1}
    assert digest(values) == "21e74567524281dfa4331dc6cc9be4e6502bb8c7e9f4b4a56ebf41bdb5776765"
    assert digest({**values, "a": True}) != digest(values) == digest({**values, "a": 1.0})


@pytest.mark.parametrize("name", ["dense", "experts", "zero-3 and cp", "traced"])
def test_no_mutation_that_means_something_is_read(name: str) -> None:
    """A seeded sample; of 10,000 none was read either."""
    random, plan = Random(name), json.loads(real_texts()[name])
    assert plan_from_dict(plan) == real_plans()[name]
    before = meaning(plan)
    read = []
    for _ in range(100 if ALL else 60):
        one = mutated(plan, random)
        try:
            plan_from_dict(one.plan)
        except AutoshardError as error:
            assert str(error).isprintable()  # noqa: PT017 - both ways out are right
            continue
        if meaning(one.plan) != before:
            read.append(one.what)
    assert read == []


@pytest.mark.parametrize(
    "command",
    [
        ["run"],
        ["audit"],
        ["memory"],
        ["explain"],
        ["validate"],
        ["trace", "-o", "trace.json"],
        ["export", "--to", "nxdt"],
        ["convert", "weights", "out", "--plan"],
        ["launch", "--slurm"],
        ["doctor"],
        ["replan", "--nodes", "8"],
        ["replan", "--edit", "strategy.zero=0"],
        ["compare", "right.json"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_every_reader_refuses_a_changed_plan(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("weights").mkdir()
    Path("right.json").write_text(real_texts()["dense"])
    Path("plan.json").write_text(real_texts()["dense"].replace('"norm_eps": 1e-05', '"norm_eps": 1e-04', 1))
    first, *rest = command
    assert main([first, *rest, "plan.json"]) == 2
    assert (
        capsys.readouterr().err == f"autoshard: error: plan.json: sha256 is not that of the other fields: {CHANGED}\n"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "right.json", "weights"]


def undigested(plan: Plan) -> str:
    """As the format before had it."""
    values = {**json.loads(plan_to_json(plan)), "format_version": 1}
    del values["sha256"]
    return json.dumps(values)


def test_a_plan_of_the_format_before_is_read_with_a_note(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(undigested(real_plans()["dense"]))
    note = (
        f"{path} has format_version 1, without a sha256: changes by hand are not all seen; "
        f"`autoshard replan {path} -o NEW.json` writes it anew"
    )
    assert read_plan_and_notes(path) == (real_plans()["dense"], (note,))
    path.write_text(json.dumps({**json.loads(path.read_text()), "sha256": "x"}))
    with pytest.raises(AutoshardError, match="plan has a field that is not known: 'sha256'"):
        read_plan(path)


def test_a_plan_with_the_prices_of_another_version_is_read_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As its maker wrote it: what it says of the layout is right, and it runs."""
    monkeypatch.chdir(tmp_path)
    other = replace(plan_70b(), made_by="autoshard 0.0.9", runners_up=())
    write_plan(other, "plan.json")
    assert read_plan("plan.json") == other
    now = priced(other).estimate
    assert main(["validate", "plan.json"]) == 0
    assert capsys.readouterr().err == (
        "note: plan.json, by autoshard 0.0.9: its prices are not this cost model's: 180 s a step and 7.34 GB, where "
        f"this version expects {now.step_time_s:.3g} s a step and {now.fullest.total_bytes / 1e9:.3g} GB; "
        "`autoshard replan plan.json -o NEW.json` writes it anew\n"
    )


def test_estimates_that_differ_in_their_last_digit_are_the_same() -> None:
    """Machines may round it differently."""
    plan = real_plans()["dense"]
    low = plan.estimate.step_time_low_s
    assert other_prices(replace(plan, estimate=replace(plan.estimate, step_time_low_s=low * (1 + 5e-6)))) is None
    assert other_prices(replace(plan, estimate=replace(plan.estimate, step_time_low_s=low * (1 + 5e-5)))) is not None


def test_a_term_that_is_rounding_alone_is_none() -> None:
    """A sum of terms of another machine, or another version, may be off by that much."""
    plan = real_plans()["dense"]
    assert 0.0 in [term.value for term in plan.estimate.time_terms]
    for seconds, is_none in ((1e-16, True), (1e-6, False)):
        terms = (replace(one, value=one.value or seconds) for one in plan.estimate.time_terms)
        said = other_prices(replace(plan, estimate=replace(plan.estimate, time_terms=tuple(terms))))
        assert (said is None) == is_none


def test_what_is_not_cheap_to_price_is_not_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file could have a reader count a thousand million passes; the digest tells of changes all the same."""
    made = plan_of(replace(LLAMA, vocab_size=256), small_strategy(pp=2, schedule="zero_bubble"), 4)
    training = replace(made.training, global_batch_size=10**9)
    tokens = training.tokens_per_step / made.estimate.step_time_s
    large = replace(made, training=training, estimate=replace(made.estimate, tokens_per_s=tokens))
    monkeypatch.setattr("autoshard.plans.prices.estimate", None)
    assert other_prices(large) is None
    values = json.loads(plan_to_json(large))
    assert plan_from_dict(values).training == training
    values["inputs"]["model"]["norm_eps"] = 1e-3
    with pytest.raises(AutoshardError, match=r"^sha256 is not that of the other fields: "):
        plan_from_dict(values)
