"""Low-rank adapters of other frameworks' files: what a plan has of them, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from autoshard.backends.rules import check_strategy
from autoshard.errors import AutoshardError
from autoshard.interop.written_layout import WrittenLora
from autoshard.interop.written_lora import adapters_of
from autoshard.models.registry import load_model
from autoshard.planner.written import Written, read_written
from autoshard.spec.dropout import Dropout

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

GPUS = {"instance": "h100-80gb", "nodes": 1}
AXOLOTL: dict[str, Any] = {
    "base_model": "meta-llama/Llama-3.1-8B",
    "sequence_len": 2048,
    "sample_packing": True,
    "adapter": "lora",
    "lora_r": 16,
    "lora_alpha": 32,
    "lora_target_modules": ["q_proj", "v_proj"],
}
FACTORY: dict[str, Any] = {
    "model_name_or_path": "Qwen/Qwen3-8B",
    "stage": "pt",
    "do_train": True,
    "finetuning_type": "lora",
}
FACTORY_1: dict[str, Any] = {
    "model": "Qwen/Qwen3-0.6B",
    "train_dataset": "data.yaml",
    "peft_config": {"name": "lora", "lora_dropout": 0.0},
}
HYPERPOD: dict[str, Any] = {
    "use_smp_model": False,
    "trainer": {"devices": 8, "num_nodes": 1},
    "model": {
        "model_type": "llama_v3",
        "max_context_width": 4096,
        "hf_model_name_or_path": "meta-llama/Meta-Llama-3-8B",
        "sharding_strategy": "no_shard",
        "peft": {"peft_type": "lora", "rank": 8, "alpha": 4.0, "dropout": 0.0, "target_modules": ["o_proj"]},
    },
}
NXDT: dict[str, Any] = {
    "name": "hf_llama",
    "model_source": "hf",
    "trainer": {"devices": 32, "num_nodes": 1},
    "distributed_strategy": {"tensor_model_parallel_size": 8},
    "data": {"global_batch_size": 64},
    "model": {"encoder_seq_length": 4096, "num_layers": 32, "fusions": {"flash_attention": True}},
    "model_alignment_strategy": {"peft": {"lora_rank": 16, "lora_dropout": 0.0}},
}
NEMO: dict[str, Any] = {
    "trainer": {"devices": 8, "num_nodes": 1, "precision": "bf16"},
    "model": {
        "micro_batch_size": 1,
        "global_batch_size": 8,
        "megatron_amp_O2": True,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "peft": {"peft_scheme": "lora", "lora_tuning": {"adapter_dim": 32, "adapter_dropout": 0.0}},
    },
}
UNDROPPED = "dropout before adapters is not in the price; --dropout lora=P puts it there, with backend torch"
QKV = ("k_proj", "q_proj", "v_proj")
ALL = ("down_proj", "gate_proj", *QKV[:1], "o_proj", "q_proj", "up_proj", "v_proj")
CONVERTED = "model.converters has lora"
OPTIMUM = (
    "torchrun --nproc_per_node 32 {program} --model_id meta-llama/Meta-Llama-3-8B --tensor_parallel_size 8 --bf16 "
    "--per_device_train_batch_size 1 --max_length 2048"
)


def read(data: dict[str, Any] | str, **given: Any) -> Written:
    name = "train.sh" if isinstance(data, str) else "train.yaml"
    Path(name).write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return read_written(name, given)


def adapters(found: Written) -> tuple[int, float, tuple[str, ...]] | None:
    lora = found.problem.model.lora
    return None if lora is None else (lora.r, lora.lora_alpha, lora.target_modules)


def test_axolotl() -> None:
    found = read(AXOLOTL, **GPUS)
    assert (adapters(found), found.warnings) == ((16, 32.0, ("q_proj", "v_proj")), ())
    lora = "r=16,lora_alpha=32,target_modules=q_proj+v_proj"
    assert f"adapter='lora': adapters are trained in place of the weights, as --lora {lora} has it" in found.notes
    every = read({**AXOLOTL, "lora_target_linear": True, "lora_target_modules": None}, **GPUS)
    assert adapters(every) == (16, 32.0, ALL)
    # alpha / sqrt(16), as 128 / 16
    assert adapters(read({**AXOLOTL, "peft_use_rslora": True}, **GPUS)) == (16, 128.0, ("q_proj", "v_proj"))


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"lora_dropout": 0.05}, f"lora_dropout=0.05: {UNDROPPED}"),
        (
            {"peft_use_dora": True},
            "peft_use_dora=True: priced as LoRA; DoRA learns lengths of columns too, and computes them in each step",
        ),
        (
            {"lora_modules_to_save": ["embed_tokens", "lm_head"]},
            "lora_modules_to_save=embed_tokens, lm_head: trained whole there; priced as not trained",
        ),
        (
            {"lora_model_dir": "last-run"},
            (
                "lora_model_dir=last-run: rank and layers are those of the adapters that it loads; priced with those "
                "that the file says"
            ),
        ),
        (
            {"peft_layers_to_transform": [0, 1]},
            "peft_layers_to_transform=0, 1: priced with adapters of one rank in all blocks",
        ),
        (
            {"lora_target_modules": ["q_proj", "embed_tokens", "self_attn.v_proj"]},
            "lora_target_modules: no adapters are priced beside 'embed_tokens'",
        ),
        (
            {"adapter": "qlora", "load_in_4bit": True},
            "load_in_4bit=True: priced with weights in half precision",
        ),
        (
            {"adapter": "qlora", "peft": {"backend": "torchao", "weight_dtype": "nf4"}},
            "peft.weight_dtype='nf4': priced with weights in half precision",
        ),
    ],
)
def test_what_is_not_in_the_price(changes: dict[str, Any], warning: str) -> None:
    found = read({**AXOLOTL, **changes}, **GPUS)
    assert (adapters(found), found.warnings) == ((16, 32.0, ("q_proj", "v_proj")), (warning,))


def test_a_pattern_is_read_as_all_linear_layers() -> None:
    found = read({**AXOLOTL, "lora_target_modules": r"model.layers.[\d]+.self_attn.(q|v)_proj"}, **GPUS)
    assert adapters(found) == (16, 32.0, ALL)
    told = "lora_target_modules is a pattern: priced with adapters beside all linear layers of blocks"
    assert found.warnings == (told,)


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"lora_r": None}, ()),
        ({"lora_alpha": None}, ()),
        ({"lora_target_modules": None}, ()),
        (
            {"lora_target_modules": ["lm_head"]},
            ("lora_target_modules: no adapters are priced beside 'lm_head'",),
        ),
        ({"adapter": "llama-adapter"}, ()),
    ],
)
def test_adapters_that_cannot_be_planned(changes: dict[str, Any], more: tuple[str, ...]) -> None:
    data = {**AXOLOTL, **changes}
    found = read(data, **GPUS)
    told = f"adapter='{data['adapter']}': priced as training of all weights; LoRA freezes most of them"
    assert (adapters(found), found.warnings) == (None, (*more, told))


@pytest.mark.parametrize(
    ("rank", "told"),
    [
        (0, "'0'; it must be a whole number of at least 1"),
        (10**15, f"'1{'0' * 15}'; it must be a whole number of at least 1 and of at most 12 digits"),
    ],
)
def test_a_rank_that_is_none(rank: int, told: str) -> None:
    with pytest.raises(AutoshardError, match=f"lora_r is {told}$"):
        read({**AXOLOTL, "lora_r": rank}, **GPUS)


def test_an_option_overrules_the_file() -> None:
    found = read({**AXOLOTL, "lora_dropout": 0.05}, **GPUS, lora="r=4,target_modules=o_proj")
    assert (adapters(found), found.warnings) == ((4, 4.0, ("o_proj",)), ())


def test_llama_factory() -> None:
    found = read(FACTORY, **GPUS)
    assert (adapters(found), found.warnings) == ((8, 16.0, ALL), ())
    said = {"lora_rank": 4, "lora_target": "q_proj, v_proj", "use_rslora": True}
    assert adapters(read({**FACTORY, **said}, **GPUS)) == (4, 16.0, ("q_proj", "v_proj"))  # 2 * 4 * sqrt(4)


def test_llama_factory_1() -> None:
    found = read(FACTORY_1, **GPUS)
    assert (adapters(found), found.warnings) == ((8, 16.0, ALL), ())
    peft = {"name": "lora", "r": 32, "lora_alpha": 8, "target_modules": "v_proj"}
    found = read({**FACTORY_1, "peft_config": peft}, **GPUS)
    assert adapters(found) == (32, 8.0, ("v_proj",))
    told = f"peft_config.lora_dropout=0.05, its default: {UNDROPPED}"
    assert found.warnings == (told,)


def test_an_option_says_what_adapters_of_a_file_drop() -> None:
    usual = "peft_config.lora_dropout=0.05, its default"
    written = {**FACTORY_1, "peft_config": {"name": "lora", "r": 32, "lora_alpha": 8, "target_modules": "v_proj"}}
    assert read(written, **GPUS).warnings == (f"{usual}: {UNDROPPED}",)
    found = read(written, **GPUS, dropout="lora=0.05,residual=0.1")
    assert found.warnings == ()
    assert found.problem.model.dropout == Dropout(residual=0.1, lora=0.05)
    assert adapters(found) == (32, 8.0, ("v_proj",))
    with pytest.raises(AutoshardError) as error:
        read({**written, "peft_config": {"name": "lora", "r": 8, "target_modules": "w1"}}, **GPUS, dropout="lora=0.1")
    assert "must be 0: it has no adapters (lora)" in str(error.value)


def test_hyperpod() -> None:
    found = read(HYPERPOD)
    assert (adapters(found), found.warnings) == ((8, 4.0, ("o_proj",)), ())
    found = read({**HYPERPOD, "model": {**HYPERPOD["model"], "peft": {"peft_type": "qlora_4bit"}}})
    assert adapters(found) == (32, 16.0, ALL)
    assert found.warnings == (
        f"model.peft.dropout=0.1, its default: {UNDROPPED}",
        "model.peft.peft_type='qlora_4bit': priced with weights in half precision",
    )


LEARN_APART = (
    "{} with sequence parallelism: {} does not sum gradients of its adapters over tensor-parallel ranks, which "
    "learn apart; autoshard run sums those of its own"
)


@pytest.mark.parametrize("backend", ["torch", "nxd"])
def test_nxdt_on_either_backend(backend: str) -> None:
    found = read(NXDT, model="llama3-8b", backend=backend)
    assert (adapters(found), found.warnings, found.problem.backend) == ((16, 32.0, QKV), (), backend)
    key = "model_alignment_strategy.peft.target_modules"
    assert (
        f"{key}: qkv_proj is one layer there; priced with adapters beside each of q_proj, k_proj, v_proj" in found.notes
    )


def test_nxdts_adapters_are_their_own_masters_and_learn_apart() -> None:
    """As AWS's own example has it; a layout of NxD keeps masters with ZeRO-1 alone."""
    strategy = {"tensor_model_parallel_size": 8, "zero1": False, "sequence_parallel": True}
    found = read({**NXDT, "distributed_strategy": strategy}, model="llama3-8b")
    assert found.strategy.zero == 1
    check_strategy(*found.problem, found.strategy)
    assert found.warnings == (LEARN_APART.format("model_alignment_strategy.peft (LoRA of rank 16)", "NxD 0.18.0"),)
    told = (
        "distributed_strategy.zero1=false: adapters of NxD Training are FP32, their own masters; priced with ZeRO-1, "
        "which shards their states"
    )
    assert told in found.notes
    exact = read({**NXDT, "distributed_strategy": strategy, "precision": {"type": "fp32"}}, model="llama3-8b")
    assert exact.strategy.zero == 0


@pytest.mark.parametrize(
    ("target", "modules"),
    [
        (None, QKV),
        (["attention"], ("k_proj", "o_proj", "q_proj", "v_proj")),
        (["mlp_fc1"], ("gate_proj", "up_proj")),
        (["all"], ALL),
        (["q_proj", "mlp_fc2"], ("down_proj", "q_proj")),
    ],
)
def test_nemo(target: list[str] | None, modules: tuple[str, ...]) -> None:
    tuning = {"adapter_dim": 32, "adapter_dropout": 0.0, "target_modules": target}
    model = {**NEMO["model"], "peft": {"peft_scheme": "lora", "lora_tuning": tuning}}
    found = read({**NEMO, "model": model}, model="llama3-8b", instance="h100-80gb")
    assert (adapters(found), found.warnings) == ((32, 32.0, modules), ())


def test_optimum_neuron() -> None:
    """Its examples train adapters by themselves; other programs may have TRL's flags."""
    found = read(OPTIMUM.format(program="finetune_llama.py"), model="llama3-8b", backend="torch")
    assert adapters(found) == (64, 128.0, ALL)
    assert found.warnings == (
        "finetune_llama.py: no adapters are priced beside 'embed_tokens'",
        f"lora_dropout=0.05 of finetune_llama.py: {UNDROPPED}",
        LEARN_APART.format("finetune_llama.py trains adapters", "Optimum Neuron"),
    )
    flags = " --lora_r 8 --lora_alpha 16 --lora_target_modules q_proj v_proj"
    found = read(OPTIMUM.format(program="own.py") + flags, model="llama3-8b", backend="torch")
    apart = LEARN_APART.format("--lora_r 8", "Optimum Neuron")
    assert (adapters(found), found.warnings) == ((8, 16.0, ("q_proj", "v_proj")), (apart,))
    whole = f"{OPTIMUM.format(program='own.py')}{flags} --disable_sequence_parallel"
    assert read(whole, model="llama3-8b", backend="torch").warnings == ()


@pytest.mark.parametrize(
    ("section", "expected", "warnings"),
    [
        ("", (8, 16.0, ALL), ("lora.target_modules: no adapters are priced beside 'output'",)),
        ('rank = 4\nalpha = 2.0\ntarget_modules = ["wq", "w3"]', (4, 2.0, ("q_proj", "up_proj")), ()),
        ("rank = [4]", None, (f"{CONVERTED}: priced as training of all weights; LoRA freezes most of them",)),
    ],
)
def test_torchtitan(section: str, expected: object, warnings: tuple[str, ...]) -> None:
    model = '[model]\nname = "llama3"\nflavor = "8B"\nconverters = ["lora"]\n'
    layout = '[parallelism]\nfsdp_reshard_after_forward = "never"\n[activation_checkpoint]\nmode = "none"\n'
    Path("train.toml").write_text(f"{model}{layout}[lora]\n{section}")
    found = read_written("train.toml", GPUS)
    assert (adapters(found), found.warnings) == (expected, warnings)


def test_nxds_example() -> None:
    start = "torchrun --nproc_per_node 32 tp_llama_hf_finetune_ptl.py --tensor_parallel_size 8 --batch_size 1"
    assert adapters(read(start, model="llama3-8b", backend="torch")) is None
    found = read(f"{start} --enable_lora", model="llama3-8b", backend="torch")
    assert adapters(found) == (16, 32.0, QKV)
    dropped = f"lora_dropout=0.05 of tp_llama_hf_finetune_ptl.py: {UNDROPPED}"
    assert found.warnings == (dropped,)
    found = read(f"{start} --enable_lora --use_sequence_parallel 1", model="llama3-8b", backend="torch")
    assert found.warnings == (dropped, LEARN_APART.format("tp_llama_hf_finetune_ptl.py trains adapters", "NxD 0.18.0"))


def test_experts_have_none() -> None:
    model = load_model("mixtral-8x7b")
    lora, notes, warnings = adapters_of(WrittenLora("adapter", 8, 16.0, every=True), model)
    assert lora is not None
    assert (lora.target_modules, notes) == (("k_proj", "o_proj", "q_proj", "v_proj"), ())
    assert warnings == ("adapter: experts and routers may have adapters too; none are priced beside them",)


def test_blocks_without_adapters_are_not_planned() -> None:
    written = WrittenLora("adapter", 8, 16.0, ("z_proj",), key="target")
    lora, _, (warning,) = adapters_of(written, load_model("bamba-9b"))
    assert lora is None
    assert warning.startswith(
        "adapter: priced as training of all weights; LoRA freezes most of them: target_modules=z_proj"
    )


def test_a_scale_of_zero_is_refused() -> None:
    with pytest.raises(AutoshardError) as error:
        read({**AXOLOTL, "lora_alpha": 0}, **GPUS)
    assert str(error.value).startswith("train.yaml: lora_alpha=0")
