"""The two configurations that AWS publishes for Llama 3 on trn2, without what a plan does not hold, and their plans.

Shortened from examples/conf/hf_llama3_70B_trn2_config.yaml and hf_llama3_8B_trn2_config.yaml of
aws-neuron/neuronx-distributed-training at 9169aa0.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autoshard.planner.imported import plan_of
from autoshard.planner.written import read_written
from autoshard.plans.plan import Plan, make_plan

LLAMA3_70B = """\
name: hf_llama
model_source: hf
trainer: {devices: 64, lnc: 2, num_nodes: 8, gradient_clip_val: 1.0, sequential_move_factor: 32}
exp_manager:
  checkpoint_callback_params:
    model_parallel_size: ${multiply:${distributed_strategy.tensor_model_parallel_size}, 4}
  save_xser: True
distributed_strategy:
  tensor_model_parallel_size: 32
  pipeline_model_parallel_size: 4
  virtual_pipeline_model_parallel_size: 1
  zero1: True
  sequence_parallel: True
  kv_replicator: 4
data: {micro_batch_size: 1, global_batch_size: 1024}
model:
  model_config: /home/ubuntu/config.json
  encoder_seq_length: 8192
  max_position_embeddings: 8192
  num_layers: 80
  hidden_size: 8192
  qkv_linear: True
  fuse_qkv: True
  rope_theta: 500000.0
  pipeline_cuts: ["model.layers.18", "model.layers.39", "model.layers.60"] # for pipeline balancing
  activations_checkpoint_granularity: selective # 'selective' or 'full'
  activations_checkpoint_recompute: [LlamaRMSNorm, ActivationMultiplyMLP]
  fusions:
    flash_attention: True
precision:
  type: 'mixed_precision'
"""
LLAMA3_8B = """\
name: hf_llama
model_source: hf
trainer: {devices: 64, lnc: 2, num_nodes: 1, gradient_clip_val: 1.0, sequential_move_factor: 32}
distributed_strategy:
  tensor_model_parallel_size: 16
  pipeline_model_parallel_size: 1
  virtual_pipeline_model_parallel_size: 1
  zero1: True
  sequence_parallel: True
  kv_replicator: 2
data: {micro_batch_size: 1, global_batch_size: 1024}
model:
  model_config: /home/ubuntu/config.json
  encoder_seq_length: 8192
  max_position_embeddings: 8192
  num_layers: 32
  hidden_size: 4096
  qkv_linear: True
  fuse_qkv: True
  rope_theta: 500000.0
  activations_checkpoint_granularity: null # 'selective' or 'full'
  fusions:
    softmax: True
    flash_attention: True
precision:
  type: 'mixed_precision'
"""
FILES = {"hf_llama3_70B_trn2_config.yaml": LLAMA3_70B, "hf_llama3_8B_trn2_config.yaml": LLAMA3_8B}


def trn2_plan(name: str, folder: Path) -> Plan:
    """The plan of one of FILES, which is written into the folder."""
    file = folder / name
    file.write_text(FILES[name])
    return plan_of(str(file), read_written(str(file), {}))


def shrunken(plan: Plan) -> Plan:
    """The layout with all its heads and blocks, of a model whose weights are some megabytes."""
    heads = plan.model.num_attention_heads
    model = replace(plan.model, hidden_size=2 * heads, head_dim=2, intermediate_size=2 * heads, vocab_size=8 * heads)
    return make_plan(model, plan.training, plan.cluster, plan.backend, plan.strategy, plan.estimate)
