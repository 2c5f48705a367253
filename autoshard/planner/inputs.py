"""Model, training, cluster and pins that a request names, loaded and checked."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from autoshard.backends.registry import ANYWHERE, BACKENDS, as_run_by, usual_backend
from autoshard.cost.compute import product_formats, quantized_products
from autoshard.cost.stage_program import rewrites
from autoshard.errors import AutoshardError
from autoshard.files.fields import check_choice
from autoshard.graph.ir import OPERAND_BYTES
from autoshard.graph.quantize import with_quantized_products
from autoshard.graph.recompute import name_in_block
from autoshard.models.registry import is_user_module, left_out, load_model, published_dropout
from autoshard.models.stage import check_adapters, dim_sizes, linear_layers, stage_graph
from autoshard.planner.input_notes import TEXT_ALONE, input_notes
from autoshard.planner.request import INSTANCE, PIN_FIELDS, SEARCHED, SEQUENCE_LENGTH, PlanRequest
from autoshard.plans.search_result import Pins
from autoshard.spec.cluster import Cluster, load_cluster, no_native_release
from autoshard.spec.dropout import PUBLISHED, Dropout, parse_dropout
from autoshard.spec.lora import parse_lora
from autoshard.spec.model import ModelSpec
from autoshard.spec.prediction import LOSS_SCALING_FACTOR, MultiTokenPrediction
from autoshard.spec.product_format import PRODUCT_FORMATS
from autoshard.spec.routing import check_routing, with_imbalance
from autoshard.spec.sdk import release
from autoshard.spec.state_dtypes import with_state_dtypes
from autoshard.spec.training import TrainingSpec, load_precision
from autoshard.units import counted


def inputs_of(
    request: PlanRequest, model: ModelSpec | None = None
) -> tuple[ModelSpec, TrainingSpec, Cluster, tuple[str, ...]]:
    """(model, training, cluster, notes) of a request. model: in place of the one that the request names. Raises
    AutoshardError for a wrong request."""
    notes = _left_out(request) if model is None else ()
    model = _trained(_model(request) if model is None else model, request)
    cluster = _cluster(request)
    if request.price_per_node_hour is not None:
        cluster = replace(cluster, price_per_node_hour_usd=request.price_per_node_hour)
    length, more = _sequence_length(request, model)
    precision = with_state_dtypes(load_precision(_names(request, cluster)[0]), request.state_dtypes)
    quantized_products(cluster.device, precision)  # raises where the device has none
    sizes = length, request.global_batch
    training = TrainingSpec(*sizes, precision, loss_chunks=request.loss_chunks or 1, optimizer=request.optimizer)
    training = _keeping_wide(training, request, model, cluster)
    if request.operators == "solver":
        _check_solver(request, model, training)
    if request.expert_imbalance is not None:
        training = with_imbalance(training, request.expert_imbalance)
        check_routing(model, training)
    name = backend_of(request, cluster)
    check_choice("the request", "backend", name, BACKENDS)
    if request.device != "auto" and name != ANYWHERE.name:
        raise AutoshardError(
            f"device={request.device} with backend={request.backend}: the native device is torch's; use backend=torch"
        )
    cluster = as_run_by(cluster, name, request.stack)
    if request.sdk is not None and cluster.sdk != release(request.sdk):
        raise AutoshardError(no_native_release(request.sdk))
    if request.device != "auto" and cluster.stack is None:
        raise AutoshardError(f"device={request.device}: {cluster.native_elsewhere}; leave device out")
    notes += (*more, *input_notes(model, training, name), *release_notes(request.cluster, cluster))
    return model, training, cluster, notes


def release_notes(made: Cluster | None, cluster: Cluster) -> tuple[str, ...]:
    """The sentence on a cluster that was made under a release of the Neuron SDK that its backend is not there in; none
    for others, and for None. cluster: the same as its backend runs on it."""
    if made is None or made.sdk == cluster.sdk:
        return ()
    return (f"planned and priced for sdk={cluster.sdk}, not the cluster's: {no_native_release(str(made.sdk))}",)


def backend_of(request: PlanRequest, cluster: Cluster) -> str:
    """The backend that a request names. Where it names none: that which has stacks and native devices if it names one
    of these or its cluster has a stack, else the usual one of the cluster."""
    if request.backend != "auto":
        return request.backend
    is_native = {request.stack, request.device} != {"auto"} or cluster.stack is not None
    return ANYWHERE.name if is_native else usual_backend(cluster).name


def pins_of(request: PlanRequest) -> Pins:
    """The choices that the user fixed."""
    named = {PIN_FIELDS.get(name, name): value for name, value in request.pins.items()}
    rules = {name: getattr(request, name) for name in ("beaten_path", "searches_replicas", "searches_etp")}
    return Pins(**named, **rules)


def precision_names(request: PlanRequest) -> tuple[str, ...]:
    """The precisions that a request asks for, the simplest first where it asks for any that pays."""
    if request.precision != SEARCHED:
        return tuple(request.precision.split(","))
    return _names(request, inputs_of(request)[2])


def _names(request: PlanRequest, cluster: Cluster) -> tuple[str, ...]:
    if request.precision != SEARCHED:
        return tuple(request.precision.split(","))
    return ("mixed_precision", *product_formats(cluster.device))


def _check_solver(request: PlanRequest, model: ModelSpec, training: TrainingSpec) -> None:
    """Raise AutoshardError where the solver is not installed or shards no operators of such layouts or models."""
    if "etp" in request.pins or request.searches_etp:
        raise AutoshardError("etp with operators=solver: the integer program places experts itself; leave one out")
    blocks = training.blocks_of(model.blocks)
    if len(blocks.kinds) > 1:
        kept = f" with keep_bf16={training.kept_wide}" if blocks != model.blocks else ""
        raise AutoshardError(
            f"operators=solver: the integer program shards blocks that are alike; {model.name}{kept} has "
            f"{len(blocks.kinds)} kinds of blocks; use operators=megatron"
        )
    from autoshard.planner.operators.linear import highs

    highs()


def _keeping_wide(training: TrainingSpec, request: PlanRequest, model: ModelSpec, cluster: Cluster) -> TrainingSpec:
    """The training with what --keep-bf16 names. Raises AutoshardError where no layer of a block that is quantised
    goes by one of the names, and where nothing is quantised."""
    if request.keep_bf16 is None or training.precision.products is None:
        asked = map(load_precision, _names(request, cluster))
        if request.keep_bf16 is not None and all(one.products is None for one in asked):
            raise AutoshardError(
                f"keep_bf16={request.keep_bf16} with precision={request.precision}, which quantises nothing; "
                f"{', '.join(PRODUCT_FORMATS)} do"
            )
        return training
    block = stage_graph(model, dim_sizes(model, 1, 1), model.kinds, False, False)
    marked = with_quantized_products(block, *rewrites(model, training, (), False)[:4])
    quantised = [op for op in marked.operators if OPERAND_BYTES in op.attributes]
    known = list(dict.fromkeys([op.module for op in quantised] + [name_in_block(op.name) for op in quantised]))
    ends, names = {"first": 0, "last": 0}, set[str]()
    for one in request.keep_bf16.split("+"):
        end, _, count = one.partition("=")
        if count:
            ends[end] = int(count)
        elif one in known:
            names.add(one)
        else:
            raise AutoshardError(
                f"keep_bf16={one}: no layer of a block of {model.name} that {training.precision.name} quantises; "
                f"known: {', '.join(known)}, "
                "first=N and last=N blocks"
            )
    if sum(ends.values()) > model.num_hidden_layers:
        raise AutoshardError(
            f"keep_bf16={request.keep_bf16}: {model.name} has {counted(model.num_hidden_layers, 'block')}"
        )
    all_named = all(op.module in names or name_in_block(op.name) in names for op in quantised)
    if all_named or sum(ends.values()) == model.num_hidden_layers:
        raise AutoshardError(
            f"keep_bf16={request.keep_bf16} leaves nothing of {model.name} that {training.precision.name} quantises; "
            "keep less, or use precision=mixed_precision"
        )
    return replace(
        training,
        unquantized=tuple(sorted(names)),
        unquantized_first=ends["first"],
        unquantized_last=ends["last"],
    )


def _cluster(request: PlanRequest) -> Cluster:
    if request.cluster is not None:
        return request.cluster.with_nodes(request.nodes)
    instance = request.instance or (None if request.hardware else INSTANCE)
    lnc = None if request.lnc == SEARCHED else request.lnc
    assert lnc is None or isinstance(lnc, int), lnc
    return load_cluster(instance, request.nodes, lnc, request.hardware, request.sdk)


def _model(request: PlanRequest) -> ModelSpec:
    """By name or config; "file.py:Class" is traced, once in this process as long as the file stays as it is."""
    if isinstance(request.model, ModelSpec):
        return request.model
    if not is_user_module(request.model):
        return load_model(request.model)
    if request.dropout is not None:
        raise AutoshardError(f"dropout={request.dropout} of {request.model}: a traced module is trained without")
    if find_spec("torch") is None:
        raise AutoshardError(f"model={request.model} is traced with torch: pip install 'autoshard[torch]'")
    file = Path(request.model.rpartition(":")[0]).absolute()
    return _traced(request.model, request.seq_len, file, _content(file))


def _left_out(request: PlanRequest) -> tuple[str, ...]:
    """A note on the parts of the model that are not planned, where its config describes more than a text model."""
    parts, name = request.left_out, request.model
    if isinstance(name, ModelSpec):
        name = name.name
    elif not is_user_module(name):
        parts = left_out(name)
    return (f"{name}: {TEXT_ALONE}; {' and '.join(parts)} left out",) if parts else ()


def _trained(model: ModelSpec, request: PlanRequest) -> ModelSpec:
    """The model with what training drops, its adapters, and the prediction module that it has where it is asked for. A
    model that is given as a value keeps its own where the request says nothing."""
    module = _module(model, request)
    if model.graph is not None:  # a traced module is trained as it is
        if request.dropout is not None:
            raise AutoshardError(f"dropout={request.dropout} of {model.name}: a traced module is trained without")
        if request.lora is not None:
            raise AutoshardError(f"lora={request.lora} of {model.name}: a traced module is trained without")
        return model if module is None else replace(model, multi_token_prediction=module)
    dropout = model.dropout if request.dropout is None else _dropout(request, request.dropout)
    lora = model.lora if request.lora is None else parse_lora(str(request.lora), linear_layers(model))
    model = replace(model, dropout=dropout, lora=lora, multi_token_prediction=module)
    if lora is not None:
        check_adapters(model)
    return model


def _module(model: ModelSpec, request: PlanRequest) -> MultiTokenPrediction | None:
    """The prediction module that is trained, None where there is none."""
    own, weight = model.multi_token_prediction, request.mtp_loss_scaling_factor
    count = request.mtp_num_layers
    if count is None:
        count = 0 if own is None else own.mtp_num_layers
    if not count:
        if weight is not None:
            raise AutoshardError(f"mtp_loss_scaling_factor={weight:g} goes with mtp_num_layers=1, not {count}")
        return None
    usual = LOSS_SCALING_FACTOR if own is None else own.mtp_loss_scaling_factor
    return MultiTokenPrediction(count, usual if weight is None else weight)


def _dropout(request: PlanRequest, said: str) -> Dropout:
    if said != PUBLISHED:
        return parse_dropout(said)
    if isinstance(request.model, ModelSpec):
        raise AutoshardError(
            f"dropout={PUBLISHED}: {request.model.name} was given without its config.json; give probabilities"
        )
    return published_dropout(request.model)


@lru_cache(maxsize=8)
def _traced(model: str, seq_len: int | None, file: Path, content: bytes) -> ModelSpec:
    """The model that a user's file makes. file, content: where it is and what it says: an edited one is traced anew."""
    from autoshard.tracer.trace import trace_model  # brings torch

    return trace_model(model, seq_len)


def _content(file: Path) -> bytes:
    """The bytes of a file; none where it cannot be read."""
    try:
        return file.read_bytes() if file.is_file() else b""
    except OSError:  # the import says why
        return b""


def _sequence_length(request: PlanRequest, model: ModelSpec) -> tuple[int, tuple[str, ...]]:
    """The length, and a note where the model has too few positions for the usual one."""
    limit = model.max_position_embeddings
    if request.seq_len is None:
        if limit >= SEQUENCE_LENGTH:
            return SEQUENCE_LENGTH, ()
        return limit, (f"seq-len {limit:,}, not {SEQUENCE_LENGTH:,}: {model.name} has {limit:,} positions",)
    if request.seq_len <= limit:
        return request.seq_len, ()
    if model.rope_theta is None:
        raise AutoshardError(
            f"seq-len={request.seq_len} is beyond max_position_embeddings={limit} of {model.name}, "
            f"which learned no more positions; at most {limit} works"
        )
    return request.seq_len, ()
