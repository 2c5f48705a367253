"""Scripts that start NxD's example programs, or programs with Optimum Neuron's arguments, on Trainium."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoshard.errors import AutoshardError
from autoshard.interop.launch_script import Place, read_script
from autoshard.interop.read_layout import read_written_layout
from autoshard.interop.written_layout import MISSING, WrittenLayout
from autoshard.models.huggingface import to_config
from autoshard.models.registry import load_model
from autoshard.planner.written import Written, read_written

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

PIPELINE = """#!/bin/bash
HERE=$( cd -- "$( dirname -- "${BASH_SOURCE[0]}" )" &> /dev/null && pwd )
export NEURON_CC_FLAGS="--model-type=transformer"
CORES=32
WORLD_SIZE=1
if [ -v SLURM_NTASKS ]; then
    NTASKS=$SLURM_NTASKS
    WORLD_SIZE=$SLURM_NTASKS
    ARGS="--nproc_per_node $CORES --nnodes $NTASKS --node_rank $SLURM_NODEID"
elif [ -v OMPI_COMM_WORLD_RANK ]; then
    WORLD_SIZE=$OMPI_COMM_WORLD_SIZE
    NTASKS=$WORLD_SIZE
    ARGS="--nproc_per_node $CORES --nnodes $NTASKS"
else
    ARGS="--nproc_per_node $CORES"
fi
: ${GBS:=1024}
: ${PP:=8}
TP=8
DP=$(($CORES * $WORLD_SIZE / $TP / $PP))
BS=$(( GBS / DP ))
NUM_MICROBATCHES=$BS
torchrun $ARGS run_llama_nxd.py --train_batch_size $BS --training_config $HERE/config --seq_len 4096 --max_steps 10 \\
    --pipeline_parallel_size $PP --tensor_parallel_size $TP --num_microbatches $NUM_MICROBATCHES \\
    --use_zero1_optimizer 1 --use_selective_checkpoint 1 --lr 0.00015 |& tee log
exit ${PIPESTATUS[0]}
"""
ACCUMULATED = """
TP=8
SHARDS={shards}
CORES=32
MBS=2
EXTRA=" "
if [ $SHARDS -gt 0 ]; then
    EXTRA+=" --use_zero_1"
else
    EXTRA+=" --use_gpu_compatible_precision 0"
fi
if [ "$MBS" -le 1 ]; then
    EXTRA+=" --selective_checkpoint_enabled"
fi
torchrun --nproc_per_node $CORES tp_zero1_llama_hf_pretrain.py --tensor_parallel_size $TP --batch_size $MBS \\
    --grad_accum_usteps $((16 * 4 / ${{MBS}})) --seq_len 8192 --sequence_parallel_enabled $EXTRA
"""
OPTIMUM = """
torchrun --nproc_per_node 64 finetune.py --model_id Qwen/Qwen3-8B --per_device_train_batch_size 4 --bf16 \\
    --gradient_accumulation_steps 8 --tensor_parallel_size 8 --max_length 2048 --gradient_checkpointing --do_train
"""


def script(text: str, nodes: int | None = None) -> WrittenLayout:
    Path("train.sh").write_text(text)
    return read_written_layout("train.sh", nodes)


def written(text: str, **options: object) -> Written:
    Path("train.sh").write_text(text)
    return read_written("train.sh", options)


def test_a_pipeline_that_a_launcher_starts_on_nodes() -> None:
    Path("config").mkdir()
    Path("config/config.json").write_text(json.dumps(to_config(load_model("llama2-70b"))))
    found = written(PIPELINE, nodes=16)
    strategy, problem = found.strategy, found.problem
    assert (strategy.tp, strategy.pp, strategy.dp, strategy.microbatch_size, strategy.zero) == (8, 8, 8, 1, 1)
    assert (problem.model.num_hidden_layers, problem.training.global_batch_size) == (80, 1024)
    assert (problem.cluster.instance, problem.cluster.nodes) == ("trn1.32xlarge", 16)
    assert problem.training.sequence_length == 4096
    assert strategy.sequence_parallel and strategy.attention_kernel == "plain"
    assert set(strategy.recompute) == {"core_attention"}
    assert (found.form, found.warnings, found.not_priced) == ("NxD script", (), ())
    with pytest.raises(AutoshardError, match=r"^train.sh does not say nodes; --nodes does$"):
        written(PIPELINE)


def test_a_launch_that_leaves_no_replica_is_told_its_devices() -> None:
    """The script divides a batch by dp, which is none: its devices are the matter, not the batch."""
    with pytest.raises(AutoshardError) as raised:
        written(PIPELINE, nodes=1)
    told = "train.sh: tp=8 x pp=8 x cp=1 is 64 devices, which must divide the 32 of 1 x trn1.32xlarge"
    assert str(raised.value) == told


@pytest.mark.parametrize(
    ("shards", "zero", "precision"), [(1, 1, "mixed_precision"), (0, 0, "bf16_sr")], ids=["shards", "does not"]
)
def test_conditions_on_numbers_are_decided(shards: int, zero: int, precision: str) -> None:
    found = script(ACCUMULATED.format(shards=shards))
    assert (found.fields["zero"], found.options["precision"], found.options["recompute"]) == (zero, precision, "full")
    assert (found.options["micro_batch"], found.fields["sequences_per_replica"], found.fields["runs"]) == (2, 2, 32)
    assert (found.options["nodes"], found.options["attention_kernel"], found.warnings) == (1, "flash", ())
    assert found.notes[0].endswith(f": CORES=32, TP=8, MBS=2, SHARDS={shards}")
    assert written(ACCUMULATED.format(shards=shards), model="llama3-8b").problem.training.global_batch_size == 64 * 4


def test_optimum_neuron() -> None:
    found = written(OPTIMUM)
    cluster, training = found.problem.cluster, found.problem.training
    assert (cluster.instance, cluster.lnc, found.problem.model.name) == ("trn2.48xlarge", 2, "qwen3-8b")
    assert (training.global_batch_size, training.sequence_length) == (4 * 8 * 8, 2048)
    assert training.precision.name == "mixed_precision"
    strategy = found.strategy
    assert (strategy.microbatch_size, strategy.zero, strategy.sequence_parallel) == (4, 1, True)
    assert strategy.recompute == ("full",)
    other = script(OPTIMUM.replace("--gradient_checkpointing", "--zero_1 False --disable_sequence_parallel"))
    assert (other.fields["zero"], other.fields["sequence_parallel"], other.options["recompute"]) == (0, False, "none")
    assert other.options["precision"] == "bf16_sr"


def test_a_pipeline_that_empties_several_times_a_step() -> None:
    flags = "--pipeline_parallel_size 2 --pipeline_parallel_num_microbatches 4"
    found = written(OPTIMUM.replace("--do_train", flags), backend="nxd")
    assert (found.strategy.microbatch_size, found.problem.training.global_batch_size) == (1, 4 * 8 * 4)
    (told,) = (warning for warning in found.warnings if "empties" in warning)
    assert told.startswith("the file's pipeline takes 4 sequences of a replica and empties, 8 times a step; ")


@pytest.mark.parametrize(
    ("text", "recompute"),
    [
        ("run_llama_nxd.py --train_batch_size 8 --seq_len 8192", "core_attention+mlp"),
        ("run_llama_nxd_ptl.py --train_batch_size 8 --seq_len 8192", "core_attention"),
        ("run_mixtral_pretrain_ptl.py --batch_size 8 --seq_len 4096", "core_attention+mlp"),
    ],
)
def test_what_a_selective_program_runs_again(text: str, recompute: str) -> None:
    found = script(f"torchrun {text} --tensor_parallel_size 8 --use_selective_checkpoint 1")
    assert (found.options["recompute"], found.fields["runs"], len(found.notes)) == (recompute, 1, 0)


@pytest.mark.parametrize(("flags", "recompute"), [("", "mlp"), ("--use_flash_attention 0", "core_attention+mlp")])
def test_a_kernel_takes_the_place_of_what_would_run_again(flags: str, recompute: str) -> None:
    """Blocks call either: CoreAttention is wrapped, and never run beside a flash kernel or a ring."""
    start = "torchrun run_llama_nxd.py --train_batch_size 8 --seq_len 8192 --tensor_parallel_size 8"
    found = script(f"{start} --use_selective_checkpoint 1 {flags or '--use_flash_attention 1'}")
    assert (found.options["recompute"], len(found.notes)) == (recompute, int(not flags))
    ring = script(f"{start} --use_selective_checkpoint 1 --context_parallel_size 2")
    assert (ring.options["recompute"], ring.options["attention_kernel"]) == ("mlp", "flash")


def test_a_program_that_nobody_knows_is_told() -> None:
    found = script("torchrun own.py --batch_size 1 --tensor_parallel_size 2 --enable_lora --own 3")
    told = "the program is none of NxD's examples: what no flag says is read as in run_llama_nxd.py"
    assert found.notes[0] == told
    assert found.notes[1].startswith("the script does not say how long sequences are")
    assert found.warnings == ("--enable_lora: priced as training of all weights; LoRA freezes most of them",)
    assert found.not_priced == ("--own",)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "--batch_size 1 --tensor_parallel_size $TP",
            (
                "--tensor_parallel_size is $TP, a variable to which the script gives no value, or several: write one "
                "in its place"
            ),
        ),
        (
            "--train_batch_size 9 --num_microbatches 4 --pipeline_parallel_size 2 --tensor_parallel_size 8",
            "--num_microbatches=4 must divide --train_batch_size=9",
        ),
        ("--batch_size 0 --tensor_parallel_size 8", "--batch_size is '0'; it must be a whole number of at least 1"),
    ],
)
def test_values_that_make_no_layout(text: str, told: str) -> None:
    with pytest.raises(AutoshardError) as raised:
        script(f"torchrun run_llama_nxd.py {text}")
    assert str(raised.value) == f"train.sh: {told}"


def test_what_a_variable_without_a_value_leaves_open() -> None:
    found = script("run_llama_nxd.py --batch_size 1 --grad_accum_usteps $A --tensor_parallel_size 8 --seq_len $S")
    assert [found.options[name] for name in ("global_batch", "seq_len", "micro_batch")] == [MISSING, MISSING, 1]
    with pytest.raises(AutoshardError, match=r"^train.sh does not say which model of those built in it is for; "):
        written("run_llama_nxd.py --batch_size 1 --tensor_parallel_size 8 --num_layer 4 --seq_len 4096")


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=$((2 * 3 + 1))", "7"),
        ("N=8\nA=$((N / 3))", "2"),
        ("N=8\nA=$(( ($N - 2) % (3 + 1) ))", "2"),
        ("A=$((8 / 0))", "$A"),
        ("A=$((2 ** 3))", "$A"),
        ("A=$(($UNKNOWN * 2))", "$A"),
        (": ${A:=4}", "4"),
        ("A=$SLURM_NTASKS", "5"),
        ("A=1\nif x; then\nA=$OMPI_COMM_WORLD_SIZE\nfi", "5"),
        ("A=1\nif [ $A -ge 2 ]; then\nA=2\nfi", "$A"),  # nobody knows which A is meant
        ("N=3\nA=1\nif [ $N -ge 4 ]; then\nif [ $N -eq 2 ]; then\nA=9\nfi\nA=2\nfi", "1"),
        ("N=3\nif [[ ${N} -ne 2 ]]\nthen\nA=2\nelse\nA=1\nfi", "2"),
        ("N=3\nif [ $N -eq 2 ]; then A=1; else A=2; fi", "2"),
        ('N=sr\nif [[ $N == "o2" ]];then\nA=1\nelif [ "$N" = sr ]; then\nA=2\nelse\nA=3\nfi', "2"),
        ("N=sr\nif [ $N != sr ]; then\nif [ $X = 1 ]; then A=1; fi\nelse\nA=2\nfi\nif x\nthen y\nfi", "2"),
        ("N=sr\nif [[ $N == s* ]]; then\nA=1\nelse\nA=2\nfi", "$A"),  # a pattern
        ("if [ $X = 1 ]; then\nA=1\nelif [ 1 = 1 ]; then\nA=2\nfi", "$A"),
        ("A=2\n: ${A:=4}", "2"),
        ("export N=1 A='2' B=$N  # three", "2"),
        ("A=1\nexport N=1 A=2", "$A"),
        ("export N=1 A=2\n: ${A:=4}", "2"),
        ("N=1 A=2 bash x.sh", "$A"),  # for the command alone
        ("if x; then\nA=2\nelse\n: ${A:=4}\nfi", "$A"),
    ],
)
def test_values_of_variables(line: str, value: str) -> None:
    assert read_script(f"{line}\n--x $A", ["x"], Place(nodes=5)).flags["x"] == value


def test_what_stands_behind_an_inner_condition_is_in_the_outer_one() -> None:
    text = "if x; then\nif y; then A=1; fi\nif z\nthen\nA=2\nfi\n--x 1\nfi\n--y 1"
    assert read_script(text, ["x", "y"]).conditional == ("x",)


def test_conditions_that_do_not_end_are_read_once() -> None:
    """Each was looked through to the end of the script for its own end, which takes minutes."""
    text = "A=2\n" + "if [ $N -gt 1 ]; then\nx\n" * 20_000
    assert read_script(f"{text}--x $A", ["x"]).flags["x"] == "2"


def test_variables_that_grow_by_each_other_end() -> None:
    """Each is the one before, twice: all of it would be 2 to the 60th characters."""
    text = "\n".join(["A0=ab", *(f"A{i}=$A{i - 1}$A{i - 1}" for i in range(1, 61)), "--x $A60 --y $A3"])
    found = read_script(text, ["x", "y"])
    assert (found.flags["x"], found.flags["y"]) == ("$A60", "ab" * 8)
