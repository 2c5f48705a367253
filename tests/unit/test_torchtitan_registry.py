"""torchtitan's Python registries: written for today's main branch and TorchTitan Neuron, read without executing."""

import ast
from pathlib import Path

import pytest

from autoshard.errors import AutoshardError
from autoshard.interop.export import export
from autoshard.interop.torchtitan_registry import parse_registry
from autoshard.planner.imported import plan_of
from autoshard.planner.planning import plan_for
from autoshard.planner.request import PlanRequest
from autoshard.planner.written import read_written
from autoshard.plans.plan import Plan
from tests.unit.plan_examples import plan_70b
from tests.unit.written_files import imported

REGISTRY = """
import os
os.abort()

def llama3_70b() -> Trainer.Config:
    spec = model_registry("70B")
    return Trainer.Config(
        model_spec=model_registry("70B", converters=[x]),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2 * 8192, max_context_length=8192, steps=1000),
        parallelism=ParallelismConfig(tensor_parallel_degree=8, data_parallel_shard_degree=-1),
        activation_checkpoint=FullAC.Config(),
    )

def llama3_70b_long() -> Trainer.Config:
    config = llama3_70b()
    config.training.num_tokens_per_train_step = 64 * 8192
    config.parallelism.context_parallel_degree = 2
    config.activation_checkpoint = None
    return config

def older() -> Trainer.Config:
    config = llama3_8b()
    config.training = TrainingConfig(local_batch_size=4, seq_len=4096)
    config.activation_checkpoint.mode = "selective"
    return config

def helper() -> int:
    return 1

def round_and_round() -> Trainer.Config:
    return round_and_round()
"""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def native(**pins: object) -> Plan:
    asked = {"tp": 4, "pp": 1, "cp": 1, "zero": 3, "recompute": "full", **pins}
    return plan_for(PlanRequest("llama3-70b", "trn2.48xlarge", 4, backend="torch", top=0, pins=asked))


def test_a_function_is_read() -> None:
    assert parse_registry(REGISTRY, "r.py", "llama3_70b") == {
        "model": {"flavor": "70B", "name": "llama3"},
        "training": {"steps": 1000, "seq_len": 8192, "local_batch_size": 2},
        "parallelism": {
            "tensor_parallel_degree": 8,
            "data_parallel_shard_degree": -1,
            "pipeline_parallel_microbatch_size": 2,
        },
        "activation_checkpoint": {"mode": "full"},
    }


def test_a_function_on_top_of_another_one() -> None:
    found = parse_registry(REGISTRY, "r.py", "llama3_70b_long")
    assert found["training"]["global_batch_size"] == 64 and found["activation_checkpoint"] == {"mode": "none"}
    assert found["parallelism"]["context_parallel_degree"] == 2 and found["parallelism"]["tensor_parallel_degree"] == 8
    older = parse_registry(REGISTRY, "r.py", "older")
    assert older["model"] == {"name": "llama3", "flavor": "8B"}
    assert older["activation_checkpoint"] == {"mode": "selective", "selective_ac_option": "op"}
    assert older["training"] == {"local_batch_size": 4, "seq_len": 4096}


@pytest.mark.parametrize(
    ("text", "name", "error"),
    [
        (
            REGISTRY,
            None,
            (
                "r.py has 4 functions that return a Trainer.Config: llama3_70b, llama3_70b_long, older, "
                "round_and_round; name one as r.py:FUNCTION"
            ),
        ),
        (
            REGISTRY,
            "llama3_7b",
            (
                "r.py has no function 'llama3_7b' that returns a Trainer.Config; did you mean llama3_70b or "
                "llama3_70b_long?"
            ),
        ),
        (REGISTRY, "round_and_round", "r.py: round_and_round starts from round_and_round, which never ends"),
        ("def f(:", None, "r.py is no Python that can be read in line 1"),
        ("x = " + "(" * 400 + ")" * 400, None, "r.py is no Python that can be read in line 1"),
        ("x = [" + "1," * 20_001 + "]", None, "r.py has 20,007 parts, more than the 20,000 that are read"),
        (
            "def f() -> Trainer.Config:\n    c = g()\n    c.training.num_tokens_per_train_step = 100",
            "f",
            "training.num_tokens_per_train_step=100 must be whole sequences of 2048 tokens",
        ),
    ],
)
def test_errors(text: str, name: str | None, error: str) -> None:
    with pytest.raises(AutoshardError) as raised:
        parse_registry(text, "r.py", name)
    assert str(raised.value) == error


def test_the_command_reads_one_function() -> None:
    Path("registry.py").write_text(REGISTRY)
    given = {"instance": "trn1.32xlarge", "nodes": 16, "backend": "torch"}
    found = plan_of("registry.py", read_written("registry.py:llama3_70b_long", given))
    s = found.strategy
    assert (s.tp, s.cp, s.microbatch_size, s.zero, s.recompute) == (8, 2, 2, 3, ("none",))
    assert found.training.global_batch_size == 64


def test_todays_registry() -> None:
    text = export(plan_70b(), "torchtitan").text
    ast.parse(text)
    assert "from torchtitan.models.llama3.config_registry import llama3_70b\n" in text
    assert "def llama3_70b_tp32_pp8_fsdp2_sac() -> Trainer.Config:\n" in text
    assert "    config.training.num_tokens_per_train_step = 1024 * 8192\n" in text
    assert "    config.parallelism.num_pp_microbatches = 512\n" in text
    assert "    config.activation_checkpoint = SelectiveAC.Config()\n" in text
    assert "'norm', 'lm_head']" in text


def test_torchtitan_neuron() -> None:
    plan = native()
    made = export(plan, "torchtitan")
    ast.parse(made.text)
    for line in (
        "from torchtitan_neuron.models.llama3 import model_registry",
        "def llama3_70b_tp4_fsdp64_fac() -> Trainer.Config:",
        "    config.training.local_batch_size = 1",
        "    config.training.seq_len = 8192",
        "    config.parallelism.data_parallel_shard_degree = 64",
        "    config.parallelism.fsdp_reshard_after_forward = 'always'",
        "    config.activation_checkpoint.mode = 'full'",
        "    config.compile.enable = True",
        "    config.compile.backend = 'neuron'",
    ):
        assert f"{line}\n" in made.text
    assert any(
        one.startswith("TorchTitan Neuron: torchtitan_neuron.models.llama3 and llama3_70b") for one in made.left_out
    )
    again = imported(made.text, "conf.py", instance="trn2.48xlarge", nodes=4)
    assert (again.cluster, again.strategy, again.training) == (plan.cluster, plan.strategy, plan.training)
