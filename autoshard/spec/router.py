"""How a router chooses the experts of a token, where it is more than the largest of a softmax."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoshard.errors import AutoshardError
from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Count, Positive
from autoshard.files.fields import check_choice

SQRT_SOFTPLUS = "sqrtsoftplus"
SCORING_FUNCTIONS = ("softmax", "sigmoid", SQRT_SOFTPLUS)
GREEDY, GROUP_LIMITED, CORRECTED = "greedy", "group_limited_greedy", "noaux_tc"
CORRECTED_LOGITS = "corrected_logits"
TOP_K_METHODS = (GREEDY, GROUP_LIMITED, CORRECTED, CORRECTED_LOGITS)
GROUPS_BEST = {GROUP_LIMITED: 1, CORRECTED: 2}
"""Method -> how many of a group's best experts its score is the sum of."""


@dataclass(frozen=True)
class Router:
    """A router's choice, under the names of DeepSeek's config.

    scoring_func: softmax | sigmoid | sqrtsoftplus (the root of softplus): what makes scores of the logits.
    topk_method: greedy (the best scores) | group_limited_greedy (of the groups with the best expert) | noaux_tc (of the
        groups whose two best experts score most, where a correction bias is added to each score for the choice alone;
        it has no gradient, and a load-balancing rule outside of the model may change it) | corrected_logits (the best
        logits, to which such a bias is added for the choice alone: Kolibri 1).
    n_group: Groups of experts, equal in size.
    topk_group: Groups that a token's experts are chosen from.
    routed_scaling_factor: By which the weights of a token's experts are multiplied.

    Raises AutoshardError for a word that is not one of these, or for numbers that do not fit each other.
    """

    scoring_func: str
    topk_method: str
    n_group: Count = 1
    topk_group: Count = 1
    routed_scaling_factor: Positive = 1.0

    def __post_init__(self) -> None:
        of = "router"
        check_choice(of, "scoring_func", self.scoring_func, SCORING_FUNCTIONS)
        check_choice(of, "topk_method", self.topk_method, TOP_K_METHODS)
        check_annotated(of, self)
        if self.topk_group > self.n_group:
            raise AutoshardError(f"topk_group={self.topk_group} of router must be at most n_group={self.n_group}")
        if self.topk_method in (GREEDY, CORRECTED_LOGITS) and self.n_group > 1:
            raise AutoshardError(f"n_group={self.n_group} of router must be 1 with topk_method={self.topk_method}")

    @property
    def has_correction_bias(self) -> bool:
        """Whether a bias is added for the choice."""
        return self.topk_method in (CORRECTED, CORRECTED_LOGITS)

    @property
    def chooses_by_logits(self) -> bool:
        """Whether the choice is by the logits with the bias, not by the scores that are made of them."""
        return self.topk_method == CORRECTED_LOGITS

    def experts_objection(self, experts: int, chosen: int) -> str | None:
        """A sentence on what so many experts break, of which a token goes to `chosen`; None where that is nothing."""
        if experts % self.n_group:
            return f"n_group={self.n_group} of router must divide num_local_experts={experts}"
        held = experts // self.n_group
        if (best := GROUPS_BEST.get(self.topk_method, 1)) > held:
            return f"topk_method={self.topk_method} needs {best} experts in each of n_group={self.n_group} groups"
        if chosen > held * self.topk_group:
            return (
                f"num_experts_per_tok={chosen} must be at most {held * self.topk_group}: topk_group={self.topk_group} "
                f"groups of {held} experts"
            )
        return None

    def shrunk(self, experts: int, chosen: int) -> Router:
        """The same choice among so few experts, of which a token goes to `chosen`: one of two groups, where there were
        groups and these hold enough."""
        alone = replace(self, n_group=1, topk_group=1)
        if self.n_group == 1:
            return alone
        halves = replace(self, n_group=2, topk_group=1)
        return halves if halves.experts_objection(experts, chosen) is None else alone
