"""What torchrun and Slurm say about a process, and what is wrong with it when they contradict themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import AutoshardError
from autoshard.runtime.environment import ClusterEnvironment, cluster_environment, first_host

TORCHRUN = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
SLURM = {
    "SLURM_PROCID": "9",
    "SLURM_NTASKS": "16",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "trn[03-04]",
    "SLURM_JOB_ID": "15007",
}


def test_nothing_set_is_no_cluster() -> None:
    assert cluster_environment({}) is None
    assert cluster_environment({"MASTER_ADDR": "10.0.0.1", "SLURM_JOB_ID": "7"}) is None


def test_torchrun() -> None:
    environment = cluster_environment(TORCHRUN)
    assert environment == ClusterEnvironment("torchrun", 9, 16, 1, "10.0.0.1", 29500)
    assert environment.init_method == "env://"


def test_slurm_takes_the_first_host_and_a_port_of_the_job() -> None:
    environment = cluster_environment(SLURM)
    # 15000 + 15007 mod 15000
    assert environment == ClusterEnvironment("slurm", 9, 16, 1, "trn03", 15007)
    assert environment.init_method == "tcp://trn03:15007"
    given_port = cluster_environment(SLURM | {"MASTER_PORT": "4000", "MASTER_ADDR": "fe80::1"})
    assert given_port is not None
    assert given_port.init_method == "tcp://[fe80::1]:4000"


def test_torchrun_inside_srun_is_torchrun() -> None:
    environment = cluster_environment(SLURM | TORCHRUN)
    assert environment is not None
    assert environment.launcher == "torchrun"


def test_a_batch_script_that_srun_did_not_start_is_no_cluster() -> None:
    # sbatch sets SLURM_PROCID=0 and SLURM_NTASKS for the script itself, which is one process
    batch = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_NODELIST"}
    assert cluster_environment(batch) is None


def test_an_interactive_step_has_its_own_size() -> None:
    environment = cluster_environment(SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
    assert environment is not None
    assert environment.world_size == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "x"}, "RANK='x' is not an integer"),
        ({"RANK": "1.0"}, "RANK='1.0' is not an integer"),
        ({"RANK": "16"}, "RANK=16 must be 0 to 15: WORLD_SIZE=16"),
        ({"RANK": "-1"}, "RANK=-1 must be 0 to 15: WORLD_SIZE=16"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0 must be 1 or more"),
        ({"LOCAL_RANK": "16"}, "LOCAL_RANK=16 must be 0 to 15: WORLD_SIZE=16"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000 must be 1 to 65535"),
        (
            {"LOCAL_RANK": "", "MASTER_PORT": ""},
            (
                "RANK=9 and WORLD_SIZE=16 and MASTER_ADDR=10.0.0.1 set but LOCAL_RANK, MASTER_PORT not: "
                "start with torchrun, which sets all of RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, "
                "or unset RANK, WORLD_SIZE, MASTER_ADDR"
            ),
        ),
    ],
)
def test_torchrun_mistakes(changes: dict[str, str], message: str) -> None:
    with pytest.raises(AutoshardError) as error:
        cluster_environment(TORCHRUN | changes)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SLURM_PROCID": "99999999999999999999"}, "SLURM_PROCID='99999999999999999999' is not an integer"),
        ({"SLURM_PROCID": "16"}, "SLURM_PROCID=16 must be 0 to 15: SLURM_NTASKS=16"),
        (
            {"SLURM_STEP_NODELIST": "trn[3"},
            "SLURM_STEP_NODELIST='trn[3' is not a list of hosts like 'node[01-03,7],x': cannot read '[3'",
        ),
    ],
)
def test_slurm_mistakes(changes: dict[str, str], message: str) -> None:
    with pytest.raises(AutoshardError) as error:
        cluster_environment(SLURM | changes)
    assert str(error.value) == message


def test_a_variable_that_srun_always_sets_is_named() -> None:
    without = {name: value for name, value in SLURM.items() if name != "SLURM_LOCALID"}
    with pytest.raises(AutoshardError, match="SLURM_LOCALID is not set"):
        cluster_environment(without)


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("node[01-03,7],x", "node01"),
        ("x,node[01-03]", "x"),
        ("ip-10-0-0-7", "ip-10-0-0-7"),
        ("rack[2-3]n[10,12]", "rack2n10"),
        ("queue1-dy-trn1-[1-16]", "queue1-dy-trn1-1"),
        ("n[007]", "n007"),
        ("n[0-999999999].example.com", "n0.example.com"),
    ],
)
def test_first_host(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host


@given(st.text(alphabet="n01,-[] ", max_size=12))
def test_a_node_list_gives_a_host_or_one_error(nodelist: str) -> None:
    try:
        host = first_host(nodelist)
    except AutoshardError:
        return
    assert host and not set(host) & set(",[] ")
