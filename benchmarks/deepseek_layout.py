"""Scores DeepSeek-V3's published layout, with the plan that is found for the same cluster beside it, term by term.

    python -m benchmarks.deepseek_layout            prints results/deepseek_layout.md
    python -m benchmarks.deepseek_layout --write    keeps it

The report (arXiv 2412.19437) trains on 2,048 H800 with 16 pipeline ranks, experts over 64 devices and ZeRO-1, without
tensor parallelism, in FP8; Megatron-Core writes the cut of its recipe as `Et*3|(tt|)*29,m|L`, two chunks a rank.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from autoshard.cost.estimate import Estimate, estimate
from autoshard.layout.strategy import Strategy
from autoshard.models.registry import load_model
from autoshard.planner.search import search
from autoshard.plans.names import short_name
from autoshard.plans.search_result import Pins
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision

KEPT = Path(__file__).parent / "results" / "deepseek_layout.md"
MODEL, CLUSTER = load_model("deepseek-v3"), load_cluster("h800-80gb", nodes=256)
BF16 = TrainingSpec(4096, 15_360, load_precision("mixed_precision"))
FP8 = replace(BF16, precision=load_precision("fp8_block"))
GPU_HOURS = 180_000
"""For each trillion tokens of pre-training (the report, section 1)."""
AGAIN = "attention_norm+attention_up+core_attention+mlp_norm"
"""The report runs norms and up-projections again; here what is brought up again runs with core attention."""
PUBLISHED = Strategy(
    tp=1,
    pp=16,
    dp=128,
    cp=1,
    ep=64,
    num_virtual_stages=2,
    microbatch_size=1,
    schedule="interleaved",
    recompute=(AGAIN,) * 32,
    sequence_parallel=False,
    zero=1,
    attention_kernel="flash",
    stage_layers=(3, *(2,) * 29, 0, 0),
    context_parallel="all_gather",
)
PINS = Pins(tp=1, pp=16, cp=1, zero=1)
NOTES = """
The published layout is priced as interleaved 1F1B; DualPipe is no schedule here. What differs:

- **Experts' exchange.** A token's 8 experts lie in at most 4 of the 8 nodes that share them (the router's groups), and
  DeepSeek's kernels send it to each node once, in FP8 on the way to experts, behind the computing of the other
  direction (the report, 3.2 and 3.3). Here every copy travels by itself, in BF16, beside the computing. The plan keeps
  experts inside nodes instead (ep=8), holds more of them on a device, and runs more again to make room.
- **Memory.** As written, the published layout does not fit here. The report also keeps the inputs of SwiGLU in FP8,
  computes its output again, and has moments in BF16 (3.3.3); none of these is a choice here.
- **The bubble.** DualPipe's is less than half of 1F1B's (table 2 of the report).
- **m**, the multi-token prediction module, is left out of the model, as transformers leaves it out: its stage holds no
  block here. It is one block more, and one more product with the table of 129,280 words.
"""


def main() -> int:
    page = "\n".join(_page()) + "\n"
    print(page, end="")
    if "--write" in sys.argv:
        KEPT.write_text(page)
    return 0


def _page() -> Iterator[str]:
    found = search(MODEL, FP8, CLUSTER, PINS, backend="torch").best
    columns = {
        "published, BF16": estimate(MODEL, BF16, CLUSTER, PUBLISHED),
        "published, FP8": estimate(MODEL, FP8, CLUSTER, PUBLISHED),
        "planned, FP8": found.estimate,
    }
    tokens = FP8.sequence_length * FP8.global_batch_size
    reported_s = GPU_HOURS * 3600 / CLUSTER.world_size * tokens / 1e12
    yield "# DeepSeek-V3 on 2,048 H800: the published layout and the plan"
    yield ""
    yield "Written by `python -m benchmarks.deepseek_layout --write`. Predictions; only the report's time is measured."
    yield ""
    yield f"- published: {short_name(PUBLISHED)}, `Et*3|(tt|)*29,m|L`"
    yield f"- planned with tp=1 and pp=16 given: {short_name(found.strategy)}, layers {found.strategy.stage_layers}"
    yield f"- measured: {GPU_HOURS:,} device hours for 1e12 tokens: {reported_s:.1f} s for these {tokens / 1e6:.1f} M"
    yield ""
    yield f"| seconds | {' | '.join(columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for index, term in enumerate(found.estimate.time_terms):
        values = [one.time_terms[index].value for one in columns.values()]
        if max(values) > 0.05:
            yield f"| {term.name} | {' | '.join(f'{value:.1f}' for value in values)} |"
    yield f"| a step | {' | '.join(f'{one.step_time_s:.1f}' for one in columns.values())} |"
    yield f"| 90 % interval | {' | '.join(map(_interval, columns.values()))} |"
    capacity = _gb(found.estimate.memory_capacity_bytes)
    yield f"| GB on the fullest device, of {capacity} | {' | '.join(map(_most, columns.values()))} |"
    yield NOTES.rstrip("\n")


def _interval(one: Estimate) -> str:
    return f"{one.step_time_low_s:.0f} to {one.step_time_high_s:.0f}"


def _most(one: Estimate) -> str:
    return _gb(max(stage.total_bytes for stage in one.memory))


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f}"


if __name__ == "__main__":
    sys.exit(main())
