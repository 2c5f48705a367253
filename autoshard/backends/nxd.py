"""The backend that runs a plan on neuronx-distributed, with the rules that are its own. Sources in brackets as in
rules.py."""

from __future__ import annotations

from itertools import accumulate

from autoshard.backends.backend import NO_COMPILE, Backend
from autoshard.backends.problem import Draft, Problem, Rule
from autoshard.graph.recompute import COMMON_SETS
from autoshard.layout.mesh import AXIS_ORDER
from autoshard.layout.strategy import Strategy
from autoshard.schedules import SCHEDULES
from autoshard.spec.model_types import RECURRENT
from autoshard.spec.training import ADAMW

MEGATRON_MIN_RANKS = 32
"""dp * tp with pp > 1 [NxDT models/megatron/megatron_init.py]"""
SHIPPED_TP = 8
"""Degrees of tp from here on are shipped with pipelines of fewer ranks [NxDT examples/conf]."""
FLASH_MAX_HEAD_DIM = 128
NXD_SETS = (
    *COMMON_SETS[:-1],
    *("mlp", "mlp_norm+mlp", "attention_norm+attention+mlp_norm+mlp"),
    *("attention_norm+attention+core_attention+mlp_norm+mlp", COMMON_SETS[-1]),
)
"""NxD Training's own, and those of the others that are useful for every family of models: pricing fewer keeps a plan
within a second."""
MODEL_TYPES = (
    *("llama", "mistral", "mixtral", "gpt2", "gpt_neox", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    *("dbrx", "smollm3", "phi3", "olmo2", "granite"),
)
"""Families that NxD has layers for."""
NO_DOCUMENT_MASK = "document_mask: NxD's attention is causal over whole rows, documents or not: use backend=torch"


def devices_have_attention(problem: Problem, draft: Draft) -> str | None:
    """[NxD modules/qkv_linear.py _initialize_affine_weight: branches for TRN1 and TRN2, and an exception]"""
    if not problem.cluster.platform.lacks_nxd:
        return None
    where = problem.cluster.instance
    return f"backend=nxd makes no key and value weights on {where}; use backend torch, or trn1 or trn2"


def folded_groups_hold_shards_alone(problem: Problem, draft: Draft) -> str | None:
    """[NxD parallel_state.py: LOGIC2 leaves experts' groups consecutive, and get_context_model_parallel_rank goes by
    torch's sorted order where ring attention's pairs go by the list]"""
    cluster = problem.cluster
    if cluster.fold(draft.tp) is None:
        return None
    where = f"with tp={draft.tp} at lnc {cluster.lnc}"
    if draft.ep > 1:
        return (
            f"ep={draft.ep} {where}: NxD spreads experts over consecutive ranks, which hold different shards in these "
            "folded groups; use ep=1, another tp or backend torch"
        )
    if draft.cp > 1:
        return (
            f"cp={draft.cp} {where}: NxD numbers the ranks that share a sequence in two orders in these folded groups; "
            "use cp=1, another tp or backend torch"
        )
    return None


def dp_of_pipelines_has_run(problem: Problem, draft: Draft) -> str | None:
    """[NxDT models/megatron/megatron_init.py asserts it of every tp; lightning_modules/model/megatron_init.py, which is
    what NxDT runs, does not] AWS's megatron_llama_70b_config.yaml has tp=8, pp=16 and dp=2: from tp=8 on any dp works.
    """
    if not problem.cluster.platform.is_trainium or draft.pp == 1 or draft.dp == 1 or draft.tp >= SHIPPED_TP:
        return None
    if draft.dp * draft.tp >= MEGATRON_MIN_RANKS or (draft.tp == 1 and draft.dp == 8):
        return None
    few = "1, 8 or" if draft.tp == 1 else "1 or"
    return (
        f"dp={draft.dp} must be {few} at least {MEGATRON_MIN_RANKS // draft.tp} where pp={draft.pp} is more than 1 and "
        f"tp={draft.tp}: nobody is known to have run another dp with tp below {SHIPPED_TP}, and older code of NxD "
        "Training asserts it"
    )


def tied_embeddings_stay_together(problem: Problem, draft: Draft) -> str | None:
    """NxD ties no embedding to the head over pipeline ranks [SDK archive/nxd-training/known_issues.rst]."""
    if problem.model.tie_word_embeddings and draft.pp > 1:
        return f"pp={draft.pp} with tied embeddings is not supported by NxD; {problem.model.name} needs pp=1"
    return None


def experts_on_every_rank(problem: Problem, draft: Draft) -> str | None:
    """With expert parallelism every pipeline rank needs experts that learn: one that has no gradients of any does not
    sum its others over expert-parallel ranks [NxD trainer/optimizer.py; optimizer/zero_redundancy_optimizer.py fails
    there]. Adapters stand beside no experts.

    Where no stage_layers are written, a search may still cut a stage that has none.
    """
    model = problem.model
    if draft.ep > 1 and model.lora is not None:
        return (
            f"ep={draft.ep}: with lora no expert learns, and NxD skips gradient sums over expert-parallel ranks then; "
            "use ep=1 or backend torch"
        )
    if draft.ep == 1 or draft.pp == 1:
        return None
    if draft.stage_layers:
        ends = [*accumulate(draft.stage_layers)]
        with_experts = {
            stage % draft.pp
            for stage, (begin, end) in enumerate(zip((0, *ends), ends, strict=False))
            if any(map(model.has_experts, range(begin, min(end, model.num_hidden_layers))))
        }
        without = [rank for rank in range(draft.pp) if rank not in with_experts]
        if not without:
            return None
        where = f"pipeline rank {without[0]} has no block with experts"
    elif model.num_sparse_layers == model.num_hidden_layers:
        return None
    else:
        where = f"with pp={draft.pp} a rank may have none of the {model.num_sparse_layers} blocks with experts"
    return (
        f"ep={draft.ep}: {where}, and NxD skips gradient sums over expert-parallel ranks there; use ep=1, pp=1 or "
        "backend torch"
    )


def traced_models_run_on_torch(problem: Problem, draft: Draft) -> str | None:
    """NxD trains models that are written with its own layers."""
    if problem.model.graph is not None:
        return f"backend=nxd has no layers for {problem.model.name}, which was traced; use backend torch"
    return None


def compressed_vectors_run_on_torch(problem: Problem, draft: Draft) -> str | None:
    """NxD 0.18.0 has no layers of latent or compressed attention, and routers that choose by a softmax or sigmoid
    alone."""
    model = problem.model
    if model.compressed_attention is not None:  # nor has backend torch on Neuron: see native_neuron.py
        return f"backend=nxd has no layers for the compressed attention of {model.name}; plan for GPUs"
    if model.block_indexer is not None:
        return f"backend=nxd has no layers for attention of {model.name} to blocks of keys; plan for GPUs"
    if model.latent_attention is not None:
        instead = "use backend torch" if model.indexer is None else "plan for GPUs"  # see native_neuron.py
        return f"backend=nxd has no layers for the latent attention of {model.name}; {instead}"
    if model.router is not None:
        return f"backend=nxd has no router with topk_method={model.router.topk_method} of {model.name}; use torch"
    return None


def blocks_run_on_torch(problem: Problem, draft: Draft) -> str | None:
    """NxD's norms are of what a rank holds [parallel_layers/layer_norm.py]; it has no layers for recurrences."""
    if problem.model.is_recurrent:
        return (
            f"backend=nxd has no layers for the {' and '.join(sorted({*problem.model.layer_types} & {*RECURRENT}))} "
            f"blocks of {problem.model.name}; use backend torch"
        )
    if problem.model.normalizes_all_heads and draft.tp > 1:
        return (
            f"tp={draft.tp}: NxD has no norm over the heads of several ranks, which {problem.model.name} needs; use "
            "tp=1 or backend torch"
        )
    return None


def predictions_run_on_torch(problem: Problem, draft: Draft) -> str | None:
    """NxD 0.18.0 has no module for multi-token prediction, and no loss besides the last stage's."""
    module = problem.model.multi_token_prediction
    if module is not None:
        return f"backend=nxd has no prediction module: mtp_num_layers={module.mtp_num_layers} needs backend torch"
    return None


def other_families_run_on_torch(problem: Problem, draft: Draft) -> str | None:
    """[NxD 0.18.0 has layers and kernels for these families; none for sinks, capped scores or norms behind a block]"""
    model = problem.model
    has_own_rule = model.latent_attention is not None or model.compressed_attention is not None
    if model.graph is None and not has_own_rule and model.model_type not in MODEL_TYPES:
        return f"backend=nxd has no layers for model_type={model.model_type} of {model.name}; use backend torch"
    return None


def router_losses_run_on_torch(problem: Problem, draft: Draft) -> str | None:
    """NxD's layers of experts are built here without a load-balancing loss."""
    coefficient = problem.model.router_aux_loss_coef
    if coefficient:
        return f"backend=nxd trains without router_aux_loss_coef={coefficient:g} of {problem.model.name}; 0 works"
    return None


def dropout_runs_on_torch(problem: Problem, draft: Draft) -> str | None:
    """NxD's random numbers depend on the layout and it keeps masks, which the graph does not."""
    if problem.model.dropout:
        return f"backend=nxd trains {problem.model.name} without dropout {problem.model.dropout}; use backend torch"
    return None


def loss_is_of_all_logits(problem: Problem, draft: Draft) -> str | None:
    """The backend calls NxD's parallel_cross_entropy once, with the logits of a whole microbatch."""
    chunks = problem.training.loss_chunks
    if chunks > 1:
        return f"loss_chunks={chunks}: NxD computes the loss of all logits at once; use loss_chunks=1 or backend torch"
    return None


def optimizer_is_adamw(problem: Problem, draft: Draft) -> str | None:
    """NxD's ZeRO-1 updates flat shards of parameters, in which no matrix is whole. [NxD
    optimizer/zero_redundancy_optimizer.py]"""
    if problem.training.optimizer != ADAMW:
        return (
            f"backend=nxd has no optimizer={problem.training.optimizer}, which needs whole matrices; use backend torch"
        )
    return None


def state_has_nxds_dtypes(problem: Problem, draft: Draft) -> str | None:
    """Gradients are summed in the dtype of the weights or of their gradients, and sent in the same; moments have that
    of the weights. [NxD optimizer/zero_redundancy_optimizer.py: optimizer_dtype; trainer/trainer.py:
    use_fp32_grad_acc]"""
    precision = problem.training.precision
    summed, sent = precision.gradient_accumulation_dtype, precision.gradient_reduce_dtype
    kept, known = precision.kept_dtype, sorted({precision.kept_dtype, precision.parameter_dtype})
    if summed != sent or summed not in known:
        return (
            f"precision {precision.name}: NxD sums and sends gradients in one dtype, {' or '.join(known)}, not in "
            f"{summed} and {sent}; use backend torch"
        )
    if precision.optimizer_dtype != kept:
        return (
            f"precision {precision.name}: moments of NxD are in {kept}, as its weights, not in "
            f"{precision.optimizer_dtype}; use backend torch"
        )
    return None


def kernel_knows_the_model(problem: Problem, draft: Draft) -> str | None:
    """[SDK archive/nxd-training/known_issues.rst: flash attention serves Hugging Face style models only; neuronxcc
    nki/kernels/attention.py flash_fwd: assert d <= 128; NxD kernels/flash_attn.py and ring_attention_kernel.py take no
    window, so that the backend masks scores that it stores]"""
    model, length = problem.model, problem.training.sequence_length
    if draft.attention_kernel != "flash":
        return None
    if model.model_type == "gpt2":
        return f"attention_kernel=flash: NxD Training has none for {model.model_type} models; use plain"
    if not problem.cluster.platform.is_trainium:  # NxD's CPU mode has other kernels
        return None
    if (widest := max((one.head_dim for one in model.heads), default=0)) > FLASH_MAX_HEAD_DIM:
        return (
            f"attention_kernel=flash: NxD's takes a head_dim of at most {FLASH_MAX_HEAD_DIM}, not {widest} of "
            f"{model.name}; use plain"
        )
    window = model.sliding_window
    if window is not None and window < length and any(map(model.window_of, range(model.num_hidden_layers))):
        return (
            f"attention_kernel=flash: NxD's sees all keys, and sliding_window={window} of {model.name} is "
            f"less than sequence_length={length}; use plain"
        )
    return None


def context_parallel_needs_zero_1(problem: Problem, draft: Draft) -> str | None:
    """[NxD 0.18.0, seen to run: without ZeRO-1 the applied gradient is exactly cp times too large]"""
    if draft.cp > 1 and not draft.zero:
        return f"cp={draft.cp} without zero=1 makes NxD apply gradients {draft.cp} times too large; use zero=1"
    return None


def master_weights_need_zero_1(problem: Problem, draft: Draft) -> str | None:
    """[NxD trainer/trainer.py: master weights or FP32 accumulation without ZeRO-1 raise]"""
    precision = problem.training.precision
    if precision.master_dtype is not None and not draft.zero:
        return f"precision {precision.name} keeps master weights, which NxD does with zero=1 only"
    return None


def nxd_warnings(problem: Problem, strategy: Strategy) -> tuple[str, ...]:
    """Sentences on the mistakes that NxD 0.18.0 makes with a layout outside of the step itself; empty without any.

    The nxd backend repairs them (runtime/nxd_backend/traps.py). Whoever takes the layout elsewhere has them.
    """
    warnings = []
    if strategy.cp > 1:
        warnings.append(
            f"cp={strategy.cp}: optimizer checkpoints of NxD 0.18.0 lack a context-parallel rank in their names and "
            "overwrite each other: autoshard run writes its own, NxD Training resumes wrongly"
        )
    if problem.cluster.fold(strategy.tp) is not None and strategy.dp > 1:
        wrong = "" if strategy.zero else " sums gradients of different shards and"
        warnings.append(
            f"tp={strategy.tp} at lnc {problem.cluster.lnc} has folded rank groups: NxD 0.18.0{wrong} leaves out the "
            "model files of half its tensor-parallel ranks: autoshard run gives it the plan's groups and writes its "
            "own files, NxD Training does neither"
        )
    if problem.model.lora is not None and strategy.sequence_parallel:
        warnings.append(
            "adapters of NxD 0.18.0 (neuronx_distributed.modules.lora): under sequence parallelism it does not sum "
            "their gradients over tensor-parallel ranks, which learn apart: autoshard run sums those of its own, NxD "
            "Training does not"
        )
    kv_heads = problem.model.num_key_value_heads
    if strategy.tp > kv_heads:
        warnings.append(
            f"tp={strategy.tp} replicates {kv_heads} key-value heads: the gradient norm of NxD 0.18.0 counts them "
            f"{strategy.tp // kv_heads} times: autoshard run counts them once, NxD Training clips early"
        )
    return tuple(warnings)


NXD = Backend(
    name="nxd",
    label="NxD",
    runtime="autoshard.runtime.nxd_backend.runtime",
    axis_orders=(AXIS_ORDER,),  # [parallel_layers/parallel_state.py: ranks are reshaped to (PP, DP, CP, TP), always]
    runs_schedule=lambda name: SCHEDULES[name].nxd,
    zero_stages=(1, 0),  # [optimizer/zero_redundancy_optimizer.py is its only ZeRO]
    context_parallel=("ring",),
    recompute_sets=NXD_SETS,
    solves_operators=False,
    shares_sequences_of_experts=False,
    repeats_shards=False,  # [optimizer/zero_redundancy_optimizer.py: it shards over whole dp groups]
    mesh_rules=(
        Rule("NxD builds no attention on the devices", devices_have_attention),
        Rule("NxD folds groups of tp alone", folded_groups_hold_shards_alone),
        Rule("nobody ran such a dp with a pipeline", dp_of_pipelines_has_run),
        Rule("tied embeddings with a pipeline", tied_embeddings_stay_together),
        Rule("NxD skips sums where no experts learn", experts_on_every_rank),
        Rule("NxD does not know a traced model", traced_models_run_on_torch),
        Rule("NxD has no latent attention", compressed_vectors_run_on_torch),
        Rule("NxD has no layers for the blocks", blocks_run_on_torch),
        Rule("NxD has no prediction module", predictions_run_on_torch),
        Rule("NxD has no layers for the family", other_families_run_on_torch),
        Rule("NxD adds no loss of routers", router_losses_run_on_torch),
        Rule("NxD drops nothing", dropout_runs_on_torch),
        Rule("NxD computes the loss of all logits", loss_is_of_all_logits),
        Rule("NxD updates by AdamW", optimizer_is_adamw),
        Rule("NxD's dtypes of gradients and moments", state_has_nxds_dtypes),
    ),
    kernel_rules=(Rule("the attention kernel does not know the model", kernel_knows_the_model),),
    state_rules=(
        Rule("context parallelism without ZeRO-1", context_parallel_needs_zero_1),
        Rule("master weights without ZeRO-1", master_weights_need_zero_1),
    ),
    warnings=nxd_warnings,
    refuses={
        "device": "device={value} with backend=nxd: NxD takes Trainium, or NXD_CPU_MODE=1's CPU",
        "document_mask": NO_DOCUMENT_MASK,
        "profile": "profile times the torch backend's actions; NxD's are its own: use backend=torch",
        "compile": NO_COMPILE,
    },
    packages=("neuronx-distributed",),
    requirement="autoshard.runtime.nxd_backend.library:require_library",
    repairs="autoshard.runtime.nxd_backend.traps:nxd_repairs",
)
