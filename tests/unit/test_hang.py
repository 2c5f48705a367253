"""Which rank hangs, by the stacks that ranks write."""

from autoshard.runtime.hang import is_waiting

WAITS_IN_COLLECTIVE = """\
Thread 0x00007f1 (most recent call first):
  File "/site-packages/autoshard/runtime/worker.py", line 171 in watch_lifeline
  File "/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f2 (most recent call first):
  File "/site-packages/torch/_ops.py", line 1209 in __call__
  File "/site-packages/autoshard/runtime/torch_backend/collectives.py", line 60 in all_reduce
  File "/site-packages/autoshard/runtime/torch_backend/kernels.py", line 160 in forward
"""
WAITS_IN_SHARED_MEMORY = """\
Current thread 0x00007f2 (most recent call first):
  File "/site-packages/autoshard/runtime/torch_backend/shared_memory.py", line 85 in _heard
  File "/site-packages/autoshard/runtime/torch_backend/shared_memory.py", line 70 in read
  File "/site-packages/autoshard/runtime/torch_backend/direct.py", line 70 in finish
"""
WAITS_FOR_A_STAGE = """\
Current thread 0x00007f2 (most recent call first):
  File "/site-packages/autoshard/runtime/torch_backend/transfers.py", line 74 in arrived
  File "/site-packages/autoshard/runtime/torch_backend/pipeline.py", line 106 in _act
"""
COMPUTES = """\
Current thread 0x00007f2 (most recent call first):
  File "/site-packages/torch/nn/functional.py", line 2900 in rms_norm
  File "/site-packages/autoshard/runtime/torch_backend/kernels.py", line 90 in norm
  File "/site-packages/autoshard/runtime/torch_backend/stage_module.py", line 80 in _run
  File "/site-packages/torch/_ops.py", line 1209 in __call__
"""


def test_ranks_that_wait_for_others() -> None:
    assert is_waiting(WAITS_IN_COLLECTIVE)
    assert is_waiting(WAITS_IN_SHARED_MEMORY)
    assert is_waiting("words of its own\n" + WAITS_FOR_A_STAGE)


def test_ranks_that_do_not() -> None:
    assert not is_waiting(COMPUTES)
    assert not is_waiting("")  # a stopped process writes nothing
    assert not is_waiting("the log mentions torch/_ops.py\n")
