"""How sure an estimate says it is."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log, sqrt

import pytest

from autoshard.cost import interval
from autoshard.cost.estimate import estimate
from autoshard.cost.interval import (
    BEYOND,
    NINETY_PERCENT,
    UNMEASURED,
    UNMEASURED_KINDS,
    base_regime,
    difference_factors,
    differences,
    expected_factor,
    expected_note,
    fits_probability,
    interval_note,
    new_features,
    picks,
    regime_of,
    regimes,
    step_time_factors,
    toss_up,
    unknown_of,
    unknown_widths,
    unlike_measured,
)
from autoshard.cost.known import DEVICE, MODEL, Measured
from autoshard.layout.strategy import Strategy
from autoshard.models.registry import load_model
from autoshard.spec.cluster import load_cluster
from autoshard.spec.sdk import NEWEST_WITH_NXD, release_spread
from autoshard.spec.training import TrainingSpec, load_precision
from benchmarks.predicted_vs_measured_trainium import predictions

MEASURED = Strategy(
    tp=32,
    pp=8,
    dp=2,
    cp=1,
    ep=1,
    num_virtual_stages=1,
    microbatch_size=1,
    schedule="1f1b",
    recompute=("core_attention",),
    sequence_parallel=True,
    zero=1,
    attention_kernel="flash",
    stage_layers=(10,) * 8,
)
TRAINING = TrainingSpec(8192, 1024, load_precision("mixed_precision"))
TRN1, TRN2 = load_cluster("trn1.32xlarge", 16), load_cluster("trn2.48xlarge", 1)


def test_regimes() -> None:
    assert regime_of(TRN1) == regime_of(load_cluster("trn1n.32xlarge", 1)) == "trn1"
    assert regime_of(TRN2) == "trn2" and not regimes()["trn2"].fitted
    assert regime_of(load_cluster("trn3-gen1", 1)) == regime_of(load_cluster("cpu", 1)) == UNMEASURED
    assert regimes()["trn1"].results == 50
    assert all(regime.low < 0 < regime.high for regime in regimes().values())


def test_an_ultraserver_is_of_its_devices_regime(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = regimes() | {"trn2": regimes()["trn1"]}
    monkeypatch.setattr("autoshard.cost.interval.regimes", lambda: measured)
    assert regime_of(TRN2) == regime_of(load_cluster("trn2u.48xlarge", 4)) == "trn2"
    assert regime_of(load_cluster("cpu", 1)) == UNMEASURED


def test_what_nobody_measured_is_less_sure() -> None:
    low, high = step_time_factors(TRN1, MEASURED)
    further = step_time_factors(TRN1, replace(MEASURED, tp=16, dp=4))
    of_release = NINETY_PERCENT * release_spread("trn1", NEWEST_WITH_NXD)
    ends = [sqrt((BEYOND * end) ** 2 + of_release**2) for end in (regimes()["trn1"].low, regimes()["trn1"].high)]
    assert [log(one) for one in further] == pytest.approx([-ends[0], ends[1]])
    unmeasured = step_time_factors(TRN2, MEASURED)
    assert unmeasured[0] <= low and high <= unmeasured[1]


def test_notes_say_why() -> None:
    case = load_model("llama3-70b"), TRAINING
    known = interval_note(TRN1, MEASURED, *case)
    assert known == "the 90 % interval comes from 50 published results on trn1, 9 layouts each left out in turn"
    beyond = interval_note(TRN1, replace(MEASURED, microbatch_size=4, tp=16, dp=4), *case)
    assert beyond.endswith("none of them has tp=16, microbatch=4")


def test_results_say_which_choices_they_have() -> None:
    """GPT-3 46B, 7B and 13B were measured with full recompute."""
    assert unlike_measured(TRN1, replace(MEASURED, recompute=("full",))) == ()
    other = replace(MEASURED, cp=2, num_virtual_stages=2, stage_layers=(5,) * 16, recompute=("none",) * 16)
    assert unlike_measured(TRN1, other) == ("cp=2", "vpp=2")
    assert unlike_measured(TRN2, replace(MEASURED, cp=2)) == (), "that is said of the whole case"
    rows = [row for row, _ in predictions()]
    assert {int(row["tp"]) for row in rows if row["instance"].startswith("trn1.32")} == set(
        regimes()["trn1"].choices["tp"]
    )


def test_notes_say_what_was_never_measured() -> None:
    experts, single = load_model("mixtral-8x7b"), replace(TRAINING, precision=load_precision("fp32"))
    assert interval_note(TRN1, MEASURED, experts, single).endswith(
        "; never measured on this: mixtures of experts, fp32 precision, which makes it wider"
    )
    assert interval_note(TRN2, MEASURED, experts, TRAINING).startswith(
        "never measured on this: the software, the device (trn2.48xlarge); trn2 has too few published results to "
        "fit to (2); the 90 % interval is that of published "
    )
    h100 = load_cluster("h100-80gb", 1)
    assert interval_note(h100, MEASURED, experts, TRAINING).startswith("never measured on this: the software; the 90 %")


def test_each_unknown_thing_makes_an_interval_wider() -> None:
    dense, experts = load_model("llama3-70b"), load_model("mixtral-8x7b")
    assert unknown_of(TRN1, dense, TRAINING) == () and unknown_of(TRN1, experts, TRAINING) == (MODEL,)
    assert unknown_of(TRN2, experts, TRAINING) == (DEVICE,)  # some device has experts
    low, high = step_time_factors(TRN1, MEASURED)
    width = unknown_widths()[MODEL]
    wider = step_time_factors(TRN1, MEASURED, (MODEL,))
    assert log(wider[0]) ** 2 == pytest.approx(log(low) ** 2 + width.low**2)
    assert log(wider[1]) ** 2 == pytest.approx(log(high) ** 2 + width.high**2)


def test_a_device_with_another_s_constants_is_not_a_measured_one(monkeypatch: pytest.MonkeyPatch) -> None:
    dense, known = load_model("llama3-8b"), {"h100-80gb": Measured(("dense",), ("half",))}
    monkeypatch.setattr("autoshard.cost.interval.measured", lambda: known)
    assert unknown_of(load_cluster("h100-80gb", 1), dense, TRAINING) == ()
    assert unknown_of(load_cluster("b200-180gb", 1), dense, TRAINING) == (DEVICE,)


def test_what_is_expected_of_a_pick() -> None:
    """A layout that a person chose is expected to take what is predicted; a pick with a choice that no result has,
    longer, by what left-out features were missed by."""
    dense, experts = load_model("llama3-70b"), load_model("mixtral-8x7b")
    new = new_features(TRN1, ("tp=16",), dense, TRAINING)
    assert new == ("tp=16",) and new_features(TRN1, (), dense, TRAINING) == ()
    assert new_features(TRN1, (), experts, TRAINING) == ("mixtures of experts",)
    assert new_features(TRN2, (), dense, TRAINING) == ("the device (trn2.48xlarge)",)
    known, apart = (base_regime(cluster, dense, TRAINING) for cluster in (TRN1, TRN2))
    assert expected_factor(new, known, picked=False) == 1.0
    one, two = (log(expected_factor(things, known, picked=True)) for things in (new, (*new, "cp=2")))
    none = log(expected_factor((), known, picked=True))
    assert none == pytest.approx(picks()["measured_features"]) and one == pytest.approx(picks()["new_features"])
    assert two - none == pytest.approx(2 * (one - none)), "each counts once"
    assert log(expected_factor(new, apart, picked=False)) == pytest.approx(regimes()[UNMEASURED].expected)
    assert 0 <= picks()["measured_features"] <= picks()["new_features"]


def test_mixtures_of_experts_by_unknown_software_have_an_interval_of_their_own() -> None:
    dense, experts = load_model("llama3-8b"), load_model("mixtral-8x7b")
    h100 = load_cluster("h100-80gb", 1)
    assert base_regime(h100, dense, TRAINING) == regimes()[UNMEASURED]
    assert base_regime(h100, experts, TRAINING) == regimes()[UNMEASURED_KINDS["experts"]]
    assert base_regime(TRN1, experts, TRAINING) == regimes()["trn1"], "what experts add is added there"
    a100 = load_cluster("a100-80gb", 1)  # had no mixtures
    assert base_regime(a100, experts, TRAINING) == regimes()[UNMEASURED] and MODEL in unknown_of(
        a100, experts, TRAINING
    )
    low, high = (step_time_factors(h100, MEASURED, (), base_regime(h100, one, TRAINING)) for one in (dense, experts))
    assert high[0] < low[0] and low[1] < high[1]


def test_probability_to_fit() -> None:
    capacity = TRN1.device.memory_bytes
    assert fits_probability(capacity, capacity, TRN1) == pytest.approx(0.5)
    spread = regimes()["trn1"].memory_spread
    assert fits_probability(capacity * (1 - spread), capacity, TRN1) == pytest.approx(0.85, abs=0.01)
    probabilities = [fits_probability(share * capacity, capacity, TRN1) for share in (0.5, 0.8, 0.95, 1.1, 2.0)]
    assert probabilities == sorted(probabilities, reverse=True)


def test_an_estimate_carries_its_interval() -> None:
    model = load_model("llama3-70b")
    found = estimate(model, TRAINING, TRN1, MEASURED)
    low, high = step_time_factors(TRN1, MEASURED)
    assert found.step_time_low_s == pytest.approx(low * found.step_time_s)
    assert found.step_time_high_s == pytest.approx(high * found.step_time_s)
    assert (found.fits_probability > 0.5) == found.fits


def test_published_results_lie_inside() -> None:
    """With the constants as shipped: at least 85 % of the results that are whole."""
    inside = [one.step_time_low_s <= float(row["step_time_s"]) <= one.step_time_high_s for row, one in predictions()]
    assert sum(inside) >= 0.85 * len(inside)


def test_the_ratio_of_two_layouts() -> None:
    """What differs less is surer; the sure order does not depend on which is asked first."""
    widths = differences()
    other_cut = replace(MEASURED, pp=4, dp=4, stage_layers=(20,) * 4)
    low, high = difference_factors(TRN1, MEASURED, other_cut)
    assert log(high) ** 2 == pytest.approx(widths["any"] + widths["pipeline"])
    assert low == pytest.approx(1 / high)
    narrower = replace(MEASURED, tp=8, dp=8)
    assert difference_factors(TRN1, MEASURED, narrower)[1] > high
    assert difference_factors(TRN1, MEASURED, MEASURED) == (1.0, 1.0)


def test_a_ratio_is_never_less_sure_than_two_results_that_have_nothing_in_common() -> None:
    far = replace(MEASURED, tp=1, cp=4, ep=8, microbatch_size=64, dp=64, recompute=("full",), attention_kernel="plain")
    own = [log(factor) for layout in (MEASURED, far) for factor in step_time_factors(TRN1, layout)]
    high = difference_factors(TRN1, MEASURED, far)[1]
    assert log(high) <= (own[1] ** 2 + own[3] ** 2) ** 0.5 * (1 + 1e-9)


def test_toss_ups() -> None:
    other = replace(MEASURED, pp=4, dp=4, stage_layers=(20,) * 4)
    width = log(difference_factors(TRN1, MEASURED, other)[1])
    assert toss_up(TRN1, MEASURED, 1.0, other, exp(0.9 * width))
    assert toss_up(TRN1, other, exp(0.9 * width), MEASURED, 1.0)
    assert not toss_up(TRN1, MEASURED, 1.0, other, exp(1.1 * width))


LONGER = "in 21 groups of results the fastest by prediction took 0.5% longer than others with equal predictions"
PICKS = {"groups": 21, "measured_features": log(1.005), "new_features": log(1.005 * 1.026)}


@pytest.mark.parametrize(
    ("new", "factor", "told"),
    [
        ((), 1.005, LONGER),
        (
            ("cp=2",),
            1.005 * 1.026,
            f"{LONGER}, and 2.6% more for each thing that the fit had not seen: no result has cp=2",
        ),
        (
            ("cp=2", "pp=2"),
            1.005 * 1.026**2,
            f"{LONGER}, and 2.6% more for each thing that the fit had not seen: no result has cp=2, pp=2",
        ),
    ],
)
def test_the_reason_for_what_to_expect_is_what_is_reckoned(
    monkeypatch: pytest.MonkeyPatch, new: tuple[str, ...], factor: float, told: str
) -> None:
    monkeypatch.setattr(interval, "picks", lambda: PICKS)
    base = regimes()["trn1"]
    assert expected_factor(new, base, picked=True) == pytest.approx(factor)
    assert expected_note(new, base, picked=True) == told
    assert expected_note(new, base, picked=False) == ""


def test_the_reason_where_picks_are_missed_as_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    base = regimes()["trn1"]
    monkeypatch.setattr(interval, "picks", lambda: PICKS | {"measured_features": 0.0, "new_features": log(1.03)})
    assert expected_factor(("cp=2", "pp=2"), base, picked=True) == pytest.approx(1.03**2)
    assert expected_note(("cp=2", "pp=2"), base, picked=True) == (
        "no result has cp=2, pp=2; layouts picked with something that the fit had not seen took 3.0% longer than "
        "others with equal predictions, for each such thing"
    )
    same = "in 21 groups of results the fastest by prediction was no worse missed than others"
    assert expected_note((), base, picked=True) == same
