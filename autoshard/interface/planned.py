"""A plan with what people ask of one: its numbers, its file, its page."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from autoshard.interface.shown import WIDTH, Shown, columns
from autoshard.plans import plan as plans
from autoshard.plans.names import layout_name, short_name
from autoshard.plans.plan_json import write_plan

if TYPE_CHECKING:
    from autoshard.explanation.describe import Description


@dataclass(frozen=True, repr=False)
class Plan(Shown, plans.Plan):
    """A plan: its inputs, every choice, what is expected of it. print() gives its page, a notebook shows it.

    Fields: model, training, cluster, backend, pins, strategy, operators, estimate, search, runners_up, notes, made_by.

    >>> import autoshard
    >>> plan = autoshard.plan("llama3-8b", "trn1.32xlarge", nodes=4)
    >>> plan.strategy.tp * plan.strategy.pp * plan.strategy.dp * plan.strategy.cp
    128
    """

    @classmethod
    def of(cls, plan: plans.Plan) -> Plan:
        """A plan as Python's users have it, with the same fields."""
        if isinstance(plan, cls):
            return plan
        return cls(**{field.name: getattr(plan, field.name) for field in fields(plans.Plan)})

    @property
    def title(self) -> str:
        """The model and where it is trained: 'llama3-70b on 16 x trn1.32xlarge'."""
        return f"{self.model.name} on {self.cluster.nodes} x {self.cluster.instance}"

    @property
    def layout(self) -> str:
        """The layout in words, 'tp=8 pp=4 dp=4 mbs=1 ...': all that a strategy says, as `score` reads it."""
        return layout_name(self.strategy)

    @property
    def short_layout(self) -> str:
        """The layout in words, without what differs from stage to stage."""
        return short_name(self.strategy)

    @property
    def step_time_s(self) -> float:
        """Predicted seconds of an optimizer step."""
        return self.estimate.step_time_s

    @property
    def step_time_interval_s(self) -> tuple[float, float]:
        """(low, high), seconds: the step is between them with 90 % probability."""
        return self.estimate.step_time_low_s, self.estimate.step_time_high_s

    @property
    def tokens_per_s(self) -> float:
        """Predicted tokens per second, of the whole cluster."""
        return self.estimate.tokens_per_s

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation, 0 to 1: the model's own FLOPs over the peak of all devices."""
        return self.estimate.mfu

    @property
    def memory_bytes(self) -> float:
        """Predicted bytes on the fullest device."""
        return self.estimate.fullest.total_bytes

    @property
    def fits_probability(self) -> float:
        """With what probability every device has room, 0 to 1."""
        return self.estimate.fits_probability

    def save(self, path: str | Path = "plan.json") -> Path:
        """Writes plan.json and returns its path. Raises AutoshardError where it cannot be written; a file that was
        there then stays as it is."""
        write_plan(self, path)
        return Path(path)

    def describe(self) -> Description:
        """The plan as numbers and sentences with names."""
        from autoshard.explanation.describe import describe

        return describe(self)

    def _page(self, width: int, color: bool) -> str:
        from autoshard.explanation.text import render

        return render(self.describe(), width, color)

    def summary(self, width: int = WIDTH, color: bool = False) -> str:
        """The first screen of its page: what was chosen, how fast, whether it fits and how sure that is. width:
        columns. Raises AutoshardError as `page`."""
        from autoshard.explanation.describe import describe
        from autoshard.explanation.summary import FACTS, summary

        return summary(describe(self, facts=FACTS), columns(width), color)

    def markdown(self) -> str:
        from autoshard.explanation.markdown import render_markdown

        return render_markdown(self.describe())

    def __repr__(self) -> str:
        return f"<Plan {self.title}: {self.layout}, ~{self.step_time_s:.4g} s a step>"
