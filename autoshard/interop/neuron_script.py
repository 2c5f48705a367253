"""Read scripts that start training on Neuron devices as layouts: those of NxD's own examples, and of Optimum Neuron.

Both name their flags alike (--tensor_parallel_size), and differ in how they say a batch. Sources: examples/training of
neuronx-distributed; trainers/training_args.py of optimum-neuron.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.graph.recompute import FULL_RECOMPUTE, NO_RECOMPUTE
from autoshard.interop.launch_script import Place, Script, read_script, told_of, warned_of
from autoshard.interop.nxdt import RECOMPUTED, instance_of, not_run, recomputed_by, run_by
from autoshard.interop.written_dtypes import state_dtypes_option
from autoshard.interop.written_layout import LORA, MISSING, WrittenLayout, WrittenLora, number, whole_number
from autoshard.interop.written_lora import GATE_UP, LEARN_APART, NXD, QKV
from autoshard.interop.written_model import WrittenModel
from autoshard.layout.mesh import devices_objection
from autoshard.schedules import usual_schedule
from autoshard.spec.state_dtypes import GRADIENTS

DEGREES = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "vpp": "virtual-pipeline-size",
    "cp": "context-parallel-size",
    "ep": "expert-parallel-size",
}
TP = DEGREES["tp"]
OPTIMUM_BATCH, OPTIMUM_RUNS, OPTIMUM_MICROBATCHES = (
    "per-device-train-batch-size",
    "gradient-accumulation-steps",
    "pipeline-parallel-num-microbatches",
)
PIPELINE_BATCH, BATCH, RUNS, MICROBATCHES = "train-batch-size", "batch-size", "grad-accum-usteps", "num-microbatches"
"""Of NxD's examples: sequences of a replica that go through a pipeline at once, or of one forward pass where there is
none; how many of those a step has; microbatches of the pipeline."""
NODES, PROCESSES, COPIES, CAPACITY = "nnodes", "nproc-per-node", "kv-replicator", "capacity-factor"
LENGTHS = ("seq-len", "max-length", "max-seq-length")
"""Tokens of a sequence: of NxD's examples, of Optimum Neuron, and of its releases before."""
CONFIGS, BLOCKS = ("training-config", "model-path"), ("num-layer", "num-layers")
OPTIMUM_MODELS, OPTIMUM_COPIES = ("model-id", "model-name-or-path"), "kv-size-multiplier"
ZERO, OPTIMUM_ZERO = ("use-zero1-optimizer", "use-zero-1"), "zero-1"
SEQUENCE, OPTIMUM_WHOLE_SEQUENCE = ("use-sequence-parallel", "sequence-parallel-enabled"), "disable-sequence-parallel"
SELECTIVE, OPTIMUM_RECOMPUTE = ("use-selective-checkpoint", "selective-checkpoint-enabled"), "gradient-checkpointing"
FLASH, MASTERS, OPTIMUM_MASTERS = "use-flash-attention", "use-gpu-compatible-precision", "optimizer-use-master-weights"
WIDE_OPTIMIZER = ("use-mix-precision", "use-fp32-optimizer")
"""Flags of optimizers with FP32 weights, where there are no master weights."""
OPTIMUM_SUMS = "optimizer-use-fp32-grad-acc"
KV = "qkv-linear"
"""Without it NxD's examples read no kv_replicator."""
ADAPTERS = ("lora-r", "lora-alpha", "lora-target-modules")
LORA_DROPOUT = "lora-dropout"
"""Flags on adapters, in the words of TRL's ModelConfig; a program may have others, with values of its own."""
SIZES = (*DEGREES.values(), BATCH, PIPELINE_BATCH, RUNS, MICROBATCHES, NODES, PROCESSES, *LENGTHS, COPIES, CAPACITY)
READ = (
    *(*SIZES, OPTIMUM_BATCH, OPTIMUM_RUNS, OPTIMUM_MICROBATCHES, *CONFIGS, *BLOCKS, *OPTIMUM_MODELS, OPTIMUM_COPIES),
    *(*ZERO, OPTIMUM_ZERO, *SEQUENCE, OPTIMUM_WHOLE_SEQUENCE, *SELECTIVE, OPTIMUM_RECOMPUTE, FLASH, MASTERS),
    *(OPTIMUM_MASTERS, OPTIMUM_SUMS, *WIDE_OPTIMIZER, KV, "bf16", *ADAPTERS, LORA_DROPOUT),
)
"""Flags that say something about the layout or its model."""
NO_EFFECT = re.compile(
    r"""--((max|steps|warmup|constant|min|log|save|load|eval|beta|adam|lr|metrics|data|dataset|tb|output|checkpoint|trace
        |num-kept|resume|training-dir|scheduler|weight-decay|seed|do|num-train|learning|report|overwrite|async|bf16
        |master|node|rdzv|tee|hf-token|task|pretrained|print|use-meta|use-deferred|transpose|fuse|use-xser|use-master
        |avoid|push|tokenizer|golden|hooks|run-name|disable-tqdm|dataloader|ddp|logging|deallocate|enable-lora
        |skip-cache|metrics|num-local-ranks|recompute-causal|vocab|model-type|cache|retry|enable-saturate
        |target|internal|auto-cast|distribution|eps|i-tp)[\w-]*|optim)""",
    re.VERBOSE,
)
"""Flags that leave the work of a step as it is, those of the compiler, and those that a warning speaks of."""
CORES_VARIABLE = "NEURON_RT_VIRTUAL_CORE_SIZE"
"""Physical NeuronCores of a logical one."""
CORES_OF_DEVICES = {128: 1, 64: 2}
"""By processes of a node: the same, where the script does not say."""
LONG = 8192
"""Tokens of a sequence at which run_llama_nxd.py runs the MLP again too."""


@dataclass(frozen=True)
class Program:
    """The defaults of one of NxD's example programs. selected: classes that a selective one runs again.
    at_long: those of a sequence of LONG tokens too. flash, sequence_parallel, runs (batches of a step): where no flag
    says it. model: the Hugging Face repository that it trains, whatever its flags are."""

    selected: tuple[str, ...] = ("CoreAttention",)
    at_long: tuple[str, ...] = ()
    flash: bool = False
    sequence_parallel: bool = False
    runs: int = 1
    model: str = ""


PROGRAMS = {
    "run_llama_nxd.py": Program(at_long=("LlamaMLP",), sequence_parallel=True),
    "run_llama_nxd_ptl.py": Program(sequence_parallel=True),
    "tp_zero1_llama_hf_pretrain.py": Program(flash=True, runs=64),
    "tp_llama_hf_finetune_ptl.py": Program(runs=64),
    "run_mixtral_pretrain_ptl.py": Program(selected=("CoreAttention", "MoE")),
    "run_dbrx_pretrain_ptl.py": Program(selected=("CoreAttention", "MoE")),
    "tp_dp_gpt_neox_20b_hf_pretrain.py": Program(sequence_parallel=True, runs=64, model="EleutherAI/gpt-neox-20b"),
    "tp_dp_gpt_neox_6.9b_hf_pretrain.py": Program(runs=64, model="EleutherAI/pythia-6.9b"),
}
WITH_ADAPTERS = {
    "tp_llama_hf_finetune_ptl.py": (16, 32.0, QKV),
    **dict.fromkeys(
        ("finetune_llama.py", "finetune_qwen3.py"),
        (64, 128.0, ("embed_tokens", *QKV, "o_proj", *GATE_UP, "down_proj")),
    ),
}
"""Programs that say what adapters they train -> rank, lora_alpha and layers: NxD's example, where --enable_lora asks
for them, and those of Optimum Neuron [examples/training]. All of them drop 0.05 before adapters."""
UNKNOWN_PROGRAM = "the program is none of NxD's examples: what no flag says is read as in {known}"
USUAL_MICROBATCHES = 8
"""Microbatches of a pipeline of NxD's examples where no flag says how many."""
REPOSITORY = r"[\w.-]+/[\w.-]+"
LIKE = "run_llama_nxd.py"
NO_LENGTH = "the script does not say how long sequences are: as for autoshard plan where --seq-len says nothing else"


def is_neuron_script(text: str) -> bool:
    """Whether a script has flags of NxD's examples or of Optimum Neuron. Raises AutoshardError for no script."""
    if not re.search(TP.replace("-", "[-_]"), text):
        return False
    flags = read_script(text, ()).flags
    return TP in flags and bool(flags.keys() & {BATCH, PIPELINE_BATCH, OPTIMUM_BATCH})


def neuron_layout(text: str, place: Place) -> WrittenLayout:
    """The layout in a script that starts one of NxD's example programs, or one with Optimum Neuron's arguments.

    place: where it is started. Raises AutoshardError for values that make no layout.
    """
    script = read_script(text, READ, place)
    flags, is_optimum = script.flags, OPTIMUM_BATCH in script.flags
    program, notes = _program(text, is_optimum)
    options: dict[str, Any] = {name: _number(flags, flag) or 1 for name, flag in DEGREES.items()}
    options["schedule"] = usual_schedule(options["vpp"])
    batch, fields = _batch(flags, options["pp"], program)
    length = next((_later(flags, flag) for flag in LENGTHS if flag in flags), None)
    options |= {**_machine(script, place.nodes), **batch}
    if length is not None:
        options["seq_len"] = length
    if options["cp"] > 1:
        options["context_parallel"] = "ring"
    if is_optimum:
        options |= _optimum_options(flags)
    else:
        more, why = _options(flags, program, length, options["cp"])
        options, notes = {**options, **more}, (*notes, *why)
    if is_optimum:
        fields["zero"] = int(_is_on(flags, [OPTIMUM_ZERO], usual=True))
        is_cut = not _is_on(flags, [OPTIMUM_WHOLE_SEQUENCE])
    else:
        fields["zero"] = int(_is_on(flags, ZERO))
        is_cut = _is_on(flags, SEQUENCE, program.sequence_parallel)
    fields["sequence_parallel"] = is_cut and options["tp"] > 1
    named = next((flags[flag] for flag in OPTIMUM_MODELS if flag in flags), program.model)
    if re.fullmatch(REPOSITORY, named):
        options["model"] = named
    lora = _lora(flags, text, is_optimum)
    apart = ("Optimum Neuron" if is_optimum else NXD) if fields["sequence_parallel"] else ""
    capacity = number(f"--{CAPACITY}", flags.get(CAPACITY) or None)
    copies = OPTIMUM_COPIES if is_optimum else COPIES if _is_on(flags, [KV]) else ""
    left_out = tuple(f"--{flag}" for flag in flags if flag not in READ)
    return WrittenLayout(
        "Optimum Neuron script" if is_optimum else "NxD script",
        options,
        fields,
        model=_model(flags),
        training_fields={"expert_capacity_factor": capacity} if capacity else {},
        notes=(*notes, *((NO_LENGTH,) if length is None else ()), *told_of(script)),
        warnings=(*_warnings(flags, lora, apart), *warned_of(_sure_of_devices(script), text)),
        lora=lora,
        devices_per_node=_devices(script),
        kv_copies=_number(flags, copies),
        no_batch=_no_batch(options, _devices(script), place.nodes),
        left_out=left_out,
        not_priced=tuple(flag for flag in left_out if not NO_EFFECT.fullmatch(flag)),
    )


def _number(flags: Mapping[str, str], flag: str) -> int | None:
    """The whole number of a flag; None where it is not there."""
    return whole_number(f"--{_shown(flag)}", flags[flag]) if flag in flags else None


def _later(flags: Mapping[str, str], flag: str, usual: Any = MISSING) -> Any:
    """The whole number of a flag, or `usual`; MISSING where a variable without one value stands for it."""
    if flags.get(flag, "").startswith("$"):
        return MISSING
    return usual if flag not in flags else _number(flags, flag)


def _shown(flag: str) -> str:
    return flag.replace("-", "_")


def _is_on(flags: Mapping[str, str], switches: Iterable[str], usual: bool = False) -> bool:
    """Whether one of the switches is on, alone or with a number above 0 or a word; `usual` where none is there."""
    said = [flags[flag].lower() not in ("0", "false", "no") for flag in switches if flag in flags]
    return any(said) if said else usual


def _machine(script: Script, nodes: int | None) -> dict[str, Any]:
    """Nodes and instance, as options; torchrun takes one node where it is told no number."""
    options: dict[str, Any] = {} if nodes else {"nodes": _later(script.flags, NODES, 1)}
    if (devices := _devices(script)) is not None:
        said = script.variables.get(CORES_VARIABLE, "")
        lnc = int(said) if said in ("1", "2") else CORES_OF_DEVICES.get(devices)
        options["instance"] = instance_of(devices, lnc)
        if lnc is not None:
            options["lnc"] = lnc
    return options


def _devices(script: Script) -> int | None:
    """Processes of a node; None where torchrun or a variable without one value counts them."""
    return _number(script.flags, PROCESSES) if script.flags.get(PROCESSES, "").isdecimal() else None


def _sure_of_devices(script: Script) -> Script:
    """The script whose conditions decide about no devices: each way to launch it says them in one of its own."""
    return script._replace(conditional=tuple(flag for flag in script.conditional if flag not in (NODES, PROCESSES)))


def _batch(flags: Mapping[str, str], pp: int, program: Program) -> tuple[dict[str, Any], dict[str, Any]]:
    """(options, fields) on the batch: what a replica takes at once, which a pipeline cuts into microbatches, and how
    often a step has that. Raises AutoshardError where the batch cannot be cut so."""
    key = next(flag for flag in (OPTIMUM_BATCH, PIPELINE_BATCH, BATCH) if flag in flags)
    batch, parts = _later(flags, key), 1
    runs = _later(flags, OPTIMUM_RUNS, 1) if key == OPTIMUM_BATCH else _later(flags, RUNS, program.runs)
    if pp > 1:
        is_optimum = key == OPTIMUM_BATCH
        cuts, usual = (OPTIMUM_MICROBATCHES, batch) if is_optimum else (MICROBATCHES, USUAL_MICROBATCHES)
        parts = usual if flags.get(cuts) == "-1" else _later(flags, cuts, usual)
        if MISSING not in (batch, parts) and batch % parts:
            raise AutoshardError(f"--{_shown(cuts)}={parts} must divide --{_shown(key)}={batch}")
    options = {"micro_batch": MISSING if MISSING in (batch, parts) else batch // parts}
    if MISSING in (batch, runs):
        return {**options, "global_batch": MISSING}, {}
    return options, {"sequences_per_replica": batch, "runs": runs}


def _no_batch(options: Mapping[str, Any], devices: int | None, nodes: int | None) -> str:
    """The reason why a script cannot count a replica's batch by its devices: they hold no replica, or a part of one
    more. Empty for none. devices: of a node."""
    nodes = options.get("nodes", nodes)
    if devices is None or not isinstance(nodes, int):
        return ""
    of = f"{nodes} x {options['instance']}"
    return devices_objection(options["tp"], options["pp"], options["cp"], devices * nodes, of) or ""


def _program(text: str, is_optimum: bool) -> tuple[Program, tuple[str, ...]]:
    """(the program that a script starts, notes): as LIKE where none of NxD's examples is named."""
    named = [name for name in PROGRAMS if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text)]
    if named or is_optimum:
        return PROGRAMS[named[0]] if named else Program(), ()
    return PROGRAMS[LIKE], (UNKNOWN_PROGRAM.format(known=LIKE),)


def _options(
    flags: Mapping[str, str], program: Program, length: int | None, cp: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(recompute set, attention kernel and precision of one of NxD's examples, notes). A ring over cp has a kernel."""
    selected = (*program.selected, *(program.at_long if length == LONG else ()))
    flash = _is_on(flags, [FLASH], program.flash) or cp > 1
    selective = _is_on(flags, SELECTIVE)
    names = (not_run(f"--{_shown(flag)}") for flag in SELECTIVE if flag in flags)
    notes = (next(names),) if selective and flash else ()
    has_masters = _is_on(flags, [MASTERS], usual=True) or _is_on(flags, WIDE_OPTIMIZER)
    again = recomputed_by(RECOMPUTED[False] | RECOMPUTED[True], run_by(selected, flash))
    options = {
        "recompute": again if selective else FULL_RECOMPUTE,
        "attention_kernel": "flash" if flash else "plain",
        "precision": "mixed_precision" if has_masters else "bf16_sr",
    }
    return options, notes


def _optimum_options(flags: Mapping[str, str]) -> dict[str, Any]:
    """Recompute set and precision of Optimum Neuron: master weights where the optimizer shards its state."""
    precision = "fp32"
    if _is_on(flags, ["bf16"]):
        has_masters = _is_on(flags, [OPTIMUM_ZERO], usual=True) and _is_on(flags, [OPTIMUM_MASTERS], usual=True)
        precision = "mixed_precision" if has_masters else "bf16_sr"
    narrow = precision == "mixed_precision" and not _is_on(flags, [OPTIMUM_SUMS], usual=True)
    return {
        "recompute": FULL_RECOMPUTE if _is_on(flags, [OPTIMUM_RECOMPUTE]) else NO_RECOMPUTE,
        "precision": precision,
        **state_dtypes_option(*(GRADIENTS if narrow else ())),
    }


def _model(flags: Mapping[str, str]) -> WrittenModel:
    """The model of a config.json, or of the folder of one, that a flag names."""
    blocks = next((flag for flag in BLOCKS if flags.get(flag, "-1") != "-1"), None)
    said = {} if blocks is None else {"num_hidden_layers": (f"--{_shown(blocks)}", _number(flags, blocks))}
    config = next((flags[flag] for flag in CONFIGS if flag in flags), "$")
    return WrittenModel(said, config=None if "$" in config else config)


def _lora(flags: Mapping[str, str], text: str, is_optimum: bool) -> WrittenLora | None:
    """The adapters that flags or the program say; None where neither does."""
    if all(flags.get(flag) for flag in ADAPTERS):
        r, alpha, names = (flags[flag] for flag in ADAPTERS)
        named = [f"--{_shown(flag)}" for flag in (*ADAPTERS, LORA_DROPOUT)]
        rate = number(named[3], flags.get(LORA_DROPOUT) or None)
        drops = f"{named[3]} {rate:g}" if rate else ""
        rank, scale = whole_number(named[0], r), number(named[1], alpha) or 0.0
        return WrittenLora(f"{named[0]} {r}", rank, scale, tuple(names.split()), key=named[2], drops=drops)
    program = next((name for name in WITH_ADAPTERS if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text)), None)
    if program is None or is_optimum == (program in PROGRAMS) or not (is_optimum or "enable-lora" in flags):
        return None
    said = f"{program} trains adapters"
    return WrittenLora(said, *WITH_ADAPTERS[program], key=program, drops=f"lora_dropout=0.05 of {program}")


def _warnings(flags: Mapping[str, str], lora: WrittenLora | None, apart: str) -> Iterator[str]:
    """Sentences about flags that change a step and are not in the price. lora: as `_lora` has it. apart: the library
    with which tensor-parallel ranks learn such adapters apart; empty where they do not."""
    if lora is not None and apart:
        yield LEARN_APART.format(said=lora.said, library=apart)
    if lora is None and any("lora" in flag for flag in flags):
        yield LORA.format(said="--enable_lora")
