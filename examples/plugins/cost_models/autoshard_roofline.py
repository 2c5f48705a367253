"""The simplest cost model: 6 FLOPs a parameter and token at the devices' peak, a bubble, and memory by its bytes.

    autoshard plan --model llama3-70b --nodes 16 --cost-model roofline

A cost model is a function of a Problem (model, training, cluster, backend) and the layouts as columns, see
`autoshard.search(...).table()`. It returns seconds of a step and bytes of the fullest device, an array of each.
"""

import numpy as np

from autoshard.models.stage import parameter_count

STATE_BYTES, SHARED_BYTES = 6, 12
"""Of a parameter: bfloat16 weights and float32 gradients; float32 master weights and two moments."""
KEPT_BYTES = {"none": 34, "full": 2}
"""Of a token and hidden feature in a block; Korthikanti et al. 2022, with any other set between the two."""


def roofline(problem, columns):
    model, training, cluster, _ = problem
    parameters = parameter_count(model)
    again = np.where(columns["recompute"] == "none", 6, 8)  # full recompute is one more forward
    peak = cluster.world_size * cluster.device.peak_flops_per_s(training.precision.fastest_dtype)
    count = columns["num_microbatches"]
    bubble = (columns["pp"] - 1) / (count * columns["num_virtual_stages"])
    seconds = again * parameters * training.tokens_per_step / peak * (1 + bubble)

    share = parameters / (columns["tp"] * columns["pp"])
    ranks = np.where(columns["zero"] > 0, columns["dp"] * columns["cp"], 1)
    tokens = columns["microbatch_size"] * training.sequence_length / (columns["cp"] * columns["tp"])
    kept = np.array([KEPT_BYTES.get(name, 10) for name in columns["recompute"]])
    held = np.minimum(columns["pp"], count) * model.num_hidden_layers / columns["pp"]
    memory = share * (STATE_BYTES + SHARED_BYTES / ranks) + kept * tokens * model.hidden_size * held
    return seconds, memory + cluster.device.reserved_memory_bytes
