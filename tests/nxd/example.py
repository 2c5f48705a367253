"""NxD's example of Llama with the weights of a session of ours, trained by NxD's own trainer functions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from autoshard.plans.plan import Plan


def load_example(file: Path) -> ModuleType:
    """The example as it is, but for the one place where it names its device."""
    module = ModuleType("modeling_llama_nxd")
    text = file.read_text(encoding="utf-8").replace('device="xla"', 'device="cpu"')
    exec(compile(text, str(file), "exec"), module.__dict__)
    return module


def example_model(module: ModuleType, plan: Plan, weights: dict[str, torch.Tensor]) -> nn.Module:
    """weights: local pieces by name, as the plan's mesh cuts them; the example's own layers hold the same."""
    from transformers import LlamaConfig

    spec = plan.model
    sizes: dict[str, Any] = {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_hidden_layers,
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_key_value_heads,
        "max_position_embeddings": spec.max_position_embeddings,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope_theta,
        "use_cache": False,
        "torch_dtype": torch.float32,
        "tie_word_embeddings": False,
    }
    config = LlamaConfig(**sizes)
    for name, value in {
        "sequence_parallel_enabled": plan.strategy.sequence_parallel,
        "selective_checkpoint_enabled": False,
        "qkv_linear": True,
        "kv_shared_group_size": 1,
        "fuse_qkv": False,
        "transpose_nki_inputs": False,
        "use_flash_attention": False,
        "pretraining_tp": 1,
    }.items():
        setattr(config, name, value)
    model: nn.Module = module.LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_weight(name, weights).reshape(parameter.shape))
    return model


def _weight(name: str, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """Of one of the example's parameters."""
    if "qkv_proj" in name:
        return weights[name.replace("qkv_proj.weight_", "") + "_proj.weight"]
    if "gate_up_proj" in name:
        return torch.cat([weights[name.replace("gate_up", part)] for part in ("gate", "up")])
    return weights[name]


def train_example(
    model_of: Any, plan: Plan, batches: list[tuple[Any, Any]], settings: Any, masters: bool = False
) -> Iterator[tuple[Any, Any, float, float]]:
    """After each step: model, optimizer, loss, gradient norm. masters: FP64 ones, saved with the optimizer's state."""
    from neuronx_distributed.parallel_layers import parallel_state
    from neuronx_distributed.trainer.trainer import (
        initialize_parallel_model,
        initialize_parallel_optimizer,
        neuronx_distributed_config,
    )

    config = neuronx_distributed_config(
        tensor_parallel_size=plan.strategy.tp,
        optimizer_config={"zero_one_enabled": True, "grad_clipping": True, "max_grad_norm": 1.0},
        mixed_precision_config={
            "use_master_weights": masters,
            "use_fp32_grad_acc": False,
            "use_master_weights_in_ckpt": masters,
        },
        sequence_parallel=plan.strategy.sequence_parallel,
    )
    model = initialize_parallel_model(config, model_of)
    decayed = [one for one in model.parameters() if one.dim() > 1]
    plain = [one for one in model.parameters() if one.dim() == 1]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    options = {"lr": settings.learning_rate, "betas": settings.betas, "eps": settings.eps}
    if masters:
        options["optimizer_dtype"] = torch.float64
    optimizer = initialize_parallel_optimizer(config, torch.optim.AdamW, groups, **options)
    ranks, rank = parallel_state.get_data_parallel_size(), parallel_state.get_data_parallel_rank()
    for inputs, _ in batches:
        total = 0.0
        pieces = [piece.chunk(ranks)[rank] for piece in torch.from_numpy(inputs).chunk(plan.num_microbatches)]
        for piece in pieces:
            loss = model(input_ids=piece, labels=piece)[0] / len(pieces)
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield model, optimizer, total, float(optimizer.grad_norm)
