"""torchtitan's Python registries: written for today's main branch and TorchTitan Neuron, read without executing."""

import ast
from pathlib import Path

import pytest

from autoshard.errors import AutoshardError
from autoshard.interop.export import export
from autoshard.interop.torchtitan import UNREAD, torchtitan_layout
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
    return plan_for(PlanRequest("llama3-70b", "trn2.48xlarge", 4, backend="torch", loss_chunks=1, top=0, pins=asked))


def test_a_function_is_read() -> None:
    assert parse_registry(REGISTRY, "r.py", "llama3_70b") == {
        "model": {"converters": ["x"], "flavor": "70B", "name": "llama3"},
        "training": {"steps": 1000, "seq_len": 8192, "local_batch_size": 2},
        "parallelism": {
            "tensor_parallel_degree": 8,
            "data_parallel_shard_degree": -1,
            "pipeline_parallel_microbatch_size": 2,
        },
        "activation_checkpoint": {"mode": "full"},
    }


def test_what_a_function_within_does_is_not_what_the_function_does() -> None:
    within = "        if c.x:\n            return c\n        n = 5\n        c.training.seq_len = n\n        c.own()\n"
    begin, end = "    c = g()\n    n = 4096\n", "    c.training.seq_len = n\n    c.build()\n    return c"

    def read(line: str) -> dict[str, dict[str, object]]:
        return parse_registry(f"def f() -> Trainer.Config:\n{begin}    {line}\n{within}{end}", "r.py", "f")

    found = read("def later(c):")
    assert found["training"] == {"seq_len": 4096}
    assert [*found[UNREAD]] == ["g()", "c.build()"]
    with pytest.raises(AutoshardError, match=r"^r.py: line 4 of f returns on a condition, which cannot be read; "):
        read("if c.y:")


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
        ("x" + ".y" * 500 + " = 1", None, "r.py has expressions too deep to read"),
        ("x = [" + "1," * 20_001 + "]", None, "r.py has 20,007 parts, more than the 20,000 that are read"),
        (
            "def f() -> Trainer.Config:\n    c = g()\n    c.training.num_tokens_per_train_step = 100\n    return c",
            "f",
            "training.num_tokens_per_train_step=100 must be whole sequences of 2048 tokens",
        ),
    ],
)
def test_errors(text: str, name: str | None, error: str) -> None:
    with pytest.raises(AutoshardError) as raised:
        parse_registry(text, "r.py", name)
    assert str(raised.value) == error


@pytest.mark.parametrize(
    ("function", "flavor", "model"),
    [
        ("deepseek_v3_671b", "671B", {"name": "deepseek_v3", "flavor": "671B"}),
        ("sft_qwen3_8b", "8B", {"flavor": "8B"}),
    ],
)
def test_a_module_is_named_by_its_functions(function: str, flavor: str, model: dict[str, str]) -> None:
    text = f'def {function}() -> Trainer.Config:\n    return Trainer.Config(model_spec=model_registry("{flavor}"))\n'
    assert parse_registry(text, "r.py", function)["model"] == model


CALLED = """
TP = 4
CONVERTERS = [Float8LinearConverter.Config(recipe="rowwise"), MXFP8GroupedExpertsConverter.Config()]
SPEC = model_registry("8B", converters=CONVERTERS)

def llama3_local() -> Trainer.Config:
    length = 2 * 4096
    parallelism = ParallelismConfig(tensor_parallel_degree=TP, pipeline_parallel_degree=4)
    parallelism.pipeline_parallel_degree = 2
    model_spec = SPEC
    training = TrainingConfig(max_context_length=length, num_tokens_per_microbatch_per_dp_rank=2 * length)
    config: Trainer.Config = _OwnTrainerConfig(
        model_spec=model_spec, parallelism=parallelism, training=training, activation_checkpoint=FullAC.Config()
    )
    parallelism.context_parallel_degree = 2
    titan = config.training
    titan.dtype = "bfloat16"
    return config

def llama3_plain() -> Trainer.Config:
    config = llama3_local()
    config.model_spec = model_registry("8B")
    return config

def llama3_lora() -> Trainer.Config:
    return Trainer.Config(model_spec=model_registry("8B", converters=[LoRAConverter.Config(rank=4), Sparse.Config()]))

def llama3_nvfp4() -> Trainer.Config:
    return Trainer.Config(model_spec=model_registry("8B", converters=[NVFP4LinearConverter.Config()]))
"""


def test_names_stand_for_what_they_were_set_to() -> None:
    found = parse_registry(CALLED, "r.py", "llama3_local")
    assert found["parallelism"] == {
        "tensor_parallel_degree": 4,
        "pipeline_parallel_degree": 2,
        "context_parallel_degree": 2,
        "pipeline_parallel_microbatch_size": 2,
    }
    assert found["training"] == {"dtype": "bfloat16", "seq_len": 8192, "local_batch_size": 2}
    assert found["activation_checkpoint"] == {"mode": "full"}


def test_converters_are_read_or_told() -> None:
    """Another model_spec has other converters."""
    local, plain, lora = (
        torchtitan_layout(parse_registry(CALLED, "r.py", f"llama3_{name}")) for name in ("local", "plain", "lora")
    )
    assert local.products == {
        "model.converters has Float8LinearConverter": "fp8",
        "model.converters has MXFP8GroupedExpertsConverter": "mxfp8",
    }
    assert (plain.options["model"], plain.products) == ("llama3-8b", {})
    assert lora.warnings == ("model.converters has Sparse: it is not in the price",)
    assert lora.lora is not None
    assert (lora.lora.r, lora.lora.lora_alpha, lora.lora.every) == (4, 16.0, True)
    nvfp4 = torchtitan_layout(parse_registry(CALLED, "r.py", "llama3_nvfp4"))
    assert nvfp4.products == {"model.converters has NVFP4LinearConverter": "nvfp4"} and not nvfp4.warnings


WRITTEN_OUT, LITERAL = "torchtitan's own dataclass, written out,", "a literal or the name of one"
STATEMENT = "a plain statement of the function"
BODIES = {
    "config.parallelism = degrees(8)": (3, "has parallelism=degrees(8)", WRITTEN_OUT),
    "config.training = base.training": (3, "has training=base.training", WRITTEN_OUT),
    "config.activation_checkpoint = MyAC.Config()": (3, "has activation_checkpoint=MyAC.Config()", WRITTEN_OUT),
    "config.model_spec = spec": (3, "has model_spec=spec", WRITTEN_OUT),
    "config.parallelism = ParallelismConfig(**degrees)": (
        3,
        "has ParallelismConfig(**degrees)",
        "keywords that are written out",
    ),
    "config.training.seq_len = total // 4": (3, "has training.seq_len=total // 4", LITERAL),
    "if FAST: config.training.seq_len = 4": (
        3,
        "changes config.training.seq_len on a condition or in place",
        STATEMENT,
    ),
    "config.training.seq_len *= 2": (3, "changes config.training.seq_len on a condition or in place", STATEMENT),
    "if FAST: return config": (3, "returns on a condition", STATEMENT),
    "config = replace(config, steps=1)": (3, "takes replace(config, steps=1)", "a call of Trainer.Config"),
    "tp = 4\n    if FAST: tp = 8\n    config.parallelism.tensor_parallel_degree = tp": (
        5,
        "has parallelism.tensor_parallel_degree=tp",
        LITERAL,
    ),
    "first = llama3_8b()\n    first.training.seq_len = 4\n    config = first": (
        5,
        "takes first",
        "a call of Trainer.Config",
    ),
}


@pytest.mark.parametrize("body", BODIES)
def test_a_layout_that_is_not_written_out_is_refused(body: str) -> None:
    text = f"def f() -> Trainer.Config:\n    config = Trainer.Config()\n    {body}\n    return config"
    with pytest.raises(AutoshardError) as raised:
        parse_registry(text, "r.py", "f")
    line, told, instead = BODIES[body]
    assert str(raised.value) == f"r.py: line {line} of f {told}, which cannot be read; {instead} can be"


def test_what_does_not_matter_to_the_layout_may_be_anything() -> None:
    body = "config.training.steps = n\n    config.checkpoint.interval += 1\n    config.loss = loss(1)\n    log.info(1)"
    text = f"def f() -> Trainer.Config:\n    config = Trainer.Config()\n    {body}\n    return config"
    assert torchtitan_layout(parse_registry(text, "r", "f")).warnings == ()


def test_a_function_without_a_configuration() -> None:
    with pytest.raises(AutoshardError, match=r"^r: f returns nothing that can be read$"):
        parse_registry("def f() -> Trainer.Config:\n    pass", "r", "f")


def test_calls_whose_settings_are_not_known_are_told() -> None:
    """Not a base of which all that matters is overruled, as in what export writes."""
    text = "def f() -> Trainer.Config:\n    config = llama3_8b()\n    tune(config, 4)\n    return config"
    written = torchtitan_layout(parse_registry(text, "r", "f"))
    told = ("tune(config, 4): what it sets is not read", "llama3_8b(): what it sets is not read")
    assert (set(written.warnings), written.left_out) == (set(told), ())
    assert torchtitan_layout(parse_registry(export(plan_70b(), "torchtitan").text, "r", None)).warnings == ()


@pytest.mark.parametrize(
    ("training", "parallelism", "expected"),
    [
        ("", "", (2048, 8, 8)),
        ("max_context_length=8192", "", (8192, 2, 2)),
        ("seq_len=4096", "", (4096, 8, 8)),
        ("seq_len=4096, local_batch_size=1", "", (4096, 1, 1)),
        ("", "num_pp_microbatches=8", (2048, 8, 8)),
        ("", "num_pp_microbatches=8, pipeline_parallel_degree=2", (2048, 8, 64)),
    ],
)
def test_sequences_of_a_microbatch_and_of_a_rank(
    training: str, parallelism: str, expected: tuple[int, int, int]
) -> None:
    """16,384 tokens by default, 8 sequences by the names of releases; a pipeline alone has several microbatches."""
    config = f"Trainer.Config(training=TrainingConfig({training}), parallelism=ParallelismConfig({parallelism}))"
    written = torchtitan_layout(parse_registry(f"def f() -> Trainer.Config:\n    return {config}", "r.py", "f"))
    counts = (written.options["seq_len"], written.options["micro_batch"], written.fields["sequences_per_replica"])
    assert (counts, written.warnings) == (expected, ())


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
