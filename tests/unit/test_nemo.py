"""Layouts of NVIDIA NeMo 1's YAML: what its fields say, in whose words, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoshard.cli import main
from autoshard.errors import AutoshardError
from autoshard.interop.read_layout import read_written_layout
from autoshard.interop.yaml_values import Values
from autoshard.planner.written import Written, read_written
from tests.unit.megatron_flags import DROPS_NOTHING

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

MODEL: dict[str, Any] = {
    "mcore_gpt": True,
    "micro_batch_size": 1,
    "global_batch_size": 512,
    "rampup_batch_size": None,
    "tensor_model_parallel_size": 4,
    "pipeline_model_parallel_size": 4,
    "virtual_pipeline_model_parallel_size": 5,
    "context_parallel_size": 2,
    "sequence_parallel": True,
    "encoder_seq_length": 4096,
    "max_position_embeddings": "${.encoder_seq_length}",
    "num_layers": 80,
    "hidden_size": 8192,
    "ffn_hidden_size": 28672,
    "num_attention_heads": 64,
    "num_query_groups": 8,
    "kv_channels": None,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "normalization": "rmsnorm",
    "layernorm_epsilon": "1e-5",  # what YAML makes of it
    "bias": False,
    "activation": "fast-swiglu",
    "transformer_block_type": "pre_ln",
    "position_embedding_type": "rope",
    "rotary_percentage": 1.0,
    "share_embeddings_and_output_weights": False,
    "tokenizer": {"library": "sentencepiece", "type": None, "model": "${data_dir}/llama/llama_tokenizer.model"},
    "megatron_amp_O2": True,
    "transformer_engine": True,
    "fp8": False,
    "fp8_hybrid": True,
    "fsdp": False,
    "fsdp_grad_reduce_dtype": 32,
    "cpu_offloading": False,
    "cpu_offloading_num_layers": "${sum:${.num_layers},-1}",
    "activations_checkpoint_granularity": None,
    "activations_checkpoint_method": "block",
    "activations_checkpoint_num_layers": 0,
    "optim": {"name": "mcore_distributed_optim", "lr": 1e-4, "overlap_grad_sync": True, "sched": {"warmup_steps": 5}},
    "data": {"data_prefix": [0.5, "${data_dir}/text"], "seq_length": "${training.model.encoder_seq_length}"},
}
LLAMA_70B: dict[str, Any] = {
    "run": {"name": "llama2_70b", "results_dir": "${base_results_dir}/${.name}"},
    "trainer": {"num_nodes": 16, "devices": 8, "precision": "bf16", "accumulate_grad_batches": 1, "max_steps": 300},
    "exp_manager": {"name": "megatron_llama", "checkpoint_callback_params": {"save_top_k": 10}},
    "model": MODEL,
}
"""The keys of the NeMo Framework Launcher's conf/training/llama, with a layout of our own."""
H100 = {"instance": "h100-80gb"}


def with_model(**changes: Any) -> dict[str, Any]:
    """The configuration with other fields under model."""
    return {**LLAMA_70B, "model": {**MODEL, **changes}}


def read(data: object, **given: Any) -> Written:
    text = data if isinstance(data, str) else yaml.safe_dump(data)
    Path("conf.yaml").write_text(text)
    return read_written("conf.yaml", {**H100, **given})


def test_a_configuration_is_what_the_same_arguments_of_megatron_are() -> None:
    flags = (
        "torchrun --nproc-per-node 8 pretrain_gpt.py --nnodes 16 --tensor-model-parallel-size 4 "
        "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 5 --context-parallel-size 2 "
        "--sequence-parallel --micro-batch-size 1 --global-batch-size 512 --seq-length 4096 --num-layers 80 "
        "--hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --group-query-attention "
        f"--num-query-groups 8 --normalization RMSNorm --disable-bias-linear --swiglu {DROPS_NOTHING} "
        "--position-embedding-type rope --max-position-embeddings 4096 --untie-embeddings-and-output-weights --bf16 "
        "--tokenizer-model llama_tokenizer.model --use-distributed-optimizer"
    )
    Path("train.sh").write_text(flags)
    theirs, ours = read_written("train.sh", H100), read(LLAMA_70B)
    assert (ours.problem, ours.strategy) == (theirs.problem, theirs.strategy)
    assert ours.problem.model.name == "llama2-70b"
    assert (ours.strategy.dp, ours.strategy.zero, set(ours.strategy.recompute)) == (4, 1, {"none"})
    assert (ours.warnings, ours.not_priced) == ((), ())
    assert "model.init_method_std" not in ours.left_out and "run.name" in ours.left_out
    assert any(note.endswith("NeMo does, so it may take less") for note in ours.notes)


def test_the_launcher_has_it_in_training() -> None:
    whole = {"training": LLAMA_70B, "stages": ["training"], "data_dir": "/data"}
    assert read(whole).strategy == read(LLAMA_70B).strategy


def test_an_import_makes_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    Path("conf.yaml").write_text(yaml.safe_dump(LLAMA_70B))
    assert main(["import", "conf.yaml", "--instance", "h100-80gb"]) == 0
    shown = capsys.readouterr()
    assert "wrote plan.json: llama2-70b on 16 x h100-80gb, tp=4 pp=4 dp=4 cp=2 vpp=5 mbs=1" in shown.out
    assert "note: imported: NeMo configuration\n" in shown.err
    assert "not in a plan: exp_manager: checkpoint_callback_params.save_top_k, name\n" in shown.err


@pytest.mark.parametrize(
    ("changes", "recompute", "warnings"),
    [
        ({"activations_checkpoint_granularity": "selective"}, "core_attention", []),
        (
            {
                "activations_checkpoint_granularity": "full",
                "activations_checkpoint_method": "uniform",
                "activations_checkpoint_num_layers": 1,
            },
            "full",
            [],
        ),
        (
            {
                "activations_checkpoint_granularity": "full",
                "activations_checkpoint_method": "uniform",
                "activations_checkpoint_num_layers": 2,
            },
            "full",
            [
                (
                    "model.activations_checkpoint_num_layers=2: priced with the input of each block kept, not of "
                    "every 2, which takes more"
                )
            ],
        ),
        (
            {"activations_checkpoint_granularity": "full", "activations_checkpoint_num_layers": 3},
            "full",
            [
                (
                    "model.activations_checkpoint_method=block: 3 of a stage's blocks run again; priced as if all "
                    "did, which takes longer and less memory"
                )
            ],
        ),
        ({"activations_checkpoint_granularity": "full"}, "none", []),  # block, of no block
    ],
)
def test_what_runs_again(changes: dict[str, Any], recompute: str, warnings: list[str]) -> None:
    found = read(with_model(**changes))
    assert ({*found.strategy.recompute}, list(found.warnings)) == ({recompute}, warnings)


def test_a_method_alone_was_full_before_there_was_a_granularity() -> None:
    data = with_model(activations_checkpoint_method="uniform", activations_checkpoint_num_layers=1)
    del data["model"]["activations_checkpoint_granularity"]
    found = read(data)
    assert {*found.strategy.recompute} == {"full"}
    assert found.warnings == (
        (
            "model.activations_checkpoint_method without model.activations_checkpoint_granularity: full, as NeMo "
            "before 1.11 read it; later ones run nothing again"
        ),
    )


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"optim": {"name": "fused_adam"}}, {"zero": 0}),
        ({"optim": {"name": "distributed_fused_adam"}}, {"zero": 1}),
        ({"optim": {"name": "fused_adam"}, "fsdp": True}, {"zero": 3}),
        ({"optim": {"name": "fused_adam"}, "fsdp": True, "fsdp_sharding_strategy": "grad"}, {"zero": 2}),
        ({"use_tp_pp_dp_mapping": True}, {"axis_order": ("dp", "pp", "cp", "tp")}),
        ({"transformer_engine": False, "use_flash_attention": False}, {"attention_kernel": "plain"}),
        ({"transformer_engine": False, "use_flash_attention": True}, {"attention_kernel": "flash"}),
        (
            {
                "num_layers": 38,
                "num_layers_in_first_pipeline_stage": 8,
                "virtual_pipeline_model_parallel_size": None,
            },
            {"stage_layers": (8, 10, 10, 10), "num_virtual_stages": 1},
        ),
    ],
)
def test_fields_of_a_layout(changes: dict[str, Any], fields: dict[str, Any]) -> None:
    strategy = read(with_model(**changes, tensor_model_parallel_size=2), model="llama2-70b").strategy
    assert {name: getattr(strategy, name) for name in fields} == fields


def test_experts() -> None:
    changes = {
        "num_layers": 32,
        "hidden_size": 4096,
        "ffn_hidden_size": 14336,
        "num_attention_heads": 32,
        "rotary_base": 1e6,
        "num_moe_experts": 8,
        "moe_router_topk": 2,
        "moe_expert_capacity_factor": 1.5,
        "virtual_pipeline_model_parallel_size": None,
        "expert_model_parallel_size": 4,
        "context_parallel_size": 1,
    }
    found = read(with_model(**changes))
    assert (found.problem.model.name, found.strategy.ep) == ("mixtral-8x7b", 4)
    assert (found.problem.training.expert_capacity_factor, found.warnings) == (1.5, ())


def test_numbers_are_computed_as_hydra_does() -> None:
    changes = {
        "ffn_hidden_size": "${multiply:4, ${.hidden_size}}",
        "global_batch_size": "${multiply:${multiply:2,${trainer.num_nodes}}, 16}",
        "tensor_model_parallel_size": "${divide_ceil:7, ${..trainer.seven}}",
        "num_layers": "${sum:${.kept}, -1}",
        "kept": 81,
        "data": {"seq_length": "${..encoder_seq_length}"},
    }
    data = with_model(**changes)
    found = read({**data, "trainer": {**data["trainer"], "seven": 4}})
    training, strategy = found.problem.training, found.strategy
    assert (found.problem.model.intermediate_size, training.global_batch_size) == (4 * 8192, 512)
    assert (strategy.tp, training.sequence_length) == (2, 4096)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${divide_floor:7, 2}", 3),
        ("${divide_floor:-7, 2}", -4),
        ("${divide_ceil:7, 2}", 4),
        ("${divide_ceil:-7, 2}", -3),
        ("${sum:1.5, 2}", 3.5),
        ("${multiply:${b}, 2}", 6),
        *((text, text) for text in ("${divide_floor:7, 0}", "${sum:1}", "${sum:1, true}", "${sum:1, ${c}}")),
        *((text, text) for text in ("${sum:1, 2, 3}", "${multiply:1000000000001, 1}", "${sum:1, word}")),
    ],
)
def test_what_is_no_sum_of_two_numbers_stays_a_text(text: str, value: object) -> None:
    assert Values({"a": text, "b": 3}).get("a") == value


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        (
            {"optim": {"name": "adafactor"}},
            "model.optim.name=adafactor is priced as AdamW, with two moments",
        ),
        (
            {"fp8": True},
            (
                "model.fp8=hybrid: priced in bf16; products of matrices take less time in fp8, which --precision fp8 "
                "prices"
            ),
        ),
        (
            {"megatron_amp_O2": False},
            (
                "model.megatron_amp_O2 is not True: NeMo keeps weights in float32 and casts them where they are used; "
                "priced with weights in bfloat16 beside the optimizer's in float32"
            ),
        ),
        (
            {"hidden_dropout": 0.1},
            "model.hidden_dropout=0.1: dropout is not in the price; --dropout puts it there, with backend torch",
        ),
        (
            {"peft": {"peft_scheme": "lora"}},
            "model.peft.peft_scheme: priced as training of all weights; LoRA freezes most of them",
        ),
    ],
)
def test_what_changes_a_step_is_warned_of(changes: dict[str, Any], warning: str) -> None:
    assert read(with_model(**changes)).warnings == (warning,)


def test_files_that_hydra_adds_are_not_read() -> None:
    found = read({"defaults": ["_self_", {"optional tp_overlap@model.ub_tp_comm_overlap_cfg": "x"}], **LLAMA_70B})
    assert found.warnings == ()
    found = read({"defaults": ["_self_", "own/optimizer"], **LLAMA_70B})
    assert found.warnings == ("defaults names other files, whose fields are not read: own/optimizer",)


@pytest.mark.parametrize(
    ("changes", "listed"),
    [
        ({"cpu_offloading": True}, ("model.cpu_offloading", "model.cpu_offloading_num_layers")),
        ({"rampup_batch_size": [32, 32, 1000]}, ("model.rampup_batch_size",)),
        ({"fp32_residual_connection": True}, ("model.fp32_residual_connection",)),
        ({"num_micro_batches_with_partial_activation_checkpoints": 2}, True),
        ({"data": {"reset_attention_mask": True}}, ("model.data.reset_attention_mask",)),
        ({"optim": {"name": "mcore_distributed_optim", "grad_sync_dtype": "fp32"}}, ()),
        ({"optim": {"name": "mcore_distributed_optim", "grad_sync_dtype": "bf16"}}, ()),
        ({"nobody_knows": 3}, ("model.nobody_knows",)),
    ],
)
def test_what_may_matter_is_listed(changes: dict[str, Any], listed: object) -> None:
    expected = tuple(f"model.{key}" for key in changes) if listed is True else listed
    assert read(with_model(**changes)).not_priced == expected


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"tensor_model_parallel_size": "two"}, "model.tensor_model_parallel_size is 'two'; it must be a whole "),
        ({"tensor_model_parallel_size": [2]}, "model.tensor_model_parallel_size is '[2]'; it must be a whole "),
        ({"num_layers": True}, "model.num_layers is 'True'; it must be a whole number of at least 1"),
        ({"micro_batch_size": 10**200}, f"model.micro_batch_size is '1{'0' * 39}'; it must be a whole number of at "),
        ({"sequence_parallel": "False"}, "model.sequence_parallel is 'False'; it must be True or False"),
        ({"hidden_dropout": "much"}, "model.hidden_dropout is 'much'; it must be a number"),
        ({"tokenizer": 3}, "model.tokenizer is '3'; it must hold named fields, such as type"),
        ({"encoder_seq_length": "${model.data.seq_length}"}, "model.encoder_seq_length refers to itself"),
        ({"activations_checkpoint_granularity": "some"}, "model.activations_checkpoint_granularity is 'some'; it must"),
        (
            {"activations_checkpoint_granularity": "full", "activations_checkpoint_method": "odd"},
            "model.activations_checkpoint_method is 'odd'; it must be uniform or block",
        ),
        (
            {"activations_checkpoint_granularity": "full", "activations_checkpoint_method": None},
            "model.activations_checkpoint_granularity=full needs model.activations_checkpoint_method, uniform or block",
        ),
        ({"precision": "bf16-true"}, "model.precision is 'bf16-true'; it must be bf16, 16 or 32"),
        ({"fp8": True, "fp8_hybrid": False}, "model.fp8 needs model.fp8_hybrid or model.fp8_e4m3, which say the "),
        (
            {"fsdp": True},
            (
                "model.fsdp with model.optim.name=mcore_distributed_optim: NeMo shards by one of them; fused_adam goes "
                "with FSDP"
            ),
        ),
        (
            {"fsdp": True, "optim": {"name": "fused_adam"}, "fsdp_sharding_strategy": "hybrid"},
            "model.fsdp_sharding_strategy is 'hybrid'; it must be full or grad",
        ),
        (
            {"fsdp": True, "optim": {"name": "fused_adam"}, "fp8": True},
            "model.fsdp with model.fp8: NeMo has no FP8 with FSDP; False for one of them works",
        ),
        (
            {"num_layers_in_first_pipeline_stage": 7},
            (
                "model.num_layers_in_first_pipeline_stage=7 leaves 73 of model.num_layers=80, which 3 ranks cannot "
                "share evenly"
            ),
        ),
        ({"cp_comm_type": "odd"}, "model.cp_comm_type is 'odd'; it must be p2p, a2a, allgather or a2a+p2p"),
        ({"mm_cfg": {"llm": None}}, "model.mm_cfg: a plan is for a decoder of text alone, not for such a model"),
        ({"_target_": "nemo.collections.llm.gpt"}, "model._target_: configurations of NeMo 2 and of Megatron Bridge "),
        ({"activation": "reglu"}, "no family of models here has its graph; the nearest, llama, has swiglu, not reglu"),
        ({"position_embedding_type": "alibi"}, "no family of models here has its graph; the nearest, llama, has rope,"),
        ({"num_query_groups": 7}, "model.num_query_groups=7 must divide model.num_attention_heads=64"),
        (
            {"tokenizer": {"type": "mine"}, "hidden_size": 4096},
            "it does not say its model's vocab_size; --model CONFIG.json does",
        ),
        (
            {"tokenizer": {"type": "mine"}, "num_layers": 40},
            (
                "40 blocks and no vocabulary are said, and llama2-70b, which has the other sizes, has 80: --model "
                "llama2-70b takes it with 40, --model CONFIG.json another one"
            ),
        ),
    ],
)
def test_errors(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        read(with_model(**changes))
    assert str(error.value).startswith(f"conf.yaml: {text}")


def test_a_batch_that_the_file_leaves_open_may_be_given() -> None:
    for key, value, option in (("global_batch_size", "???", "global_batch"), ("micro_batch_size", None, "micro_batch")):
        with pytest.raises(AutoshardError) as error:
            read(with_model(**{key: value}))
        assert str(error.value) == f"conf.yaml does not say {option}; --{option.replace('_', '-')} does"
    training = read(with_model(global_batch_size="???"), global_batch=64).problem.training
    assert training.global_batch_size == 64


@pytest.mark.parametrize(
    ("section", "changes", "text"),
    [
        ("trainer", {"accumulate_grad_batches": 4}, "=4: NeMo counts microbatches from the batches; 1 works"),
        ("trainer", {"devices": []}, " is '0'; it must be a whole number of at least 1"),
        (
            "exp_manager",
            {"name": "megatron_t5"},
            "=megatron_t5: a plan is for a decoder of text alone, not for this one",
        ),
    ],
)
def test_errors_outside_of_the_model(section: str, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        read({**LLAMA_70B, section: {**LLAMA_70B[section], **changes}})
    assert str(error.value) == f"conf.yaml: {section}.{next(iter(changes))}{text}"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"headscale": True}, "model.headscale=True"),
        ({"attention_type": "multiquery"}, "model.attention_type='multiquery'"),
        ({"apply_embedding_scaling": True}, "model.apply_embedding_scaling=True"),
        ({"mcore_customization_config": {"own": 1}}, "model.mcore_customization_config.'own'"),
        ({"headscale": False, "attention_type": "multihead", "mcore_customization_config": {"own": 0}}, ""),
        ({"mcore_customization_config": {"new_decoder_architecture": True, "parallel_attention": True}}, ""),
    ],
)
def test_fields_of_other_graphs(changes: dict[str, Any], said: str) -> None:
    data = with_model(**changes)
    if not said:
        assert read(data).problem.model.name == "llama2-70b"
        return
    with pytest.raises(AutoshardError) as error:
        read(data)
    assert str(error.value).startswith(f"conf.yaml has {said}, and no model is made of sizes with it; ")


def test_words_on_heads_and_norms() -> None:
    Path("conf.yaml").write_text(
        yaml.safe_dump(with_model(qkv_bias=True, qk_layernorm=True, normalization="layernorm1p"))
    )
    said = read_written_layout("conf.yaml").model.said
    assert said["bias"] == ("model.qkv_bias", "qkv")
    assert said["normalizes_heads"] == ("model.qk_layernorm", True)
    assert said["normalization"] == ("model.normalization", "layernorm")
    assert said["has_unit_offset"] == ("model.layernorm_zero_centered_gamma", True)


def test_another_block_needs_the_name_of_its_model() -> None:
    data = with_model(name="megatron_gemma2")
    with pytest.raises(AutoshardError) as error:
        read(data)
    assert str(error.value) == (
        "conf.yaml has model.name='megatron_gemma2', and no model is made of sizes with it; --model llama2-70b takes "
        "a built-in one with all that the file says"
    )
    assert read(data, model="llama2-70b").warnings == (
        "model.name='megatron_gemma2': the plan has its model's own graph, whatever this says",
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("model: {type: x}\ntrainer: {}\n", "conf.yaml: model has none of NeMo's fields, such as micro_batch_size, "),
        ("model: {num_layers: &a [1], b: [*a, *c]}\n", "conf.yaml, line 1, column 37: not YAML: found undefined alias"),
        ("a: &a [0,0,0,0,0,0,0,0,0,0]\n", None),
    ],
)
def test_files_that_are_none(text: str, error: str | None) -> None:
    if error is None:  # ten times ten times ... ten
        text += "".join(f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in pairwise("abcdefg"))
        text, error = f"{text}model: {{num_layers: *g}}\n", "conf.yaml, line 6, column 20: aliases repeat more than "
    with pytest.raises(AutoshardError) as found:
        read(text)
    assert str(found.value).startswith(error)


def test_precisions() -> None:
    whole = {**LLAMA_70B, "trainer": {"num_nodes": 16, "devices": 8}}
    found = read(whole)
    assert found.problem.training.precision.name == "fp32"
    assert "neither trainer.precision=bf16 nor trainer.precision=16: Megatron computes in fp32" in found.notes
    halved = read({**LLAMA_70B, "trainer": {**LLAMA_70B["trainer"], "precision": 16}})
    assert "trainer.precision=16 is priced as bf16" in halved.notes


def test_a_fine_tuning_names_no_model() -> None:
    data = {
        "trainer": {"devices": -1, "num_nodes": 1, "precision": "bf16-mixed"},
        "model": {
            "restore_from_path": "???",
            "micro_batch_size": 1,
            "global_batch_size": 128,
            "megatron_amp_O2": True,
            "tensor_model_parallel_size": 8,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "transformer_engine": True,
            "peft": {"peft_scheme": None},
            "data": {"train_ds": {"max_seq_length": 2048, "micro_batch_size": "${model.micro_batch_size}"}},
        },
    }
    with pytest.raises(AutoshardError) as error:
        read(data)
    assert str(error.value) == "conf.yaml does not say which model of those built in it is for; --model does"
    found = read(data, model="llama3-8b")
    assert (found.problem.training.sequence_length, found.warnings, found.not_priced) == (2048, (), ())


def test_a_scaled_rope_is_llama_3_1s() -> None:
    changes = {"scale_positional_embedding": True, "scale_factor": 8, "override_vocab_size": 128_256}
    scaling = read(with_model(**changes)).problem.model.rope_scaling
    assert scaling is not None and scaling.factor == 8
    assert read_written_layout("conf.yaml").model.said["rope_scaling"][0] == "model.scale_positional_embedding"
