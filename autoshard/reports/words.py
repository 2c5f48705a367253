"""A plan in sentences for somebody who has never seen one, and the words that its page uses."""

from __future__ import annotations

from autoshard.explanation.describe import Description
from autoshard.explanation.page import percent, span
from autoshard.plans.plan import Plan
from autoshard.units import format_bytes, format_count, format_seconds

WORDS = (
    ("device", "what one rank drives: a NeuronCore, a GPU, or a process on a CPU"),
    ("rank", "one process of the training, with one device"),
    ("step", "one pass over the global batch with one update of the weights"),
    ("tp", "tensor parallelism: each matrix is split over so many ranks, which talk in every layer"),
    ("pp", "pipeline parallelism: the model's blocks are split over so many ranks in a row"),
    ("dp", "data parallelism: so many copies of the model, each with its own part of the batch"),
    ("cp", "context parallelism: each sequence is split over so many ranks"),
    ("ep", "expert parallelism: the experts of a mixture are split over so many ranks"),
    ("vpp", "virtual stages: how many separate parts of the model a pipeline rank holds"),
    ("microbatch, mbs", "the sequences that a rank works on at a time"),
    ("recompute", "activations that are not kept but computed again in backward: less memory, more time"),
    ("ZeRO", "replicas share optimizer state (1), gradients (2) and weights (3) instead of each holding all"),
    ("collective", "a way in which a group of ranks exchanges or sums data"),
    ("bubble", "time in which a pipeline rank waits for others"),
    ("MFU", "model FLOPs utilisation: the model's own arithmetic over what all devices could do at their peak"),
    ("90 %", "in nine of ten cases the value lies in this interval, judged by published results left out of the fit"),
    ("Pareto front", "layouts for which none is both faster and smaller"),
)


def in_words(plan: Plan, d: Description) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """(sentences on what the plan does and how sure that is, the words that its page uses with their meaning)."""
    strategy, blocks = plan.strategy, plan.model.num_hidden_layers
    parts = [
        (strategy.tp, f"each matrix over {strategy.tp} devices"),
        (strategy.pp, f"the {blocks} blocks over {strategy.pp} groups of devices in a row"),
        (strategy.cp, f"each sequence over {strategy.cp} devices"),
        (strategy.dp, f"the batch over {strategy.dp} copies"),
        (strategy.ep, f"the experts over {strategy.ep} devices"),
    ]
    split = [words for size, words in parts if size > 1]
    how = f"It splits {_joined(split)}." if split else "One device holds all of it."
    times = span(d.step_time_low_s, d.step_time_high_s, format_seconds)
    first = (
        f"This page is a plan for training {d.model}, a model of {format_count(d.num_parameters)} parameters, on "
        f"{d.cluster}, which has {d.num_devices:,} devices. {how}"
    )
    second = (
        f"One training step is predicted to take {format_seconds(d.step_time_s)}; with 90 % probability it takes "
        f"{times}. The fullest device needs {format_bytes(d.memory_bytes)} of its "
        f"{format_bytes(d.memory_capacity_bytes)}; the plan fits with {percent(d.fits_probability)} probability."
    )
    return (first, second, _choice(d)), WORDS


def _choice(d: Description) -> str:
    if d.considered is None:
        return "A person chose this layout; nothing else was searched."
    close = sum(one.toss_up for one in d.runners_up)
    chosen = f"It was chosen among {d.considered:,} layouts, of which {d.fitting:,} fit."
    if not close:
        return f"{chosen} None of the runners-up is likely to be faster."
    return (
        f"{chosen} {close} of the {len(d.runners_up)} runners-up {'is' if close == 1 else 'are'} so close that only a "
        "measurement can tell which is faster."
    )


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
