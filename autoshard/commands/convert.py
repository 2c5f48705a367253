"""`autoshard convert`: weights of other programs for a plan, and a run's weights for other programs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import autoshard
from autoshard.commands.output import load_plan, next_command, say
from autoshard.commands.parser import Parser
from autoshard.conversion.forms import FORMS, QKV_STYLES
from autoshard.files.option_values import one_of, path, whole
from autoshard.units import format_bytes

SUMMARY = "weights from Hugging Face or NxD for a plan, and back"
USAGE = "autoshard convert SOURCE TARGET [options]"
DESCRIPTION = """\
Write weights in another form. SOURCE is a Hugging Face folder (safetensors), a checkpoint of a run, or NxD's files: it
is looked at. TARGET is a new folder, and is there when all of it is.

  autoshard convert Llama-3-8B/ weights/ --plan plan.json        for autoshard run plan.json --weights weights/
  autoshard convert runs/checkpoints/llama3-8b/ hf/ --dtype bfloat16    for transformers
  autoshard convert Llama-3-70B/ nxd/ --plan plan.json --to nxd --xser  for neuronx-distributed
  autoshard convert nxd/ hf/                                            and back
  autoshard convert nxd/ step/ --plan plan.json        with the optimizer's state: run plan.json --resume step/
  autoshard convert runs/checkpoints/llama3-8b/ adapter/ --to peft      the adapters of a plan made with --lora
  autoshard convert Llama-3-8B/ weights/ --adapter adapter/ --plan plan.json    and back, beside the weights
  autoshard convert runs/checkpoints/MyModel/ mine/    a traced module's state_dict, for its load_state_dict

Nothing in a file is executed. Weights keep every bit unless --dtype asks for others; adapters are merged, but in a
checkpoint for a plan that has them."""
DTYPES = ("bfloat16", "float16", "float32")
OPTIONS = ("adapter", "to", "dtype", "model", "weights_only", "xser", "qkv", "kv_size_multiplier")
"""Options that are those of `autoshard.convert_checkpoint`, by the same names."""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("source", type=path, metavar="SOURCE", help="folder with weights")
    parser.add_argument("target", type=path, metavar="TARGET", help="folder to make")
    parser.add_argument(
        "--adapter",
        type=path,
        metavar="FOLDER",
        help="adapters, of PEFT or a run's checkpoint, that stand beside SOURCE's weights",
    )
    parser.add_argument("--plan", type=path, metavar="PLAN", help="plan.json: the layout to cut the weights for")
    parser.add_argument(
        "--to",
        type=one_of(*FORMS),
        metavar="FORM",
        help="hf, plan, nxd or peft (default: plan with --plan, else hf)",
    )
    parser.add_argument(
        "--dtype", type=one_of(*DTYPES), metavar="NAME", help=f"{', '.join(DTYPES)} (default: as the weights are)"
    )
    parser.add_argument(
        "--model",
        type=path,
        metavar="MODEL",
        help="name or config.json, where NxD's files have no config.json beside them and there is no --plan",
    )
    nxd = parser.add_argument_group("NxD")
    nxd.add_argument("--weights-only", action="store_true", help="leave out the optimizer's state that NxD saved")
    nxd.add_argument("--xser", action="store_true", help="a file for each tensor, as torch-xla serializes")
    nxd.add_argument(
        "--qkv",
        type=one_of(*QKV_STYLES),
        metavar="STYLE",
        default=QKV_STYLES[0],
        help="queries, keys and values: gqa (qkv_proj.weight_q), fused (qkv_proj.weight_qkv), separate (q_proj.weight) "
        f"or coalesced (qkv_proj.weight) (default: {QKV_STYLES[0]})",
    )
    nxd.add_argument(
        "--kv-size-multiplier",
        type=whole(),
        metavar="N",
        help="copies of each key-value head (default: as many as tp needs)",
    )


def run(values: Mapping[str, Any]) -> int:
    plan = None if values["plan"] is None else load_plan(values["plan"])
    start = time.monotonic()
    written = autoshard.convert_checkpoint(
        values["source"], values["target"], plan=plan, **{name: values[name] for name in OPTIONS}
    )
    rate, target = format_bytes(written.bytes / (time.monotonic() - start)), values["target"]
    say(f"wrote {target}: {written.model}, {written.files} files, {format_bytes(written.bytes)}, {rate}/s")
    if written.step is not None:
        say(f"with the optimizer's state after step {written.step}")
        say(next_command("run", values["plan"], "--resume", target))
    elif plan is not None and values["to"] in (None, "plan"):
        say(next_command("run", values["plan"], "--weights", target))
    return 0
