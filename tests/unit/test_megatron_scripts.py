"""Scripts with Megatron-LM's arguments, as their authors write them: quotes, arrays, variables, other frameworks'."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoshard.errors import AutoshardError
from autoshard.interop.read_layout import read_written_layout
from autoshard.interop.written_layout import WrittenLayout
from autoshard.planner.written import Written, read_written
from autoshard.spec.prediction import MultiTokenPrediction
from tests.unit.megatron_flags import DROPS_NOTHING

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def script(text: str) -> WrittenLayout:
    Path("train.sh").write_text(text)
    return read_written_layout("train.sh")


def written(text: str, **options: object) -> Written:
    Path("train.sh").write_text(text)
    return read_written("train.sh", {"model": "llama3-8b", "instance": "h100-80gb", "nodes": 3, **options})


@pytest.mark.parametrize(
    "text",
    [
        '(\n  "--num-layers 32"\n  "--hidden-size 4096" --swiglu\n  "--recompute-modules=core_attn mlp"\n)',
        'ARGS="--num-layers 32 --hidden-size=4096"\nMORE="\n  --swiglu --recompute-modules core_attn mlp\n"',
        'ARGS+=" --hidden-size=4096 --num-layers=32 --swiglu"\necho "a --bf16"; --recompute-modules core_attn mlp',
    ],
)
def test_quotes_around_several_words(text: str) -> None:
    found = script(f"{text}\n--recompute-granularity selective")
    said = {name: value for name, (_, value) in found.model.said.items()}
    assert said == {"num_hidden_layers": 32, "hidden_size": 4096, "activation": "swiglu"}
    assert found.options["recompute"] == "core_attention+mlp"
    assert found.left_out == ()


@pytest.mark.parametrize(
    ("text", "tp"),
    [
        ('CMD="pretrain_gpt.py --tensor-model-parallel-size 4 --num-layers 32"', 4),
        ('export CMD=" \\\n  pretrain_gpt.py \\\n  --tensor-model-parallel-size 4 \\\n  --num-layers 32 \\\n"', 4),
        ('MODEL="$MODEL --tensor-model-parallel-size=4"\n--num-layers 32', 4),
        ('ARGS="--tensor-model-parallel-size=4"\n--num-layers 32', 4),
        ("srun --label bash -c 'torchrun \"pretrain gpt.py\" --tensor-model-parallel-size 4 --num-layers 32'", 4),
        ('CMD="it\'s pretrain_gpt.py --tensor-model-parallel-size 4 --num-layers 32"', 4),
        ('echo "or --tensor-model-parallel-size 8"\n--num-layers 32', 1),
        ('echo -e "or --tensor-model-parallel-size 8"\n--num-layers 32', 1),
        ("--num-layers 32\necho '--tensor-model-parallel-size 8'", 1),
        ('--num-layers 32\nif x; then echo "--tensor-model-parallel-size=8"; fi', 1),
        ('--num-layers 32 || echo failed: "--tensor-model-parallel-size 8"', 1),
        ("--num-layers 32\nprintf --tensor-model-parallel-size 8 \\\n  --num-layers 4", 1),
        ('--num-layers 32; echo a#b "--tensor-model-parallel-size 8" # it\'s', 1),
        ("--num-layers 32 --experiment-name \\\n  echo \\\n  --tensor-model-parallel-size 4", 4),
        ('--num-layers 32\nsrun echo "--tensor-model-parallel-size 8"', 1),
        ('srun echo -e "or --tensor-model-parallel-size 8"; --num-layers 32', 1),
        ('echo "it is"; torchrun --num-layers 32 --tensor-model-parallel-size 4', 4),
        ('bash -c "echo --num-layers 4; torchrun --num-layers 32 --tensor-model-parallel-size 4"', 4),
        ("A=$(echo --num-layers 32)\ntorchrun $A --tensor-model-parallel-size 4 --experiment-name echo --bf16", 4),
        ('--wandb-exp-name "not --tensor-model-parallel-size 8" --num-layers 32', 1),
        ("# --tensor-model-parallel-size 8 \\\n--num-layers 32", 1),
        ("# it's --tensor-model-parallel-size 8 \\\n--num-layers 32 # --num-layers 4", 1),
        ("STEM=${NAME#pretrain_}; torchrun $STEM --num-layers 32 --tensor-model-parallel-size 4", 4),
        ('ARGS="\n  --num-layers 32 \\\n  # --tensor-model-parallel-size 8 \\\n  --num-experts 8\n"', 1),
    ],
)
def test_texts_that_a_shell_runs(text: str, tp: int) -> None:
    """Flags of commands in quotes are read, behind any word; those of comments, shown texts and values are not."""
    found = script(f"{text}\n--swiglu")
    assert (found.options["tp"], found.model.wanted["num_hidden_layers"]) == (tp, 32)


@pytest.mark.parametrize(
    "text",
    [
        "torchrun pretrain_gpt.py {}; echo done",
        "torchrun pretrain_gpt.py {}&",
        "torchrun pretrain_gpt.py {}&& echo done",
        "torchrun pretrain_gpt.py {}|tee log",
        "torchrun pretrain_gpt.py {}>log",
        "torchrun pretrain_gpt.py {} 2>&1 | tee log",
        "(torchrun pretrain_gpt.py {}; wait)",
        "torchrun pretrain_gpt.py {};# it's done",
        "bash -c 'torchrun pretrain_gpt.py {}; echo done'",
        "if [ $SP = 1 ]; then A=({}); fi",
        'A="{}"; eval torchrun pretrain_gpt.py $A',
    ],
)
def test_a_command_ends_where_a_shell_ends_it(text: str) -> None:
    """What is behind a semicolon, an ampersand, a bar or a bracket is no part of the flag or value before it."""
    sizes = "--tensor-model-parallel-size 2 --swiglu"
    found = script(text.format(f"{sizes} --sequence-parallel"))
    assert (found.fields["sequence_parallel"], found.left_out) == (True, ())
    assert script(text.format(f"{sizes} --use-distributed-optimizer")).fields["zero"] == 1
    assert script(text.format(f"{sizes} --micro-batch-size 4")).options["micro_batch"] == 4
    modules = script(text.format(f"{sizes} --recompute-granularity selective --recompute-modules core_attn mlp"))
    assert (modules.options["recompute"], modules.left_out) == ("core_attention+mlp", ())


@pytest.mark.parametrize(
    "text",
    [
        'ARGS="{}"\ntorchrun pretrain_gpt.py $ARGS',
        "torchrun pretrain_gpt.py {}\nwait",
        "export NODES=4; torchrun pretrain_gpt.py {}\nNODES=2\n",
        "torchrun pretrain_gpt.py {} $MORE",
    ],
)
def test_a_list_of_words_ends_with_its_line(text: str) -> None:
    found = script(text.format("--tensor-model-parallel-size 2 --recompute-activations --recompute-modules mlp"))
    assert (found.options["recompute"], found.warnings) == ("mlp", ())
    found = script(text.format("--context-parallel-size 2 --cp-comm-type p2p"))
    assert found.options["context_parallel"] == "zigzag_ring"


@pytest.mark.parametrize("value", ["$((MBS>8?8:MBS))", "${MBS%%;*}", "<MBS>", "a;b"])
def test_signs_within_a_value_end_no_command(value: str) -> None:
    said = f"'{value}'" if value == "a;b" else value
    with pytest.raises(AutoshardError) as raised:
        script(f"--swiglu --tensor-model-parallel-size {said}")
    told = f"--tensor-model-parallel-size is {value!r}; it must be a whole number of at least 1"
    assert str(raised.value) == f"train.sh: {told}"


@pytest.mark.parametrize(
    "text",
    [
        "--tensor_parallel_size 8 --pipeline_parallel_size 2 --zero_1 --bf16",
        "--x",
        "--max_context_width=8192 --num_layers=32 --hidden_width=4096 --num_heads=32 --offload_activations=1",
        "--num_layers 44 --hidden_size 6144 --micro_batch_size 1 --context_parallel_size 2 --global-batch-size 8",
        "--num-experts 288 --num-tokens 128 --seq-length 8192 --experiment-name test --tp 2",
    ],
)
def test_other_frameworks_scripts(text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        script(f"torchrun --nproc_per_node 32 finetune.py {text}")
    megatrons = "none of its arguments is Megatron's own, such as --tensor-model-parallel-size or --ffn-hidden-size"
    others = "those of NxD's examples and Optimum Neuron are --tensor_parallel_size and a batch size"
    nemos = "NeMo's model.tensor_model_parallel_size= and the like"
    assert str(error.value) == f"train.sh: {megatrons}, and {others}, {nemos}"


def test_a_model_is_megatrons_too() -> None:
    found = script("torchrun pretrain.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 2048")
    assert (found.options["tp"], found.model.whole) == (1, True)


def test_megatron_deepspeed() -> None:
    degrees = "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2"
    found = script(f"{degrees} --deepspeed --deepspeed_config ds.json --zero-stage 3 --checkpoint-activations")
    assert (found.fields["zero"], found.options["recompute"]) == (3, "full")
    assert found.not_priced == ("--deepspeed", "--deepspeed-config")
    assert script("--zero-stage 0 --use-distributed-optimizer").fields["zero"] == 0
    with pytest.raises(AutoshardError, match=r"^train.sh: --zero-stage is 4; it must be 0, 1, 2 or 3$"):
        script("--zero-stage 4")


def test_programs_for_other_models_than_decoders_are_told() -> None:
    flags = "--tensor-model-parallel-size 2 --num-layers 24 # not pretrain_t5.py"
    told = "pretrain_bert.py trains another kind of model; priced as a decoder that sees earlier tokens alone"
    assert script(f"torchrun pretrain_bert.py {flags}").warnings == (told,)
    assert script(f"torchrun pretrain_gpt.py {flags}").warnings == ()


def test_older_flags_on_recompute() -> None:
    """A method alone said that whole blocks run again."""
    older = "--tensor-model-parallel-size 8 --num-layers 96 --activations-checkpoint-method"
    found = script(f"{older} uniform")
    assert (found.options["recompute"], found.left_out, found.warnings) == ("full", (), ())
    (warning,) = script(f"{older} uniform --activations-checkpoint-num-layers 4").warnings
    assert warning.startswith("--recompute-num-layers 4: ")
    newer = script(f"{older} block --recompute-granularity selective")
    assert newer.options["recompute"] == "core_attention"


def test_ranks_that_share_sequences_in_megatron_deepspeed() -> None:
    found = script("--ds-sequence-parallel-size 4 --zero-stage 1 --bf16")
    assert (found.options["cp"], found.options["context_parallel"], found.left_out) == (4, "ulysses", ())


def test_key_value_heads_of_megatron_deepspeed() -> None:
    sizes = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --swiglu"
    found = script(f"{sizes} --num-key-value-heads 8")
    assert (found.model.wanted["num_key_value_heads"], found.left_out) == (8, ())
    assert written(f"{sizes} --num-key-value-heads 8 --ffn-hidden-size 14336").problem.model.num_key_value_heads == 8
    told = r"^train.sh has --num-key-value-heads=4, but llama3-8b has 8: another model$"
    with pytest.raises(AutoshardError, match=told):
        written(f"{sizes} --num-key-value-heads 4")
    both = script(f"{sizes} --num-key-value-heads 8 --group-query-attention --num-query-groups 4")
    assert both.model.wanted["num_key_value_heads"] == 4
    with pytest.raises(AutoshardError, match=r"none of its arguments is Megatron's own"):
        script("torchrun finetune.py --num_key_value_heads 8 --num_layers 32")


def test_without_a_global_batch_each_replica_takes_one_microbatch() -> None:
    text = "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --micro-batch-size 2"
    told = "without one in the file Megatron takes one microbatch of each replica"
    found = written(text)
    assert found.problem.training.global_batch_size == 2 * 3
    assert f"global batch of 2 x dp=3: {told}" in found.notes
    assert written(text, micro_batch=1).problem.training.global_batch_size == 3
    given = written(text, global_batch=12)
    assert given.problem.training.global_batch_size == 12 and told not in " ".join((*given.notes, *given.warnings))
    own = written(f"{text} --global-batch-size 24")
    assert own.problem.training.global_batch_size == 24 and told not in " ".join((*own.notes, *own.warnings))


def test_processes_of_a_node_that_are_not_its_devices() -> None:
    def warnings(said: str) -> tuple[str, ...]:
        return written(f"torchrun {said} pretrain_gpt.py --tensor-model-parallel-size 4 {DROPS_NOTHING}").warnings

    told = "4 devices a node, as the file says; h100-80gb has 8, and the layout takes all of them"
    assert warnings("--nproc_per_node 4") == (told,)
    assert [warnings(f"--nproc_per_node {said}") for said in ("8", "$GPUS_PER_NODE", "gpu")] == [()] * 3


@pytest.mark.parametrize(
    ("flags", "zero"),
    [
        ("--use-megatron-fsdp", 3),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy no_shard", 0),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", 2),
        ("--use-torch-fsdp2", 3),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", 2),
    ],
)
def test_fully_sharded(flags: str, zero: int) -> None:
    found = script(f"{flags} --bf16")
    assert (found.fields["zero"], found.left_out) == (zero, ())
    told = (
        "--use-megatron-fsdp without --data-parallel-sharding-strategy: optim_grads_params, Megatron's default; before "
        "core_v0.18.0 it was no_shard"
    )
    assert found.notes == ((told,) if flags == "--use-megatron-fsdp" else ())


def test_a_strategy_of_sharding_that_nobody_knows() -> None:
    with pytest.raises(AutoshardError) as error:
        script("--use-megatron-fsdp --data-parallel-sharding-strategy all --bf16")
    assert str(error.value) == (
        "train.sh: --data-parallel-sharding-strategy is 'all'; known: no_shard, optim, optim_grads, optim_grads_params"
    )


def test_experts_with_data_parallelism_outermost() -> None:
    flags = "--use-tp-pp-dp-mapping --num-experts 8 --bf16 --expert-model-parallel-size"
    told = "--use-tp-pp-dp-mapping: experts are inside the pipeline there; priced outside, with the rest of dp"
    assert [told in script(f"{flags} {ranks}").notes for ranks in (2, 1)] == [True, False]


def test_the_prediction_module_and_the_weight_of_its_loss() -> None:
    """Megatron's weight is 0.1 without a flag, DeepSeek-V3's own 0.3 in its first phase."""
    flags = "--tensor-model-parallel-size 8 --mtp-num-layers"
    given = {"model": "deepseek-v3", "nodes": 64}
    modules = [
        written(f"{flags} {said}", **given).problem.model.multi_token_prediction
        for said in ("1", "1 --mtp-loss-scaling-factor 0.3", "0 --mtp-loss-scaling-factor 0.3")
    ]
    assert modules == [MultiTokenPrediction(1, 0.1), MultiTokenPrediction(1, 0.3), None]


@pytest.mark.parametrize(("terms", "is_read"), [(99, True), (100, False)])
def test_a_sum_too_long_to_be_meant_is_no_number(terms: int, is_read: bool) -> None:
    """Without spaces 199 characters are read, and 201 are not."""
    text = f"--tensor-model-parallel-size $((1{' + 1' * terms}))"
    if is_read:
        assert script(text).options["tp"] == 1 + terms
        return
    with pytest.raises(AutoshardError, match="--tensor-model-parallel-size is '"):
        script(text)


def test_a_padded_vocabulary_is_the_models_where_no_other_is_said() -> None:
    sizes = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --max-position-embeddings 2048"
    said = [script(f"{sizes} {more}").model.wanted.get("vocab_size") for more in ("", "--padded-vocab-size 201_088")]
    both = script(f"{sizes} --vocab-size 201_000 --padded-vocab-size 201_088")
    assert (*said, both.model.wanted["vocab_size"], both.left_out) == (None, 201_088, 201_000, ())


@pytest.mark.parametrize(("model", "factor"), [("llama3.2-1b", 32), ("llama4-scout", 16)])
def test_how_rope_is_stretched_is_no_other_model(model: str, factor: int) -> None:
    """NVIDIA's own arguments for these two say the default factor, and have no flag for Llama 4's other numbers."""
    told = f"--use-rope-scaling stretches rope with factor 8; {model} does it otherwise, with factor {factor}"
    found = written("--tensor-model-parallel-size 4 --use-rope-scaling", model=model)
    assert f"{told}: the plan has the latter, and both take the same time" in found.notes
    with pytest.raises(AutoshardError, match=r"llama2-7b has None: another model$"):
        written("--tensor-model-parallel-size 4 --use-rope-scaling", model="llama2-7b")


def test_a_number_of_thousands_of_digits_is_no_degree() -> None:
    """Python itself refuses to read it."""
    with pytest.raises(AutoshardError) as raised:
        script(f"--tensor-model-parallel-size {'1' * 5000}")
    assert str(raised.value) == (
        f"train.sh: --tensor-model-parallel-size is '{'1' * 40}'; it must be a whole number of at least 1 and of at "
        "most 12 digits"
    )


SCRIPT = """
TP_SIZE=4      # of each node
export PP=${PP:-2}
MBS="$MICRO"
MICRO=${1:-3}
HIDDEN='4096'
for LAYERS in 8 16; do
LAYERS=32
if [[ $1 == big ]]; then
    CP=2
    MORE=(--use-distributed-optimizer --seq-length 8192)
else
    CP=1
fi
MODEL=(--num-layers 32 --hidden-size $HIDDEN --num-attention-heads 32 --swiglu)
torchrun --nnodes $NODES pretrain_gpt.py "${MODEL[@]}" --tensor-model-parallel-size $TP_SIZE --seq-length 4096 \\
    --pipeline-model-parallel-size ${PP} --micro-batch-size=$MBS
"""


def test_variables_that_the_script_gives_a_value() -> None:
    found = script(SCRIPT)
    assert [found.options[name] for name in ("tp", "pp", "micro_batch", "nodes")] == [4, 2, 3, "$NODES"]
    sizes = [found.model.wanted[name] for name in ("num_hidden_layers", "hidden_size", "activation")]
    assert sizes == [32, 4096, "swiglu"]  # behind and before a bracket
    told = "variables have the values that the script gives them: HIDDEN=4096, TP_SIZE=4, PP=2, MBS=3"
    assert found.notes == ("neither --bf16 nor --fp16: Megatron computes in fp32", told)
    said = "in a condition of the script, taken as if it held: --use-distributed-optimizer"
    assert said in found.warnings and found.fields["zero"] == 1


@pytest.mark.parametrize(
    "line",
    [
        "TP=2\nTP=4",
        "for TP in 2 4; do",
        "TP=2\nfor TP in 2 4; do",
        "if x; then\nTP=2\nelse\nTP=4\nfi",
        "TP=$(nproc)",
        "TP=$1",
        "TP=$TP",
        "TP=$A\nA=$TP",
        "TP=$(($X * 2))",
        "#TP=4",
        "echo TP=4",
        "TP=4 bash other.sh",
    ],
)
def test_a_variable_without_one_value_is_refused(line: str) -> None:
    with pytest.raises(AutoshardError) as error:
        script(f"{line}\ntorchrun pretrain_gpt.py --tensor-model-parallel-size $TP --swiglu")
    told = "--tensor-model-parallel-size is $TP, a variable to which the script gives no value, or several"
    assert str(error.value) == f"train.sh: {told}: write one in its place"


def test_flags_with_several_words_end_with_their_array() -> None:
    arrays = "A=(\n  --recompute-granularity selective\n  --recompute-modules core_attn mlp\n)\nB=(\n  --swiglu\n)"
    found = script(f"{arrays}\ntorchrun pretrain_gpt.py ${{A[@]}} --tensor-model-parallel-size 2")
    assert (found.options["recompute"], found.warnings) == ("core_attention+mlp", ())


def test_a_default_in_quotes() -> None:
    line = """SHARDS=${SHARDS:-"optim_grads"}\n--use-megatron-fsdp --data-parallel-sharding-strategy ${SHARDS}"""
    assert script(line).fields["zero"] == 2


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("source $(dirname $0)/common.sh", "$(dirname $0)/common.sh"),
        ('. "conf/model.sh"', "conf/model.sh"),
        ("    source env.sh && x", "env.sh"),
        ("# source env.sh", None),
        ("python ./source env.sh", None),
        ("--data-source env.sh", None),
    ],
)
def test_a_script_that_runs_parts_of_others(line: str, name: str | None) -> None:
    told = f"the script runs other files as parts of itself, whose flags and variables are not read: {name}"
    assert script(f"{line}\n--tensor-model-parallel-size 2").warnings == ((told,) if name else ())
