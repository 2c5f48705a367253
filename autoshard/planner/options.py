"""The options of `autoshard plan`, which recipes and sweeps use under the same names, and what they ask for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoshard.backends.registry import BACKENDS
from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.files.option_values import WrongValueError, number, one_of, path, share, shortened, text, whole, whole_or
from autoshard.graph.recompute import canonical
from autoshard.layout.mesh import parse_axis_order
from autoshard.planner.cost_models import COST_MODELS
from autoshard.planner.request import (
    EVALUATIONS,
    GLOBAL_BATCH,
    INSTANCE,
    LARGEST_CLUSTER,
    SEARCHED,
    SEQUENCE_LENGTH,
    TOP,
    PlanRequest,
)
from autoshard.planner.searchers import SEARCHERS
from autoshard.plans.search_result import EXACT, OURS
from autoshard.plugins.table import one_of_table
from autoshard.schedules import SCHEDULES
from autoshard.spec.dropout import PUBLISHED, parse_dropout
from autoshard.spec.hardware_file import packaged_instances
from autoshard.spec.lora import Lora
from autoshard.spec.model_types import MOST_REPEATED
from autoshard.spec.prediction import LOSS_SCALING_FACTOR
from autoshard.spec.product_format import PRODUCT_FORMATS
from autoshard.spec.sdk import NEWEST, NEWEST_WITH_NXD, release
from autoshard.spec.stack import STACKS
from autoshard.spec.state_dtypes import parse_state_dtypes, text_of
from autoshard.spec.training import ADAMW, MUON, OPTIMIZERS, PRECISIONS

MOST_NODES, MOST_SEQUENCES, MOST_TOKENS, MOST_LOSS_CHUNKS = 65_536, 1_048_576, 100_000_000, 4_096
"""Of a cluster, of a step, of a sequence: beyond what anybody has, and what is searched in bounded time."""


@dataclass(frozen=True)
class Option:
    """An option of `autoshard plan`. name: with underscores; the flag has dashes. parse: turns text, or a value of a
    recipe, into a checked value."""

    name: str
    parse: Callable[[Any], Any]
    metavar: str
    help: str
    default: Any = None

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


def _either(nxd: bool) -> str:
    """'gpipe or zero_bubble': the schedules that NxD has, or those that it has not."""
    return " or ".join(name for name, schedule in SCHEDULES.items() if schedule.nxd == nxd)


def _pin_degree(name: str, what: str) -> Option:
    return Option(name, whole(), "N", what)


def _dropout(value: Any) -> str:
    name = text(str(value) if isinstance(value, (int, float)) else value)
    return name if name == PUBLISHED else str(parse_dropout(name))


def _lora(value: Any) -> str:
    return text(str(value) if isinstance(value, (int, Lora)) else value)


def _state_dtypes(value: Any) -> str:
    return text_of(parse_state_dtypes(text(text_of(value) if isinstance(value, Mapping) else value)))


def _recompute_set(value: Any) -> str:
    name = text(value)
    return name if name == SEARCHED else canonical(name)


def _linear_layers(value: Any) -> str:
    name = text(value)
    if not all(re.fullmatch(r"(first|last)=[1-9]\d{0,5}|[A-Za-z_][\w.]*", one) for one in name.split("+")):
        raise WrongValueError(
            f"{shortened(name)} must be modules or operators of a block, first=N or last=N, joined by +"
        )
    return name


def _imbalance(value: Any) -> float | str:
    """A number of at least 1, or the path of a file with the tokens of each expert."""
    try:
        found = number(value)
    except WrongValueError:
        if isinstance(value, str) and not re.fullmatch(r"[-+.\d\s]*|[-+]?(nan|inf)", value):
            return path(value)
        if isinstance(value, (list, tuple)):
            raise WrongValueError(
                f"{shortened(str(value))} must be a number, or a JSON file with such a list"
            ) from None
        raise
    if found < 1:
        raise WrongValueError(f"{shortened(str(value))} must be at least 1, the mean, or a JSON file")
    return found


def _axis_order(value: Any) -> str:
    name = text(value)
    return name if name == SEARCHED else "-".join(parse_axis_order(name))


class _Stage(one_of):
    """A number of a few, or a word."""

    def __call__(self, value: Any) -> Any:
        name = super().__call__(str(value))
        return int(name) if name.isdigit() else name


class _Names(one_of):
    """One of a few words, the first of which goes alone, or several joined by commas."""

    def __call__(self, value: Any) -> str:
        if not isinstance(value, str):
            raise WrongValueError(f"{shortened(str(value))} must be a text, several names joined by commas")
        names = [super(_Names, self).__call__(name) for name in value.split(",")]
        if len(names) > 1 and self.known[0] in names:
            raise WrongValueError(f"{shortened(str(value))}: {self.known[0]} goes alone")
        return ",".join(dict.fromkeys(names))


WHAT = (
    Option(
        "model",
        text,
        "MODEL",
        "built-in name or its Hugging Face repository, a config.json, or my_file.py:MyModel (required)",
    ),
    Option(
        "instance",
        text,
        "TYPE",
        f"{', '.join(packaged_instances())}, or a GPU's EC2 name such as p5.48xlarge (default: {INSTANCE})",
    ),
    Option(
        "nodes", whole(at_most=MOST_NODES), "N", f"instances (default: 1, with --objective nodes {LARGEST_CLUSTER:,})"
    ),
    Option(
        "lnc",
        whole_or(SEARCHED),
        "N",
        "physical NeuronCores in a logical one: 1 or 2 on trn2 and trn3, or auto (default: the instance's)",
    ),
    Option("hardware", path, "FILE", "hardware file (JSON) in place of a packaged one"),
    Option(
        "sdk",
        release,
        "RELEASE",
        "release of the Neuron SDK that will run, such as 2.20 (default: the newest with the backend, "
        f"{NEWEST_WITH_NXD} for nxd, else {NEWEST})",
    ),
    Option(
        "seq_len",
        whole(at_most=MOST_TOKENS),
        "TOKENS",
        f"tokens of a sequence (default: {SEQUENCE_LENGTH}, or the model's limit if shorter)",
    ),
    Option(
        "global_batch",
        whole(at_most=MOST_SEQUENCES),
        "SEQUENCES",
        f"sequences of an optimizer step (default: {GLOBAL_BATCH})",
        GLOBAL_BATCH,
    ),
    Option(
        "precision",
        _Names(SEARCHED, *PRECISIONS),
        "NAME",
        "mixed_precision (bf16, FP32 master weights), bf16_sr (all bf16, stochastic rounding) or fp32; as "
        f"mixed_precision with linear layers in {', '.join(PRODUCT_FORMATS)} where the device has it; several joined "
        "by commas: the fastest of them; auto: the fastest of mixed_precision and these formats, never bf16_sr or fp32 "
        "(default: mixed_precision)",
        "mixed_precision",
    ),
    Option(
        "state_dtypes",
        _state_dtypes,
        "DTYPES",
        "dtypes of gradients and moments beside FP32 master weights: some of gradient_accumulation=bfloat16 (the sum "
        "over microbatches), gradient_reduce=bfloat16 (as sent; nxd has both in one), moments=bfloat16 (with backend "
        "torch; int8 and float8_e4m3 too, which are priced, not run), joined by commas (default: float32)",
    ),
    Option(
        "keep_bf16",
        _linear_layers,
        "SET",
        "linear layers that stay in bf16 where the others are in 8 or 4 bits: attention, mlp, operators of a block, "
        "first=N or last=N blocks, joined by +",
    ),
    Option(
        "expert_imbalance",
        _imbalance,
        "TIMES",
        "tokens that the experts of the busiest rank get over the mean, such as 1.2, or a JSON file: a list of the "
        "tokens of each expert (default: 1)",
    ),
    Option(
        "loss_chunks",
        whole(at_most=MOST_LOSS_CHUNKS),
        "N",
        "chunks of a rank's tokens: logits and loss are computed of one after another, and again in backward, with "
        "backend torch (default: 1, or as many as let a faster layout compile or any layout fit)",
    ),
    Option(
        "mtp_num_layers",
        whole(at_least=0, at_most=MOST_REPEATED),
        "N",
        "modules for multi-token prediction behind the last block, with backend torch: 0 or 1, of DeepSeek-V3, Kimi-K2 "
        "and GLM-4.5 (default: 0)",
    ),
    Option(
        "mtp_loss_scaling_factor",
        number,
        "WEIGHT",
        f"weight of the prediction module's loss (default: {LOSS_SCALING_FACTOR})",
    ),
    Option(
        "dropout",
        _dropout,
        "P",
        "what training drops, with backend torch: a probability, some of "
        "embedding=P,residual=P,attention=P,lora=P (of what adapters read), or config for those of the model's "
        "config.json (default: nothing)",
    ),
    Option(
        "lora",
        _lora,
        "R",
        "train low-rank adapters in place of the weights: their rank, or r=R and behind commas lora_alpha=ALPHA, "
        "target_modules=q_proj+v_proj (default: alpha is the rank; beside all linear layers of blocks but routers "
        "and experts)",
    ),
    Option(
        "optimizer",
        one_of(*OPTIMIZERS),
        "NAME",
        f"{ADAMW}, or with backend torch {MUON} for the matrices of blocks and {ADAMW} for all else (default: {ADAMW})",
        ADAMW,
    ),
    Option(
        "backend",
        one_of("auto", *BACKENDS),
        "NAME",
        "whose rules hold: auto, nxd (NeuronX Distributed) or torch (default: auto, nxd on Trainium, but torch with "
        "--stack or --device)",
        "auto",
    ),
    Option(
        "device",
        one_of("auto", "neuron"),
        "NAME",
        "neuron: refuse devices that native PyTorch on Neuron does not run on (--backend torch takes it where it does)",
        "auto",
    ),
    Option(
        "stack",
        one_of("auto", *STACKS),
        "NAME",
        f"software of --backend torch on trn2 and trn3: {' or '.join(STACKS)} (default: the first two are compared)",
        "auto",
    ),
    Option(
        "operators",
        one_of("megatron", "solver"),
        "HOW",
        "who shards operators over tp: megatron (by rule) or solver (integer program; needs autoshard[solver]) "
        "(default: megatron)",
        "megatron",
    ),
    Option(
        "objective",
        one_of("time", "cost", "nodes"),
        "WHAT",
        "time: the fastest step on --nodes; cost: least money for a token on up to --nodes; nodes: the fewest, "
        "up to --nodes, that see --tokens in --days (default: time)",
        "time",
    ),
    Option(
        "fit_probability",
        share,
        "P",
        f"choose among layouts that fit with at least this probability, if there are any (default: {FIT_PROBABILITY})",
        FIT_PROBABILITY,
    ),
    Option(
        "time_limit",
        number,
        "SECONDS",
        "take the best layout that is known by then, and say how far from the optimum it may be; of several searches, "
        "as --pareto, --objective and several precisions make, each has so long (default: none)",
    ),
    Option(
        "search",
        one_of_table(SEARCHERS, EXACT),
        "NAME",
        f"who looks for the layout: {EXACT}, {', '.join(SEARCHERS)}, or a plug-in's (default: {EXACT})",
        EXACT,
    ),
    Option(
        "cost_model",
        one_of_table(COST_MODELS, OURS),
        "NAME",
        f"by whose seconds and bytes it is chosen: {OURS}, or a plug-in's (default: {OURS})",
        OURS,
    ),
    Option(
        "evaluations",
        whole(),
        "N",
        f"layouts that a --search other than {EXACT} may price (default: {EVALUATIONS:,})",
    ),
    Option("price_per_node_hour", number, "USD", "price of a node (default: that of the hardware file)"),
    Option("tokens", number, "N", "tokens of the whole training, such as 15e12: a note says how long it takes"),
    Option("days", number, "N", "days that the training may take, with --objective nodes"),
)
PINS = (
    _pin_degree("tp", "tensor-parallel degree"),
    _pin_degree("pp", "pipeline stages"),
    _pin_degree("dp", "data-parallel replicas"),
    _pin_degree("cp", "context-parallel degree"),
    _pin_degree("ep", "expert-parallel degree, carved out of dp x cp, with --etp out of tp/etp first"),
    Option(
        "etp",
        whole_or(SEARCHED),
        "N",
        "tensor-parallel degree of experts, a part of tp, with backend torch: 1 leaves experts whole; auto tries all "
        "(default: tp)",
    ),
    Option(
        "dp_replicate",
        whole_or(SEARCHED),
        "N",
        "groups of replicas that each hold all that ZeRO shards (HSDP), with backend torch; auto tries, with ZeRO-3, "
        "shards that fill a node or an UltraServer (default: 1, FSDP or ZeRO over all replicas)",
    ),
    _pin_degree("vpp", "virtual stages on each pipeline rank"),
    _pin_degree("micro_batch", "sequences of a microbatch on one data-parallel rank"),
    Option(
        "schedule",
        one_of_table(SCHEDULES, SEARCHED),
        "NAME",
        f"{_either(nxd=True)}; with backend torch {_either(nxd=False)} too",
    ),
    Option(
        "recompute",
        _recompute_set,
        "SET",
        "what backward computes again: none, selective (core attention), full, or modules and operators of a block "
        "joined by +",
    ),
    Option("attention_kernel", one_of(SEARCHED, "flash", "plain"), "NAME", "flash or plain"),
    Option(
        "context_parallel",
        one_of(SEARCHED, "zigzag_ring", "ring", "ulysses", "all_gather"),
        "NAME",
        "how ranks that share a sequence attend to it: zigzag_ring, ring, ulysses or all_gather",
    ),
    Option(
        "zero",
        _Stage(SEARCHED, "0", "1", "2", "3"),
        "STAGE",
        "what data-parallel ranks share: 0 nothing, 1 optimizer state; with backend torch 2 gradients too, 3 weights",
    ),
    Option(
        "axis_order",
        _axis_order,
        "AXES",
        "in which order ranks count through the axes, outermost first, such as dp-pp-cp-tp with backend torch",
    ),
)
OPTIONS = {option.name: option for option in (*WHAT, *PINS)}
LEFT_OPEN = tuple(option for option in PINS if option.name in ("micro_batch", "recompute"))
"""Choices that the configurations of some frameworks leave to a program or a variable: options of `import` and `score`
too."""
OF_A_SEARCH = (
    *("operators", "objective", "price_per_node_hour", "tokens", "days"),
    *("search", "cost_model", "evaluations"),
)
"""Options that say how a layout is looked for, or what for: they change no price of one that is given."""
NOT_OF_A_GIVEN = (*(name for name in OF_A_SEARCH if name != "price_per_node_hour"), "fit_probability", "time_limit")
"""Those that a plan of a layout that is given has no use for: nothing is looked for, and what a node costs is on its
page."""


SEARCHES = {"searches_replicas": "dp_replicate", "searches_etp": "etp"}
"""Fields of a request, and the choices that are searched only where they are asked for."""


def request_from(values: Mapping[str, Any], top: int = TOP) -> PlanRequest:
    """The request that parsed options make; those that are absent or None take the defaults."""
    given = {name: value for name, value in values.items() if name in OPTIONS and value is not None}
    pins = {option.name: given.pop(option.name) for option in PINS if option.name in given}
    if "hardware" in given:
        given["hardware"] = Path(given["hardware"])
    if given.get("objective") == "nodes":
        given.setdefault("nodes", LARGEST_CLUSTER)
    searches: dict[str, Any] = {rule: pins.get(name) == SEARCHED for rule, name in SEARCHES.items()}
    fixed = {name: value for name, value in pins.items() if value != SEARCHED}
    return PlanRequest(**given, top=top, pins=fixed, **searches)
