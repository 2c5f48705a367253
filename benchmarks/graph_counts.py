"""FLOPs and kept activations counted on the graph, against torch's own counts on the modules that run it.

    python benchmarks/graph_counts.py

One process, embedding, two blocks, head and loss of each family, every recompute set, BF16. FLOPs: torch's
FlopCounterMode over forward and backward (recompute included), with attention written out, whose products of two
matrices it counts. Kept activations: the storages still alive between forward and backward, found by watching every
operator's output; without recompute also the tensors that autograd's saved-tensor hooks see. Prints a table, and JSON
as its last line; exits 1 where a difference exceeds 1 %.

Two things are counted as torch does them and not as the planner's `flops` has them. The planner counts the pairs of
query and key that a causal mask leaves; written out, all are computed. And torch's replay of attention written out
stops at the probabilities, so that the second of its two products does not run again; the planner, which recomputes
only where attention is flash, charges both.
"""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from autoshard.graph.count import operator_steps, operator_work
from autoshard.graph.partition import Program
from autoshard.graph.recompute import COMMON_SETS, kept_activations, segments
from autoshard.layout.sharding import stage_program
from autoshard.models import load_model
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.runtime.torch_backend.parameters import initial_parameter
from autoshard.runtime.torch_backend.stage_module import StageModule
from autoshard.spec.latent_attention import LatentAttention
from autoshard.spec.model import ModelSpec

BATCH, SEQ = 2, 256
FAMILIES = (
    "llama3-8b",
    "mistral-7b",
    "mixtral-8x7b",
    "gpt3-175b",
    "gpt-neox-20b",
    "qwen2-7b",
    "qwen3-8b",
    "qwen2-57b-a14b",
    "deepseek-v3",
    "glm-4.5",
)
TOLERANCE = 0.01


@dataclass(frozen=True)
class Row:
    """One comparison of a count. counted: on the graph. measured: by torch. flops: of forward, backward and recompute.
    bytes: kept after forward."""

    model: str
    recompute: str
    kernel: str
    quantity: str
    counted: float
    measured: float

    @property
    def difference(self) -> float:
        return self.counted / self.measured - 1


class LiveStorages(TorchDispatchMode):
    """Collects every storage that an operator allocates while this mode is on."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[int, tuple[Any, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {storage._cdata for storage in _storages((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for storage in _storages(out):
            if storage._cdata not in before:  # not a view, not in place
                reference: Any = StorageWeakRef
                self._seen[storage._cdata] = (reference(storage), storage.nbytes())
        return out

    def alive(self) -> dict[int, int]:
        """Address -> bytes of each collected storage that is still alive."""
        gc.collect()
        return {key: size for key, (reference, size) in self._seen.items() if not reference.expired()}


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [value.untyped_storage() for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def small(name: str) -> ModelSpec:
    """A model with the family's structure, at sizes that a CPU runs in a second."""
    model = load_model(name)
    heads, experts = 8, min(4, model.num_local_experts)
    latent = None if model.latent_attention is None else LatentAttention(96, 48, 8, 16)
    router = None if model.router is None else replace(model.router, n_group=2, topk_group=1)
    shared = 448 if router is None else 320
    return replace(
        model,
        hidden_size=192,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=max(2, heads * model.num_key_value_heads // model.num_attention_heads),
        head_dim=24,
        vocab_size=1000,
        max_position_embeddings=SEQ,
        sliding_window=None if model.sliding_window is None else SEQ // 4,
        partial_rotary_factor=0.25 if model.partial_rotary_factor < 1 else 1.0,
        num_local_experts=experts,
        num_experts_per_tok=min(2, model.num_experts_per_tok),
        shared_expert_intermediate_size=shared if model.shared_expert_intermediate_size else 0,
        mlp_layer_types=("dense", "sparse") if model.mlp_layer_types else (),
        dense_intermediate_size=256 if model.mlp_layer_types else 0,
        latent_attention=latent,
        router=router,
    )


def program_of(model: ModelSpec, kernel: str) -> Program:
    sizes = dim_sizes(model, BATCH, SEQ, capacity_factor=1.5)
    graph = stage_graph(model, sizes, range(model.num_hidden_layers), True, True, kernel)
    return stage_program(graph, {}, sequence_parallel=False)


def counted_flops(program: Program, recompute: str) -> float:
    """FLOPs of matrix products and attention on the graph, attention being written out."""
    total = 0.0
    for segment in segments(program, recompute):
        for position in range(segment.start, segment.stop):
            for one in operator_steps(program.steps[position]):
                work = operator_work(program, one)
                flops = work.flops if work.kind == "einsum" else 0.0
                again = 1.0 if segment.recomputed and position < segment.replay_stop else 0.0
                if work.kind == "attention":
                    graph = program.graph
                    scores, values = (
                        graph.num_elements(name) for name in (one.operator.inputs[0], one.operator.output)
                    )
                    flops = 2.0 * (scores + values) * graph.sizes["seq"]
                    is_last = position == segment.replay_stop - 1
                    again *= scores / (scores + values) if is_last else 1.0
                total += flops * (1 + work.backward_flops_ratio + again)
    return total


def module_of(model: ModelSpec, program: Program, recompute: str) -> tuple[StageModule, tuple[torch.Tensor, ...]]:
    parameters = {
        tensor.name: initial_parameter(model, tensor, program.graph.sizes, seed=0).bfloat16()
        for tensor in program.graph.parameters()
    }
    module = StageModule(program, parameters, None, recompute)
    ids = torch.randint(model.vocab_size, (2, BATCH, SEQ), generator=torch.Generator().manual_seed(0))
    by_name = {"input_ids": ids[0], "labels": ids[1]}
    return module, tuple(by_name[name] for name in module.input_names)


def measure(model: ModelSpec, name: str, recompute: str) -> list[Row]:
    rows = []
    plain = program_of(model, "plain")
    module, inputs = module_of(model, plain, recompute)
    with FlopCounterMode(display=False) as counter:
        module(*inputs).backward()
    rows.append(Row(name, recompute, "plain", "flops", counted_flops(plain, recompute), counter.get_total_flops()))
    for kernel in ("plain", "flash"):
        program = program_of(model, kernel)
        module, inputs = module_of(model, program, recompute)
        module(*inputs)  # tables of positions and masks are made once
        counted = sum(kept_activations(program, recompute).values())
        alive, saved = kept(module, inputs)
        rows.append(Row(name, recompute, kernel, "kept bytes", counted, alive))
        if recompute == "none":
            rows.append(Row(name, recompute, kernel, "saved bytes", counted, saved))
    return rows


def kept(module: StageModule, inputs: tuple[torch.Tensor, ...]) -> tuple[float, float]:
    """(bytes alive after forward, bytes that autograd saved of what forward made)."""
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with LiveStorages() as live, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = module(*inputs)
    alive = live.alive()
    del alive[loss.untyped_storage()._cdata]
    return sum(alive.values()), sum(size for key, size in saved.items() if key in alive)


def main() -> int:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = [row for name in FAMILIES for recompute in COMMON_SETS for row in measure(small(name), name, recompute)]
    print(f"{'model':<16} {'recompute':<20} {'kernel':<6} {'quantity':<12} {'graph':>14} {'torch':>14} {'differs':>8}")
    for row in rows:
        print(
            f"{row.model:<16} {row.recompute:<20} {row.kernel:<6} {row.quantity:<12} "
            f"{row.counted:>14,.0f} {row.measured:>14,.0f} {row.difference:>8.2%}"
        )
    worst = max(abs(row.difference) for row in rows)
    print(json.dumps({"rows": [asdict(row) for row in rows], "worst_difference": worst, "torch": torch.__version__}))
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
