"""Which of several failures is the cause, and the one message that tells it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.checkpoint.s3_bucket import S3Error, errors_of
from autoshard.errors import NoLayoutFits
from autoshard.runtime.failures import RankFailure, cause, failure_message, log_tail
from autoshard.runtime.last_action import LastActions
from autoshard.runtime.worker import describe

KILLED = RankFailure(3, "F2.0", 1.2, exit_code=-9)
LOST = RankFailure(0, "all-reduce", 1.0, "RuntimeError", "Connection closed by peer", echo=True)
ABORTED = RankFailure(1, "F2.0", 0.9, exit_code=-6)
RAISED = RankFailure(2, "F3.0", 1.3, "ValueError", "loss is nan")


def test_the_kill_is_the_cause_of_lost_connections_heard_of_before() -> None:
    assert cause([LOST, KILLED, ABORTED]) == KILLED


def test_the_first_clear_failure_wins() -> None:
    assert cause([RAISED, LOST, KILLED]) == KILLED


def test_without_a_clear_failure_an_abort_goes_before_a_lost_connection() -> None:
    assert cause([LOST, ABORTED]) == ABORTED
    assert cause([LOST]) == LOST


@pytest.mark.parametrize(
    ("failure", "headline"),
    [
        (KILLED, "rank 3 was killed by signal 9 (SIGKILL) in F2.0"),
        (RAISED, "rank 2 failed in F3.0: ValueError: loss is nan"),
        (RankFailure(0, "", 0.0, exit_code=1), "rank 0 exited with code 1 before its first action, its work not done"),
        (RankFailure(5, "B7.1", 0.0, silent_s=30.2), "rank 5 hung in B7.1: nothing heard from it for 30 s"),
    ],
)
def test_headlines(failure: RankFailure, headline: str) -> None:
    assert failure.headline == headline


@pytest.mark.parametrize(
    ("text", "does"),
    [
        ("Requested:1 Available:0, cores busy", "another process has the NeuronCore: neuron-ls shows which"),
        ("NRT model scheduling failed", "the device's memory is full, or has no piece that is large enough: plan with"),
        ("[NCC_EVRF007] 10746838 instructions", "the graph has more instructions than the compiler takes: plan with"),
        ("Neuron runtime should not be initialized before the init_process_group.", "something touched the device"),
    ],
)
def test_what_to_do_about_an_error_of_neuron(text: str, does: str) -> None:
    headline = RankFailure(2, "F0.0", 0.0, "RuntimeError", text).headline
    assert headline.startswith(f"rank 2 failed in F0.0: RuntimeError: {text} ({does}")


def test_one_rank_has_no_others(tmp_path: Path) -> None:
    message = failure_message(RankFailure(0, "F0.0", 0.0, exit_code=-11), 1, tmp_path / "rank-00.log")
    assert message == "rank 0 was killed by signal 11 (SIGSEGV) in F0.0"


def test_the_tail_of_a_log_is_20_clean_lines(tmp_path: Path) -> None:
    log = tmp_path / "rank-00.log"
    log.write_bytes(b"".join(b"line %d\n" % i for i in range(5000)) + b"\x1b[2J\xff" + b"x" * 1000 + b"\n\n")
    tail = log_tail(log)
    assert len(tail) == 20
    assert tail[0] == "line 4981"
    assert tail[-1] == "[2J\ufffd" + "x" * 296
    assert log_tail(tmp_path / "missing.log") == []


def test_a_circle_of_causes_ends() -> None:
    error, wrapper = ValueError("loss is nan"), RuntimeError("failed")
    error.__cause__, wrapper.__cause__ = wrapper, error
    assert not describe(error)["echo"]


def test_a_hang_of_neuron_s_runtime_is_an_echo_and_says_where_to_look() -> None:
    text = (
        "missing collectives status on Neuron Device 0 NC 0, model m - suspected hang in collectives operation 0 of 9"
    )
    assert describe(RuntimeError(text))["echo"]
    hung = RankFailure(1, "step 3", 1.0, "RuntimeError", text, echo=True)
    assert "(ranks waited for each other in a collective, in vain: the log of a rank that says something else" in (
        hung.headline
    )
    first = RankFailure(0, "step 3", 2.0, "ValueError", "no such file")
    assert cause([hung, first]) == first
    broken = RankFailure(1, "step 3", 1.0, "RuntimeError", "NRT_EXEC_HW_ERR_HBM_UE (1201)")
    assert broken.headline.endswith(
        "(hardware failed, results may be wrong: go on from the last checkpoint on another instance)"
    )


def test_lost_connections_are_echoes_wherever_they_are_in_the_chain() -> None:
    def wrapped() -> None:
        try:
            raise RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer")
        except RuntimeError as error:
            raise ValueError("step 3 failed") from error

    with pytest.raises(ValueError, match="step 3") as error:
        wrapped()
    assert describe(error.value) == {"error_type": "ValueError", "error_text": "step 3 failed", "echo": True}
    assert describe(ValueError("loss is nan"))["echo"] is False
    assert describe(AssertionError()) == {
        "error_type": "AssertionError",
        "error_text": "AssertionError()",
        "echo": False,
    }


def test_a_store_that_a_rank_cannot_reach_is_one_line_and_no_crash(tmp_path: Path) -> None:
    """boto3's own error is a lost connection; the ranks that wait for this one lose theirs."""

    def save() -> None:
        with errors_of("s3://bucket/run/step-00000004/rank-00001.safetensors"):
            raise ConnectionResetError("Connection reset by peer")

    with pytest.raises(S3Error) as error:
        save()
    met = RankFailure(1, "step 3, checkpoint", 1.1, **describe(error.value))
    assert cause([LOST, met]) == met
    text = "s3://bucket/run/step-00000004/rank-00001.safetensors: S3 cannot be used: Connection reset by peer"
    assert failure_message(met, 2, tmp_path / "rank-01.log") == text
    assert met.exit_code_of_run == 2
    fits = RankFailure(0, "", 0.0, **describe(NoLayoutFits("no layout fits")))
    assert failure_message(fits, 1, tmp_path / "rank-00.log") == "no layout fits"


@given(st.lists(st.text(max_size=300), min_size=1, max_size=5))
def test_the_last_action_is_the_last_one_written(tmp_path_factory: pytest.TempPathFactory, actions: list[str]) -> None:
    actions = [action.encode("utf-8", "replace").decode() for action in actions]
    memory = LastActions.create(tmp_path_factory.mktemp("actions") / "last_actions", 2)
    for action in actions:
        memory.write(1, action)
    assert actions[-1].startswith(memory.read(1))
    assert len(memory.read(1).encode()) >= min(len(actions[-1].encode()), 246 - 3)
    assert (memory.count(1), memory.count(0), memory.read(0)) == (len(actions), 0, "")
    memory.close()
