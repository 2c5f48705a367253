"""Writes RESULTS.md: every target, what was reached, and for those that are missed which rows miss them and why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from math import comb
from pathlib import Path
from statistics import mean
from textwrap import wrap
from typing import NamedTuple

from autoshard.calibration.results.differences import LARGEST
from autoshard.calibration.results.picks import (
    AND,
    EVERYTHING,
    FEATURES,
    LAYOUTS,
    NOTHING,
    Pick,
    of_measured_features,
    of_new_features,
)
from autoshard.cost.interval import BEYOND
from autoshard.planner.beaten_path import GIVEN_AWAY
from benchmarks.path_surprise import Keeping, keeping_lines
from benchmarks.scores import Scored

Scores = Mapping[str, float | int | None]
SURPRISE = Path(__file__).parent / "results" / "path_surprise.json"


class Target(NamedTuple):
    """One target. at_most: whether the score should be small; else it should be large."""

    what: str
    source: str
    score: str
    limit: float
    at_most: bool = True


TARGETS = (
    Target("step time", "hagemann/flash_attention2", "mape", 0.07),
    Target("fits", "hagemann", "fits_accuracy", 0.97, at_most=False),
    Target("regret of the pick", "hagemann", "regret_mean", 0.06),
    Target("picks out of memory", "hagemann", "oom_picks", 0),
    Target("step time", "vtrain-multi", "mape", 0.09),
    Target("step time", "bigscience-a100", "mape", 0.05),
    Target("memory", "bigscience-a100", "memory_mape", 0.05),
    Target("step time, bf16", "dgxc/bf16", "mape", 0.03),
    Target("step time", "dgxc", "mape", 0.045),
    Target("step time", "korthikanti-t5", "mape", 0.04),
    Target("step time", "sc21-t1", "mape", 0.04),
    Target("step time", "mosaic/a100", "mape", 0.07),
    Target("step time", "mosaic/h100", "mape", 0.045),
    Target("step time", "ultrascale-ok/tp<=8 and pp=1", "mape", 0.12),
    Target("memory", "ultrascale-ok/tp<=8 and pp=1", "memory_mape", 0.12),
    Target("step time", "blackwell/dense, bf16", "mape", 0.08),
    Target("memory", "blackwell/dense, bf16", "memory_mape", 0.08),
    Target("step time", "blackwell/dense, 8 bits", "mape", 0.08),
    Target("step time", "fsdp/dense", "mape", 0.10),
    Target("step time", "experts/bf16 in nodes of 8", "mape", 0.12),
    Target("step time", "experts/bf16 on NVL72", "mape", 0.20),
    Target("step time", "experts/8 bits", "mape", 0.15),
    Target("step time", "trainium/trn1", "mape", 0.09),
    Target("worst step time", "trainium/trn1", "worst_ape", 0.30),
    Target("step time", "trainium/trn2", "mape", 0.15),
    Target("median step time", "cpu", "median_ape", 0.15),
)
COVERAGE = (0.85, 0.95)
COVERAGE_NOTES = {
    "zero-bubble": "its vocabulary is not stated, so nothing is fitted to it; all rows take 7 to 27 % longer than "
    "predicted, and rows of software that was never measured lie inside its interval together or outside together",
}
"""Source -> why its coverage is missed by more than chance."""
UNSEEN = 0.20
WORST_ROWS = 6
TWO = "two of these"
EXPERTS = """\
Latent attention is priced as usual attention of equal FLOPs. NeMo 25.04 is taken to run DeepSeek-V3's without a flash
kernel on GB200: its recipe recomputes the core of attention there, and its cuDNN has no kernel for such heads
(recalled, not read). AutoModel's benchmark hands out experts in turn, so that those of a token lie on one rank. An
all-to-all dispatcher sorts what arrives by expert, DeepEP and HybridEP do not. A clamped activation (GPT-OSS) takes a
kernel for each of its steps. Left out: that hosts differ in how fast they launch, and that small experts'
products reach less."""
NOTES = {
    "ultrascale-ok/tp<=8 and pp=1": """\
The mean is that of runs several times slower than predicted: four with steps of 4096 sequences on 32 nodes (26.0 ms a
layer and microbatch with 8.86B, tp=8, microbatch 1 and no ZeRO, where steps of 256 sequences take 6.1 ms), those of 64
nodes, which stall as runs with pipelines do (tp=8 always, tp=4 sometimes: 0.66 and 5.30 s for microbatches of 2 and 1
without ZeRO), and six of 1.34B on 8 nodes without ZeRO. Repeats of one layout (4 with pipelines) differ by 5 to 25 %:
no model of them misses by less than 5.6 %. Tried: transfers of ZeRO-0 behind the last backward (kept), a copy for each
tensor and replica under ZeRO-1 (kept: 32 nodes with ZeRO-1 from 18 to 6 %), a stall of collectives on 64 nodes (kept:
without it 13.3 %; a share of the step that all stacks lose with each doubling of nodes 13.1 %, and sc21 and dgxc worse;
with 64 nodes not fitted to 13.3 %: 16 nodes are 2 % too slow, 64 take 3.4 times as long, of other stacks none), rings
of all replicas (as good as the copies, but sources say copies), latency by doublings of nodes (kept), overlap
with the whole backward (worse), an error that lets outliers go (kept), memory that is nearly full (no effect).""",
    "blackwell/dense, 8 bits": """\
GPT3-175B with 2,048 tokens is 20 % too slow on B200 and GB200 (5 to 10 % on H100), Nemotron4-15B 10 % too fast, as the
smaller Nemotrons are on H100; Nemotron4-340B on B200 waits for parameters that Megatron may gather in FP8, here in
bfloat16. Tried: products as the watts (kept: GB300 from 17 and 22 to 3 and 11 %), gradients in bfloat16 (kept),
tensor-parallel collectives that hide forward too (no change), mixtures of experts not fitted to or counted less (0 to 1
point better, dgxc's mixtures 7 worse).""",
    "experts/bf16 in nodes of 8": EXPERTS,
    "experts/bf16 on NVL72": EXPERTS,
    "experts/8 bits": EXPERTS,
    "mosaic/h100": """\
It was 2.8 % before mixtures and FP8 were fitted: what routing takes was held near one pass, so the share of the memory
bandwidth fell from 0.67 to 0.58 in its place. Tried: routing freer (kept), gathers in 8 bits (kept), attention by
Triton apart from the second flash kernel (kept), scales of FP8 that read a tensor twice and contractions that fill no
faster in FP8 (no change, or worse), work that takes longer while sharded parameters travel behind it (kept: from 4.5
to 2.8 %), a share of the step
that is lost with each doubling of nodes (4.2 %), efficiency of flash attention by sequence length (worse), no loss of
the last wave of tiles (0.1 better, and worse elsewhere), transfers hidden wholly (no change).""",
    "hagemann": """\
Two groups of six decide. Memory alone does not: were it known of every run whether it fits, the picks would lose 5.9 %;
were it known of 13B without tensor parallelism and pipeline alone, the same 6.4 %, as two stages with a larger
microbatch are predicted 2 % faster. Of what knowing gains, 30B with 8192 tokens has 0.27 points (tp=4 pp=4 is predicted
to fill 0.93 of the memory, 1.8 GiB more than a pick that is 90 % sure to fit) and 30B with 2048 tokens 0.15 (tp=1 pp=4:
0.95, 4 GiB more). Only both would reach 6 %, and counted by AA-Scaling's published code, with the reserve that is
fitted, the second still fills 0.94. 13B without tensor parallelism and pipeline is predicted to fill 1.04 of the memory
on 64 devices and 1.08 on 32; these ran. By the published code a block keeps 20.8 hidden activations there (queries,
keys and values stay joined where a microbatch is one sequence, SiLU's output is kept) and a logit 14 to 18 bytes, where
21.7 and 28 are fitted: 0.95 and 0.98 of the memory, too near for picks that are 90 % sure. 13B on 64 devices: without a
pipeline it took 26.5 s; the pick took 33.1 s, where a larger microbatch made a pipeline of two stages slower. That
slowdown is 4 s a step for each sequence of a microbatch, however many microbatches there are, with the second flash
kernel alone (44.1, 47.4, 55.6, 72.8 s for microbatches of 1, 2, 4, 8; with the first kernel 42.4, 42.3, 42.5, 44.7 s),
and not with one sequence of 8192 in place of four of 2048, the same tensors, nor with 65B: no term can tell these
apart, it looks like data (that kernel's calls read lengths of documents back from the device in each block, which would
cost a microbatch, not a step). Each further sequence of a microbatch costs 13B what 3.5 to 5.6 sequences take in a
stage (from one to two with tp=2 less), with one or two ranks of tensor parallelism, on 32 and on 64 devices, with and
without recompute, as if the bubble had so many microbatches where the published schedule has one; 65B's two stages show
0.7. 30B: two layouts 0.3 % apart by prediction took 72.7 and 83.1 s, the slower one of that kind too; were it the pick
the regret would be 8.8 %. 13B on 32 devices: as on 64. Of equally fast layouts (1 % apart) the simpler one is picked,
as the planner does; no other meaning of simpler (fewer ways, smaller microbatch, less memory, fewer stages) and no
other share given away (2, 3, 5, 8 %) reaches less without losing more elsewhere, and the best of all within 1 % is 6.4
% as well. With exact times and 90 % sure to fit, the picks would still lose 3.8 %; repeats of one layout differ by 1 %.
Wrong about fitting are runs within 5 % of the memory, tp=1 pp=1 of 13B too full and some with larger microbatches not
full enough, and two with microbatches of 8 and no flash kernel, predicted at 76 %. Tried: an adapter a GPU as in DGX
A100 (kept: pipelines of 16 and none were 10 % too slow), a quarter to one microbatch more in flight (worse), waits for
each member of a collective (kept), both of which moved no pick but 30B's; the 35 to 50 ms a microbatch by which full
recompute with tp=8 is slower (40 to 49 ms at mbs=1 whatever the stage's layers, 15 to 23 at 4, half at tp=4: no cost of
a layer, of launching or of the head is like that, and no other source has it), hidden activations that tensor
parallelism does not shard, memory of communicators by tensor and pipeline parallelism, parameters and gradients by a
factor, gathered logits as a copy of their own (no change of groups that were left out, or worse), the spread of memory
that makes what fitted most likely (0.10 in place of 0.08; 0.06 if one run in a hundred may be odd: 6.1 %), gathered
inputs that are kept under sequence parallelism, as the published code keeps them (kept: 97.1 to 97.3 % right about
fitting, 4.9 to 4.7 % in time, and what ran out of memory at 0.93 is at 0.98; the same picks), norms that keep four
hidden activations a block, as that code's do, in place of five (96.6 % right), an all-reduce each for gate and up (5.0
% in time), llm-foundry's attention as the other kernel that it is (kept: from 5.3 to 4.9 %, the same picks), three or
six copies of plain attention's scores in place of 1.65 (6.1 % at best, but 96.2 % right about fitting), whole waves of
tiles of 128 x 256 in place of half a wave on average (the same picks; 5.0 % in place of 4.5, mosaic 4.8 in place of
3.6, experts in 8 bits 8.3 in place of 8.8), gradients summed in FP32 by an all-reduce as the published code does (4.4
%, the same picks), no tail of waves (the same picks) and hardly a penalty of short contractions besides (7.4 %), as a
microbatch of two without tensor parallelism and pipeline is 1 to 2 % faster than one of one, not 5 %.""",
    "vtrain-multi": """\
Rows with tp 2 on 8 and 16 stages are 20 to 47 % slower than predicted and not monotone: they look like data; transfers
between stages are too short to explain them.""",
}
"""Target -> why it is missed, and what was tried."""


def results_page(
    board: Mapping[str, Scores],
    unseen: Mapping[str, Scores],
    found: Sequence[object],
    picks: Sequence[Pick],
    doubts: Sequence[tuple[str, str]] = (),
) -> str:
    """The page in Markdown. unseen: scores of each source predicted as if nothing of it had been measured. picks: of
    groups of many layouts, see autoshard/calibration/results/picks.py. doubts: (row, reason) of rows on Trainium that
    nothing is fitted to."""
    rows = [one for one in found if isinstance(one, Scored)]
    coverage = (_coverage(board), [""], _unseen_coverage(unseen), [""], _surprise(), [""])
    misses = (_misses(board, rows), _trainium(rows, doubts))
    pages = (_targets(board), _unseen(unseen), [""], *coverage, _picks(picks), [""], *misses)
    return "\n".join(line for page in pages for line in page).rstrip() + "\n"


def _trainium(rows: Sequence[Scored], doubts: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Errors on Trainium by model and tp, each left out with all releases, and the rows that nothing is fitted to."""
    groups: dict[tuple[str, str], list[Scored]] = {}
    for one in rows:
        if "trainium" in one.sources:
            groups.setdefault((one.cluster.instance, one.group), []).append(one)
    if not groups:
        return
    yield "## Trainium by model"
    yield "Each model and tp is left out with all its releases of the SDK. trn1.2xlarge, trn2 and trn3 have no fit of"
    yield "their own; what tracing a pass takes on the host was set by hand to the two rows of single chips. Nothing"
    yield "was ever measured on trn3. Errors are of predicted against measured step time."
    yield ""
    yield "| instance | model | rows | mean error | mean size of errors | worst |"
    yield "|---|---|---|---|---|---|"
    for (instance, group), own in sorted(groups.items()):
        errors = [one.predicted_s / (one.measured_s or one.predicted_s) - 1 for one in own]
        worst, size = max(errors, key=abs), mean(map(abs, errors))
        yield f"| {instance} | {group} | {len(own)} | {mean(errors):+.1%} | {size:.1%} | {worst:+.1%} |"
    yield ""
    yield from _lora(rows)
    yield "Scored as `trainium/doubtful`, and fitted to by nothing:"
    yield ""
    for row, reason in doubts:
        yield f"* {row}: {reason}"
    yield ""


def _lora(rows: Sequence[Scored]) -> Iterator[str]:
    """Rows that train adapters alone, each with its error."""
    own = [one for one in rows if "trainium/LoRA" in one.sources and one.measured_s]
    if not own:
        return
    yield "Fine-tuning of adapters on one chip, scored as `trainium/LoRA` and fitted to by nothing: weights are frozen,"
    yield "and the host traces the adapters' products too. From 4,096 tokens on the source's numbers imply 56 to 80 %"
    yield "of the chip's peak if blocks are recomputed, as it says; rows of trn1 that imply as much are doubtful."
    yield ""
    for one in own:
        off = one.predicted_s / (one.measured_s or 1.0) - 1
        yield f"* {one.key}, {one.group}: {one.measured_s:.2f} s, predicted {one.predicted_s:.2f} s ({off:+.0%})"
    yield ""


def reached(target: Target, board: Mapping[str, Scores]) -> tuple[float | None, bool]:
    """(score, whether it is met)."""
    value = board.get(target.source, {}).get(target.score)
    if value is None:
        return None, False
    return value, value <= target.limit if target.at_most else value >= target.limit


def _targets(board: Mapping[str, Scores]) -> Iterator[str]:
    yield "Written by `python -m benchmarks.predicted_vs_measured --results benchmarks/RESULTS.md`. Groups that were"
    yield "fitted are left out of their own fit. blackwell, fsdp and experts are rows of all sources whose layout and"
    yield "release are known."
    yield ""
    yield "| source | what | target | reached | |"
    yield "|---|---|---|---|---|"
    for target in TARGETS:
        value, met = reached(target, board)
        sign = "<=" if target.at_most else ">="
        limit, shown = _number(target, target.limit), "-" if value is None else _number(target, value)
        yield f"| {target.source} | {target.what} | {sign} {limit} | {shown} | {'' if met else 'missed'} |"


def _unseen(unseen: Mapping[str, Scores]) -> Iterator[str]:
    errors = [scores["mape"] or 0.0 for scores in unseen.values()]
    if errors:
        missed = "" if mean(errors) <= UNSEEN else "missed"
        value = f"{100 * mean(errors):.3g} %"
        yield f"| stacks never measured | step time, mean of {len(errors)} | <= 20 % | {value} | {missed} |"


def _number(target: Target, value: float) -> str:
    return f"{value:.0f}" if target.score == "oom_picks" else f"{100 * value:.3g} %"


def _coverage(board: Mapping[str, Scores]) -> Iterator[str]:
    yield "Coverage of the 90 % intervals (target: 85 to 95 %). Where it is not reached: what right ones would show in"
    yield "nine of ten samples of so many rows. Rows inside that are too few to tell."
    yield ""
    for source, scores in board.items():
        value = scores["coverage90"]
        if value is not None and source not in ("trainium/doubtful", "trainium/LoRA"):
            line = f"* {source}: {value:.0%}"
            if not COVERAGE[0] <= value <= COVERAGE[1]:
                low, high = right_coverage(int(scores["rows"] or 0))
                told = "too few rows to tell" if low <= value <= high else "missed"
                line += f": {told} ({scores['rows']} rows: {low:.0%} to {high:.0%})"
                if told == "missed" and source in COVERAGE_NOTES:
                    line += f": {COVERAGE_NOTES[source]}"
            yield line


def _surprise() -> Iterator[str]:
    """Yields what leaving the beaten path costs, as `benchmarks.path_surprise` measured it."""
    known = json.loads(SURPRISE.read_text(encoding="utf-8"))
    kept = {share: Keeping(**one) for share, one in known["keeping"].items()}
    known = known["surprise"]
    wider = {name: one["without_it"] / one["with_it"] for name, one in known.items()}
    every = wider.pop("all")
    text = (
        "Leaving the beaten path, on GPU results (`python -m benchmarks.path_surprise`): where a feature of a layout "
        f"was left out of the fit, the middle 90 % of its errors is {every:.2f} times as wide as with it. By feature: "
        f"{', '.join(f'{name} {times:.2f}' for name, times in wider.items())}. To hold nine in ten of such results, as "
        f"the mean of features, intervals of their stacks must be {known['all']['covering']:.2f} times as wide; the "
        f"planner takes {BEYOND:g}."
    )
    yield from wrap(text, 120)
    yield ""
    yield "Keeping to features that the fit had seen, one or two left out at a time, where that gives away no more than"
    yield f"this of the step that is expected of the fastest; the planner gives away {GIVEN_AWAY:.0%}:"
    yield ""
    yield from keeping_lines(kept)


def _unseen_coverage(unseen: Mapping[str, Scores]) -> Iterator[str]:
    """Coverage where nothing of a source was known, neither to the fit nor to the intervals."""
    covered = {source.removeprefix("unseen/"): one["coverage90"] or 0.0 for source, one in unseen.items()}
    counts = [int(one["rows"] or 0) for one in unseen.values()]
    if covered:
        rows = sum(count * share for count, share in zip(counts, covered.values(), strict=True)) / sum(counts)
        yield "Coverage of the 90 % intervals of software that was never measured, each source left out of the fit and"
        yield f"of the intervals: {rows:.0%} of the rows, {mean(covered.values()):.0%} as the mean of sources:"
        yield ""
        yield "* " + ", ".join(f"{source} {share:.0%}" for source, share in covered.items())


def _picks(picks: Sequence[Pick]) -> Iterator[str]:
    """The winner's curse, by what the fit had not seen."""
    yield "## Picks"
    yield f"The fastest layout by prediction of each group of at least {LAYOUTS} layouts, its group always left out of"
    yield "the fit: log(measured / predicted) in per cent, positive where it was slower than predicted. An error counts"
    yield f"as at most {100 * LARGEST:.0f}. The curse is what a pick is missed by more than all. A page adds it to the"
    yield "expected step time: to that of a pick with a choice that no result has, the mean over features of picks that"
    yield "have them, once for each. Corrected: picks that have the feature, or both, by what the other features say."
    yield ""
    yield "| also left out of the fit | groups | pick | all | curse | picks that have it | curse of these | corrected |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in (NOTHING, *FEATURES, TWO, EVERYTHING):
        own = [one for one in picks if (TWO if AND in one.left_out else one.left_out) == name]
        having = [one for one in own if one.new == (2 if name == TWO else 1)]
        if not own:
            continue
        numbers = [_per_cent([one.pick for one in own]), _per_cent([one.all for one in own])]
        of_these = ["", "", ""]
        if having:
            correction = of_new_features([one for one in picks if one.left_out != name])
            corrected = _per_cent([one.surprise - one.new * correction for one in having])
            of_these = [f"{len(having)}", _per_cent([one.surprise for one in having]), corrected]
        cells = [name, f"{len(own)}", *numbers, _per_cent([one.surprise for one in own]), *of_these]
        yield f"| {' | '.join(cells)} |"
    left_out = [one for one in picks if one.left_out in FEATURES]
    if left_out:
        new, old = of_new_features(picks), of_measured_features(picks)
        after = [one.surprise - (new if one.new else old) for one in left_out]
        yield ""
        curse = _per_cent([one.surprise for one in left_out])
        yield f"All {len(left_out)} picks with a feature left out: curse {curse}, corrected"
        yield f"{_per_cent(after)}; a new feature counts {100 * new:.1f}, none {100 * old:.1f}."


def _per_cent(values: Sequence[float]) -> str:
    return f"{round(100 * mean(values), 1) + 0.0:+.1f}"  # never -0.0


def right_coverage(rows: int) -> tuple[float, float]:
    """Share of so many rows that lie inside their 90 % intervals if the intervals are right: the middle 90 % of that,
    by chance."""
    chances = (float(comb(rows, count) * Fraction(9**count, 10**rows)) for count in range(rows + 1))
    below = list(accumulate(chances))
    low, high = (next(count for count, chance in enumerate(below) if chance >= share) for share in (0.05, 0.95))
    return low / rows, high / rows


def _misses(board: Mapping[str, Scores], rows: Sequence[Scored]) -> Iterator[str]:
    missed = dict.fromkeys(target.source for target in TARGETS if not reached(target, board)[1])
    for source in missed:
        own = [row for row in rows if source in row.sources and row.error is not None]
        yield f"## {source}"
        if source in NOTES:
            yield NOTES[source]
        yield ""
        yield "| row | group | measured | predicted | |"
        yield "|---|---|---|---|---|"
        for row in sorted(own, key=lambda row: row.error or 0.0, reverse=True)[:WORST_ROWS]:
            assert row.measured_s is not None
            off = row.predicted_s / row.measured_s - 1
            yield f"| {row.key} | {row.group} | {row.measured_s:.2f} s | {row.predicted_s:.2f} s | {off:+.0%} |"
        yield ""
