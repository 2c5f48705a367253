"""Scripts that start NeMo or NxD Training with overrides of a configuration, and scripts that start other scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from autoshard.errors import AutoshardError
from autoshard.interop import hydra_script
from autoshard.interop.hydra_script import configured
from autoshard.interop.launch_script import Place
from autoshard.interop.read_layout import read_written_layout
from autoshard.planner.written import Written, read_written
from tests.unit.written_files import GRADIENTS_IN_BF16

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

CONFIG: dict[str, Any] = {
    "name": "megatron_llama",
    "trainer": {"devices": 1, "num_nodes": 1, "accelerator": "tpu", "precision": 32},
    "model": {
        "micro_batch_size": 4,
        "global_batch_size": 8,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "encoder_seq_length": 512,
        "max_position_embeddings": "${.encoder_seq_length}",
        "num_layers": 12,
        "hidden_size": 768,
        "ffn_hidden_size": 3072,
        "num_attention_heads": 12,
        "normalization": "rmsnorm",
        "share_embeddings_and_output_weights": False,
        "position_embedding_type": "rope",
        "activation": "swiglu",
        "transformer_block_type": "pre_ln",
        "has_bias": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "activations_checkpoint_granularity": None,
        "activations_checkpoint_method": "uniform",
        "sequence_parallel": False,
        "data": {"fine_tuning": False, "seq_length": "${model.encoder_seq_length}", "train_ds": {"max_seq_length": 99}},
        "optim": {"name": "adamw"},
    },
}
"""The keys of neuronx-nemo-megatron's conf/megatron_llama_config.yaml."""
SETUP = """
if [ -v SLURM_NNODES ]
then
    NTASKS=$SLURM_NTASKS
else
    NTASKS=1
fi
export PROCESSES_PER_NODE=32
precision="bf16SR"
if [[ $precision == "bf16SR" ]];then
    export XLA_USE_BF16=1
    export wrap_with_zero=false
elif [[ $precision == "masters" ]]; then
    export XLA_DOWNCAST_BF16=1
    export wrap_with_zero=true
fi
"""
PROGRAM = """#!/usr/bin/env bash
source ./train_setup.sh
: ${SEQ_LENGTH:=2048}
: ${HS:=2048}
: ${TP:=8}
: ${PP:=1}
: ${N_AH:=16}
: ${GRANULARITY:=full}
FFN_HS=$(($HS*7/2))
$MAYBE_COMPILE torchrun --nproc_per_node $PROCESSES_PER_NODE megatron_gpt_pretraining.py  \\
    --config-path=conf \\
    --config-name=megatron_llama_config \\
    trainer.devices=$PROCESSES_PER_NODE \\
    trainer.num_nodes=$NTASKS \\
    model.micro_batch_size=1 model.global_batch_size=$((NTASKS*256)) \\
    model.tensor_model_parallel_size=$TP \\
    model.pipeline_model_parallel_size=$PP \\
    model.encoder_seq_length=$SEQ_LENGTH \\
    model.hidden_size=$HS model.ffn_hidden_size=$FFN_HS model.num_layers=80 model.num_attention_heads=$N_AH \\
    +model.num_kv_heads=8 'model.data.data_prefix=[1.0, /data/text]' \\
    model.wrap_with_zero=$wrap_with_zero model.zero_use_master_weight=True \\
    model.sequence_parallel=True  \\
    model.activations_checkpoint_granularity=$GRANULARITY \\
    model.optim.name=adamw $MORE  2>&1  | tee -a $LOG_PATH/log
"""
WRAPPER = """#!/usr/bin/env bash
export SEQ_LENGTH=4096
export HS=8192
export N_AH=64
export PP=16
GRANULARITY=selective
./test.sh
"""


def put(**files: str) -> None:
    """Write scripts, by their names without .sh, and the configuration that they name."""
    Path("conf").mkdir(exist_ok=True)
    Path("conf/megatron_llama_config.yaml").write_text(yaml.safe_dump(CONFIG))
    for name, text in files.items():
        Path(f"{name}.sh").write_text(text)


def read(name: str, **given: Any) -> Written:
    return read_written(f"{name}.sh", given)


def told(name: str, **given: Any) -> str:
    with pytest.raises(AutoshardError) as error:
        read(name, **given)
    return str(error.value)


def test_a_script_with_overrides_and_the_one_that_starts_it() -> None:
    """Variables that a script exports reach the one that it starts, which has defaults for the others."""
    put(test=PROGRAM, train_setup=SETUP, llama_70b=WRAPPER)
    put(run="if srun --kill-on-bad-exit=1 $1 ; then\n:\nfi\n", all="sbatch --nodes 8 run.sh ./llama_70b.sh\n")
    assert read("all", nodes=8).strategy == read("llama_70b", nodes=8).strategy
    found = read("llama_70b", nodes=8)
    strategy, problem = found.strategy, found.problem
    assert (strategy.tp, strategy.pp, strategy.dp, strategy.microbatch_size, strategy.zero) == (8, 16, 2, 1, 0)
    assert (problem.model.name, problem.cluster.instance, problem.cluster.nodes) == ("llama2-70b", "trn1.32xlarge", 8)
    assert (problem.training.sequence_length, problem.training.global_batch_size) == (4096, 2048)
    assert (problem.training.precision.name, strategy.attention_kernel) == ("bf16_sr", "plain")
    assert (strategy.sequence_parallel, set(strategy.recompute)) == (True, {"full"})
    assert found.notes[0] == "read from test.sh, which the script starts"
    assert found.notes[1] == "read with train_setup.sh beside it, as the script runs it"
    config = Path("conf", "megatron_llama_config.yaml")
    assert found.notes[2] == f"the configuration is {config}, with 18 overrides of the script"
    assert found.warnings == (
        "$MORE: variables to which the script gives no value, or several; overrides in them are not read",
    )


@pytest.mark.parametrize(
    ("line", "recompute"),
    [
        ("set -a", "attention_norm+core_attention+mlp_norm"),
        ("set -euao pipefail", "attention_norm+core_attention+mlp_norm"),
        ("set -o pipefail -ea; cd .", "attention_norm+core_attention+mlp_norm"),
        ("set -eo allexport", "attention_norm+core_attention+mlp_norm"),
        ("set -e", "full"),
        ("set -- -a", "full"),
        ("set -o nounset # -a", "full"),
    ],
)
def test_a_script_may_export_all_its_variables(line: str, recompute: str) -> None:
    put(test=PROGRAM, train_setup=SETUP, run=f"#!/bin/bash\n{line}\nGRANULARITY=selective\n./test.sh\n")
    assert read_written_layout("run.sh", nodes=8).options["recompute"] == recompute


def test_what_neuronx_nemo_megatron_says_otherwise_than_nemo() -> None:
    """Its selective recompute has norms too, and master weights are of the optimizer that shards."""
    put(
        test=PROGRAM.replace("$MORE", "").replace("GRANULARITY:=full", "GRANULARITY:=selective"),
        train_setup=SETUP.replace('"bf16SR"\nif', '"masters"\nif'),
        run="export HS=8192\nexport N_AH=64\n./test.sh",
    )
    found = read("run", nodes=8)
    assert (found.problem.training.precision.name, found.strategy.zero) == (GRADIENTS_IN_BF16, 1)
    assert set(found.strategy.recompute) == {"attention_norm+core_attention+mlp_norm"}
    assert (found.warnings, found.not_priced) == ((), ())


def test_a_parallel_block_is_that_of_gpt_neox() -> None:
    """No model is made of it, but a built-in one has all that the file says, though perhaps other tokens."""
    sizes = {"num_layers": 44, "hidden_size": 6144, "ffn_hidden_size": 24576, "num_attention_heads": 64}
    words = {"transformer_block_type": "gpt_j", "activation": "gelu", "normalization": "layernorm", "has_bias": True}
    more = {"rotary_percentage": 0.25, "tokenizer": {"type": "GPT2BPETokenizer"}}
    Path("neox.yaml").write_text(yaml.safe_dump({**CONFIG, "model": {**CONFIG["model"], **sizes, **words, **more}}))
    with pytest.raises(AutoshardError) as error:
        read_written("neox.yaml", {})
    assert str(error.value).endswith("; --model gpt-neox-20b takes a built-in one with all that the file says")


def test_a_configuration_that_is_not_here() -> None:
    text = PROGRAM.replace("$MORE", "model.activations_checkpoint_method=uniform").replace("HS:=2048", "HS:=8192")
    put(test=text.replace("N_AH:=16", "N_AH:=64"), train_setup=SETUP)
    Path("conf/megatron_llama_config.yaml").unlink()
    found = read("test", nodes=8, model="llama2-70b")
    assert found.strategy.tp == 8
    absent = "conf/megatron_llama_config is not here: fields that the script leaves out have the framework's defaults"
    assert absent in found.notes
    put(test=PROGRAM.replace("model.pipeline_model_parallel_size=$PP", ""))
    Path("conf/megatron_llama_config.yaml").unlink()
    assert told("test", nodes=8) == (
        "test.sh: it takes fields from conf/megatron_llama_config, which is not here, and does not say "
        "model.pipeline_model_parallel_size: give that file, or put it there"
    )


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("model.a=1", 1),
        ("+model.a=1.5", 1.5),
        ("++model.a=null", None),
        ("'model.a=[1, 2]'", [1, 2]),
        ("model.a=True", True),
        ('model.a="some words"', "some words"),
        ("model.a=\\'9,8\\'", "9,8"),
        ("model.a=x: 1", "x:"),
        ("model.a=b model.a=c", "c"),
        ("~model.keep", "none"),
        ("model.a=$A", 4),
        ("model.a=$UNKNOWN", "$UNKNOWN"),
        ("$LIST", 7),
        ('"${ARRAY[@]}"', 8),
        ("'model.a={b: 1}'", {"b": 1}),
        ("model.a=", ""),
    ],
)
def test_overrides(words: str, value: object) -> None:
    text = (
        f'A=4\nLIST="model.a=7 \\\n  model.b=1"\nARRAY=(\n  model.a=8\n)\npython train.py -cn base model.x=1 {words}\n'
    )
    Path("base.yaml").write_text("model:\n  keep: 3\n")
    model = configured(text, Place(folder=".")).data["model"]
    assert model.get("a", "none") == value and model["x"] == 1
    assert model.get("keep") == (None if words.startswith("~") else 3)


def with_program(**files: object) -> None:
    """A program that takes conf/own.yaml where no flag names another one, and configurations by their names in conf."""
    Path("pre.py").write_text('@hydra_runner(config_path="conf", config_name="own")\ndef main(cfg): ...\n')
    Path("conf").mkdir()
    for name, data in {"own": {"model": {"a": 1}}, **files}.items():
        Path(f"conf/{name}.yaml").write_text(yaml.safe_dump(data))


@pytest.mark.parametrize(
    ("words", "model"),
    [
        ("", {"a": 1, "b": 2}),
        ("--config-name other", {"a": 3, "b": 2}),
        ("--config-path=conf/../elsewhere", {"a": 4, "b": 2}),
        ("~model.no.such", {"a": 1, "b": 2}),
        ("trainer.devices=$N", {"a": 1, "b": 2}),
    ],
)
def test_a_program_names_its_own_file(words: str, model: dict[str, int]) -> None:
    with_program(other={"model": {"a": 3}})
    Path("elsewhere").mkdir()
    Path("elsewhere/own.yaml").write_text("model: {a: 4}\n")
    assert configured(f"python pre.py {words} model.b=2", Place(folder=".")).data == {"model": model}


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("python pre.py model.a.b=2", "model.a.b=2: a holds a value, no fields"),
        (f"python pre.py model.{'a.' * 19}b=2", f"model.{'a.' * 19}b... has more than 20 parts"),
        ("python pre.py -cn listed model.a=2", "conf/listed.yaml must hold named fields"),
        ("python pre.py model.a=2 model.b=3 model.c=4", "a command of more than 2 words, which nobody writes"),
    ],
)
def test_overrides_that_make_no_configuration(line: str, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_program(listed=[1])
    if "words" in error:
        monkeypatch.setattr(hydra_script, "MOST_WORDS", 2)
    with pytest.raises(AutoshardError) as told:
        configured(line, Place(folder="."))
    assert str(told.value) == error


def test_overrides_in_a_condition_are_told() -> None:
    with_program()
    text = 'SAID="it\'s pre.py"\nif [ -f big ]; then\npython pre.py model.b=2\nfi\n'
    found = configured(text, Place(folder="."))
    assert found.data == {"model": {"a": 1, "b": 2}}
    assert found.warnings == ("in a condition of the script, taken as if it held: model.b=2",)


def test_the_launcher_of_nemo_names_a_file_of_its_own() -> None:
    folder = Path("launcher_scripts/conf/training/llama")
    folder.mkdir(parents=True)
    (folder / "small.yaml").write_text(yaml.safe_dump({**CONFIG, "trainer": {"devices": 8, "precision": "bf16"}}))
    Path("examples").mkdir()
    script = "python3 ${DIR}/launcher_scripts/main.py \\\ntraining=llama/small \\\nstages=[training] \\\n"
    overrides = "training.trainer.num_nodes=4 \\\n+training.model.tensor_model_parallel_size=2 \\"
    Path("examples/run.sh").write_text(script + overrides)
    found = configured(script + overrides, Place(folder="examples")).data["training"]
    assert (found["trainer"]["num_nodes"], found["model"]["tensor_model_parallel_size"]) == (4, 2)
    assert (found["trainer"]["devices"], found["model"]["num_layers"]) == (8, 12)
    (folder / "small.yaml").unlink()
    assert told("examples/run") == (
        "examples/run.sh: training=llama/small is conf/training/llama/small.yaml of the NeMo Framework Launcher, "
        "which is not here: give that file instead"
    )


def test_a_script_starts_one_beside_it_with_arguments() -> None:
    Path("run.sh").write_text(
        "torchrun --nproc_per_node 32 run_llama_nxd.py --tensor_parallel_size $1 \\\n"
        '  --train_batch_size ${2:-4} --seq_len 4096 "${@}"\n'
    )
    Path("all.sh").write_text("set -e\nMBS=2\nexec bash ./run.sh 8 $MBS\n")
    found = read("all", model="llama3-8b")
    assert (found.strategy.tp, found.strategy.microbatch_size) == (8, 2)
    assert "read from run.sh 8 2, which the script starts" in found.notes
    Path("all.sh").write_text("bash run.sh 8\nbash run.sh 32\n")
    assert told("all") == "all.sh: it starts run.sh 8 and run.sh 32, each of which has a layout: give one of them"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (
            "bash /elsewhere/run.sh 8",
            "it has no layout itself and starts /elsewhere/run.sh, which is not beside it: give that script",
        ),
        ("exec ./all.sh", "all.sh is no layout"),
        ("./bad.sh", "bad.sh, which it starts: --tensor_parallel_size is '0'; it must be a whole number of at least 1"),
    ],
)
def test_a_script_that_starts_nothing_that_can_be_read(line: str, error: str) -> None:
    Path("all.sh").write_text(f"{line}\n")
    Path("bad.sh").write_text("torchrun run_llama_nxd.py --tensor_parallel_size 0 --batch_size 1")
    assert error in told("all", nodes=1)
