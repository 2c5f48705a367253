"""Guards by which autoshard keeps to the contract, each with what is said without it; and why some rules need none."""

TRAINED = {
    "sums on the host": "[rule float64]",
    "dropout's keys in halves": "[rule int64]",
    "dropout's rows in halves": "[rule int64]",
    "places of rounding in halves": "[rule int64]",
    "a ring by send and receive": "[rule even splits]",
    "an all-to-all of two, gathered": "[rule all-to-all sizes]",
    "experts of two ranks, gathered": "[rule all-to-all sizes]",
    "timing by synchronize": "0, and more with it",
    "contiguous tensors": "[rule contiguous]",
    "control over gloo": "No backend type associated with device type cpu",
    "static shapes": "[rule dynamic shapes]",
    "plain AdamW": "aten::_fused_adamw_",
}
"""Guard of a step -> the end of what is said without it."""
STARTS = {
    "LOCAL_RANK": "[rule local rank]",
    "MASTER_ADDR": "[rule root address]",
    "touching nothing": "[rule group first]",
    "a core of its own": "[rule one core]",
    "a bare name": "[rule index]",
}
"""Guard of a start -> the end of what is said without it."""
SENT = {"a ring of keys, gathered": "[rule point to point]"}
"""Guard of a version that does not send -> the end of what is said without it."""
TESTS = {
    "test_a_step_without_a_guard": TRAINED,
    "test_a_start_without_a_guard": STARTS,
    "test_a_version_that_does_not_send": SENT,
}
"""Test of test_mutations.py -> its guards."""
UNGUARDED = {
    "generator": "random numbers are autoshard's own, or drawn on the host: nothing makes a generator of the device",
    "host tensors": "what is on the host goes over gloo (guard `control over gloo`: torch itself refuses without it)",
    "empty": "no layout of the parity tests sends one: nothing to take away",
    "barrier": "the one barrier of a run is that of the default group",
    "all-to-all world": "groups are those of a mesh, so their sizes divide the world's",
    "graph float64": "what needs float64 is summed outside of graphs (guard `sums on the host`)",
    "graph groups": "a graph has the groups of one rank's axes at most, fewer than 16: the plan counts them",
    "graph world": "graphs name the groups of the mesh, which were made before they are traced",
    "graph broadcast": "graphs of whole stages have functional collectives alone; weights are broadcast by none",
}
"""Rule -> why autoshard cannot break it where there is no guard to take away."""
