"""Layouts of small models for the parity tests. Imported by the processes too, so no test code here."""

from collections import Counter
from collections.abc import Set
from dataclasses import replace
from functools import cache

from autoshard.cost.estimate import estimate
from autoshard.layout.mesh import parse_axis_order
from autoshard.layout.strategy import Strategy
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.plans.plan import Plan, make_plan
from autoshard.runtime.rehearse import local_cluster, telling_blocks
from autoshard.spec.model import ModelSpec
from autoshard.spec.prediction import MultiTokenPrediction
from autoshard.spec.state_dtypes import with_state_dtypes
from autoshard.spec.training import ADAMW, MUON, Precision, TrainingSpec, load_precision
from tests.cases import ALL
from tests.multiprocess.models import MODELS

FP64 = Precision("fp64", "float64", "float64", None, "float64", "float64", "float64")
NARROW = "gradient_accumulation=bfloat16,gradient_reduce=bfloat16,moments=bfloat16"
BF16 = (
    load_precision("mixed_precision"),
    load_precision("bf16_sr"),
    with_state_dtypes(load_precision("mixed_precision"), "gradient_reduce=bfloat16"),
    with_state_dtypes(load_precision("mixed_precision"), NARROW),
)
FP32 = Precision("fp32", "float32", "float32", None, "float32", "float32", "float32")


def strategy(
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    cp: int = 1,
    ep: int = 1,
    vpp: int = 1,
    mbs: int = 1,
    recompute: str | tuple[str, ...] = "none",
    sp: bool = True,
    zero: int = 1,
    kernel: str = "flash",
    layers: tuple[int, ...] | None = None,
    attention: str = "all_gather",
    schedule: str | None = None,
    order: str = "pp-dp-cp-tp",
    etp: int | None = None,
    dp_replicate: int = 1,
) -> Strategy:
    stages = pp * vpp
    return Strategy(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
        num_virtual_stages=vpp,
        microbatch_size=mbs,
        schedule=schedule or ("interleaved" if vpp > 1 else "1f1b"),
        recompute=recompute if isinstance(recompute, tuple) else (recompute,),
        sequence_parallel=sp and tp > 1,
        zero=zero,
        attention_kernel=kernel,
        stage_layers=layers or (4 // stages,) * stages,
        context_parallel=attention,
        axis_order=parse_axis_order(order),
        etp=etp,
        dp_replicate=dp_replicate,
    )


CASES: dict[int, dict[str, tuple[str, Strategy, int]]] = {
    2: {
        "tp": ("llama", strategy(tp=2), 2),
        "tp, no sequence parallel": ("llama", strategy(tp=2, sp=False), 2),
        "tp, plain attention": ("llama", strategy(tp=2, kernel="plain"), 2),
        "dp": ("llama", strategy(dp=2), 2),
        "dp, no ZeRO-1": ("llama", strategy(dp=2, zero=0), 2),
        "dp, ZeRO-2": ("llama", strategy(dp=2, zero=2), 2),
        "dp, ZeRO-3": ("llama", strategy(dp=2, zero=3), 2),
        "ring, ZeRO-3, recompute all": ("llama", strategy(cp=2, attention="ring", recompute="full", zero=3), 2),
        "gpt2 dp, ZeRO-3, tied": ("gpt2", strategy(dp=2, zero=3), 2),
        "muon, tp": ("llama", strategy(tp=2), 2),
        "muon, dp": ("gpt2", strategy(dp=2), 2),
        "muon, dp, no ZeRO-1": ("llama", strategy(dp=2, zero=0), 2),
        "dp, microbatches of 2": ("llama", strategy(dp=2, mbs=2), 2),
        "pp": ("llama", strategy(pp=2), 4),
        "pp, interleaved": ("llama", strategy(pp=2, vpp=2), 4),
        "pp, interleaved, unlike stages": ("a dense block", strategy(pp=2, vpp=2, layers=(0, 1, 2, 1)), 4),
        "pp, three chunks, bare ends": ("a dense block", strategy(pp=2, vpp=3, layers=(0, 1, 1, 1, 1, 0)), 4),
        "pp, ends alone": ("tied", strategy(pp=2, layers=(4, 0), recompute=("full", "none")), 4),
        "pp, interleaved, m == pp": ("llama", strategy(pp=2, vpp=2), 2),
        "pp, one microbatch": ("llama", strategy(pp=2), 1),
        "pp, uneven": ("llama", strategy(pp=2, layers=(3, 1)), 3),
        "pp, tied": ("tied", strategy(pp=2), 3),
        "pp, gpt2": ("gpt2", strategy(pp=2), 3),
        "pp, gpipe": ("llama", strategy(pp=2, schedule="gpipe"), 3),
        "pp, zero bubble": ("llama", strategy(pp=2, schedule="zero_bubble"), 4),
        "pp, zero bubble, one microbatch": ("tied", strategy(pp=2, schedule="zero_bubble"), 1),
        "pp, zero bubble, gpt2": ("gpt2", strategy(pp=2, schedule="zero_bubble"), 3),
        "pp, zero bubble, mixtral": ("mixtral", strategy(pp=2, schedule="zero_bubble", recompute="full"), 3),
        "cp": ("llama", strategy(cp=2), 2),
        "cp, sliding window": ("mistral", strategy(cp=2), 2),
        "cp, rope scaling": ("rope scaling", strategy(cp=2), 2),
        "ring": ("llama", strategy(cp=2, attention="ring"), 2),
        "ring, sliding window": ("mistral", strategy(cp=2, attention="ring"), 2),
        "zigzag ring": ("llama", strategy(cp=2, attention="zigzag_ring"), 2),
        "zigzag ring, sliding window": ("mistral", strategy(cp=2, attention="zigzag_ring"), 2),
        "zigzag ring, learned positions": ("gpt2", strategy(cp=2, attention="zigzag_ring"), 2),
        "ring, recompute all": ("llama", strategy(cp=2, attention="ring", recompute="full"), 2),
        "ulysses": ("llama", strategy(cp=2, attention="ulysses"), 2),
        "ulysses, sliding window, plain": ("mistral", strategy(cp=2, attention="ulysses", kernel="plain"), 2),
        "kv replicated": ("one kv head", strategy(tp=2), 2),
        "tied tp": ("tied", strategy(tp=2), 2),
        "gpt2 tp, padded vocabulary": ("gpt2", strategy(tp=2), 2),
        "mixtral tp": ("mixtral", strategy(tp=2), 2),
        "mixtral tp, no sequence parallel": ("mixtral", strategy(tp=2, sp=False), 2),
        "mixtral ep": ("mixtral", strategy(dp=2, ep=2), 2),
        "mixtral ep, dropless": ("mixtral", strategy(dp=2, ep=2), 2),
        "mixtral ep over cp, zigzag ring": ("mixtral", strategy(cp=2, ep=2, attention="zigzag_ring"), 2),
        "balanced mixtral tp": ("balanced mixtral", strategy(tp=2), 2),
        "balanced mixtral ep": ("balanced mixtral", strategy(dp=2, ep=2, recompute="full"), 2),
        "llama with biases tp": ("llama with biases", strategy(tp=2), 2),
        "gpt neox tp": ("gpt neox", strategy(tp=2), 2),
        "gpt neox tp, no sequence parallel": ("gpt neox", strategy(tp=2, sp=False), 2),
        "qwen2 tp": ("qwen2", strategy(tp=2), 2),
        "qwen3 cp, recompute": ("qwen3", strategy(cp=2, recompute="full"), 2),
        "qwen2 moe tp": ("qwen2 moe", strategy(tp=2), 2),
        "qwen2 moe ep": ("qwen2 moe", strategy(dp=2, ep=2), 2),
        "qwen3 moe ep": ("qwen3 moe", strategy(dp=2, ep=2), 2),
        "recompute attention": ("llama", strategy(tp=2, recompute="core_attention"), 2),
        "recompute attention and MLP": ("llama", strategy(tp=2, recompute="core_attention+mlp"), 2),
        "recompute single operators": ("llama", strategy(tp=2, recompute="mlp.act_fn+mlp.down_proj"), 2),
        "recompute all but core attention": (
            "llama",
            strategy(tp=2, recompute="attention_norm+attention+mlp_norm+mlp+residual"),
            2,
        ),
        "recompute all but core attention, zero bubble": (
            "llama",
            strategy(pp=2, schedule="zero_bubble", recompute="attention_norm+attention"),
            3,
        ),
        "recompute all but attention": ("llama", strategy(tp=2, recompute="attention_norm+mlp_norm+mlp"), 2),
        "recompute by stage": ("llama", strategy(pp=2, recompute=("full", "none")), 4),
        "recompute by virtual stage": (
            "llama",
            strategy(pp=2, vpp=2, recompute=("full", "core_attention", "mlp", "none")),
            4,
        ),
        "recompute all": ("llama", strategy(tp=2, recompute="full"), 2),
        "packed documents, zigzag ring": ("gpt2", strategy(cp=2, attention="zigzag_ring"), 2),
        "packed documents, ring, sliding window": ("mistral", strategy(cp=2, attention="ring", recompute="full"), 2),
        "packed documents, ulysses, plain": ("llama", strategy(cp=2, attention="ulysses", kernel="plain"), 2),
        "padded heads that share, recompute": ("one kv head for 3", strategy(tp=2, recompute="core_attention+mlp"), 2),
        "padded heads, mixtral": ("mixtral of 3 kv heads", strategy(tp=2, sp=False), 2),
        "traced odd model cp, recompute all": ("odd", strategy(cp=2, attention="ring", recompute="full"), 2),
        "recompute all, cp": ("llama", strategy(cp=2, recompute="full"), 2),
        "dropout, gpt2 tp, recompute all": ("gpt2, dropping", strategy(tp=2, kernel="plain", recompute="full"), 2),
        "dropout, zigzag ring": ("mistral, dropping", strategy(cp=2, attention="zigzag_ring", recompute="mlp"), 2),
        "dropout, ulysses, recompute attention": (
            "gpt2, dropping",
            strategy(cp=2, attention="ulysses", kernel="plain", recompute="core_attention"),
            2,
        ),
        "unequal blocks, pp": ("a dense block", strategy(pp=2, layers=(3, 1), recompute=("mlp", "none")), 3),
        "unequal blocks, ring": ("windows on later blocks", strategy(cp=2, attention="zigzag_ring"), 2),
        "unequal blocks, ep": ("a dense block", strategy(dp=2, ep=2, zero=3, recompute="full"), 2),
        "blocks without positions, pp": ("smollm3", strategy(pp=2, layers=(3, 1)), 3),
        "blocks without positions, ring": ("smollm3", strategy(cp=2, attention="ring", recompute="full"), 2),
        "phi3 tp": ("phi3", strategy(tp=2, recompute="attention"), 2),
        "norm over heads, tp": ("olmo2", strategy(tp=2, recompute="attention+mlp"), 2),
        "norm over heads, tp, no sequence parallel": ("olmo2, shared heads", strategy(tp=2, sp=False), 2),
        "norm over heads, cp": ("olmo2", strategy(cp=2), 2),
        "norm over heads, dp, ZeRO-3, recompute all": ("olmo2", strategy(dp=2, zero=3, recompute="full"), 2),
        "multipliers, tp": ("granite", strategy(tp=2), 2),
        "multipliers, zigzag ring": ("granite", strategy(cp=2, attention="zigzag_ring", zero=3), 2),
        "multipliers, pp, plain attention": ("granite", strategy(pp=2, kernel="plain", recompute="full"), 3),
        "linear attention, tp": ("qwen3 next", strategy(tp=2, recompute="attention+mlp"), 2),
        "linear attention, padded heads": ("linear attention, 3 heads", strategy(tp=2, sp=False), 2),
        "linear attention, pp": ("qwen3 next", strategy(pp=2, layers=(3, 1), recompute=("full", "none")), 3),
        "linear attention, ep, ZeRO-3": ("qwen3 next", strategy(dp=2, ep=2, zero=3, recompute="full"), 2),
        "linear attention, zigzag ring": ("qwen3 next", strategy(cp=2, ep=2, attention="zigzag_ring"), 2),
        "state space, tp": ("granite hybrid", strategy(tp=2), 2),
        "state space, tp, no sequence parallel": ("granite hybrid", strategy(tp=2, sp=False, recompute="full"), 2),
        "state space, groups, tp": ("granite hybrid, groups", strategy(tp=2, recompute="attention"), 2),
        "state space, groups, ring": ("granite hybrid, groups", strategy(cp=2, attention="ring"), 2),
        "state space, pp": ("granite hybrid, experts", strategy(pp=2, layers=(1, 3), schedule="zero_bubble"), 3),
        "state space, dp, ZeRO-3": ("granite hybrid", strategy(dp=2, zero=3, recompute="core_attention"), 2),
        "state space, ring": ("granite hybrid", strategy(cp=2, attention="ring", recompute="full"), 2),
        "recompute all, mixtral": ("mixtral", strategy(dp=2, ep=2, recompute="full"), 2),
        "deepseek tp": ("deepseek v3", strategy(tp=2), 2),
        "deepseek tp, no sequence parallel, plain": ("deepseek v3", strategy(tp=2, sp=False, kernel="plain"), 2),
        "deepseek ep, ZeRO-3, recompute all": ("deepseek v3", strategy(dp=2, ep=2, zero=3, recompute="full"), 2),
        "deepseek ep over cp, zigzag ring, recompute up-projections": (
            "deepseek v3",
            strategy(cp=2, ep=2, attention="zigzag_ring", recompute="attention_up+core_attention"),
            2,
        ),
        "deepseek ep over cp, ulysses, plain": (
            "deepseek v2 of 6 heads",
            strategy(cp=2, ep=2, attention="ulysses", kernel="plain"),
            2,
        ),
        "packed documents, deepseek, ring, recompute": (
            "deepseek v3",
            strategy(cp=2, ep=2, attention="ring", recompute="attention_up+core_attention"),
            2,
        ),
        "packed documents, deepseek, tp": ("deepseek v3", strategy(tp=2), 2),
        "glm4 moe tp": ("glm4 moe", strategy(tp=2), 2),
        "glm4 moe pp, uneven": ("glm4 moe", strategy(pp=2, layers=(3, 1), recompute=("mlp", "none")), 3),
        "glm4 moe ep over cp, zigzag ring, ZeRO-3": (
            "glm4 moe",
            strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
            2,
        ),
        "deepseek pp, uneven, zero bubble": (
            "deepseek v3",
            strategy(pp=2, layers=(3, 1), schedule="zero_bubble", recompute=("attention_up", "mlp")),
            3,
        ),
    },
    4: {
        "tp 4": ("llama", strategy(tp=4), 2),
        "kv replicated twice": ("few kv heads", strategy(tp=4), 2),
        "kv replicated, no sequence parallel": ("few kv heads", strategy(tp=4, sp=False), 2),
        "kv replicated x cp": ("one kv head", strategy(tp=2, cp=2), 2),
        "tp x dp": ("llama", strategy(tp=2, dp=2), 2),
        "tp x dp, ZeRO-3, recompute": ("llama", strategy(tp=2, dp=2, zero=3, recompute="core_attention+mlp"), 2),
        "muon, kv replicated x dp, ZeRO-3": ("one kv head", strategy(tp=2, dp=2, zero=3), 2),
        "muon, mixtral ep x tp": ("mixtral", strategy(dp=2, ep=2, tp=2), 2),
        "muon, pp, interleaved x dp, tied": ("tied", strategy(pp=2, vpp=2, dp=2), 2),
        "muon, dp x cp": ("llama", strategy(dp=2, cp=2), 2),
        "kv replicated x dp, ZeRO-2": ("one kv head", strategy(tp=2, dp=2, zero=2), 2),
        "pp x dp, ZeRO-3, tied": ("tied", strategy(pp=2, dp=2, zero=3), 3),
        "interleaved x dp x ZeRO-2, tied": ("tied", strategy(pp=2, vpp=2, dp=2, zero=2, recompute="full"), 4),
        "mixtral ep x dp, ZeRO-3": ("mixtral", strategy(dp=4, ep=2, zero=3), 2),
        "tp x pp, recompute": ("llama", strategy(tp=2, pp=2, recompute="core_attention+mlp"), 4),
        "tp x cp": ("llama", strategy(tp=2, cp=2), 2),
        "zigzag ring of 4": ("llama", strategy(cp=4, attention="zigzag_ring"), 2),
        "ring of 4, sliding window": ("mistral", strategy(cp=4, attention="ring"), 2),
        "tp x zigzag ring, recompute attention": (
            "llama",
            strategy(tp=2, cp=2, attention="zigzag_ring", recompute="core_attention"),
            2,
        ),
        "kv replicated x zigzag ring": ("one kv head", strategy(tp=2, cp=2, attention="zigzag_ring"), 2),
        "tp x ulysses, recompute attention": (
            "llama",
            strategy(tp=2, cp=2, attention="ulysses", recompute="core_attention"),
            2,
        ),
        "dp x cp": ("llama", strategy(dp=2, cp=2), 2),
        "tp x pp, zero bubble, recompute": (
            "llama",
            strategy(tp=2, pp=2, schedule="zero_bubble", recompute="core_attention+mlp"),
            4,
        ),
        "pp 4, zero bubble": ("llama", strategy(pp=4, schedule="zero_bubble"), 6),
        "pp 4": ("llama", strategy(pp=4), 6),
        "interleaved x dp x recompute": ("llama", strategy(pp=2, vpp=2, dp=2, recompute="full"), 4),
        "gpt2 tp x pp": ("gpt2", strategy(tp=2, pp=2), 4),
        "gpt neox tp x pp": ("gpt neox", strategy(tp=2, pp=2, recompute="core_attention+mlp"), 4),
        "qwen3 kv replicated": ("qwen3", strategy(tp=4), 2),
        "packed documents, cp x pp, recompute": ("mistral", strategy(cp=2, pp=2, recompute="core_attention"), 3),
        "padded heads, gpt2": ("gpt2 of 6 heads", strategy(tp=4), 2),
        "padded heads that share, plain attention": ("3 heads share", strategy(tp=4, kernel="plain"), 2),
        "qwen2 moe ep x tp": ("qwen2 moe", strategy(dp=2, ep=2, tp=2), 2),
        "qwen3 moe ep x pp": ("qwen3 moe", strategy(dp=2, ep=2, pp=2), 4),
        "mixtral ep x tp": ("mixtral", strategy(dp=2, ep=2, tp=2), 2),
        "mixtral ep x dp": ("mixtral", strategy(dp=4, ep=2), 2),
        "balanced mixtral ep over cp and dp, ZeRO-3": (
            "balanced mixtral",
            strategy(dp=2, cp=2, ep=4, zero=3, attention="ulysses", recompute="mlp"),
            2,
        ),
        "qwen2 moe ep over cp x tp": ("qwen2 moe", strategy(cp=2, ep=2, tp=2), 2),
        "balanced mixtral dp x pp": ("balanced mixtral", strategy(dp=2, pp=2, schedule="zero_bubble"), 3),
        "dropout, kv replicated": ("mixtral, dropping", strategy(tp=4, sp=False, kernel="plain"), 2),
        "dropout, mixtral ep x interleaved": (
            "mixtral, dropping",
            strategy(dp=2, ep=2, pp=2, vpp=2, mbs=2, kernel="plain", recompute=("full", "none", "mlp", "none")),
            4,
        ),
        "unequal blocks, ep x tp": ("dense and sparse", strategy(dp=2, ep=2, tp=2), 2),
        "unequal blocks, interleaved, no block with the head": (
            "a dense block",
            strategy(pp=2, vpp=2, dp=2, zero=2, layers=(2, 1, 1, 0)),
            4,
        ),
        "glm4 moe ep x kv replicated": ("glm4 moe", strategy(dp=2, ep=2, tp=2), 2),
        "deepseek, padded heads": ("deepseek v2 of 6 heads", strategy(tp=4), 2),
        "deepseek ep x interleaved, ZeRO-2": (
            "deepseek v3",
            strategy(dp=2, ep=2, pp=2, vpp=2, zero=2, layers=(2, 1, 1, 0), recompute=("full", "none", "mlp", "none")),
            4,
        ),
        "deepseek ep x tp": ("deepseek v3", strategy(dp=2, ep=2, tp=2, recompute="attention_up+core_attention"), 2),
        "norm over padded and replicated heads": ("olmo2, shared heads", strategy(tp=4, recompute="full"), 2),
        "norm over heads, tp x pp": ("olmo2", strategy(tp=2, pp=2, schedule="zero_bubble"), 4),
        "multipliers, tp x cp": ("granite", strategy(tp=2, cp=2, attention="ulysses", recompute="mlp"), 2),
        "linear attention, tp x pp": ("qwen3 next", strategy(tp=2, pp=2, recompute="mlp"), 4),
        "linear attention, tp x cp": ("qwen3 next", strategy(tp=2, cp=2, ep=2, attention="ring"), 2),
        "state space, padded heads and ep": ("granite hybrid, experts", strategy(tp=2, dp=2, ep=2), 2),
        "state space, tp 4": ("granite hybrid", strategy(tp=4, recompute="attention"), 2),
        "state space, a group a rank": ("granite hybrid, groups", strategy(tp=4, sp=False), 2),
        "state space, groups, tp x ZeRO-3": ("granite hybrid, groups", strategy(tp=2, dp=2, zero=3), 2),
        "state space, tp x zigzag ring": ("granite hybrid", strategy(tp=2, cp=2, attention="zigzag_ring"), 2),
        "mixtral ep x pp": ("mixtral", strategy(dp=2, ep=2, pp=2, recompute="full"), 4),
        "mixtral ep, pp innermost": ("mixtral", strategy(dp=2, ep=2, pp=2, order="dp-cp-tp-pp"), 2),
        "zigzag ring inside tp": ("llama", strategy(tp=2, cp=2, attention="zigzag_ring", order="pp-dp-tp-cp"), 2),
        "dp inside cp, ZeRO-3": ("llama", strategy(dp=2, cp=2, zero=3, order="pp-cp-dp-tp"), 2),
    },
    8: {
        "muon, experts cut by a part of tp x dp": ("qwen3 moe", strategy(tp=4, dp=2, ep=2, etp=2), 2),
        "muon, HSDP, mixtral ep, ZeRO-2": ("mixtral", strategy(dp=4, tp=2, ep=2, zero=2, dp_replicate=2), 2),
        "tp x pp x dp": ("llama", strategy(tp=2, pp=2, dp=2), 4),
        "tied, dp outside pp": ("tied", strategy(tp=2, pp=2, dp=2, order="dp-pp-cp-tp"), 3),
        "kv replicated x pp x dp x recompute": (
            "one kv head",
            strategy(tp=2, pp=2, dp=2, recompute="core_attention+mlp"),
            4,
        ),
        "tp x cp x pp interleaved": ("llama", strategy(tp=2, cp=2, pp=2, vpp=2), 4),
        "tp x cp x pp interleaved, ZeRO-3": (
            "llama",
            strategy(tp=2, cp=2, pp=2, vpp=2, zero=3, attention="zigzag_ring", recompute="mlp"),
            4,
        ),
        "tp x dp x pp, gpipe": ("llama", strategy(tp=2, dp=2, pp=2, schedule="gpipe"), 3),
        "dp x zigzag ring x pp": ("llama", strategy(dp=2, cp=2, pp=2, attention="zigzag_ring"), 2),
        "traced odd model tp x pp x dp": ("odd", strategy(tp=2, pp=2, dp=2, recompute="core_attention"), 4),
    },
}
"""World size -> name -> (model, strategy, microbatches a step)."""
CASES[2] |= {
    "gemma tp": ("gemma", strategy(tp=2, recompute="attention"), 2),
    "gemma zigzag ring, ZeRO-3": ("gemma", strategy(cp=2, zero=3, attention="zigzag_ring"), 2),
    "gemma2 tp": ("gemma2", strategy(tp=2), 2),
    "gemma2 tp, plain attention, recompute": ("gemma2", strategy(tp=2, kernel="plain", recompute="core_attention"), 2),
    "gemma2 pp, uneven": ("gemma2", strategy(pp=2, layers=(3, 1), recompute=("full", "none")), 3),
    "gemma2 dp, ZeRO-3": ("gemma2", strategy(dp=2, zero=3, recompute="mlp"), 2),
    "gemma2 cp": ("gemma2", strategy(cp=2), 2),
    "gemma2 zigzag ring": ("gemma2", strategy(cp=2, attention="zigzag_ring"), 2),
    "gemma2 ulysses": ("gemma2", strategy(cp=2, attention="ulysses", recompute="core_attention"), 2),
    "packed documents, gemma2": ("gemma2", strategy(cp=2, attention="ulysses", recompute="full"), 2),
    "gemma3 ring": ("gemma3", strategy(cp=2, attention="ring"), 2),
}
CASES[4] |= {
    "gemma2 kv replicated x cp": ("gemma2, one kv head", strategy(tp=2, cp=2), 2),
    "gemma3 tp x pp": ("gemma3", strategy(tp=2, pp=2, layers=(1, 3), recompute="attention_norm+attention"), 4),
}
CASES[2] |= {
    "gemma4 tp, recompute": ("gemma4", strategy(tp=2, recompute="attention+mlp"), 2),
    "gemma4 moe ep over cp, zigzag ring": (
        "gemma4 moe",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "gemma4 ulysses": ("gemma4", strategy(cp=2, attention="ulysses"), 2),
    "gemma4 of 6 heads, keys replicated in some blocks": ("gemma4 of 6 heads", strategy(tp=2, sp=False), 2),
    "gemma4 pp, uneven, zero bubble": (
        "gemma4",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble", recompute=("full", "mlp")),
        3,
    ),
    "gemma4 dp, ZeRO-3, plain attention": ("gemma4", strategy(dp=2, zero=3, kernel="plain"), 2),
    "gemma4 moe ep": ("gemma4 moe", strategy(dp=2, ep=2), 2),
}
CASES[4] |= {
    "gemma4 tp, keys replicated in some blocks": ("gemma4", strategy(tp=4, recompute="core_attention"), 2),
    "gemma4 moe ep x tp": ("gemma4 moe", strategy(tp=2, dp=2, ep=2), 2),
    "gemma4 of 6 heads, padded": ("gemma4 of 6 heads", strategy(tp=4, sp=False), 2),
    "gemma4 tp x cp": ("gemma4", strategy(tp=2, cp=2, attention="ring"), 2),
    "gemma4 moe, experts apart": ("gemma4 moe", strategy(tp=4, ep=2, etp=2), 2),
}
CASES[2] |= {
    "gemma4 e tp": ("gemma4 e", strategy(tp=2, recompute="full"), 2),
    "gemma4 e tp, no sequence parallel": ("gemma4 e", strategy(tp=2, sp=False, recompute="mlp"), 2),
    "gemma4 e dp, ZeRO-3": ("gemma4 e", strategy(dp=2, zero=3, recompute="full"), 2),
    "gemma4 e dp, ZeRO-2": ("gemma4 e", strategy(dp=2, zero=2, mbs=2), 2),
    "gemma4 e zigzag ring": ("gemma4 e", strategy(cp=2, attention="zigzag_ring", recompute="attention"), 2),
    "packed documents, gemma4 e": ("gemma4 e", strategy(tp=2, recompute="attention+mlp"), 2),
    "gemma4 e moe ep": ("gemma4 e, experts", strategy(dp=2, ep=2), 2),
}
CASES[4] |= {
    "gemma4 e tp, keys replicated": ("gemma4 e", strategy(tp=4, recompute="core_attention"), 2),
    "gemma4 e tp x cp": ("gemma4 e", strategy(tp=2, cp=2, attention="ring"), 2),
    "gemma4 e tp x dp, ZeRO-1": ("gemma4 e", strategy(tp=2, dp=2, zero=1, kernel="plain"), 2),
}
CASES[8] |= {"gemma4, keys replicated over two axes": ("gemma4", strategy(tp=8), 2)}
CASES[2] |= {
    "gpt oss tp": ("gpt oss", strategy(tp=2), 2),
    "gpt oss tp, plain attention, recompute": (
        "gpt oss",
        strategy(tp=2, sp=False, kernel="plain", recompute="full"),
        2,
    ),
    "gpt oss pp, uneven, zero bubble": ("gpt oss", strategy(pp=2, layers=(3, 1), schedule="zero_bubble"), 3),
    "gpt oss ep, ZeRO-3": ("gpt oss", strategy(dp=2, ep=2, zero=3, recompute="core_attention+mlp"), 2),
    "gpt oss zigzag ring, ep": ("gpt oss", strategy(cp=2, ep=2, attention="zigzag_ring"), 2),
    "gpt oss ulysses": ("gpt oss", strategy(cp=2, ep=2, attention="ulysses"), 2),
    "gpt oss ulysses, plain": ("gpt oss", strategy(cp=2, ep=2, attention="ulysses", kernel="plain"), 2),
    "gpt oss cp, plain": ("gpt oss", strategy(cp=2, ep=2, kernel="plain"), 2),
    "gpt oss, padded heads": ("gpt oss of 3 kv heads", strategy(tp=2), 2),
    "gpt oss, padded heads that share": ("gpt oss, one kv head for 3", strategy(tp=2), 2),
    "packed documents, gpt oss, ring": (
        "gpt oss",
        strategy(cp=2, ep=2, attention="ring", recompute="core_attention"),
        2,
    ),
}
CASES[4] |= {
    "gpt oss kv replicated, ep": ("gpt oss, one kv head", strategy(tp=2, dp=2, ep=2), 2),
    "gpt oss tp x pp": ("gpt oss", strategy(tp=2, pp=2, recompute=("full", "mlp")), 4),
}
CASES[2] |= {
    "llama4 tp": ("llama4", strategy(tp=2), 2),
    "llama4 tp, plain, recompute": ("llama4", strategy(tp=2, sp=False, kernel="plain", recompute="full"), 2),
    "llama4 tp, attention again": ("llama4", strategy(tp=2, recompute="attention"), 2),
    "llama4 pp, uneven": ("llama4", strategy(pp=2, layers=(1, 3), recompute=("mlp", "none")), 3),
    "llama4 ep, ZeRO-3": ("llama4", strategy(dp=2, ep=2, zero=3, recompute="core_attention+mlp"), 2),
    "llama4 zigzag ring, ep": ("llama4", strategy(cp=2, ep=2, attention="zigzag_ring"), 2),
    "llama4 ring, ep": ("llama4", strategy(cp=2, ep=2, attention="ring", recompute="full"), 2),
    "llama4 ulysses, ep": ("llama4", strategy(cp=2, ep=2, attention="ulysses"), 2),
    "packed documents, llama4, cp": ("llama4", strategy(cp=2, ep=2), 2),
}
CASES[4] |= {
    "llama4 ep x tp": ("llama4", strategy(tp=2, dp=2, ep=2), 2),
    "packed documents, llama4, zigzag ring of 4": ("llama4", strategy(cp=4, ep=4, attention="zigzag_ring"), 2),
}
CASES[2] |= {
    "dbrx tp": ("dbrx", strategy(tp=2), 2),
    "dbrx, padded heads, no sequence parallel": ("dbrx of 3 kv heads", strategy(tp=2, sp=False), 2),
    "dbrx pp, uneven": ("dbrx", strategy(pp=2, layers=(3, 1), recompute=("full", "none")), 3),
    "dbrx ep, ZeRO-3": ("dbrx", strategy(dp=2, ep=2, zero=3, recompute="attention+mlp"), 2),
    "dbrx zigzag ring, ep": ("dbrx", strategy(cp=2, ep=2, attention="zigzag_ring"), 2),
}
CASES[4] |= {"dbrx ep x tp": ("dbrx", strategy(tp=2, dp=2, ep=2), 2)}

CASES[2] |= {
    "seed oss tp": ("seed oss", strategy(tp=2, recompute="attention+mlp"), 2),
    "seed oss pp, uneven": ("seed oss", strategy(pp=2, layers=(3, 1)), 3),
    "glm4 (dense) tp": ("glm4", strategy(tp=2, recompute="attention_norm+mlp"), 2),
    "glm4 (dense) zigzag ring, ZeRO-3": (
        "glm4",
        strategy(cp=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "glm4 (dense) pp, uneven, zero bubble": ("glm4", strategy(pp=2, layers=(3, 1), schedule="zero_bubble"), 3),
    "ernie tp": ("ernie 4.5", strategy(tp=2, sp=False, kernel="plain"), 2),
    "ernie ring": ("ernie 4.5", strategy(cp=2, attention="ring", recompute="full"), 2),
    "packed documents, ernie, cp": ("ernie 4.5", strategy(cp=2), 2),
    "ernie moe ep over cp, zigzag ring, ZeRO-3": (
        "ernie 4.5 moe",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "ernie moe pp, uneven, tied": ("ernie 4.5 moe", strategy(pp=2, layers=(3, 1), recompute=("mlp", "none")), 3),
}
CASES[4] |= {
    "seed oss tp x pp": ("seed oss", strategy(tp=2, pp=2, recompute="full"), 4),
    "glm4 (dense), kv replicated": ("glm4", strategy(tp=4), 2),
    "ernie, kv replicated x dp, ZeRO-3": ("ernie 4.5", strategy(tp=4, zero=3, recompute="mlp"), 2),
    "ernie moe ep x tp": ("ernie 4.5 moe", strategy(tp=2, dp=2, ep=2), 2),
}
CASES[2] |= {
    "dots.llm1 tp": ("dots.llm1", strategy(tp=2, recompute="attention+mlp"), 2),
    "dots.llm1 ep over cp, zigzag ring, ZeRO-3": (
        "dots.llm1",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "glm4 moe lite, pp, uneven, zero bubble": (
        "glm4 moe lite",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble", recompute=("attention_up", "mlp")),
        3,
    ),
    "glm4 moe lite, ep over cp, zigzag ring": ("glm4 moe lite", strategy(cp=2, ep=2, attention="zigzag_ring"), 2),
    "olmoe tp": ("olmoe", strategy(tp=2, recompute="attention+mlp"), 2),
    "olmoe ep, ZeRO-3": ("olmoe", strategy(dp=2, ep=2, zero=3, recompute="full"), 2),
    "nemotron tp": ("nemotron", strategy(tp=2, recompute="attention+mlp"), 2),
    "nemotron zigzag ring, ZeRO-3": ("nemotron", strategy(cp=2, zero=3, attention="zigzag_ring", recompute="full"), 2),
    "nemotron, no sequence parallel": ("nemotron, biases", strategy(tp=2, sp=False, kernel="plain"), 2),
    "nemotron pp, uneven, zero bubble": ("nemotron", strategy(pp=2, layers=(3, 1), schedule="zero_bubble"), 3),
    "solar open ep over cp, zigzag ring, ZeRO-3": (
        "solar open",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "solar open tp": ("solar open", strategy(tp=2, recompute="attention+mlp"), 2),
    "hy3 ep over cp, zigzag ring, ZeRO-3": (
        "hy3",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "exaone moe pp, uneven, zero bubble": (
        "exaone moe",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble", recompute=("full", "mlp")),
        3,
    ),
    "mistral4 tp": ("mistral4", strategy(tp=2, recompute="attention_up+core_attention"), 2),
    "mistral4 zigzag ring, ZeRO-3": (
        "mistral4",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "youtu zigzag ring, ZeRO-3": ("youtu", strategy(cp=2, zero=3, attention="zigzag_ring", recompute="full"), 2),
    "a.x-k1 tp": ("a.x-k1", strategy(tp=2, recompute="attention_up+mlp"), 2),
    "a.x-k1 ep over cp, zigzag ring, ZeRO-3": (
        "a.x-k1",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "a.x-k1 pp, uneven, zero bubble": ("a.x-k1", strategy(pp=2, layers=(3, 1), schedule="zero_bubble"), 3),
    "youtu tp": ("youtu", strategy(tp=2, recompute="attention_up+mlp"), 2),
    "minicpm3 tp": ("minicpm3", strategy(tp=2, recompute="attention_up+mlp"), 2),
    "minicpm3 zigzag ring, ZeRO-3": (
        "minicpm3",
        strategy(cp=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "minicpm3 pp, uneven, zero bubble": ("minicpm3", strategy(pp=2, layers=(3, 1), schedule="zero_bubble"), 3),
    "afmoe ep over cp, zigzag ring, ZeRO-3": (
        "afmoe",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "afmoe tp": ("afmoe", strategy(tp=2, recompute="attention+mlp"), 2),
    "afmoe, no sequence parallel": ("afmoe of 6 heads", strategy(tp=2, sp=False, kernel="plain"), 2),
    "afmoe pp, uneven, zero bubble": (
        "afmoe",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble", recompute=("full", "mlp")),
        3,
    ),
    "apertus tp": ("apertus", strategy(tp=2, recompute="attention+mlp"), 2),
    "apertus zigzag ring, ZeRO-3": ("apertus", strategy(cp=2, zero=3, attention="zigzag_ring", recompute="full"), 2),
    "apertus, no sequence parallel": ("apertus, biases", strategy(tp=2, sp=False, kernel="plain"), 2),
    "apertus pp, uneven, zero bubble": ("apertus, biases", strategy(pp=2, layers=(3, 1), schedule="zero_bubble"), 3),
    "apertus dp, ZeRO-2": ("apertus", strategy(dp=2, zero=2), 2),
    "hunyuan tp": ("hunyuan", strategy(tp=2, recompute="attention+mlp"), 2),
    "hunyuan zigzag ring, ZeRO-3": ("hunyuan", strategy(cp=2, zero=3, attention="zigzag_ring", recompute="full"), 2),
    "hunyuan pp, uneven, zero bubble": ("hunyuan", strategy(pp=2, layers=(3, 1), schedule="zero_bubble"), 3),
    "hunyuan moe ep over cp, zigzag ring, ZeRO-3": (
        "hunyuan moe",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "hunyuan moe tp, no sequence parallel": ("hunyuan moe", strategy(tp=2, sp=False, kernel="plain"), 2),
    "cwm ulysses": ("cwm", strategy(cp=2, attention="ulysses"), 2),
    "cohere tp": ("cohere", strategy(tp=2, recompute="attention+mlp"), 2),
    "cohere zigzag ring, ZeRO-3": ("cohere", strategy(cp=2, zero=3, attention="zigzag_ring", recompute="full"), 2),
    "cohere pp, uneven, zero bubble": ("cohere", strategy(pp=2, layers=(3, 1), schedule="zero_bubble"), 3),
    "cohere2 tp": ("cohere2", strategy(tp=2, recompute="attention+mlp"), 2),
    "cohere2 zigzag ring, ZeRO-3": ("cohere2", strategy(cp=2, zero=3, attention="zigzag_ring", recompute="full"), 2),
    "cohere2 pp, uneven, zero bubble": ("cohere2", strategy(pp=2, layers=(3, 1), schedule="zero_bubble"), 3),
    "cohere2 moe tp": ("cohere2 moe", strategy(tp=2, recompute="attention+mlp"), 2),
    "cohere2 moe ep over cp, zigzag ring, ZeRO-3": (
        "cohere2 moe",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "cohere2 moe, RMS norms, pp, uneven, zero bubble": (
        "cohere2 moe, RMS norms",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble"),
        3,
    ),
    "cohere2 moe, RMS norms, tp, no sequence parallel": ("cohere2 moe, RMS norms", strategy(tp=2, sp=False), 2),
    "ministral3 tp": ("ministral3", strategy(tp=2, recompute="attention+mlp"), 2),
    "ministral3 zigzag ring, ZeRO-3": (
        "ministral3",
        strategy(cp=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "ministral3 pp, uneven, zero bubble": ("ministral3", strategy(pp=2, layers=(3, 1), schedule="zero_bubble"), 3),
    "nemotron h ep over cp, zigzag ring, ZeRO-3": (
        "nemotron h",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "nemotron h tp": ("nemotron h, latent", strategy(tp=2, recompute="attention+mlp"), 2),
    "nemotron h, latent, dp, ep, ZeRO-2": ("nemotron h, latent", strategy(dp=2, ep=2, zero=2), 2),
    "nemotron h, no experts, tp, no sequence parallel": (
        "nemotron h, no experts",
        strategy(tp=2, sp=False, kernel="plain"),
        2,
    ),
    "nemotron h pp, uneven, zero bubble": (
        "nemotron h, latent",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble", recompute=("full", "mlp")),
        3,
    ),
    "olmo tp": ("olmo", strategy(tp=2, recompute="attention+mlp"), 2),
    "olmo zigzag ring, ZeRO-3": ("olmo", strategy(cp=2, zero=3, attention="zigzag_ring", recompute="full"), 2),
    "nanochat tp": ("nanochat", strategy(tp=2, recompute="attention"), 2),
    "nanochat zigzag ring, ZeRO-3": ("nanochat", strategy(cp=2, zero=3, attention="zigzag_ring"), 2),
    "nanochat pp, uneven, zero bubble": ("nanochat", strategy(pp=2, layers=(3, 1), schedule="zero_bubble"), 3),
    "longrope, zigzag ring": ("phi3, longrope", strategy(cp=2, attention="zigzag_ring"), 2),
    "arcee tp": ("arcee", strategy(tp=2, recompute="attention+mlp"), 2),
    "arcee zigzag ring, ZeRO-3": ("arcee", strategy(cp=2, zero=3, attention="zigzag_ring", recompute="full"), 2),
    "exaone4 tp": ("exaone4", strategy(tp=2, recompute="attention+mlp"), 2),
    "exaone4 zigzag ring, ZeRO-3": ("exaone4", strategy(cp=2, zero=3, attention="zigzag_ring", recompute="full"), 2),
    "exaone4 pp, uneven, zero bubble": ("exaone4", strategy(pp=2, layers=(3, 1), schedule="zero_bubble"), 3),
    "packed documents, exaone4, ulysses": ("exaone4", strategy(cp=2, attention="ulysses"), 2),
}
CASES[4] |= {
    "lfm2 moe ep x tp": ("lfm2 moe", strategy(tp=2, dp=2, ep=2), 2),
    "olmo hybrid, 3 heads, padded": ("olmo hybrid, 3 heads, positions", strategy(tp=4, sp=False), 2),
    "olmo hybrid tp x pp": ("olmo hybrid", strategy(tp=2, pp=2), 3),
    "mimo, keys replicated in some blocks": ("mimo", strategy(tp=4, ep=4, etp=1, recompute="core_attention"), 2),
    "mimo of 6 heads, padded": ("mimo of 6 heads", strategy(tp=4, sp=False), 2),
    "mimo ep x tp": ("mimo", strategy(tp=2, dp=2, ep=2), 2),
    "kimi linear ep x tp": ("kimi linear", strategy(tp=2, dp=2, ep=2, recompute="attention_up"), 2),
    "laguna, 6 heads, tp 4": ("laguna of 6 heads", strategy(tp=4), 2),
    "starcoder2, kv replicated": ("starcoder2", strategy(tp=4), 2),
    "laguna ep x tp": ("laguna", strategy(tp=2, dp=2, ep=2), 2),
    "laguna tp x ulysses, ep": ("laguna", strategy(tp=2, cp=2, ep=2, attention="ulysses"), 2),
    "mellum ep x tp": ("mellum", strategy(tp=2, dp=2, ep=2), 2),
    "hyperclovax tp x ulysses": ("hyperclovax", strategy(tp=2, cp=2, attention="ulysses"), 2),
    "ling 3 ep x tp": ("ling 3", strategy(tp=2, dp=2, ep=2, recompute="attention_up"), 2),
    "lfm3, kv replicated": ("lfm3", strategy(tp=4, sp=False, kernel="plain"), 2),
    "lfm3 tp x zigzag ring": ("lfm3", strategy(tp=2, cp=2, attention="zigzag_ring"), 2),
    "lfm2 tp x zigzag ring": ("lfm2", strategy(tp=2, cp=2, attention="zigzag_ring"), 2),
    "glm, kv replicated": ("glm", strategy(tp=4, sp=False), 2),
    "granite moe ep x tp": ("granite moe", strategy(tp=2, dp=2, ep=2, sp=False), 2),
    "helium, tp x zigzag ring": ("helium", strategy(tp=2, cp=2, attention="zigzag_ring"), 2),
    "bamba, a group a rank": ("bamba", strategy(tp=4, sp=False), 2),
    "bamba, 3 heads, tp x zigzag ring": (
        "bamba, 3 heads, biases",
        strategy(tp=2, cp=2, attention="zigzag_ring", sp=False),
        2,
    ),
    "falcon h1, a group a rank": ("falcon h1", strategy(tp=4, sp=False), 2),
    "falcon h1, 3 heads, tp x zigzag ring": (
        "falcon h1, 3 heads, no norm",
        strategy(tp=2, cp=2, attention="zigzag_ring"),
        2,
    ),
    "phi, 6 heads, tp x zigzag ring": ("phi of 6 heads", strategy(tp=2, cp=2, attention="zigzag_ring"), 2),
    "step, 6 heads, tp 4": ("step of 6 heads", strategy(tp=4), 2),
    "step ep x tp": ("step", strategy(tp=2, dp=2, ep=2), 2),
    "kolibri 1 ep x tp": ("kolibri 1", strategy(tp=2, dp=2, ep=2, sp=False), 2),
    "stablelm, kv replicated": ("stablelm, norms of heads", strategy(tp=4, sp=False), 2),
    "stablelm, 6 heads, tp 4": ("stablelm of 6 heads", strategy(tp=4), 2),
    "granite swa, kv replicated": ("granite swa", strategy(tp=4, sp=False), 2),
    "granite moe swa ep x tp": ("granite moe swa", strategy(tp=2, dp=2, ep=2), 2),
    "flex olmo tp x pp": ("flex olmo", strategy(tp=2, pp=2), 3),
    "dots.llm1 ep x tp": ("dots.llm1", strategy(tp=2, dp=2, ep=2), 2),
    "dots.llm1 tp x pp": ("dots.llm1", strategy(tp=2, pp=2, layers=(3, 1)), 3),
    "glm4 moe lite, ep x tp": ("glm4 moe lite", strategy(tp=2, dp=2, ep=2), 2),
    "olmoe tp x pp": ("olmoe", strategy(tp=2, pp=2, sp=False), 3),
    "nemotron, padded and replicated heads": ("nemotron, biases", strategy(tp=4), 2),
    "solar open ep x tp": ("solar open", strategy(tp=2, dp=2, ep=2), 2),
    "hy3 ep x tp": ("hy3", strategy(tp=2, dp=2, ep=2), 2),
    "exaone moe ep x tp": ("exaone moe", strategy(tp=2, dp=2, ep=2), 2),
    "mistral4 ep x tp": ("mistral4", strategy(tp=2, dp=2, ep=2), 2),
    "youtu tp x pp": ("youtu", strategy(tp=2, pp=2), 3),
    "minicpm3, padded heads": ("minicpm3 of 6 heads", strategy(tp=4, recompute="attention_up"), 2),
    "minicpm3 tp x zigzag ring": ("minicpm3", strategy(tp=2, cp=2, attention="zigzag_ring"), 2),
    "afmoe ep x tp": ("afmoe", strategy(tp=2, dp=2, ep=2), 2),
    "afmoe, padded and replicated heads": ("afmoe of 6 heads", strategy(tp=4), 2),
    "apertus, padded": ("apertus, biases", strategy(tp=4), 2),
    "apertus, HSDP x tp": ("apertus", strategy(tp=2, dp=2, zero=3), 2),
    "hunyuan, padded and replicated heads": ("hunyuan, biases", strategy(tp=4), 2),
    "hunyuan moe ep x tp": ("hunyuan moe", strategy(tp=2, dp=2, ep=2), 2),
    "cwm, kv replicated": ("cwm", strategy(tp=4, sp=False), 2),
    "cohere, kv replicated": ("cohere", strategy(tp=4, sp=False), 2),
    "cohere, 6 heads, tp 4": ("cohere of 6 heads", strategy(tp=4), 2),
    "cohere2, kv replicated": ("cohere2", strategy(tp=4, sp=False), 2),
    "a.x-k1 ep x tp": ("a.x-k1", strategy(tp=2, dp=2, ep=2, sp=False), 2),
    "cohere2 moe ep x tp": ("cohere2 moe", strategy(tp=2, dp=2, ep=2), 2),
    "ministral3, kv replicated": ("ministral3", strategy(tp=4, sp=False), 2),
    "nemotron h tp x pp": ("nemotron h", strategy(tp=2, pp=2), 3),
    "nemotron h, latent, ep x tp": ("nemotron h, latent", strategy(tp=2, dp=2, ep=2), 2),
    "nemotron h, latent, whole experts": ("nemotron h, latent", strategy(tp=2, dp=2, ep=4, etp=1, sp=False), 2),
    "nemotron h, padded heads": ("nemotron h, no experts", strategy(tp=4, recompute="full"), 2),
    "arcee, kv replicated": ("arcee", strategy(tp=4, sp=False), 2),
    "exaone4, kv replicated": ("exaone4", strategy(tp=4, sp=False), 2),
}
CASES[2] |= {
    "olmo hybrid tp": ("olmo hybrid", strategy(tp=2, recompute="attention+mlp"), 2),
    "olmo hybrid zigzag ring, ZeRO-3": (
        "olmo hybrid",
        strategy(cp=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "olmo hybrid ulysses": ("olmo hybrid", strategy(cp=2, attention="ulysses"), 2),
    "olmo hybrid pp, uneven, zero bubble": (
        "olmo hybrid, 3 heads, positions",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble"),
        3,
    ),
    "mimo tp": ("mimo", strategy(tp=2, recompute="attention+mlp"), 2),
    "mimo ep over cp, zigzag ring, ZeRO-3": (
        "mimo",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "mimo ep over cp, ulysses": ("mimo", strategy(cp=2, ep=2, attention="ulysses"), 2),
    "mimo cp, plain": ("mimo", strategy(cp=2, ep=2, kernel="plain", recompute="core_attention"), 2),
    "mimo pp, uneven, zero bubble": ("mimo", strategy(pp=2, layers=(3, 1), schedule="zero_bubble"), 3),
    "mimo of 6 heads, tp": ("mimo of 6 heads", strategy(tp=2, sp=False), 2),
    "kimi linear tp": ("kimi linear", strategy(tp=2, recompute="attention+mlp"), 2),
    "kimi linear, 3 heads, tp": ("kimi linear, 3 heads", strategy(tp=2, sp=False, kernel="plain"), 2),
    "kimi linear ep over cp, zigzag ring, ZeRO-3": (
        "kimi linear",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "kimi linear ep over cp, ulysses": ("kimi linear", strategy(cp=2, ep=2, attention="ulysses"), 2),
    "kimi linear pp, uneven, zero bubble": (
        "kimi linear, 3 heads",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble"),
        3,
    ),
    "lfm2 tp": ("lfm2", strategy(tp=2, recompute="attention+mlp"), 2),
    "lfm2, biases, tp": ("lfm2, biases", strategy(tp=2, sp=False, kernel="plain"), 2),
    "lfm2 zigzag ring, ZeRO-3": ("lfm2", strategy(cp=2, zero=3, attention="zigzag_ring", recompute="full"), 2),
    "lfm2 moe tp": ("lfm2 moe", strategy(tp=2, recompute="attention+mlp"), 2),
    "lfm2 moe ep, ZeRO-3": ("lfm2 moe", strategy(dp=2, ep=2, zero=3, recompute="full"), 2),
    "lfm2 moe ep over cp, ulysses": ("lfm2 moe", strategy(cp=2, ep=2, attention="ulysses"), 2),
    "starcoder2 tp": ("starcoder2", strategy(tp=2, recompute="attention+mlp"), 2),
    "starcoder2 zigzag ring, ZeRO-3": (
        "starcoder2",
        strategy(cp=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "jais2 tp": ("jais2", strategy(tp=2, sp=False, kernel="plain"), 2),
    "laguna tp": ("laguna", strategy(tp=2, recompute="attention+mlp"), 2),
    "laguna, 6 heads, tp": ("laguna of 6 heads", strategy(tp=2, sp=False, kernel="plain"), 2),
    "laguna ep over cp, zigzag ring, ZeRO-3": (
        "laguna",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "laguna pp, interleaved": ("laguna", strategy(pp=2, vpp=2), 4),
    "mellum tp": ("mellum", strategy(tp=2, recompute="attention+mlp"), 2),
    "mellum ep over cp, zigzag ring, ZeRO-3": (
        "mellum",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "hyperclovax tp": ("hyperclovax", strategy(tp=2, recompute="attention+mlp"), 2),
    "hyperclovax pp": ("hyperclovax", strategy(pp=2), 2),
    "ling 3 tp": ("ling 3", strategy(tp=2, recompute="attention+mlp"), 2),
    "ling 3 ep over cp, zigzag ring, ZeRO-3": (
        "ling 3",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "ling 3 pp, interleaved": ("ling 3", strategy(pp=2, vpp=2), 4),
    "lfm3 tp": ("lfm3", strategy(tp=2, recompute="attention+mlp"), 2),
    "lfm3 zigzag ring, ZeRO-3": ("lfm3", strategy(cp=2, zero=3, attention="zigzag_ring", recompute="full"), 2),
    "lfm3 pp, interleaved": ("lfm3", strategy(pp=2, vpp=2), 4),
    "lfm2 ulysses": ("lfm2", strategy(cp=2, attention="ulysses"), 2),
    "lfm2, biases, pp, uneven, zero bubble": (
        "lfm2, biases",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble"),
        3,
    ),
    "glm tp": ("glm", strategy(tp=2, recompute="attention+mlp"), 2),
    "glm zigzag ring, ZeRO-3": ("glm", strategy(cp=2, zero=3, attention="zigzag_ring", recompute="full"), 2),
    "granite moe ep over cp, ulysses": ("granite moe", strategy(cp=2, ep=2, attention="ulysses"), 2),
    "granite moe tp": ("granite moe", strategy(tp=2, sp=False, kernel="plain"), 2),
    "granite moe, shared, ep, ZeRO-3": ("granite moe, shared", strategy(dp=2, ep=2, zero=3, recompute="full"), 2),
    "granite moe, shared, pp, uneven, zero bubble": (
        "granite moe, shared",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble"),
        3,
    ),
    "helium tp": ("helium", strategy(tp=2, recompute="attention+mlp"), 2),
    "helium pp, uneven, zero bubble": ("helium", strategy(pp=2, layers=(3, 1), schedule="zero_bubble"), 3),
    "bamba tp": ("bamba", strategy(tp=2, recompute="attention+mlp"), 2),
    "bamba zigzag ring, ZeRO-3": (
        "bamba",
        strategy(cp=2, zero=3, attention="zigzag_ring", recompute="core_attention"),
        2,
    ),
    "bamba pp, uneven, zero bubble": (
        "bamba, 3 heads, biases",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble"),
        3,
    ),
    "falcon h1 tp": ("falcon h1", strategy(tp=2, recompute="attention+mlp"), 2),
    "falcon h1 zigzag ring, ZeRO-3": (
        "falcon h1",
        strategy(cp=2, zero=3, attention="zigzag_ring", recompute="core_attention"),
        2,
    ),
    "falcon h1 ulysses": ("falcon h1", strategy(cp=2, attention="ulysses", recompute="full"), 2),
    "falcon h1 pp, uneven, zero bubble": (
        "falcon h1, 3 heads, no norm",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble"),
        3,
    ),
    "phi tp": ("phi", strategy(tp=2, recompute="attention+mlp"), 2),
    "phi zigzag ring, ZeRO-3": ("phi", strategy(cp=2, zero=3, attention="zigzag_ring", recompute="full"), 2),
    "phi pp, uneven, zero bubble": ("phi", strategy(pp=2, layers=(3, 1), schedule="zero_bubble"), 3),
    "step tp": ("step", strategy(tp=2, recompute="attention+mlp"), 2),
    "step ep over cp, zigzag ring, ZeRO-3": (
        "step",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "step pp, uneven, zero bubble": ("step", strategy(pp=2, layers=(3, 1), schedule="zero_bubble"), 3),
    "kolibri 1 tp": ("kolibri 1", strategy(tp=2, recompute="attention+mlp"), 2),
    "kolibri 1 ep over cp, zigzag ring, ZeRO-3": (
        "kolibri 1",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "kolibri 1 pp, uneven, zero bubble": ("kolibri 1", strategy(pp=2, layers=(3, 1), schedule="zero_bubble"), 3),
    "stablelm tp": ("stablelm", strategy(tp=2, recompute="attention+mlp"), 2),
    "stablelm, norms of heads, tp": ("stablelm, norms of heads", strategy(tp=2, recompute="attention+mlp"), 2),
    "stablelm zigzag ring, ZeRO-3": (
        "stablelm, norms of heads",
        strategy(cp=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "stablelm pp, uneven, zero bubble": (
        "stablelm, side by side",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble"),
        3,
    ),
    "granite swa tp": ("granite swa", strategy(tp=2, recompute="attention+mlp"), 2),
    "granite swa zigzag ring, ZeRO-3": ("granite swa", strategy(cp=2, zero=3, attention="zigzag_ring"), 2),
    "granite moe swa ep over cp, ulysses": ("granite moe swa", strategy(cp=2, ep=2, attention="ulysses"), 2),
    "granite moe swa pp, uneven, zero bubble": (
        "granite moe swa",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble"),
        3,
    ),
    "flex olmo tp": ("flex olmo", strategy(tp=2, recompute="attention+mlp"), 2),
    "flex olmo ep, ZeRO-3": ("flex olmo", strategy(dp=2, ep=2, zero=3, recompute="full"), 2),
    "olmo3 tp": ("olmo3", strategy(tp=2, recompute="attention+mlp"), 2),
    "olmo3 zigzag ring, ZeRO-3": ("olmo3", strategy(cp=2, zero=3, attention="zigzag_ring", recompute="full"), 2),
    "olmo3 ulysses": ("olmo3", strategy(cp=2, attention="ulysses"), 2),
    "olmo3 pp, uneven, zero bubble": ("olmo3", strategy(pp=2, layers=(3, 1), schedule="zero_bubble"), 3),
    "packed documents, olmo3, ring": ("olmo3", strategy(cp=2, attention="ring"), 2),
}
CASES[4] |= {
    "olmo3, norm over padded and replicated heads": ("olmo3, shared heads", strategy(tp=4, recompute="full"), 2),
    "olmo3 tp x pp": ("olmo3", strategy(tp=2, pp=2, sp=False), 4),
}
CASES[2] |= {
    "qwen3.5 tp": ("qwen3.5", strategy(tp=2, recompute="attention+mlp"), 2),
    "qwen3.5 zigzag ring, ZeRO-3": ("qwen3.5", strategy(cp=2, zero=3, attention="zigzag_ring", recompute="full"), 2),
    "qwen3.5 pp, uneven, zero bubble": ("qwen3.5", strategy(pp=2, layers=(3, 1), schedule="zero_bubble"), 3),
    "qwen3.5 moe ep, ZeRO-3": ("qwen3.5 moe", strategy(dp=2, ep=2, zero=3, recompute="full"), 2),
    "qwen3.5 moe, whole experts": ("qwen3.5 moe", strategy(tp=2, ep=2, etp=1, sp=False), 2),
}
CASES[4] |= {
    "qwen3.5 tp x pp": ("qwen3.5", strategy(tp=2, pp=2, recompute="mlp"), 4),
    "qwen3.5 moe ep x tp": ("qwen3.5 moe", strategy(tp=2, dp=2, ep=2), 2),
}
CASES[2] |= {
    "minimax tp": ("minimax m2", strategy(tp=2, recompute="attention+mlp"), 2),
    "minimax ep over cp, zigzag ring, ZeRO-3": (
        "minimax m2",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "minimax tp, no sequence parallel": ("minimax m2, shared heads", strategy(tp=2, sp=False), 2),
    "minimax pp, uneven, zero bubble": ("minimax m2", strategy(pp=2, layers=(3, 1), schedule="zero_bubble"), 3),
    "packed documents, minimax, ulysses": ("minimax m2", strategy(cp=2, ep=2, attention="ulysses"), 2),
}
CASES[4] |= {
    "minimax ep x tp": ("minimax m2", strategy(tp=2, dp=2, ep=2), 2),
    "minimax, norm over padded and replicated heads": ("minimax m2, shared heads", strategy(tp=4, recompute="full"), 2),
    "minimax, whole experts": ("minimax m2", strategy(tp=4, ep=4, etp=1), 2),
}

MODELS["glm4 moe, predicting"] = replace(MODELS["glm4 moe"], multi_token_prediction=MultiTokenPrediction())
CASES[2] |= {
    "predicting, pp, uneven, zero bubble": (
        "deepseek v3, predicting",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble", recompute=("full", "mlp")),
        3,
    ),
    "predicting, ep over cp, zigzag ring, ZeRO-3": (
        "deepseek v3, predicting",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "predicting, tp": ("deepseek v3, predicting", strategy(tp=2), 2),
    "predicting, tp, no sequence parallel": ("deepseek v3, predicting", strategy(tp=2, sp=False, kernel="plain"), 2),
    "predicting, dp, ep, ZeRO-2": ("deepseek v3, predicting", strategy(dp=2, ep=2, zero=2), 2),
    "packed documents, predicting, ring": ("deepseek v3, predicting", strategy(cp=2, ep=2, attention="ring"), 2),
    "glm4 moe predicting, pp": ("glm4 moe, predicting", strategy(pp=2), 3),
}
CASES[4] |= {
    "predicting, tp x pp": ("deepseek v3, predicting", strategy(tp=2, pp=2, layers=(3, 1)), 3),
    "predicting, interleaved, ZeRO-1": (
        "deepseek v3, predicting",
        strategy(pp=2, vpp=2, dp=2, ep=2, schedule="interleaved", zero=1),
        4,
    ),
}

CASES[2] |= {
    "whole experts": ("mixtral", strategy(tp=2, ep=2, etp=1), 2),
    "whole experts, no sequence parallel, ZeRO-3": (
        "balanced mixtral",
        strategy(tp=2, ep=2, etp=1, sp=False, zero=3, recompute="full"),
        2,
    ),
    "whole experts, deepseek, predicting": ("deepseek v3, predicting", strategy(tp=2, ep=2, etp=1, recompute="mlp"), 2),
}
CASES[4] |= {
    "whole experts x dp": ("mixtral", strategy(tp=2, dp=2, ep=2, etp=1), 2),
    "whole experts x pp, gpt oss": ("gpt oss", strategy(tp=2, pp=2, ep=2, etp=1), 3),
    "whole experts on 4 ranks": ("qwen3 moe", strategy(tp=4, ep=4, etp=1), 2),
    "whole experts over tp and dp": ("mixtral", strategy(tp=2, dp=2, ep=4, etp=1), 2),
    "whole experts over tp and dp, no sequence parallel, ZeRO-3": (
        "balanced mixtral",
        strategy(tp=2, dp=2, ep=4, etp=1, sp=False, zero=3, recompute="full"),
        2,
    ),
    "experts cut by a part of tp": ("mixtral", strategy(tp=4, ep=2, etp=2), 2),
    "experts cut by a part of tp, kv replicated, biases": (
        "gpt oss, one kv head",
        strategy(tp=4, ep=2, etp=2, recompute="mlp"),
        2,
    ),
    "experts cut by a part of tp, qwen3": ("qwen3 moe", strategy(tp=4, ep=2, etp=2, sp=False, recompute="mlp"), 2),
    "whole experts over tp and cp": ("mixtral", strategy(tp=2, cp=2, ep=4, etp=1, attention="zigzag_ring"), 2),
}
CASES[8] |= {
    "whole experts over tp and dp x dp, ZeRO-2": ("balanced mixtral", strategy(tp=2, dp=4, ep=4, etp=1, zero=2), 2),
    "whole experts over tp and dp x pp": ("qwen3 moe", strategy(tp=2, pp=2, dp=2, ep=4, etp=1, recompute="full"), 3),
    "experts cut by a part of tp x dp": ("qwen3 moe", strategy(tp=4, dp=2, ep=2, etp=2), 2),
    "experts cut by a part of tp, over dp": ("mixtral", strategy(tp=4, dp=2, ep=4, etp=2, zero=3), 2),
    "deepseek, whole experts over tp and dp x pp": (
        "deepseek v3, predicting",
        strategy(tp=2, pp=2, dp=2, ep=4, etp=1),
        3,
    ),
}

CASES[4] |= {
    "HSDP": ("llama", strategy(dp=4, zero=3, dp_replicate=2), 2),
    "HSDP, ZeRO-1": ("llama", strategy(dp=4, zero=1, dp_replicate=2, mbs=2), 2),
    "HSDP, ZeRO-2, tied": ("tied", strategy(dp=4, zero=2, dp_replicate=2, recompute="full"), 2),
    "HSDP, shards over cp alone": ("llama", strategy(dp=2, cp=2, zero=3, dp_replicate=2, attention="zigzag_ring"), 2),
    "HSDP, mixtral ep, experts whole in each group": (
        "balanced mixtral",
        strategy(dp=4, ep=2, zero=3, dp_replicate=2),
        2,
    ),
}
CASES[8] |= {
    "HSDP x tp, kv replicated": ("one kv head", strategy(tp=2, dp=4, zero=3, dp_replicate=2, recompute="mlp"), 2),
    "HSDP x pp, tied, ZeRO-2": ("tied", strategy(pp=2, dp=4, zero=2, dp_replicate=2), 3),
    "HSDP, mixtral ep, ZeRO-1": ("mixtral", strategy(dp=8, ep=2, zero=1, dp_replicate=2), 2),
    "HSDP, dp inside cp": ("llama", strategy(dp=4, cp=2, zero=3, dp_replicate=2, order="pp-cp-dp-tp"), 2),
}

CASES[2] |= {
    "loss in chunks, tp": ("llama", strategy(tp=2), 2),
    "loss in chunks, zero bubble": ("llama", strategy(pp=2, schedule="zero_bubble"), 4),
    "loss in chunks, zigzag ring, ZeRO-3": ("llama", strategy(cp=2, zero=3, attention="zigzag_ring"), 2),
    "loss in chunks, gemma2, tied, softcap": ("gemma2", strategy(tp=2, sp=False, mbs=2), 2),
    "loss in chunks, predicting, tp": ("deepseek v3, predicting", strategy(tp=2), 2),
}
CASES[4] |= {"loss in chunks, tp x pp, tied": ("tied", strategy(tp=2, pp=2, recompute="full"), 3)}

CASES[2] |= {
    "sparse attention, tp": ("deepseek v3.2", strategy(tp=2, recompute="attention_up+core_attention"), 2),
    "sparse attention, tp, no sequence parallel, plain": ("deepseek v3.2", strategy(tp=2, sp=False, kernel="plain"), 2),
    "sparse attention, tp, plain, recompute attention": (
        "glm 5",
        strategy(tp=2, kernel="plain", recompute="core_attention"),
        2,
    ),
    "sparse attention, ep over cp, ZeRO-3": ("glm 5", strategy(cp=2, ep=2, zero=3, recompute="full"), 2),
    "sparse attention, ep over cp": ("deepseek v3.2", strategy(cp=2, ep=2, kernel="plain"), 2),
    "sparse attention, pp, uneven, zero bubble": (
        "deepseek v3.2",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble", recompute=("attention", "mlp")),
        3,
    ),
    "sparse attention, dp, ep, ZeRO-2": ("deepseek v3.2", strategy(dp=2, ep=2, zero=2, mbs=2), 2),
    "sparse attention, dp, ZeRO-3": ("glm 5", strategy(dp=2, zero=3, mbs=2), 2),
    "sparse attention, predicting, tp": ("deepseek v3.2, predicting", strategy(tp=2), 2),
    "loss in chunks, sparse attention, predicting": ("deepseek v3.2, predicting", strategy(tp=2, sp=False), 2),
}
CASES[4] |= {
    "sparse attention, tp x cp": ("deepseek v3.2", strategy(tp=2, cp=2, ep=2, recompute="full"), 2),
    "sparse attention, ep x tp": ("glm 5", strategy(tp=2, dp=2, ep=2, sp=False), 2),
    "sparse attention, tp x pp": ("glm 5", strategy(tp=2, pp=2, layers=(3, 1)), 3),
}

CASES[2] |= {
    "streams, tp": ("deepseek v4", strategy(tp=2, recompute="attention_up+core_attention"), 2),
    "streams, tp, no sequence parallel, plain": ("deepseek v4", strategy(tp=2, sp=False, kernel="plain"), 2),
    "streams, tp, padded": ("deepseek v4 of 6 heads", strategy(tp=2, recompute="attention_norm+mlp_norm+residual"), 2),
    "streams, tp, plain, recompute attention": (
        "deepseek v4 of 6 heads",
        strategy(tp=2, kernel="plain", recompute="core_attention"),
        2,
    ),
    "streams, pp, uneven, zero bubble": (
        "deepseek v4",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble", recompute=("attention", "mlp")),
        3,
    ),
    "streams, pp, interleaved": ("deepseek v4", strategy(pp=2, vpp=2), 2),
    "streams, pp, recompute all": ("deepseek v4 of 6 heads", strategy(pp=2, recompute="full"), 3),
    "streams, dp, ep, ZeRO-2": ("deepseek v4", strategy(dp=2, ep=2, zero=2, mbs=2), 2),
    "streams, dp, ZeRO-3": ("deepseek v4 of 6 heads", strategy(dp=2, zero=3, mbs=2), 2),
    "streams, cp, ep over cp": ("deepseek v4", strategy(cp=2, ep=2, recompute="full"), 2),
    "streams, cp, ep over cp, plain": ("deepseek v4 of 6 heads", strategy(cp=2, ep=2, kernel="plain"), 2),
    "loss in chunks, streams, tp": ("deepseek v4", strategy(tp=2), 2),
}
CASES[4] |= {
    "streams, tp x pp": ("deepseek v4", strategy(tp=2, pp=2, layers=(3, 1)), 3),
    "streams, tp x cp": ("deepseek v4", strategy(tp=2, cp=2, ep=2, recompute="full"), 2),
    "streams, ep x tp": ("deepseek v4 of 6 heads", strategy(tp=2, dp=2, ep=2, sp=False), 2),
    "streams, tp 4": ("deepseek v4 of 6 heads", strategy(tp=4), 2),
}

CASES[2] |= {
    "pools, tp": ("glm 5.3", strategy(tp=2, recompute="attention_up+core_attention"), 2),
    "pools, tp, no sequence parallel, plain": ("glm 5.3", strategy(tp=2, sp=False, kernel="plain"), 2),
    "pools, tp, padded": ("glm 5.3 of 6 heads", strategy(tp=2, recompute="attention_norm+mlp_norm+residual"), 2),
    "pools, tp, plain, recompute attention": (
        "glm 5.3 of 6 heads",
        strategy(tp=2, kernel="plain", recompute="core_attention"),
        2,
    ),
    "pools, pp, uneven, zero bubble": (
        "glm 5.3",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble", recompute=("attention", "mlp")),
        3,
    ),
    "pools, pp, interleaved": ("glm 5.3", strategy(pp=2, vpp=2), 2),
    "pools, pp, recompute all": ("glm 5.3 of 6 heads", strategy(pp=2, recompute="full"), 3),
    "pools, dp, ep, ZeRO-2": ("glm 5.3", strategy(dp=2, ep=2, zero=2, mbs=2), 2),
    "pools, dp, ZeRO-3": ("glm 5.3 of 6 heads", strategy(dp=2, zero=3, mbs=2), 2),
    "pools, cp, ep over cp": ("glm 5.3", strategy(cp=2, ep=2, recompute="full"), 2),
    "pools, cp, ep over cp, plain": ("glm 5.3 of 6 heads", strategy(cp=2, ep=2, kernel="plain"), 2),
    "loss in chunks, pools, tp": ("glm 5.3", strategy(tp=2), 2),
}
CASES[4] |= {
    "pools, tp x pp": ("glm 5.3", strategy(tp=2, pp=2, layers=(3, 1)), 3),
    "pools, tp x cp": ("glm 5.3", strategy(tp=2, cp=2, ep=2, recompute="full"), 2),
    "pools, ep x tp": ("glm 5.3 of 6 heads", strategy(tp=2, dp=2, ep=2, sp=False), 2),
    "pools, tp 4": ("glm 5.3 of 6 heads", strategy(tp=4), 2),
}

CASES[2] |= {
    "one choice for two blocks, tp": ("glm 5.2", strategy(tp=2, recompute="attention_up+core_attention"), 2),
    "one choice for two blocks, tp, no sequence parallel, plain": (
        "glm 5.2",
        strategy(tp=2, sp=False, kernel="plain"),
        2,
    ),
    "one choice for two blocks, tp, recompute all": ("glm 5.2", strategy(tp=2, recompute="full"), 2),
    "one choice for two blocks, dp, ep, ZeRO-2": (
        "glm 5.2",
        strategy(dp=2, ep=2, zero=2, mbs=2, recompute="attention"),
        2,
    ),
    "one choice for two blocks, dp, ZeRO-3, recompute all": ("glm 5.2", strategy(dp=2, zero=3, recompute="full"), 2),
    "one choice for two blocks, cp, ep over cp": ("glm 5.2", strategy(cp=2, ep=2, recompute="core_attention"), 2),
}
CASES[2] |= {
    "one choice of pools for two blocks, tp": ("glm 5.3, one choice for two blocks", strategy(tp=2), 2),
    "one choice of pools for two blocks, cp, ZeRO-3, recompute all": (
        "glm 5.3, one choice for two blocks",
        strategy(cp=2, ep=2, zero=3, recompute="full"),
        2,
    ),
}
MODELS["glm 5.2, predicting"] = replace(MODELS["glm 5.2"], multi_token_prediction=MultiTokenPrediction())
CASES[2] |= {
    "one choice for two stages, predicting": ("glm 5.2, predicting", strategy(pp=2, layers=(1, 3)), 3),
    "one choice for two blocks, predicting, tp": ("glm 5.2, predicting", strategy(tp=2, recompute="full"), 2),
    "packed documents, one choice for two stages": ("glm 5.2", strategy(pp=2, layers=(1, 3), recompute="full"), 3),
    "packed documents, delta rule, tp": ("qwen3 next", strategy(tp=2), 2),
    "packed documents, delta rule, cp": ("kimi linear", strategy(cp=2, ep=2, recompute="full"), 2),
    "packed documents, state space, cp": ("falcon h1", strategy(cp=2), 2),
    "packed documents, short convolution, pp": ("lfm2", strategy(pp=2, recompute="attention"), 3),
    "packed documents, chosen keys, tp": ("deepseek v3.2", strategy(tp=2), 2),
    "packed documents, chosen keys, cp": ("hy4", strategy(cp=2, ep=2), 2),
    "one choice for two stages": ("glm 5.2", strategy(pp=2, layers=(1, 3)), 3),
    "one choice for two stages, recompute all": ("glm 5.2", strategy(pp=2, layers=(3, 1), recompute="full"), 3),
    "one choice for two chunks": ("glm 5.2", strategy(pp=2, vpp=2, recompute="core_attention"), 4),
    "one choice for two stages, zero bubble": ("glm 5.2", strategy(pp=2, layers=(3, 1), schedule="zero_bubble"), 4),
    "one choice of pools for two stages": ("glm 5.3, one choice for two blocks", strategy(pp=2, layers=(2, 2)), 3),
    "hy4, one choice for two stages": ("hy4", strategy(pp=2, layers=(3, 1), recompute="core_attention"), 3),
}
CASES[4] |= {
    "one choice for two stages, tp x pp": ("glm 5.2", strategy(tp=2, pp=2, layers=(3, 1)), 3),
    "one choice for two stages, tp x pp, plain": (
        "glm 5.2",
        strategy(tp=2, pp=2, layers=(1, 3), sp=False, kernel="plain", recompute="full"),
        3,
    ),
    "one choice for two stages, cp x pp": ("glm 5.2", strategy(cp=2, pp=2, ep=2, layers=(1, 3)), 3),
    "one choice for two chunks, dp x pp, ZeRO-3": ("glm 5.2", strategy(dp=2, ep=2, pp=2, vpp=2, zero=3), 4),
    "hy4, one choice for three stages": ("hy4", strategy(pp=4), 5),
    "one choice for two blocks, tp x cp": ("glm 5.2", strategy(tp=2, cp=2, ep=2, recompute="full"), 2),
    "one choice for two blocks, ep x tp": ("glm 5.2", strategy(tp=2, dp=2, ep=2), 2),
}

CASES[2] |= {
    "hy4, tp": ("hy4", strategy(tp=2, recompute="attention_up+core_attention"), 2),
    "hy4, tp, no sequence parallel, plain": ("hy4 of 6 heads", strategy(tp=2, sp=False, kernel="plain"), 2),
    "hy4, tp, recompute around branches": ("hy4", strategy(tp=2, recompute="attention_norm+mlp_norm+residual"), 2),
    "hy4, pp, uneven, zero bubble": (
        "hy4 of 6 heads",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble", recompute=("attention", "mlp")),
        3,
    ),
    "hy4, pp, a choice on each stage": ("hy4", strategy(pp=2, layers=(1, 3), recompute="full"), 3),
    "hy4, pp, interleaved": ("hy4 of 6 heads", strategy(pp=2, vpp=2), 2),
    "hy4, dp, ep, ZeRO-2": ("hy4 of 6 heads", strategy(dp=2, ep=2, zero=2, mbs=2), 2),
    "hy4, dp, ZeRO-3": ("hy4", strategy(dp=2, zero=3, mbs=2), 2),
    "hy4, cp, ep over cp": ("hy4", strategy(cp=2, ep=2, recompute="full"), 2),
    "hy4, cp, ep over cp, plain": ("hy4", strategy(cp=2, ep=2, kernel="plain"), 2),
}
CASES[4] |= {
    "hy4, tp x cp": ("hy4", strategy(tp=2, cp=2, ep=2), 2),
    "hy4, tp x pp": ("hy4 of 6 heads", strategy(tp=2, pp=2, layers=(3, 1), recompute="full"), 3),
    "hy4, ep x tp": ("hy4", strategy(tp=2, dp=2, ep=2, sp=False), 2),
    "hy4, padded heads": ("hy4 of 6 heads", strategy(tp=4), 2),
}

CASES[2] |= {
    "mistral large 4, tp": ("mistral large 4", strategy(tp=2, recompute="attention_up+core_attention"), 2),
    "mistral large 4, tp, no sequence parallel, plain": (
        "mistral large 4 of 6 heads",
        strategy(tp=2, sp=False, kernel="plain"),
        2,
    ),
    "mistral large 4, pp, uneven, zero bubble": (
        "mistral large 4",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble", recompute=("attention", "mlp")),
        3,
    ),
    "mistral large 4, pp, interleaved": ("mistral large 4", strategy(pp=2, vpp=2), 2),
    "mistral large 4, dp, ep, ZeRO-2": ("mistral large 4", strategy(dp=2, ep=2, zero=2, mbs=2), 2),
    "mistral large 4, dp, ZeRO-3, recompute all": ("mistral large 4", strategy(dp=2, zero=3, recompute="full"), 2),
    "mistral large 4, cp, ep over cp": ("mistral large 4", strategy(cp=2, ep=2, recompute="core_attention"), 2),
    "packed documents, mistral large 4, tp": ("mistral large 4", strategy(tp=2, recompute="full"), 2),
    "packed documents, mistral large 4, cp": ("mistral large 4", strategy(cp=2, ep=2), 2),
    "mistral large 4, shared keys, tp": (
        "mistral large 4, shared keys",
        strategy(tp=2, recompute="attention_up+core_attention"),
        2,
    ),
    "mistral large 4, shared keys, tp, no sequence parallel": (
        "mistral large 4, shared keys",
        strategy(tp=2, sp=False, recompute="full"),
        2,
    ),
    "mistral large 4, shared keys, dp, ep, ZeRO-3": (
        "mistral large 4, shared keys",
        strategy(dp=2, ep=2, zero=3, recompute="full"),
        2,
    ),
    "mistral large 4, shared keys, cp": ("mistral large 4, shared keys", strategy(cp=2, ep=2), 2),
}
CASES[4] |= {
    "mistral large 4, tp x pp": ("mistral large 4", strategy(tp=2, pp=2, layers=(3, 1), recompute="full"), 3),
    "mistral large 4, a stage for each block": ("mistral large 4", strategy(pp=4), 5),
    "mistral large 4, tp x cp": ("mistral large 4", strategy(tp=2, cp=2, ep=2), 2),
    "mistral large 4, ep x tp": ("mistral large 4", strategy(tp=2, dp=2, ep=2, sp=False), 2),
    "mistral large 4, padded heads": ("mistral large 4 of 6 heads", strategy(tp=4), 2),
    "mistral large 4, shared keys, tp x cp": (
        "mistral large 4, shared keys",
        strategy(tp=2, cp=2, ep=2, recompute="core_attention"),
        2,
    ),
}

CASES[2] |= {
    "minimax m3, tp": ("minimax m3", strategy(tp=2, recompute="core_attention"), 2),
    "minimax m3, tp, no sequence parallel, plain": ("minimax m3", strategy(tp=2, sp=False, kernel="plain"), 2),
    "minimax m3, tp, recompute around them": ("minimax m3", strategy(tp=2, recompute="attention_norm+mlp+residual"), 2),
    "minimax m3, pp, uneven, zero bubble": (
        "minimax m3",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble", recompute=("attention", "mlp")),
        3,
    ),
    "minimax m3, pp, interleaved, tied": ("minimax m3 of 6 heads", strategy(pp=2, vpp=2), 2),
    "minimax m3, dp, ep, ZeRO-2": ("minimax m3 of 6 heads", strategy(dp=2, ep=2, zero=2, mbs=2), 2),
    "minimax m3, dp, ZeRO-3": ("minimax m3", strategy(dp=2, zero=3, mbs=2), 2),
    "minimax m3, cp, ep over cp": ("minimax m3 of 6 heads", strategy(cp=2, ep=2, recompute="full"), 2),
    "minimax m3, cp, ep over cp, plain": ("minimax m3", strategy(cp=2, ep=2, kernel="plain", mbs=2), 2),
}
CASES[4] |= {
    "minimax m3, tp x cp": ("minimax m3 of 6 heads", strategy(tp=2, cp=2, ep=2), 2),
    "minimax m3, copied key-value heads": ("minimax m3 of 6 heads", strategy(tp=4), 2),
    "minimax m3, tp x pp": ("minimax m3", strategy(tp=2, pp=2, layers=(3, 1), recompute="full"), 3),
    "minimax m3, ep x tp": ("minimax m3", strategy(tp=2, dp=2, ep=2, sp=False), 2),
}

CASES[2] |= {
    "longcat, tp": ("longcat", strategy(tp=2, recompute="attention_up+core_attention"), 2),
    "longcat, tp, no sequence parallel, plain": ("longcat", strategy(tp=2, sp=False, kernel="plain"), 2),
    "longcat, tp, recompute of operators": ("longcat", strategy(tp=2, recompute="mlp_norm+residual+mlp.top_k"), 2),
    "longcat, pp, uneven, zero bubble": (
        "longcat",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble", recompute=("attention", "mlp")),
        3,
    ),
    "longcat, pp, interleaved, tied": ("longcat of 6 heads", strategy(pp=2, vpp=2), 2),
    "longcat, dp, ep, ZeRO-2": ("longcat", strategy(dp=2, ep=2, zero=2, mbs=2), 2),
    "longcat, dp, ZeRO-3": ("longcat", strategy(dp=2, zero=3, mbs=2), 2),
    "longcat, cp, ep over cp": ("longcat", strategy(cp=2, ep=2, recompute="full"), 2),
    "longcat, zigzag ring": ("longcat", strategy(cp=2, ep=2, attention="zigzag_ring"), 2),
    "longcat, ulysses": ("longcat of 6 heads", strategy(cp=2, ep=2, attention="ulysses"), 2),
}
CASES[4] |= {
    "longcat, ep x tp": ("longcat", strategy(tp=2, dp=2, ep=2), 2),
    "longcat, tp x cp": ("longcat", strategy(tp=2, cp=2, ep=2, recompute="mlp"), 2),
    "longcat, tp x pp": ("longcat", strategy(tp=2, pp=2, layers=(3, 1), recompute="full"), 3),
    "longcat, whole experts over tp and dp": ("longcat", strategy(tp=2, dp=2, ep=4, etp=1), 2),
    "longcat, padded heads": ("longcat of 6 heads", strategy(tp=4, sp=False), 2),
}

CASES[2] |= {
    "muse glimmer, tp": ("muse glimmer", strategy(tp=2, recompute="attention_norm+mlp_norm"), 2),
    "muse glimmer, tp, no sequence parallel, plain": ("muse glimmer", strategy(tp=2, sp=False, kernel="plain"), 2),
    "muse glimmer, pp, interleaved": ("muse glimmer", strategy(pp=2, vpp=2), 2),
    "muse glimmer, dp, ZeRO-3": ("muse glimmer", strategy(dp=2, zero=3, mbs=2), 2),
    "muse glimmer, zigzag ring": ("muse glimmer", strategy(cp=2, attention="zigzag_ring"), 2),
    "muse spark, tp": ("muse spark", strategy(tp=2, recompute="attention_norm+residual+mlp_norm"), 2),
    "muse spark, tp, no sequence parallel, plain": ("muse spark", strategy(tp=2, sp=False, kernel="plain"), 2),
    "muse spark, pp, uneven, zero bubble": (
        "muse spark",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble", recompute=("attention", "mlp")),
        3,
    ),
    "muse spark, pp, interleaved": ("muse spark of 6 heads", strategy(pp=2, vpp=2), 2),
    "muse spark, dp, ep, ZeRO-2": ("muse spark", strategy(dp=2, ep=2, zero=2, mbs=2), 2),
    "muse spark, dp, ZeRO-3": ("muse spark of 6 heads", strategy(dp=2, zero=3, mbs=2), 2),
    "muse spark, cp, ep over cp": ("muse spark", strategy(cp=2, ep=2, recompute="full"), 2),
    "muse spark, ulysses": ("muse spark of 6 heads", strategy(cp=2, ep=2, attention="ulysses"), 2),
}
CASES[2] |= {
    "vaultgemma, tp": ("vaultgemma", strategy(tp=2, recompute="mlp_norm"), 2),
    "vaultgemma, pp, interleaved": ("vaultgemma", strategy(pp=2, vpp=2), 2),
    "vaultgemma, dp, ZeRO-3": ("vaultgemma", strategy(dp=2, zero=3), 2),
    "vaultgemma, zigzag ring": ("vaultgemma", strategy(cp=2, attention="zigzag_ring"), 2),
}
CASES[4] |= {
    "muse spark, ep x tp": ("muse spark", strategy(tp=2, dp=2, ep=2), 2),
    "muse spark, tp x cp": ("muse spark", strategy(tp=2, cp=2, ep=2, recompute="mlp"), 2),
    "muse spark, tp x pp": ("muse spark", strategy(tp=2, pp=2, layers=(3, 1), recompute="full"), 3),
    "muse spark, whole experts over tp and dp": ("muse spark", strategy(tp=2, dp=2, ep=4, etp=1), 2),
    "muse spark, copied key-value heads": ("muse spark of 6 heads", strategy(tp=4, sp=False), 2),
    "muse glimmer, tp x pp": ("muse glimmer", strategy(tp=2, pp=2, layers=(3, 1), recompute="full"), 3),
}

CASES[2] |= {
    "minimax text, tp": ("minimax text", strategy(tp=2, recompute="attention_norm+core_attention"), 2),
    "minimax text, tp, no sequence parallel, plain": ("minimax text", strategy(tp=2, sp=False, kernel="plain"), 2),
    "minimax text, pp, uneven, zero bubble": (
        "minimax text",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble", recompute=("attention", "mlp")),
        3,
    ),
    "minimax text, pp, interleaved, tied": ("minimax text of 6 heads", strategy(pp=2, vpp=2), 2),
    "minimax text, dp, ep, ZeRO-2": ("minimax text", strategy(dp=2, ep=2, zero=2, mbs=2), 2),
    "minimax text, dp, ZeRO-3": ("minimax text of 6 heads", strategy(dp=2, zero=3, mbs=2), 2),
    "minimax text, cp, ep over cp": ("minimax text", strategy(cp=2, ep=2, recompute="full"), 2),
    "minimax text, zigzag ring": ("minimax text", strategy(cp=2, ep=2, attention="zigzag_ring"), 2),
    "packed documents, minimax text, ulysses": ("minimax text", strategy(cp=2, ep=2, attention="ulysses"), 2),
}
CASES[4] |= {
    "minimax text, padded heads": ("minimax text of 6 heads", strategy(tp=4, recompute="residual+mlp_norm"), 2),
    "minimax text, tp x pp": ("minimax text", strategy(tp=2, pp=2, layers=(3, 1), recompute="full"), 3),
    "minimax text, tp x cp": ("minimax text of 6 heads", strategy(tp=2, cp=2, ep=2, recompute="mlp"), 2),
    "minimax text, ep x tp": ("minimax text", strategy(tp=2, dp=2, ep=2, sp=False), 2),
    "minimax text, whole experts over tp and dp": ("minimax text", strategy(tp=2, dp=2, ep=4, etp=1), 2),
}

CASES[2] |= {
    "qwen4 exp, tp": ("qwen4 exp", strategy(tp=2, recompute="attention_norm+core_attention"), 2),
    "qwen4 exp, tp, padded, no sequence parallel, plain": (
        "qwen4 exp of 6 heads",
        strategy(tp=2, sp=False, kernel="plain"),
        2,
    ),
    "qwen4 exp, pp, uneven, zero bubble": (
        "qwen4 exp",
        strategy(pp=2, layers=(1, 3), schedule="zero_bubble", recompute=("attention", "residual+mlp")),
        3,
    ),
    "qwen4 exp, pp, interleaved, tied": ("qwen4 exp of 6 heads", strategy(pp=2, vpp=2), 2),
    "qwen4 exp, dp, ep, ZeRO-2": ("qwen4 exp", strategy(dp=2, ep=2, zero=2, mbs=2), 2),
    "qwen4 exp, dp, ZeRO-3": ("qwen4 exp of 6 heads", strategy(dp=2, zero=3, mbs=2, recompute="full"), 2),
    "qwen4 exp, cp, ep over cp": ("qwen4 exp", strategy(cp=2, ep=2, recompute="full"), 2),
    "qwen4 exp, zigzag ring": ("qwen4 exp of 6 heads", strategy(cp=2, ep=2, attention="zigzag_ring"), 2),
    "packed documents, qwen4 exp, ulysses": ("qwen4 exp of 6 heads", strategy(cp=2, ep=2, attention="ulysses"), 2),
    "sarvam tp": ("sarvam", strategy(tp=2, recompute="attention+mlp"), 2),
    "sarvam, latent, ep over cp, zigzag ring, ZeRO-3": (
        "sarvam, latent",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="full"),
        2,
    ),
    "mamba tp, ZeRO-3": ("mamba", strategy(tp=2, zero=3, recompute="full"), 2),
    "mamba pp, interleaved": ("mamba", strategy(pp=2, vpp=2), 4),
    "falcon mamba tp, padded channels": ("falcon mamba, 54 channels", strategy(tp=2, recompute="core_attention"), 2),
    "falcon mamba cp": ("falcon mamba, 54 channels", strategy(cp=2, recompute="attention"), 2),
    "jamba tp": ("jamba", strategy(tp=2, recompute="attention+mlp"), 2),
    "jamba zigzag ring, ep, ZeRO-3": (
        "jamba",
        strategy(cp=2, ep=2, zero=3, attention="zigzag_ring", recompute="core_attention"),
        2,
    ),
    "jamba pp, uneven, zero bubble": (
        "jamba, 6 heads, 54 channels",
        strategy(pp=2, layers=(3, 1), schedule="zero_bubble"),
        3,
    ),
}
CASES[4] |= {
    "qwen4 exp, padded heads": ("qwen4 exp of 6 heads", strategy(tp=4, recompute="residual+mlp_norm"), 2),
    "qwen4 exp, tp x pp": ("qwen4 exp", strategy(tp=2, pp=2, layers=(3, 1), recompute="full"), 3),
    "qwen4 exp, tp x cp": ("qwen4 exp", strategy(tp=2, cp=2, ep=2, recompute="mlp"), 2),
    "qwen4 exp, ep x tp": ("qwen4 exp", strategy(tp=2, dp=2, ep=2, sp=False), 2),
    "qwen4 exp, whole experts over tp and dp": ("qwen4 exp", strategy(tp=2, dp=2, ep=4, etp=1), 2),
    "sarvam ep x tp": ("sarvam", strategy(tp=2, dp=2, ep=2), 2),
    "sarvam, latent, tp x pp": ("sarvam, latent", strategy(tp=2, pp=2, layers=(3, 1)), 3),
    "falcon mamba tp x pp": ("falcon mamba, 54 channels", strategy(tp=2, pp=2, layers=(3, 1), sp=False), 3),
    "mamba tp": ("mamba", strategy(tp=4), 2),
    "jamba ep x tp": ("jamba", strategy(tp=2, dp=2, ep=2), 2),
    "jamba, padded channels": ("jamba, 6 heads, 54 channels", strategy(tp=4, sp=False, recompute="full"), 2),
    "jamba, tp x zigzag ring": (
        "jamba, 6 heads, 54 channels",
        strategy(tp=2, cp=2, attention="zigzag_ring"),
        2,
    ),
}

CASES[2] |= {
    "adapters, tp": ("llama, adapters", strategy(tp=2, recompute="attention_norm+attention+residual"), 2),
    "adapters, dp, ZeRO-3": ("llama, adapters", strategy(dp=2, zero=3, recompute="full"), 2),
    "adapters, pp, zero bubble": ("llama, adapters", strategy(pp=2, schedule="zero_bubble", layers=(1, 3)), 3),
    "adapters, experts": ("qwen2 moe, adapters", strategy(dp=2, ep=2, zero=2), 2),
    "adapters, dropping": ("llama, adapters, dropping", strategy(tp=2, recompute="mlp"), 2),
}
CASES[4] |= {
    "adapters, tp x pp, ends alone": (
        "llama, adapters",
        strategy(tp=2, pp=2, layers=(0, 4), recompute=("none", "full")),
        2,
    ),
    "adapters, dropping, tp x cp": ("llama, adapters, dropping", strategy(tp=2, cp=2, recompute="full"), 2),
    "adapters, HSDP, some runs again": (
        "llama, adapters",
        strategy(dp=4, zero=3, dp_replicate=2, recompute="attention+mlp"),
        2,
    ),
    "adapters, experts, pp, ZeRO-3": (
        "qwen2 moe, adapters",
        strategy(pp=2, dp=2, ep=2, zero=3, layers=(1, 3), recompute=("full", "none")),
        2,
    ),
    "adapters, experts, tp x cp": ("qwen2 moe, adapters", strategy(tp=2, cp=2, ep=2, attention="ring"), 2),
}

MOST_OF_A_FAMILY, MOST_OF_A_LAYOUT = 1, 1
"""How many layouts of each of LATER_FAMILIES are tried, and how many families with the same layout where there are more
than two ranks: the first ones. With two ranks a family is tried that no more ranks try and that has an operator of a
sort that no other model tried has: simulated ranks tell of the others, in test_spmd_models.py. AUTOSHARD_CASES=all
tries all."""
LATER_FAMILIES = (
    *("deepseek_v2", "deepseek_v3", "glm4_moe", "gemma2", "gemma3_text", "gpt_oss", "llama4_text", "dbrx"),
    *("smollm3", "phi3", "olmo2", "granite", "qwen3_next", "granitemoehybrid"),
    *("minimax_m2", "qwen3_5_text", "qwen3_5_moe_text", "olmo3"),
    *("seed_oss", "glm4", "ernie4_5", "ernie4_5_moe", "dots1", "exaone4"),
    *("glm4_moe_lite", "olmoe", "nemotron", "nemotron_h", "ministral3", "cohere2", "solar_open", "arcee"),
    *("exaone_moe", "hy_v3", "mistral4", "youtu", "cwm"),
    *("hunyuan_v1_dense", "hunyuan_v1_moe", "apertus", "afmoe", "gemma4_text"),
    *("deepseek_v32", "glm_moe_dsa", "glm", "granitemoe", "granitemoeshared", "flex_olmo", "lfm2", "lfm2_moe"),
    *("kimi_linear", "mimo_v2_flash", "olmo_hybrid", "lfm3", "bailing_hybrid", "mellum", "hyperclovax"),
    *("laguna", "starcoder2", "jais2", "gemma", "olmo", "nanochat", "cohere2_moe", "axk1"),
    *(
        "granite_swa",
        "granitemoe_swa",
        "stablelm",
        "kolibri1",
        "step3p5",
        "phi",
        "falcon_h1",
        "cohere",
        "bamba",
        "helium",
        "deepseek_v4",
        "glm5_next_text",
        "hy_v4",
        "longcat_flash",
        "minimax_m3_vl_text",
        "muse_glimmer_text",
        "muse_spark_text",
        "vaultgemma",
        "minicpm3",
        "mistral_large4_text",
        "minimax",
        "qwen4_exp_text",
        "sarvam_moe",
        "sarvam_mla",
        "jamba",
        "mamba",
        "falcon_mamba",
    ),
)
FURTHER = {
    *("kv replicated twice", "kv replicated x zigzag ring", "ring of 4, sliding window", "dp x cp"),
    *("tp x pp, zero bubble, recompute", "interleaved x dp x recompute", "gpt neox tp x pp"),
    *("qwen3 moe ep x pp", "mixtral ep x dp", "balanced mixtral dp x pp", "qwen2 moe ep over cp x tp"),
    *("whole experts x dp", "whole experts over tp and dp", "experts cut by a part of tp", "HSDP, ZeRO-1"),
    *("tp x cp x pp interleaved", "tp x dp x pp, gpipe", "whole experts over tp and dp x dp, ZeRO-2"),
    *("whole experts over tp and dp x pp", "experts cut by a part of tp x dp", "HSDP, mixtral ep, ZeRO-1"),
    *("mixtral ep x pp", "qwen2 moe ep x tp", "HSDP x pp, tied, ZeRO-2", "dp x zigzag ring x pp"),
    *("gemma3 tp x pp", "gpt oss tp x pp", "seed oss tp x pp", "dots.llm1 tp x pp", "olmoe tp x pp", "youtu tp x pp"),
    *("cwm, kv replicated", "minimax, whole experts", "tp 4", "pp 4", "tp x cp", "kv replicated x cp", "gpt2 tp x pp"),
    *("qwen3 kv replicated", "whole experts on 4 ranks", "mixtral ep x tp"),
    *("recompute attention", "recompute all but attention", "recompute all, cp", "recompute by stage", "pp, gpt2"),
    *("cp, rope scaling", "cp, sliding window", "zigzag ring, learned positions", "balanced mixtral tp"),
    *("qwen2 moe ep", "gpt neox tp, no sequence parallel", "mixtral tp, no sequence parallel"),
    *("kv replicated, no sequence parallel", "kv replicated x dp, ZeRO-2", "kv replicated x pp x dp x recompute"),
    "whole experts over tp and dp, no sequence parallel, ZeRO-3",
}
"""Layouts that AUTOSHARD_CASES=all alone tries: others have each of their mechanisms, together with another one."""

CHUNKED = "loss in chunks"
"""How the names of cases begin whose loss comes in chunks."""


BY_MUON = "muon, "
"""How the names of cases begin that are trained by Muon."""

Family = tuple[str, bool, bool]
"""The model type, whether there is a prediction module, and whether blocks read what others made."""
Sort = tuple[str, tuple[str, ...], int]
"""Of operators: kind, names of attributes, number of inputs."""


def _tried() -> dict[int, dict[str, tuple[str, Strategy, int]]]:
    """Cases without FURTHER and those of later families beyond the first few."""
    more = {world_size: _tried_with(world_size) for world_size in CASES if world_size > 2}
    of_more = [one for cases in more.values() for one in cases.values()]
    first = [one for one in CASES[2].values() if _family(one)[0] not in LATER_FAMILIES]
    operators = set[Sort]().union(*(_operators(one[0]) for one in (*of_more, *first)))
    return {2: _tried_with(2, {_family(one) for one in of_more}, operators), **more}


def _tried_with(
    world_size: int, known: Set[Family] = frozenset(), operators: Set[Sort] | None = None
) -> dict[str, tuple[str, Strategy, int]]:
    """Those of a world size. known: families that more ranks try. operators: sorts of which a model has to have others
    to be tried, if given."""
    of_family = Counter(known)
    with_layout: Counter[Strategy] = Counter()
    found = {}
    for name, one in CASES[world_size].items():
        family, layout = _family(one), one[1]
        if family[0] in LATER_FAMILIES and not name.startswith(CHUNKED):
            most = MOST_OF_A_LAYOUT if world_size > 2 else len(LATER_FAMILIES)
            if name in FURTHER or of_family[family] == MOST_OF_A_FAMILY or with_layout[layout] == most:
                continue
            if operators is not None and _operators(one[0]) <= operators:
                continue
            of_family[family] += 1
            with_layout[layout] += 1
        if name not in FURTHER:
            found[name] = one
    return found


@cache
def _operators(name: str) -> Set[Sort]:
    """Sorts of operators in the blocks of a model, its embedding and its loss."""
    model = MODELS[name]
    graph = stage_graph(model, dim_sizes(model, 1, 8, 1, 1.0), model.kinds, True, True, "flash", 2)
    return {(op.kind, tuple(sorted(op.attributes)), len(op.inputs)) for op in graph.operators}


def _family(one: tuple[str, Strategy, int]) -> Family:
    model = MODELS[one[0]]
    return model.model_type, model.multi_token_prediction is not None, model.needs_one_stage


def _first_of_its_model(name: str) -> bool:
    models = {named: one[0] for cases in CASES.values() for named, one in cases.items()}
    return name == next(other for other, model in models.items() if model == models[name])


def _is_told_by_fp32(name: str, model: ModelSpec) -> bool:
    return model.model_type not in LATER_FAMILIES and _first_of_its_model(name)


EVERY = CASES
"""Those that are not tried by default too, for tests of a few cases by name."""
if not ALL:
    CASES = _tried()

CHUNKS = 3
"""Chunks of the loss in cases that have several: no number of tokens of theirs is a multiple of it."""
DROPLESS = ("mixtral ep, dropless",)
"""Cases in which every token has a slot with each of its experts, whatever the routers do."""

PACKED = tuple(name for cases in CASES.values() for name in cases if name.startswith("packed documents"))
"""Cases in which rows hold several documents."""

IN_BF16 = {
    "HSDP": BF16,
    **dict.fromkeys(("dp", "dp, ZeRO-3", "tp", "tp x dp", "zigzag ring", "pp, zero bubble"), BF16 if ALL else BF16[:1]),
}
"""Cases that are run in BF16 as well, and in which precisions: one that shards weights and gradients, and sums the
gradients of its shards besides, tells how those are rounded."""

TOLD_BY_FP64 = {
    name
    for cases in CASES.values()
    for name, one in cases.items()
    if MODELS[one[0]].hyper_connections or MODELS[one[0]].zero_expert_num
}
"""Cases of which FP32 tells how gradients are rounded that nearly cancel: those of norms' weights, as norms do not feel
a factor of all streams of a residual; and those of routers that choose among experts without matrices, which in one
process are 2e-5 from FP64's, too."""

IN_FP32 = {
    world_size: {name for name, one in cases.items() if ALL or _is_told_by_fp32(name, MODELS[one[0]])} - TOLD_BY_FP64
    for world_size, cases in CASES.items()
}
"""Cases that are compared in FP32 as well: by default the first of each model, but for LATER_FAMILIES, whose operators
test_transformers.py compares in FP32. FP64 tells all but what a dtype does."""


def plan_of(
    model: ModelSpec,
    chosen: Strategy,
    num_microbatches: int,
    precision: Precision = FP64,
    loss_chunks: int = 1,
    optimizer: str = ADAMW,
) -> Plan:
    batch = num_microbatches * chosen.dp * chosen.microbatch_size
    training = TrainingSpec(16, batch, precision, loss_chunks=loss_chunks, optimizer=optimizer)
    cluster = local_cluster(chosen.world_size)
    return make_plan(model, training, cluster, "torch", chosen, estimate(model, training, cluster, chosen))


def case(world_size: int, name: str, few_blocks: bool = False) -> Plan:
    """The plan of a case. few_blocks: of as few as tell the same in one step of training."""
    named, chosen, microbatches = EVERY[world_size][name]
    model = MODELS[named]
    if few_blocks:
        model, chosen = _of_few_blocks(model, chosen)
    chunks, optimizer = (CHUNKS if name.startswith(CHUNKED) else 1), MUON if name.startswith(BY_MUON) else ADAMW
    plan = plan_of(model, chosen, microbatches, loss_chunks=chunks, optimizer=optimizer)
    if name not in DROPLESS:
        return plan
    enough = plan.model.num_local_experts / plan.model.num_experts_per_tok
    return replace(plan, training=replace(plan.training, expert_capacity_factor=enough))


FEW_BLOCKS = 2


def _of_few_blocks(model: ModelSpec, chosen: Strategy) -> tuple[ModelSpec, Strategy]:
    """By default with two blocks in place of four, where two more of them do nothing else: on one stage, of at most two
    kinds, with weights that need no gathering ahead. AUTOSHARD_CASES=all leaves every case as it is."""
    does_more = model.graph is not None or len(model.kinds) > FEW_BLOCKS
    if ALL or does_more or len(chosen.stage_layers) > 1 or chosen.zero == 3:
        return model, chosen
    return model.some_blocks(telling_blocks(model, FEW_BLOCKS)), replace(chosen, stage_layers=(FEW_BLOCKS,))
