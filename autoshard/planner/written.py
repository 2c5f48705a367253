"""A file that somebody wrote, as a problem and a layout: what `autoshard score` and `autoshard import` both read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.planner.options import OPTIONS, PINS, request_from
from autoshard.planner.request import PIN_FIELDS, SEARCHED, PlanRequest
from autoshard.plans.search_result import EXACT, OURS
from autoshard.spec.dropout import PUBLISHED, parse_dropout
from autoshard.spec.state_dtypes import taken_state_dtypes
from autoshard.spec.training import ADAMW, MUON, PRECISIONS, load_precision

if TYPE_CHECKING:
    from autoshard.backends.rules import Problem
    from autoshard.interop.written_layout import WrittenLayout
    from autoshard.interop.written_model import WrittenModel
    from autoshard.layout.sharding import OperatorChoices
    from autoshard.layout.strategy import Strategy
    from autoshard.spec.cluster import Cluster
    from autoshard.spec.model import ModelSpec

SOLVER = "operators=solver: priced as Megatron shards operators; autoshard plan --config {file} has the solver's"
BLOCKS = "num_hidden_layers"
"""A size that a file may change of its model."""
UNSAID = ("context_parallel", "zero", "axis_order")
"""Pins that a file may leave out and say all of a layout."""
OF_THE_COMMAND = ("out", "top", "format")
"""Options of a recipe that say nothing of what is trained."""

MOST_NAMED = 6
"""Models that a file may be for; of more that are alike in all that it says some are named."""
NO_LIMIT = "experts without a capacity factor (dropless): priced as if {priced}; a plan drops what is over it"
IN_FEWER_BITS = (
    "{said}: priced in {own}; products of matrices take less time in {precision}, which --precision {precision}{keep} "
    "prices"
)
NO_SUCH_PRODUCTS = "{said}: priced in {own}; {device} has no products in {precision}"
KEPT_WIDE = "{said}: priced with all blocks in {precision}; --keep-bf16 {keep} prices that"
ADAPTERS = "{said}: adapters are trained in place of the weights, as --lora {lora} has it"
EVEN_SHARE = "each got its even share of tokens (capacity factor 1)"
ONE_RUN = (
    "the file's pipeline takes {count} sequences of a replica and empties, {runs:g} times a step; priced as if all "
    "went through it at once, with one bubble"
)
OF_MICROBATCHES = "global batch of {size} x dp={dp}: without one in the file {framework} takes {count} of each replica"
AS_OURS = (
    "priced as autoshard's own runtime would run it, which hides no transfer behind work; {framework} does, so it may "
    "take less"
)
NO_MASTERS = (
    "{optimizer} is priced as AdamW, with two moments: its own price has master weights, which precision {precision} "
    "lacks and --precision mixed_precision has"
)
COPIES = "kv_replicator: {said}: priced with {copies}, the fewest copies of a key-value head that fill tp"
NOT_SHARDED = (
    "{copies} replicas of dp={copies} leave one rank to shard over, which shards nothing: read as DDP (zero=0)"
)
OWN_CUT = "so {framework} cuts the {blocks} blocks by the file; autoshard score prices that"
PERHAPS = (
    "{file}: {blocks} blocks and no vocabulary are said, and {model}, which has the other sizes, has {own}: --model "
    "{model} takes it with {blocks}, --model CONFIG.json another one"
)
UNSAID_MACHINE = {
    ("instance",): "the file does not say on which machine: {instance} where --instance says nothing else",
    ("nodes",): "the file does not say on how many nodes: {nodes} where --nodes says nothing else",
    ("instance", "nodes"): (
        "the file does not say on which machine, nor on how many: {nodes} x {instance} where --instance and --nodes "
        "say nothing else"
    ),
}
"""By options that nobody gave."""
UNEVEN = "each got what the busiest rank's get by --expert-imbalance"


class Sought(NamedTuple):
    """How the best layout beside a written one is searched for; the fields are those of `search`."""

    fit_probability: float = FIT_PROBABILITY
    time_limit_s: float = inf


AS_USUAL = Sought()


@dataclass(frozen=True)
class Written:
    """A layout that somebody wrote, and the problem that it is for. backend of the problem: the one that was asked for,
    else nxd on Trainium and torch elsewhere.

    asked: the backend as it was asked for, or auto. form: what kind of file. notes: what was decided on the way.
    warnings: what the file says that changes the step, and that the price leaves out. left_out: keys of the file that
    neither problem nor layout holds. not_priced: those of them that may matter to the price. operators: choices that
    differ from Megatron's. own_cut: a sentence on stages that follow from a rule of the framework; empty where the file
    has each. sought: how the best layout beside it is searched for.
    """

    problem: Problem
    strategy: Strategy
    form: str
    asked: str = "auto"
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    not_priced: tuple[str, ...] = ()
    operators: OperatorChoices = ()
    own_cut: str = ""
    sought: Sought = AS_USUAL

    @property
    def unpriced(self) -> str:
        """`not_priced` in a note; empty where there is none."""
        return f"not in the price: {', '.join(self.not_priced)}" if self.not_priced else ""


def read_written(file: str, given: Mapping[str, Any], recipes: bool = True) -> Written:
    """The problem and layout of a recipe or another framework's configuration.

    given: checked options of `autoshard plan` that overrule the file's. recipes: whether a recipe will do.
    Raises AutoshardError where the file cannot be read, does not say enough, or says another model than is given.
    """
    from autoshard.interop.read_layout import read_written_layout
    from autoshard.planner.score import completed
    from autoshard.plans.validate import in_file

    written = read_written_layout(file, given.get("nodes"))
    if written.complete:
        check_fixed(given)
    of_file = {name: value for name, value in written.options.items() if name not in given}
    of_file = _with_taken_state_dtypes(of_file, {**of_file, **given}.get("precision", PlanRequest.precision))
    options = {**_checked(file, of_file, written.no_batch), **given}
    if not (written.complete or recipes):
        raise AutoshardError(f"{file} is a recipe: autoshard plan --config {file} reads it")
    model, model_notes = (None, ()) if "model" in options else _model_of(file, written, options)
    request = request_from(options)
    check_one_price(request)
    without_masters: tuple[str, ...] = ()
    if written.complete and "optimizer" not in given:
        request, without_masters = _with_masters(request)
    rate = 0.0
    if written.lora is not None and request.lora is None:  # the model has what drops before it has adapters
        request, rate = _apart(request)
    problem, notes = _problem(file, request, written, model)
    if written.complete:
        notes += (*_of_unsaid_machine(options, problem.cluster),)
    problem, on_adapters, unlike = _with_adapters(file, problem, request, written, rate)
    notes += on_adapters
    warnings = (*_on_products(written, problem, request), *unlike, *without_masters, *written.warnings)
    if problem.model.is_moe and written.complete and not written.training_fields:
        warnings += (NO_LIMIT.format(priced=EVEN_SHARE if request.expert_imbalance is None else UNEVEN),)
    if "instance" not in written.options or not {"instance", "hardware", "lnc"} & {*given}:
        warnings += (*_of_other_devices(written.devices_per_node, problem.cluster),)
    if request.operators == "solver" and recipes:
        warnings += (SOLVER.format(file=file),)
    if written.drops and request.dropout is None:
        warnings += (f"{written.drops}: dropout is not in the price; --dropout puts it there, with backend torch",)

    def found(problem: Problem, strategy: Strategy, own_cut: str = "") -> Written:
        said, copies = (*model_notes, *notes, *written.notes), max(1, strategy.tp // problem.model.num_key_value_heads)
        said += (written.sharding,) if written.sharding and strategy.zero else ()
        if written.overlaps and not problem.cluster.platform.is_trainium and problem.cluster.world_size > 1:
            said += (AS_OURS.format(framework=written.overlaps),)
        more: tuple[str, ...] = ()
        if written.kv_copies not in (None, copies):
            more += (COPIES.format(said=written.kv_copies, copies=copies),)
        rest = (said, (*warnings, *more), written.left_out, written.not_priced)
        form, backend = written.form, request.backend
        return Written(problem, strategy, form, backend, *rest, own_cut=own_cut, sought=sought(request))

    fields = dict(written.fields)
    per_replica = fields.pop("sequences_per_replica", None)
    microbatches, runs = fields.pop("microbatches", None), fields.pop("runs", 1)
    if not written.complete and not fields:
        searched = _completed_by_search(problem, request)
        if searched is not None:
            problem, strategy, why = searched
            notes += why
            return found(problem, strategy)
    pinned, own_cut = {PIN_FIELDS.get(name, name): value for name, value in request.pins.items()}, ""
    if written.stages is not None and "stage_layers" not in fields:
        own_cut = OWN_CUT.format(framework=written.overlaps, blocks=problem.model.num_hidden_layers)
        pp, vpp = request.pins.get("pp", 1), request.pins.get("vpp")
        cut = partial(written.stages, problem.model.num_hidden_layers, pp, vpp)
        fields["stage_layers"] = in_file(file, cut)
        pinned["num_virtual_stages"] = len(fields["stage_layers"]) // pp
    replicas, shards = fields.pop("dp_replicate", None), fields.pop("shards", None)
    strategy = completed(problem, {**pinned, **fields})
    if shards is not None:
        from autoshard.interop.written_layout import A_NODE

        shards = problem.cluster.devices_per_node if shards == A_NODE else shards
        replicas = None if shards == strategy.dp * strategy.cp else _of_shards(file, strategy, shards)
    if replicas is not None:
        strategy, why = _of_replicas(strategy, replicas)
        notes += why
    if "global_batch" not in options:
        if microbatches is not None:
            per_replica = microbatches * strategy.microbatch_size
            notes += (_of_microbatches(written.overlaps, microbatches, strategy),)
        if per_replica is not None:
            training = replace(problem.training, global_batch_size=per_replica * runs * strategy.dp)
            problem = problem._replace(training=training)
    if per_replica is not None and strategy.pp > 1:
        runs = problem.training.global_batch_size / (per_replica * strategy.dp)
        warnings += (ONE_RUN.format(count=per_replica, runs=runs),) if runs > 1 else ()
    return found(problem, strategy, own_cut)


def _of_other_devices(devices: int | None, cluster: Cluster) -> Iterator[str]:
    """The warning that nodes have another number of devices than the file says; none where it says none or theirs."""
    if devices not in (None, cluster.devices_per_node):
        lnc = f" at lnc {cluster.lnc}" if cluster.platform.is_trainium else ""
        has = f"{cluster.instance} has {cluster.devices_per_node}{lnc}"
        yield f"{devices} devices a node, as the file says; {has}, and the layout takes all of them"


def _of_microbatches(framework: str, microbatches: int, strategy: Strategy) -> str:
    """The note on a global batch that follows from how many microbatches each replica has."""
    count = "one microbatch" if microbatches == 1 else f"{microbatches} microbatches"
    size = microbatches * strategy.microbatch_size
    return OF_MICROBATCHES.format(framework=framework, count=count, size=size, dp=strategy.dp)


def _of_unsaid_machine(options: Mapping[str, Any], cluster: Cluster) -> Iterator[str]:
    """The note on what of the machine neither the file nor an option says; none where all is said."""
    is_named = bool({"instance", "hardware"} & options.keys())
    unsaid = tuple(name for name, said in (("instance", is_named), ("nodes", "nodes" in options)) if not said)
    if unsaid:
        yield UNSAID_MACHINE[unsaid].format(instance=cluster.instance, nodes=cluster.nodes)


def _of_shards(file: str, strategy: Strategy, shards: int) -> int:
    """Replicas of all shards, where so many ranks share them. Raises AutoshardError where there are not so many."""
    ranks = strategy.dp * strategy.cp
    if ranks % shards:
        dims = f"dp={strategy.dp} x cp={strategy.cp}" if strategy.cp > 1 else f"dp={strategy.dp}"
        raise AutoshardError(f"{file} shards over {shards} ranks, which must divide {dims}")
    return ranks // shards


def _of_replicas(strategy: Strategy, replicas: int) -> tuple[Strategy, tuple[str, ...]]:
    """(the strategy with so many replicas of all shards, notes). A replica of one rank shards nothing, which frameworks
    take; here that is no ZeRO. Raises AutoshardError where ranks of experts or of dp do not go into replicas."""
    from autoshard.layout.mesh import experts_objection, tensor_ranks_apart

    apart = tensor_ranks_apart(strategy.tp, strategy.etp)
    if strategy.cp == 1 and strategy.dp == replicas and experts_objection(strategy.ep, 1, 1, apart) is None:
        return replace(strategy, zero=0, dp_replicate=1), (NOT_SHARDED.format(copies=replicas),)
    return replace(strategy, dp_replicate=replicas), ()


def check_one_price(request: PlanRequest) -> None:
    """Raise AutoshardError for a request of several precisions, or of both ways to use a chip: a layout that is given
    has the price of one."""
    if request.precision == SEARCHED or "," in request.precision:
        raise AutoshardError(
            f"precision={request.precision}: a layout that is given has the price of one precision; give one"
        )
    if request.lnc == SEARCHED:
        raise AutoshardError("lnc=auto: a layout that is given has the price of one number of cores; give 1 or 2")


def _with_taken_state_dtypes(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A file's options with those dtypes of gradients and moments alone that a precision, which may be another than the
    file's, takes. name: of the precision."""
    precision, text = PRECISIONS.get(name), options.get("state_dtypes")
    if precision is None or text is None:
        return {**options}
    taken = taken_state_dtypes(precision, str(text))
    others = {key: value for key, value in options.items() if key != "state_dtypes"}
    return others if taken is None else {**others, "state_dtypes": taken}


def _with_masters(request: PlanRequest) -> tuple[PlanRequest, tuple[str, ...]]:
    """(the request with an optimizer that has a price in its precision, warnings): AdamW for a file's Muon that keeps
    no master weights."""
    if request.optimizer != MUON or not load_precision(request.precision).rounds_at_random:
        return request, ()
    return replace(request, optimizer=ADAMW), (NO_MASTERS.format(optimizer=MUON, precision=request.precision),)


def check_fixed(given: Mapping[str, Any]) -> None:
    """Raise AutoshardError for a choice of a layout that is to be searched, beside a layout that is given."""
    if name := next((option.name for option in PINS if given.get(option.name) == SEARCHED), None):
        raise AutoshardError(f"{name}={SEARCHED}: a layout that is given is not searched; give one value or none")


def check_not_looked_for(of: str, given: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise AutoshardError for the first of these options that is given. of: the function that has no use for it."""
    if name := next((name for name in given if name in names), None):
        raise AutoshardError(
            f"{name}={show(given[name])} of {of} says how a layout is looked for, and changes no price of one that is "
            "given; leave it out"
        )


def sought(request: PlanRequest) -> Sought:
    """How a request has the best layout searched for."""
    return Sought(request.fit_probability, inf if request.time_limit is None else request.time_limit)


def _on_products(written: WrittenLayout, problem: Problem, request: PlanRequest) -> Iterator[str]:
    """Sentences about products in fewer bits that the file has and the price does not."""
    from autoshard.cost.compute import product_formats

    precision, cluster = problem.training.precision, problem.cluster
    kept = written.wide_blocks if request.keep_bf16 is None else {}
    own = {"bfloat16": "bf16", "float32": "fp32"}[precision.compute_dtype]
    if precision.products is None:
        for said, name in written.products.items():
            if name in product_formats(cluster.device):
                keep = "".join(f" --keep-bf16 {blocks}" for blocks in kept.values())
                yield IN_FEWER_BITS.format(said=said, own=own, precision=name, keep=keep)
            else:
                yield NO_SUCH_PRODUCTS.format(said=said, own=own, device=cluster.instance, precision=name)
    elif written.products:
        for said, blocks in kept.items():
            yield KEPT_WIDE.format(said=said, precision=precision.name, keep=blocks)


def _checked(file: str, options: Mapping[str, Any], no_batch: str) -> dict[str, Any]:
    """Each option as `autoshard plan` reads it. no_batch: as in WrittenLayout. Raises AutoshardError for one that must
    be given and is not."""
    from autoshard.interop.written_layout import MISSING

    checked = {}
    for name, value in options.items():
        if name in OF_THE_COMMAND:
            continue
        if value == MISSING and no_batch and name in ("micro_batch", "global_batch"):
            raise AutoshardError(f"{file}: {no_batch}")
        if isinstance(value, str) and value.startswith("$"):
            told = f"{value[:60]} has no value there, or several"
            raise AutoshardError(f"{file} does not say {name}: {told}; --{name.replace('_', '-')} does")
        if value == MISSING:
            raise AutoshardError(f"{file} does not say {name}; --{name.replace('_', '-')} does")
        if name not in OPTIONS:
            known = "a recipe has nothing else, NxD Training's YAML a distributed_strategy, NeMo's fields of a model"
            raise AutoshardError(f"{file} has {name[:60]}, which is not an option of autoshard plan; {known}")
        try:
            checked[name] = value if value is None else OPTIONS[name].parse(value)
        except ValueError as error:
            raise AutoshardError(f"{file}: {name}: {error}") from None
    return checked


def _model_of(file: str, written: WrittenLayout, options: dict[str, Any]) -> tuple[ModelSpec | None, tuple[str, ...]]:
    """(model, notes) of what the file says: read from its config.json or made of its sizes; None for one that is built
    in. `options` then has its name."""
    from autoshard.interop.written_model import built_model, models_as_said, models_with, shown
    from autoshard.models.huggingface import read_config
    from autoshard.models.registry import model_named_like

    said = written.model
    if said.config is not None and _is_here(said.config):
        options["model"] = said.config
        return read_config(said.config), (f"model from {shown(said.config)}, which {file} names",)
    models = models_with(said) if said.said.keys() - {BLOCKS} else []
    if len(models) == 1:
        own, blocks = models[0].num_hidden_layers, said.wanted.get(BLOCKS)
        if said.config is None and "vocab_size" not in said.wanted and blocks not in (None, own):
            raise AutoshardError(PERHAPS.format(file=file, model=models[0].name, own=own, blocks=blocks))
        options["model"] = models[0].name
        if said.config is None:
            return None, said.notes
        return None, (f"{shown(said.config)} is not here: {models[0].name} is the built-in model with {_sizes(said)}",)
    if models:
        names = [model.name for model in models]
        others = [f"{len(names) - MOST_NAMED} others"] if len(names) > MOST_NAMED + 1 else names[MOST_NAMED:]
        raise AutoshardError(f"{file} may be for {' or '.join([*names[:MOST_NAMED], *others])}; --model says which")
    if not said.whole:
        if said.named:
            like = None if said.config is None else model_named_like(said.config)
            hint = "" if like is None else f"; {like} has a name like it"
            raise AutoshardError(
                f"{file} has {said.named}, which no built-in model is known by; --model names one{hint}"
            )
        if not said.said.keys() - {BLOCKS}:
            raise AutoshardError(f"{file} does not say which model of those built in it is for; --model does")
        raise AutoshardError(f"no built-in model has {_sizes(said)}, as {file} says; --model names the one it is for")
    if said.other_graph:
        named = "--model names the one it is for"
        if alike := models_as_said(said):
            named = f"--model {alike[0].name} takes a built-in one with all that the file says"
        raise AutoshardError(f"{file} has {said.other_graph}, and no model is made of sizes with it; {named}")
    if options.get("dropout") == PUBLISHED:
        raise AutoshardError(f"dropout={PUBLISHED}: the model of {file} has no config.json; give probabilities")
    try:
        model = built_model(Path(file).stem, said)
    except AutoshardError as error:
        alike = models_as_said(said)
        told = f"; --model {alike[0].name} takes a built-in one with all that the file says" if alike else ""
        raise AutoshardError(f"{file}: {error}{told}") from None
    options["model"] = model.name
    return model, (f"{model.name}: a model of the family {model.model_type}, made of the sizes in {file}", *said.notes)


def _is_here(name: str) -> bool:
    """Whether there is such a file, or a folder with a config.json."""
    try:
        return Path(name).is_file() or Path(name, "config.json").exists()
    except (OSError, ValueError):  # too long, or with a null character
        return False


def _sizes(model: WrittenModel) -> str:
    """All that a model is found by, in the file's words."""
    from autoshard.interop.written_model import stated

    return ", ".join(stated(model, name) for name in model.said if name != BLOCKS)


def _problem(
    file: str, request: PlanRequest, written: WrittenLayout, model: ModelSpec | None
) -> tuple[Problem, tuple[str, ...]]:
    """The file's own number of blocks stands; any other size that is not the model's means another model."""
    from autoshard.backends.rules import Problem
    from autoshard.interop.written_model import check_same_model, plain_llama
    from autoshard.planner.inputs import backend_of, inputs_of

    model, training, cluster, notes = inputs_of(request, model)
    notes += check_same_model(file, written.model, model)
    if written.model.plain:
        model, plainly = plain_llama(model)
        notes += plainly
    layers = written.model.wanted.get(BLOCKS, model.num_hidden_layers)
    if layers != model.num_hidden_layers:
        notes += (f"{layers} blocks, as the file says, where {model.name} has {model.num_hidden_layers}",)
        model = replace(model, num_hidden_layers=layers)
    training = replace(training, **written.training_fields)
    return Problem(model, training, cluster, backend_of(request, cluster)), notes


def _apart(request: PlanRequest) -> tuple[PlanRequest, float]:
    """(the request without what adapters drop, and the probability of that)."""
    if request.dropout in (None, PUBLISHED):
        return request, 0.0
    dropout = parse_dropout(str(request.dropout))
    return replace(request, dropout=str(replace(dropout, lora=0.0))), dropout.lora


def _with_adapters(
    file: str, problem: Problem, request: PlanRequest, written: WrittenLayout, rate: float
) -> tuple[Problem, tuple[str, ...], tuple[str, ...]]:
    """(the problem with the adapters that the file trains, notes, warnings); as it is where an option has its own, and
    where the model has none. rate: probability with which what they read is dropped."""
    from autoshard.interop.written_lora import adapters_of
    from autoshard.plans.validate import in_file

    if written.lora is None or request.lora is not None:
        return problem, (), ()
    lora, notes, warnings = in_file(file, partial(adapters_of, written.lora, problem.model, rate))
    if lora is not None or rate:
        dropout = replace(problem.model.dropout, lora=rate)
        problem = problem._replace(model=replace(problem.model, lora=lora, dropout=dropout))
    if lora is not None:
        notes = (ADAPTERS.format(said=written.lora.said, lora=lora), *notes)
    return problem, notes, warnings


def _completed_by_search(problem: Problem, request: PlanRequest) -> tuple[Problem, Strategy, tuple[str, ...]] | None:
    """(problem, layout, notes) of the fastest layout with the file's pins, with the backend and the chunks of the loss
    that `plan` takes where the file leaves them open; None where all pins are there, or no such layout is legal and
    fits."""
    from autoshard.planner.answer import search_backends
    from autoshard.planner.inputs import pins_of

    if all(option.name in request.pins for option in PINS if option.name not in UNSAID):
        return None
    exact = replace(request, top=0, search=EXACT, cost_model=OURS, evaluations=None)
    try:
        problem, result, ways, notes = search_backends(*problem[:3], pins_of(request), exact)
    except AutoshardError:
        return None
    return problem, result.best.strategy, (*ways, *notes)
