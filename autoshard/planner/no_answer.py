"""The errors of a search without an answer: no layout is legal, or none fits and this is what would."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from autoshard.backends.rules import Draft, Problem, length_without_flash
from autoshard.errors import AutoshardError, NoLayoutFits
from autoshard.planner.beaten_path import OFF, precedent
from autoshard.planner.rejections import MEMORY, Tally
from autoshard.planner.watching import goes_on
from autoshard.plans.search_result import Pins
from autoshard.units import format_bytes

if TYPE_CHECKING:
    from autoshard.planner.obstacles import Obstacles


class NothingLegal(AutoshardError):
    """Every layout breaks a rule. Which rules stand in the way is found when the text is read: many callers never
    read it."""

    def __init__(self, problem: Problem, pins: Pins):
        super().__init__(problem, pins)
        self._problem, self._pins = problem, pins

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"

    @property
    def what(self) -> str:
        """The text without the reason."""
        return f"no layout of {_asked(self._problem, self._pins.fixed)} is legal"

    @property
    def reason(self) -> str:
        """The text without what was asked."""
        return self.obstacles.text

    @cached_property
    def obstacles(self) -> Obstacles:
        """The rules that stand in the way."""
        from autoshard.planner.obstacles import obstacles

        return obstacles(self._problem, self._pins)


class NothingFits(NoLayoutFits):
    """No layout fits. What would do, such as a larger cluster, or why none, is found when the text is read. reason: the
    text without what was asked and what would do. needed_bytes: what the smallest layout needs of a device, or a bound
    below that. elsewhere: that none fits by another backend either, which may need other nodes. in_time: whether there
    is time to look for a larger cluster."""

    def __init__(
        self,
        reason: str,
        problem: Problem,
        pins: Pins,
        needed_bytes: float,
        elsewhere: NothingFits | None = None,
        in_time: Callable[[], bool] = goes_on,
    ):
        super().__init__(reason, problem, pins, needed_bytes, elsewhere)
        self.reason, self.problem, self.pins, self.needed_bytes = reason, problem, pins, needed_bytes
        self._elsewhere, self._in_time = elsewhere, in_time
        chunks = problem.training.loss_chunks
        fixed = pins.fixed if chunks == 1 else {**pins.fixed, "loss_chunks": chunks}
        self._what = f"no layout fits {_asked(problem, fixed)}: {reason}"

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        other = self._elsewhere
        more = (
            ""
            if other is None
            else f"; nor does one with backend {other.problem.backend}: {other.reason}; {other.cure}"
        )
        return f"{self._what}; {self.cure}{more}"

    @cached_property
    def cure(self) -> str:
        """The larger cluster that would do, or why none would, and the precision with which this one would."""
        from autoshard.planner.smallest_cluster import shortage, with_less_state

        here = with_less_state(self.problem, self.pins, self.needed_bytes, self._in_time)
        return "; ".join(filter(None, (shortage(self.problem, self.pins, self._in_time), here)))

    def beside(self, elsewhere: NothingFits) -> NothingFits:
        """The same error, with what another backend needs."""
        return NothingFits(self.reason, self.problem, self.pins, self.needed_bytes, elsewhere, self._in_time)

    def because(self, more: str) -> NothingFits:
        """The same error, with more behind its reason."""
        reason = f"{self.reason}{more}"
        return NothingFits(reason, self.problem, self.pins, self.needed_bytes, self._elsewhere, self._in_time)

    @property
    def without_reasons(self) -> str:
        """The text, but for why no larger cluster would do."""
        from autoshard.planner.smallest_cluster import larger_one

        larger = larger_one(self.problem, self.pins, self._in_time)
        return self._what if larger is None else f"{self._what}; {larger}"


def _asked(problem: Problem, fixed: Mapping[str, object]) -> str:
    """'llama3-70b on 16 x trn1.32xlarge with tp=8': the model, the nodes and what is fixed."""
    cluster = problem.cluster
    given = "".join((" with " if fixed else "", " ".join(f"{field}={value}" for field, value in fixed.items())))
    return f"{problem.model.name} on {cluster.nodes} x {cluster.instance}{given}"


def no_answer(
    problem: Problem, pins: Pins, tally: Tally, bound_bytes: float, in_time: Callable[[], bool] = goes_on
) -> AutoshardError:
    """The error of a search without an answer: no layout is legal, or none fits and this is what would. bound_bytes:
    what layouts need at least that were not priced. in_time: as of NothingFits.

    It names what the smallest needs of the layouts that were looked at one by one. Other cuts, and recompute sets by
    stage, may need less: of these it is only known that none fits.
    """
    cluster, name = problem.cluster, problem.model.name
    where = f"{cluster.nodes} x {cluster.instance}"
    if not {MEMORY, OFF} & {*tally.counts}:
        return NothingLegal(problem, pins)
    if pins.beaten_path and (path := precedent(problem, pins)) is not None:
        return NoLayoutFits(
            f"no layout of {name} on {where} fits whose features are all known to have run on {path.path.name}; "
            "leave beaten_path out, or use more nodes"
        )
    needed = tally.nearest_miss(MEMORY)
    at_least, has = "at least " if bound_bytes <= needed else "", format_bytes(cluster.device.memory_bytes)
    needs = f"{at_least}{format_bytes(needed)} a device, which has {has}"
    if format_bytes(needed) == has:
        needs = f"{at_least}a little more than the {has} that a device has"
    length = length_without_flash(problem, Draft(1, 1, 1, 1, 1, attention_kernel=pins.attention_kernel or "plain"))
    reason = f"the smallest looked at needs {needs}" + ("" if length is None else f" ({length})")
    return NothingFits(reason, problem, pins, needed, None, in_time)
