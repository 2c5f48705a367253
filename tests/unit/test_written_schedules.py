"""Schedules and recompute in the words of torchtitan and Megatron-LM: read as they are, or said to stand in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoshard.errors import AutoshardError
from autoshard.interop.export import export
from autoshard.planner.written import Written, read_written
from autoshard.plans.plan import make_plan
from tests.unit.megatron_flags import DROPS_NOTHING
from tests.unit.written_files import imported, mixture_plan

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

LLAMA = {"model": "llama3-8b", "instance": "h100-80gb", "nodes": 1, "seq_len": 4096}


def titan(parallelism: str, training: str = "global_batch_size = 64\nlocal_batch_size = 32") -> Written:
    degrees = "tensor_parallel_degree = 2\npipeline_parallel_degree = 2"
    text = f'[training]\n{training}\n[parallelism]\n{degrees}\n{parallelism}\n[activation_checkpoint]\nmode = "full"\n'
    Path("train.toml").write_text(text)
    return read_written("train.toml", LLAMA)


def megatron(flags: str, **given: Any) -> Written:
    text = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --global-batch-size 64 --bf16"
    Path("train.sh").write_text(f"{text} {DROPS_NOTHING} {flags}")
    return read_written("train.sh", {**LLAMA, **given})


@pytest.mark.parametrize(
    ("written", "schedule", "chunks"),
    [("1f1b", "1f1b", 1), ("GPipe", "gpipe", 1), ("interleaved1F1B", "interleaved", 2)],
)
def test_torchtitans_schedules(written: str, schedule: str, chunks: int) -> None:
    found = titan(f'pipeline_parallel_schedule = "{written}"')
    assert (found.strategy.schedule, found.strategy.num_virtual_stages) == (schedule, chunks)
    assert found.warnings == ()


@pytest.mark.parametrize("written", ["InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"])
def test_torchtitans_schedules_without_one_here(written: str) -> None:
    found = titan(f'pipeline_parallel_schedule = "{written.upper()}"')
    assert (found.strategy.schedule, found.strategy.num_virtual_stages) == ("interleaved", 2)
    told = "is priced as interleaved, which puts off no weight gradients"
    assert found.warnings == (f"parallelism.pipeline_parallel_schedule={written} {told}",)


def test_a_schedule_that_nothing_is_like() -> None:
    message = (
        "^train.toml: parallelism.pipeline_parallel_schedule is 'LoopedBFS', which has no price here; those that have: "
        "1F1B, GPipe, Interleaved1F1B, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV$"
    )
    with pytest.raises(AutoshardError, match=message):
        titan('pipeline_parallel_schedule = "LoopedBFS"')


def test_gpipe_there_and_back() -> None:
    plan = mixture_plan("mixtral-8x7b")
    strategy = replace(plan.strategy, tp=8, pp=4, dp=plan.cluster.world_size // 32, ep=1, cp=1, schedule="gpipe")
    strategy = replace(strategy, num_virtual_stages=1, stage_layers=(8,) * 4, recompute=("full",) * 4)
    plan = make_plan(plan.model, plan.training, plan.cluster, "torch", strategy, plan.estimate)
    text = export(plan, "torchtitan-toml").text
    given = {"model": plan.model.name, "instance": plan.cluster.instance, "nodes": plan.cluster.nodes}
    assert imported(text, "train.toml", **given).strategy.schedule == "gpipe"


def test_a_pipeline_that_empties_several_times_a_step() -> None:
    """2 replicas of 8 devices with 64 sequences: 32 of each are one run, 8 of each are four."""
    assert titan("").warnings == ()
    found = titan("", "global_batch_size = 64\nlocal_batch_size = 8")
    (warning,) = found.warnings
    assert warning == (
        "the file's pipeline takes 8 sequences of a replica and empties, 4 times a step; priced as if all went through "
        "it at once, with one bubble"
    )


def test_parameters_that_torchtitan_keeps_in_float32() -> None:
    training = 'global_batch_size = 64\nlocal_batch_size = 32\nmixed_precision_param = "float32"'
    found = titan("", training)
    assert (found.problem.training.precision.name, found.warnings) == ("fp32", ())


def test_sequences_that_torchtitans_file_leaves_to_its_defaults() -> None:
    """8 sequences of 2,048 tokens for each of 8 ranks."""
    Path("train.toml").write_text("[training]\nsteps = 10\n")
    found = read_written("train.toml", {"model": "llama3-8b", "instance": "h100-80gb"})
    training = found.problem.training
    assert (training.sequence_length, training.global_batch_size, found.strategy.microbatch_size) == (2048, 64, 8)


def test_all_of_torchtitans_states_in_bfloat16() -> None:
    training = "global_batch_size = 64\nlocal_batch_size = 32\n"
    found = titan("", f'{training}dtype = "bfloat16"')
    assert (found.problem.training.precision.name, found.left_out) == ("bf16_sr", ())
    (warning,) = found.warnings
    assert warning == (
        "training.dtype=bfloat16 is priced as bf16_sr, which sums gradients of all ranks in bfloat16 too and rounds at "
        "random"
    )
    assert titan("", f'{training}dtype = "float32"').problem.training.precision.name == "mixed_precision"
    with pytest.raises(AutoshardError, match=r"^train.toml: training.dtype is 'half'; it must be float32 or bfloat16$"):
        titan("", f'{training}dtype = "half"')


@pytest.mark.parametrize(
    ("strategy", "left_out", "replicas"),
    [
        (
            {"ep": 4, "cp": 2, "tp": 4},
            "written as FSDP, since torchtitan spreads ep=4 over ranks that shard",
            1,
        ),
        ({"ep": 1, "cp": 2, "tp": 4}, "torchtitan shards over the ranks of cp=2 all the same", None),
    ],
)
def test_replicas_that_torchtitan_has_no_words_for(
    strategy: dict[str, int], left_out: str, replicas: int | None
) -> None:
    plan = mixture_plan("mixtral-8x7b")
    world = plan.cluster.world_size // plan.strategy.pp
    tp, cp = strategy["tp"], strategy["cp"]
    changed = replace(plan.strategy, tp=tp, cp=cp, ep=strategy["ep"], dp=world // (tp * cp), zero=0)
    found = export(replace(plan, strategy=changed), "torchtitan-toml")
    assert f"zero=0: {left_out}" in found.left_out
    assert f"data_parallel_replicate_degree = {replicas or changed.dp}\n" in found.text


BLOCKS = "--recompute-granularity full --recompute-method block --recompute-num-layers"
SOME = "of a stage's blocks run again; priced as if all did, which takes longer and less memory"
MODULES = "--recompute-granularity selective --recompute-modules"


@pytest.mark.parametrize(
    ("flags", "recompute"),
    [
        (f"{BLOCKS} 0", "none"),
        (f"{BLOCKS} 16 --num-layers 32", "full"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "full"),
        ("--recompute-granularity selective", "core_attention"),
        ("--recompute-activations", "core_attention"),
        (f"{MODULES} mlp", "mlp"),
        (f"{MODULES} layernorm", "attention_norm+mlp_norm"),
        (f"{MODULES} core_attn layernorm", "attention_norm+core_attention+mlp_norm"),
    ],
)
def test_megatrons_recompute(flags: str, recompute: str) -> None:
    found = megatron(flags)
    assert found.strategy.recompute == (recompute,) * 2
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("flags", "recompute", "warning"),
    [
        (
            f"{BLOCKS} 3",
            "full",
            f"--recompute-method block: 3 {SOME}",
        ),
        (
            f"{BLOCKS} 15 --num-layers 32",
            "full",
            f"--recompute-method block: 15 {SOME}",
        ),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 4",
            "full",
            "--recompute-num-layers 4: priced with the input of each block kept, not of every 4, which takes more",
        ),
        (
            f"{MODULES} shared_experts",
            "none",
            "--recompute-modules shared_experts: no recompute set here names it; not in the price",
        ),
    ],
)
def test_megatrons_recompute_that_stands_in_for_another(flags: str, recompute: str, warning: str) -> None:
    found = megatron(flags)
    assert found.strategy.recompute == (recompute,) * 2
    assert found.warnings == (warning,)


def test_modules_of_mixtures_and_of_latent_attention() -> None:
    mixture = megatron(f"{MODULES} moe --expert-model-parallel-size 2", model="mixtral-8x7b")
    assert mixture.strategy.recompute == ("mlp",) * 2
    dense = megatron(f"{MODULES} mlp --expert-model-parallel-size 2", model="mixtral-8x7b")
    assert dense.strategy.recompute == ("none",) * 2
    assert (
        dense.warnings[0] == "--recompute-modules mlp: blocks without experts alone run theirs again; not in the price"
    )
    latent = megatron(f"{MODULES} mla_up_proj --expert-model-parallel-size 2", model="deepseek-v2-lite")
    assert latent.strategy.recompute == ("attention_up+core_attention",) * 2
    assert latent.warnings[0] == "--recompute-modules mla_up_proj: priced as if core attention ran again with it"


def test_wrong_words_for_recompute() -> None:
    with pytest.raises(AutoshardError, match=r"^train.sh: --recompute-method is 'some'; it must be uniform or block$"):
        megatron("--recompute-granularity full --recompute-method some")
    message = (
        "^train.sh: --num-layers-per-virtual-pipeline-stage=4 needs --num-layers, which is not there; "
        "--num-virtual-stages-per-pipeline-rank says as much without it$"
    )
    with pytest.raises(AutoshardError, match=message):
        megatron("--num-layers-per-virtual-pipeline-stage 4")


def test_the_prediction_module_of_megatrons_arguments() -> None:
    found = megatron("--expert-model-parallel-size 2 --mtp-num-layers 1", model="deepseek-v3", nodes=2)
    module = found.problem.model.multi_token_prediction
    assert module is not None and module.mtp_num_layers == 1
    assert not any("mtp" in one for one in (*found.warnings, *found.left_out))
    without = megatron("--expert-model-parallel-size 2 --mtp-num-layers 0", model="deepseek-v3", nodes=2)
    assert without.problem.model.multi_token_prediction is None


@pytest.mark.parametrize(
    ("kind", "found"), [("p2p", "zigzag_ring"), ("a2a", "ulysses"), ("allgather", "all_gather"), ("", "zigzag_ring")]
)
def test_megatrons_context_parallelism(kind: str, found: str) -> None:
    flags = f"--cp-comm-type {kind}" if kind else ""
    written = megatron(f"{flags} --context-parallel-size 2")
    assert (written.strategy.context_parallel, written.warnings) == (found, ())


def test_context_parallelism_in_two_levels() -> None:
    written = megatron("--context-parallel-size 2 --cp-comm-type a2a+p2p")
    assert written.strategy.context_parallel == "zigzag_ring"
    assert written.warnings == ("--cp-comm-type a2a+p2p is priced as p2p, a ring over all ranks of cp",)
    assert megatron("--cp-comm-type a2a+p2p").warnings == ()
    message = r"^train.sh: --cp-comm-type is 'ring'; it must be p2p, a2a, allgather or a2a\+p2p$"
    with pytest.raises(AutoshardError, match=message):
        megatron("--context-parallel-size 2 --cp-comm-type ring")
    assert megatron("--context-parallel-size 2 --cp-comm-type a2a a2a").strategy.context_parallel == "ulysses"
    message = r"^train.sh: --cp-comm-type has a2a and p2p: here all layers have the same$"
    with pytest.raises(AutoshardError, match=message):
        megatron("--context-parallel-size 2 --cp-comm-type a2a p2p")


def torchtitans_recompute(lines: str) -> Written:
    Path("train.toml").write_text(f"[activation_checkpoint]\n{lines}\n")
    return read_written("train.toml", LLAMA)


OPTION = "activation_checkpoint.selective_ac_option"
PRICED = "priced as core_attention+mlp of each"


@pytest.mark.parametrize(
    ("lines", "recompute", "warnings"),
    [
        ('selective_ac_option = "op"', "core_attention+mlp", ()),
        ('mode = "selective"\nselective_ac_option = "1"', "full", ()),
        ('mode = "full"\nselective_ac_option = "2"', "full", ()),
        *(
            (line, "core_attention+mlp", (f"{OPTION}={n}: one block of {n} runs again, whole; {PRICED}",))
            for line, n in {"": 2, "selective_ac_option = 3": 3, 'selective_ac_option = "4"': 4}.items()
        ),
    ],
)
def test_torchtitans_selective_recompute(lines: str, recompute: str, warnings: tuple[str, ...]) -> None:
    found = torchtitans_recompute(lines)
    assert (found.strategy.recompute, found.warnings, found.left_out) == ((recompute,), warnings, ())
    kept = "torchtitan keeps attention and every second product of matrices"
    assert (f"{OPTION}=op is priced as {recompute}; {kept}" in found.notes) == ("op" in lines.split('"'))


@pytest.mark.parametrize(("line", "budget"), [("", "0.5"), ("memory_budget = 0.25", "0.25")])
def test_a_memory_budget_stands_in_for_what_the_compiler_chooses(line: str, budget: str) -> None:
    found = torchtitans_recompute(f'mode = "memory_budget"\n{line}')
    assert (found.strategy.recompute, found.left_out) == (("core_attention+mlp",), ())
    told = "torch.compile chooses what runs again; priced as core_attention+mlp"
    assert found.warnings == (f"activation_checkpoint.memory_budget={budget}: {told}",)


def test_another_mode_of_torchtitans_recompute() -> None:
    message = (
        r"^train.toml: activation_checkpoint.mode is 'half'; it must be one of none, full, selective, memory_budget$"
    )
    with pytest.raises(AutoshardError, match=message):
        torchtitans_recompute('mode = "half"')


@pytest.mark.parametrize("option", ["0", "-1", "ops", "2.5"])
def test_options_that_torchtitans_selective_recompute_has_not(option: str) -> None:
    with pytest.raises(AutoshardError) as error:
        torchtitans_recompute(f'selective_ac_option = "{option}"')
    assert str(error.value) == f"train.toml: {OPTION} is '{option}'; it must be op or a whole number of at least 1"


def test_selective_recompute_there_and_back() -> None:
    plan = mixture_plan("mixtral-8x7b")
    strategy = replace(plan.strategy, recompute=("core_attention+mlp",) * 4)
    text = export(replace(plan, strategy=strategy), "torchtitan-toml").text
    assert 'mode = "selective"\nselective_ac_option = "op"\n' in text
