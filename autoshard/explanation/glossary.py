"""The terms of plans and pages, each in a sentence for someone who has never seen the project."""

from __future__ import annotations

from collections.abc import Mapping

from autoshard.explanation.page import NARROWEST, WIDEST, Line, hanging, heading, paint
from autoshard.schedules import SCHEDULES

Terms = Mapping[str, str]
LAYOUT: Terms = {
    "device": "what one rank drives: a NeuronCore, a GPU, or a process on a CPU",
    "rank": "one process of the training, with one device",
    "step": "one pass over the global batch, with one update of the weights",
    "layout": "every choice of how a model is cut over devices: tp=8 pp=4 dp=2 ...",
    "tp": "tensor parallelism: so many devices share each matrix, and exchange results within every layer",
    "pp": "pipeline parallelism: the layers are cut into so many groups, one behind the other",
    "dp": "data parallelism: so many replicas of the model, each with its own part of the batch",
    "cp": "context parallelism: so many devices share one sequence",
    "ep": "expert parallelism: the experts of a mixture are spread over so many devices, a part of dp and cp",
    "dp_replicate": "hybrid sharding (HSDP): so many groups of replicas, each with all that ZeRO shards",
    "etp": "so many devices of tp cut each expert; the others hold experts of their own. 1: experts are whole",
    "vpp": "stages on each pipeline rank: more of them wait less and send more",
    "mbs": "sequences in a microbatch",
    "microbatch": "the part of the batch that goes through the model at once",
    "stage": "layers that are next to each other and run on one pipeline rank",
    "pipeline rank": "the devices that run the same layers, 0 to pp - 1",
    "replica": "devices that together hold the model once",
    "mesh": "the devices in the order in which they are numbered; groups of the last axis are closest",
    "schedule": "the order of forwards and backwards on each pipeline rank; usual is 1F1B",
    **{name: f"a schedule: {one.label.format(vpp='several')}" for name, one in SCHEDULES.items()},
    "recompute": "what backward computes again in place of keeping it: less memory, more time. by-stage: stages differ",
    "core attention": "scores and weighted sum of attention, without the projections around it",
    "context": "how devices that share a sequence attend to all of it: a ring, or keys and values gathered",
    "attention": "flash never stores the scores; plain does. Among the terms of a step: the time of core attention",
    "sp": "sequence parallelism: norms are split along the sequence over the devices of tp",
    "zero": "ZeRO: what the replicas share: 1 the optimizer's state, 2 sums of gradients too, 3 weights too (FSDP)",
    "adapters": "LoRA: two narrow matrices beside the weights of a layer; they are learned, the weights are not",
    "stages": "the blocks of each stage, where they are not cut evenly",
    "order": "the order in which ranks count through the axes, where it is not the usual one",
    "master weights": "weights in FP32 that the optimizer updates; the model computes with rounded ones",
    "moments": "AdamW's two running means, each as large as the master weights; Muon has one",
    "NeuronCore": "the unit of a Trainium chip that programs see as one device",
    "backend": "the library that runs the plan: nxd (neuronx-distributed) or torch",
}
TIME: Terms = {
    "matrix products and vector operators": "work of the layers without attention",
    "embedding and head": "the table of tokens, the last projection to the vocabulary, and the loss",
    "tensor-parallel collectives": "exchanges within layers that no work hides",
    "context-parallel collectives": "exchanges of keys and values, or of heads, that no work hides",
    "expert-parallel collectives": "tokens on their way to experts and back",
    "gradient accumulation": "each microbatch's gradients are added to the sum",
    "launches": "the start of each compiled graph or kernel",
    "pipeline bubble": "time in which a pipeline rank waits for others",
    "pipeline transfers": "activations and their gradients on their way between stages",
    "gradient reduce-scatter": "gradients are summed over replicas, each of which gets its share",
    "parameter all-gather": "updated weights go back to every replica",
    "other gradient sums": "sums of gradients over other groups than the replicas",
    "optimizer update": "AdamW itself; with Muon also whole matrices, which ranks exchange",
}
MEMORY: Terms = {
    "parameters": "the weights",
    "gradients": "their sums over the microbatches",
    "optimizer state": "master weights and moments",
    "kept activations": "results of forward that backward reads",
    "embedding, logits and loss": "what the two ends of the model hold; logits are scores of every word",
    "working buffers": "what the operators at work hold",
    "pipeline buffers": "activations that arrive from, or leave for, other stages",
    "collective buckets": "copies that collectives send from",
    "runtime and compiler reserve": "memory that the device's own software takes",
}
NUMBERS: Terms = {
    "~": "a prediction of the cost model",
    "90 %": "with this probability the true value lies between the two numbers",
    "MFU": "model FLOPs utilisation: the model's own arithmetic over what the devices could do at their peak",
    "fits": "every device has room for all that it holds at once",
    "toss-up": "two layouts whose order the model cannot tell: either may be the faster one",
    "Pareto front": "layouts for which none is both faster and smaller",
    "runner-up": "one of the next fastest layouts, one of each kind",
    "optimal": "no layout is faster, as far as the cost model says",
    "beaten path": "only choices that are known to have run on these devices",
    "collective": "an exchange among devices, such as a sum over all of them (all-reduce)",
}
SECTIONS = {"Layout": LAYOUT, "Step": TIME, "Memory": MEMORY, "Numbers": NUMBERS}


def glossary(width: int, color: bool) -> str:
    """The page, which ends with a newline. width: columns of the terminal."""
    width = max(NARROWEST, min(width, WIDEST))
    lines: list[Line] = []
    for name, terms in SECTIONS.items():
        lines += [*([()] if lines else []), *heading(name, "", width)]
        for term, text in terms.items():
            lines += hanging(f"  {term:<16}  " if len(term) <= 16 else f"  {term}: ", text, width, indent=20)
    return paint(lines, width, color)
