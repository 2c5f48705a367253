"""What NxD 0.18.0 gets wrong, shown on the library itself, and that the backend does not."""

from __future__ import annotations

import pytest

from tests.nxd.test_conformance import run


def test_context_parallelism_without_zero_1_doubles_the_gradient() -> None:
    """Trap 1, which is why such plans are refused."""
    found = run("context_parallel_without_zero_1", {}, 2)[0]
    assert found["nxd"] == pytest.approx(2 * found["truth"], rel=1e-5)
    assert found["refused"] == ("cp=2 without zero=1: NxD applies gradients that are 2 times too large; use zero=1")


def test_a_run_with_context_parallelism_is_resumed_exactly() -> None:
    """Trap 2: NxD's optimizer files of the two ranks have one name; ours are boxes of weights, by name."""
    found = run("resumed_context_parallel", {}, 2)
    for rank in found:
        assert rank["resumed"] == rank["straight"]
    assert found[0]["file_names"][0] == found[1]["file_names"][0], "NxD still names both files alike"


def test_the_fused_weight_loses_its_mark() -> None:
    """Trap 4."""
    found = run("fused_weight", {}, 2)[0]
    assert found == {"fused": False, "apart": True}


def test_replicated_heads_are_repeated_row_by_row_on_trn2() -> None:
    """Trap 5: two ranks that should hold one head hold mixed rows; our weights come from the mesh."""
    found = run("key_value_rows", {}, 4)
    assert any(not one["same_as_neighbour"] for one in found)
    assert all(one["ours_as_neighbour"] for one in found)
    assert found[0]["loss"] == pytest.approx(found[0]["truth"], rel=1e-5)


def test_an_embedding_that_scatters_along_another_dim_is_not_summed() -> None:
    """Trap 6."""
    found = run("embedding_along_batch", {}, 2)[0]
    assert not found["summed"]


def test_adapters_of_the_library_learn_apart_under_sequence_parallelism() -> None:
    """NxD's lora_A has no mark, so its gradients, of a part of the sequence each, are summed by nobody."""
    for rank in run("adapter_of_half_a_sequence", {}, 2):
        assert rank == {"is_whole": False, "sum_is_whole": True}


def test_the_gradient_norm_counts_replicated_heads_again_and_again() -> None:
    """Trap 10: NxD's own norm of the same gradients."""
    found = run("gradient_norms", {}, 2)[0]
    assert found["ours"] == pytest.approx(found["truth"], rel=1e-5)
    assert found["nxd"] > 1.01 * found["truth"]
