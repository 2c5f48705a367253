"""A user's own module becomes the graph that a person would have written, and computes the same."""

import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from autoshard.checkpoint.boxes import Box
from autoshard.cli import main
from autoshard.conversion.convert import Conversion, convert, open_source
from autoshard.conversion.source import WeightReader
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError
from autoshard.graph.count import total_flops
from autoshard.graph.partition import GatherEinsumStep, OperatorStep, Program, Step, partition
from autoshard.layout.mesh import build_mesh
from autoshard.layout.sharding import stage_program
from autoshard.models.huggingface import read_config
from autoshard.models.stage import dim_sizes, learned_count, parameter_count, stage_graph
from autoshard.planner.inputs import inputs_of
from autoshard.planner.request import PlanRequest
from autoshard.plans.validate import read_plan
from autoshard.runtime.rehearse import local_cluster
from autoshard.runtime.torch_backend.kernels import FACTORIES
from autoshard.runtime.torch_backend.pointwise import pointwise
from autoshard.runtime.torch_backend.stage_module import StageModule
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec, load_precision
from autoshard.tracer.export import load_module
from autoshard.tracer.rules.numbers import clamp, formula
from autoshard.tracer.trace import trace_live, trace_model, trace_module
from autoshard.tracer.tracer import RULES, Tracer
from autoshard.tracer.values import Value
from tests.multiprocess.odd_model import OddModel
from tests.multiprocess.plans import plan_of, strategy
from tests.multiprocess.small_configs import CONFIGS
from tests.multiprocess.traced_parameters import parameters_of
from tests.multiprocess.transformers_models import built, config_of_transformers
from tests.traced_models import ODD

SEQ = 24
ODD_MODEL = "tests/multiprocess/odd_model.py:OddModel"


def transformers_model(name: str, **more: Any) -> nn.Module:
    return built(CONFIGS[name] | more)


def built_in(name: str, folder: Path) -> ModelSpec:
    config_of_transformers(CONFIGS[name]).save_pretrained(folder)
    return read_config(folder)


def filled(module: nn.Module) -> nn.Module:
    """With numbers that are not at their initial zeros and ones."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.1 + (parameter if parameter.dim() == 1 else 0))
    return module


def described(program: Program, step: Step) -> object:
    """All of a step but names."""

    def states(view: str) -> object:
        return program.tensor(view).dims, program.states[view]

    if isinstance(step, OperatorStep):
        op = step.operator
        attributes = {key: value for key, value in op.attributes.items() if value is not None}
        inputs, output = tuple(map(states, step.inputs)), states(op.output)
        return op.kind, op.module, op.loop_dims, inputs, output, dict(step.choice), attributes
    if isinstance(step, GatherEinsumStep):
        return states(step.gather.source), [described(program, one) for one in step.einsums]
    return states(step.source), states(step.target), step.transitions


def test_a_module_of_16_bits_is_the_model_that_it_is_in_32() -> None:
    """Tables of positions in the module's own dtype would be rounded beyond recognition."""
    models = [trace_live(transformers_model("llama").to(dtype), SEQ) for dtype in (torch.float32, torch.bfloat16)]
    module = transformers_model("llama")
    for buffer in module.buffers():  # as from_pretrained(dtype=...) leaves them
        assert buffer.dtype == torch.float32
    for parameter in module.parameters():
        parameter.data = parameter.data.bfloat16()
    assert trace_live(module, SEQ) == models[0]
    assert all(parameter.dtype == torch.bfloat16 for parameter in module.parameters())
    assert learned_count(models[1]) == learned_count(models[0])


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # by what torch.compile imports
def test_a_compiled_module_is_the_one_that_it_compiles() -> None:
    """By its class and the names of its parameters, which torch.compile puts under another module."""
    module = OddModel()
    compiled: Any = torch.compile(module)
    assert trace_live(compiled, SEQ) == trace_live(module, SEQ)


@pytest.fixture
def process_group() -> Iterator[None]:
    """A process that has met the others, of which there are none."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # by what torch.compile imports
def test_a_replicated_module_is_the_one_inside_and_a_sharded_one_is_refused() -> None:
    module = OddModel()
    wrapped: Any = nn.parallel.DistributedDataParallel(torch.compile(module))
    assert trace_live(wrapped, SEQ) == trace_live(module, SEQ)
    fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(AutoshardError) as error:
        trace_live(module, SEQ)
    assert str(error.value) == (
        "cannot plan FSDPOddModel: its parameters are sharded already; give the module as it is before fully_shard, "
        "parallelize_module or FullyShardedDataParallel"
    )


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_a_module_that_cannot_be_copied_is_one_error() -> None:
    """A lock, or what the older weight norm leaves in the module: a weight that was computed."""
    locked, normed = OddModel(), OddModel()
    locked.lock = threading.Lock()  # type: ignore[assignment]
    nn.utils.weight_norm(normed.vocabulary)
    for module, reason in (
        (locked, "TypeError: cannot pickle '_thread.lock' object"),
        (normed, "RuntimeError: Only Tensors created explicitly by the user"),
    ):
        with pytest.raises(AutoshardError) as error:
            trace_live(module, SEQ)
        text = str(error.value)
        assert text.startswith(f"cannot plan OddModel: copy.deepcopy fails on it, and a copy is traced ({reason}")
        assert text.endswith("or give the file of its class, my_file.py:MyModel, which is made anew")


def test_a_module_without_numbers_in_its_buffers_is_refused() -> None:
    with torch.device("meta"):
        module = transformers_model("llama")
    with pytest.raises(AutoshardError, match="the buffer model_rotary_emb_inv_freq is on the meta device and has no"):
        trace_live(module, SEQ)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "qwen2 moe"])
def test_traced_equals_the_built_in_family(name: str, tmp_path: Path) -> None:
    """Operator by operator, sharded: FLOPs, bytes and collectives follow, and so does every estimate."""
    traced, known = trace_module(transformers_model(name), name, SEQ), built_in(name, tmp_path)
    assert parameter_count(traced) == parameter_count(known)
    sharded = [strategy(tp=2, ep=2, dp=2)] if known.is_moe else [strategy(tp=4), strategy(tp=2, sp=False, cp=2)]
    for chosen in sharded:
        axes = build_mesh(chosen.tp, 1, 4, chosen.cp, chosen.ep, 4).stage_axes
        programs = []
        for model in (known, traced):
            sizes = dim_sizes(model, 8, SEQ, chosen.tp, 2.0)
            graph = stage_graph(model, sizes, range(2), first=True, last=True)
            programs.append(stage_program(graph, axes, chosen.sequence_parallel))
        left, right = (
            Counter(repr(described(program, step)).replace("shared_ffn", "ffn2") for step in program.steps)
            for program in programs
        )
        assert left == right
        training, cluster = TrainingSpec(SEQ, 8, load_precision("mixed_precision")), local_cluster(chosen.world_size)
        layout = strategy(
            tp=chosen.tp, dp=chosen.dp, cp=chosen.cp, ep=chosen.ep, sp=chosen.sequence_parallel, layers=(2,)
        )
        ours, theirs = (estimate(model, training, cluster, layout) for model in (traced, known))
        assert ours.step_time_s == pytest.approx(theirs.step_time_s, rel=1e-12)  # sums in another order
        assert [one.total_bytes for one in ours.memory] == [one.total_bytes for one in theirs.memory]


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "qwen2 moe", "odd"])
def test_weights_of_the_module_are_read_and_come_back(name: str, tmp_path: Path) -> None:
    """Its state_dict, as people save it, becomes a plan's checkpoint and that the state_dict again, bit by bit."""
    module = filled(OddModel() if name == "odd" else transformers_model(name))
    tensors = {key: value.contiguous() for key, value in module.state_dict().items()}
    expected = dict(module.named_parameters())
    model = trace_live(module, SEQ)
    (tmp_path / "mine").mkdir()
    save_file({key: value.clone() for key, value in tensors.items()}, tmp_path / "mine" / "model.safetensors")
    source = open_source(tmp_path / "mine", model)
    with WeightReader(source) as reader:
        for parameter, value in parameters_of(model, expected).items():
            box = Box((0,) * value.dim(), tuple(value.shape))
            found = torch.from_numpy(reader.read(parameter, box, "F32").view("float32"))
            assert torch.equal(found, value.detach()), parameter
    experts = 2 if model.is_moe else 1
    plan = plan_of(model, strategy(tp=2, pp=2, dp=experts, ep=experts, layers=(model.num_hidden_layers // 2,) * 2), 4)
    convert(source, tmp_path / "cut", Conversion("plan", plan), lambda size: None, lambda size: None)
    cut = open_source(tmp_path / "cut")
    convert(cut, tmp_path / "back", Conversion("hf"), lambda size: None, lambda size: None)
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == expected.keys()
    assert all(torch.equal(back[key], value) for key, value in expected.items())


def test_weights_of_another_module_are_refused_by_the_tensor(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    file = tmp_path / "mine" / "model.safetensors"
    tensors = {**OddModel().state_dict(), "a.buffer": torch.zeros(3)}
    save_file(tensors, file)
    open_source(tmp_path / "mine", ODD)
    save_file({**tensors, "blocks.4.out.weight": torch.zeros(64, 64)}, file)
    with pytest.raises(AutoshardError) as error:
        open_source(tmp_path / "mine", ODD)
    assert str(error.value) == f"{file} has tensor blocks.4.out.weight, and OddModel has 4 blocks"
    save_file({key: value for key, value in tensors.items() if key != "blocks.3.out.weight"}, file)
    with pytest.raises(
        AutoshardError, match=r"mine has no tensor blocks\.3\.out\.weight, which the model of the plan needs"
    ):
        open_source(tmp_path / "mine", ODD)


def test_odd_model_is_what_its_file_says() -> None:
    """So that tests without torch, and its layouts in test_parity.py, are about this module."""
    assert trace_model(ODD_MODEL, 64) == ODD


def test_parameters_and_flops_of_the_odd_model_are_torchs_own() -> None:
    module = OddModel()
    assert parameter_count(ODD) == sum(parameter.numel() for parameter in module.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        module(torch.zeros(3, SEQ, dtype=torch.int64))
    hidden = 4 * 2 * 3 * 8 * SEQ * SEQ * 8  # torch counts the half of attention that a causal mask hides
    graph = stage_graph(ODD, dim_sizes(ODD, 3, SEQ), range(4), first=True, last=True)
    assert total_flops(graph) == counter.get_total_flops() - hidden


class InterleavedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32, bias=False)
        self.q, self.kv, self.o = nn.Linear(32, 32), nn.Linear(32, 16), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        batch, seq, _ = x.shape
        y = x - x.mean(-1, keepdim=True)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5) * self.norm.weight
        q = turned(self.q(y).view(batch, seq, 4, 8), table).transpose(1, 2)
        k, v = self.kv(y).view(batch, seq, 2, 1, 8).unbind(2)
        k, v = turned(k, table).transpose(1, 2).expand(-1, 4, -1, -1), v.transpose(1, 2).repeat_interleave(4, 1)
        hidden = torch.ones(seq, seq, dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-1, -2) / 2).masked_fill(hidden, float("-inf"))
        x = x + self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, seq, 32))
        z = self.up(x)
        return x + self.down(z * torch.sigmoid(1.702 * z) + F.leaky_relu(z).clamp(max=3.0))


def turned(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], 4, 2)) * table).flatten(3)


class Interleaved(nn.Module):
    """Rotary positions with complex numbers, one key-value head, attention written out, one table for both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 32)
        self.layers = nn.ModuleList(InterleavedBlock() for _ in range(2))
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        turns = torch.outer(torch.arange(ids.shape[1]), 1e4 ** -(torch.arange(0, 8, 2) / 8))
        x = self.tokens(ids) * 32**0.5
        for layer in self.layers:
            x = layer(x, torch.polar(torch.ones_like(turns), turns)[:, None])
        return self.head(x)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "odd": OddModel,
    "interleaved": Interleaved,
    "gpt2": lambda: transformers_model("gpt2"),
    "mixtral": lambda: transformers_model("mixtral"),
    "gpt neox": lambda: transformers_model("gpt neox"),
    "mistral": lambda: transformers_model("mistral"),
    "llama with padding": lambda: transformers_model("llama", pad_token_id=3),
}


@pytest.mark.parametrize("name", MODULES)
def test_logits_and_gradients_are_those_of_the_eager_module(name: str) -> None:
    check_computes_the_same(MODULES[name], name)


def check_computes_the_same(make: Callable[[], nn.Module], name: str) -> None:
    """Assert that logits and gradients of the traced model, on one device, are those of the module."""
    module, model = filled(make()), trace_module(make(), name, SEQ)
    generator = torch.Generator().manual_seed(1)
    ids, labels = torch.randint(model.vocab_size, (2, 2, SEQ), generator=generator)
    out: Any = module(ids)
    logits = out if isinstance(out, torch.Tensor) else out.logits
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    parameters = dict(module.named_parameters())
    stage = stage_of(model, {key: one.detach().clone() for key, one in parameters_of(model, parameters).items()})
    given = {"input_ids": ids, "labels": labels}
    found = stage(*(given[key] for key in stage.input_names))
    torch.testing.assert_close(found, loss.detach(), rtol=1e-5, atol=0)
    found.backward()
    gradients = parameters_of(model, {key: one.grad for key, one in parameters.items() if one.grad is not None})
    largest = max(float(gradient.norm()) for gradient in gradients.values())
    for key, gradient in gradients.items():
        own = stage.parameter(key).grad
        assert own is not None
        if gradient.norm() > 1e-6 * largest:  # a key's bias has none in exact arithmetic
            assert (own - gradient).norm() <= 1e-5 * gradient.norm(), key
    values = {key: one.detach() for key, one in parameters_of(model, parameters).items()}
    ours = stage_of(model, values, logits=True)(*(given[key] for key in stage.input_names))
    torch.testing.assert_close(ours.detach(), logits.detach(), rtol=1e-5, atol=1e-5)


def stage_of(model: ModelSpec, parameters: dict[str, torch.Tensor], logits: bool = False) -> StageModule:
    """The whole model on one device; every token has a slot with each of its experts."""
    enough = model.num_local_experts / max(1, model.num_experts_per_tok)
    sizes = dim_sizes(model, 2, SEQ, capacity_factor=enough)
    graph = stage_graph(model, sizes, range(model.num_hidden_layers), first=True, last=True, element_bytes=4)
    last = graph.operators[-1]
    output = last.inputs[0] if logits else last.output
    program = partition(graph, {}, {op.name: {} for op in graph.operators}, {}, {output: None})
    return StageModule(program, parameters, None, "none")


class PackedBlock(nn.Module):
    """Heads' biases in one vector, a gate of one row, and a window in every other block."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window
        self.norm = nn.RMSNorm(32, eps=1e-6)
        self.in_proj_weight, self.in_proj_bias = nn.Parameter(torch.zeros(96, 32)), nn.Parameter(torch.zeros(96))
        self.out, self.gate, self.scale = nn.Linear(32, 32), nn.Linear(32, 1), nn.Parameter(torch.ones(1, 1, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, _ = x.shape
        qkv = F.linear(self.norm(x), self.in_proj_weight, self.in_proj_bias)
        q, k, v = (one.view(batch, seq, 4, 8).transpose(1, 2) for one in qkv.chunk(3, -1))
        seen = torch.ones(seq, seq, dtype=torch.bool).tril().triu(1 - self.window)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2)
        return x + self.out(y) * self.scale * torch.sigmoid(self.gate(x))


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.norm, self.head = nn.Embedding(50, 32), nn.LayerNorm(32), nn.Linear(32, 50)
        self.blocks = nn.ModuleList(PackedBlock(5 if number % 2 else 9) for number in range(4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def test_weight_decay_is_of_what_has_two_dims_in_the_module() -> None:
    module = Packed()
    model = trace_module(Packed(), "Packed", SEQ)
    graph = stage_graph(model, dim_sizes(model, 1, SEQ), range(model.num_hidden_layers), first=True, last=True)
    decays = {key: torch.tensor(one.dim() > 1).expand(one.shape) for key, one in module.named_parameters()}
    assert {key: key in graph.matrices for key in parameters_of(model, decays)} == {
        key: bool(one.all()) for key, one in parameters_of(model, decays).items()
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_the_padding_row_gets_no_gradient_from_the_tokens(rank: int) -> None:
    """Also where another rank has it: row 3 of 8 is the last of the first rank."""
    step: Any = SimpleNamespace(operator=SimpleNamespace(attributes={"padding_idx": 3}, inputs=("ids", "table")))
    dims = {"table": ("vocab", "embed")}
    graph = SimpleNamespace(tensors={"table": SimpleNamespace(differentiable=True)})
    context: Any = SimpleNamespace(
        piece=lambda step, dim: {"vocab": (rank, 2)}[dim], dims=dims.__getitem__, graph=graph
    )
    table = torch.ones(4, 2, requires_grad=True)
    FACTORIES["embedding"](context, step)(torch.tensor([[0, 3, 3, 4, 7, 7]]), table).sum().backward()
    assert table.grad is not None
    assert table.grad[:, 0].tolist() == ([1, 0, 0, 0] if rank == 0 else [1, 0, 0, 2])


MY_FILE = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
    def forward(self, x):
        return x + self.down(torch.{function}(self.up(x){more}))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(300, 32), nn.Linear(32, 300)
        self.blocks = nn.ModuleList(Block() for _ in range({layers}))
    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def broken():
    raise ValueError("no weights here")
"""


def plan(folder: Path, function: str, more: str = "", layers: int = 2, name: str = "Model") -> int:
    file = folder / "mine.py"
    file.write_text(MY_FILE.format(function=function, more=more, layers=layers))
    out = str(folder / "plan.json")
    where = ["--instance", "cpu", "--global-batch", "8", "--seq-len", "64", "--out", out]
    return main(["plan", "--model", f"{file}:{name}", *where])


def test_a_plan_of_the_users_file_holds_the_model(tmp_path: Path) -> None:
    assert plan(tmp_path, "tanh") == 0
    (tmp_path / "mine.py").unlink()
    found = read_plan(tmp_path / "plan.json")
    assert found.model.name == "Model" and found.backend == "torch"
    assert json.loads((tmp_path / "plan.json").read_text())["inputs"]["model"]["graph"]["prefix"] == "blocks"


def test_a_plan_of_a_module_with_a_single_number_comes_back(tmp_path: Path) -> None:
    text = MY_FILE.format(function="tanh", more="", layers=2).replace("x + self", "x + self.share * self")
    text = text.replace("self.up, ", "self.share = nn.Parameter(torch.tensor(0.1)); self.up, ", 1)
    (tmp_path / "mine.py").write_text(text)
    out, model = tmp_path / "plan.json", f"{tmp_path / 'mine.py'}:Model"
    assert main(["plan", "--model", model, "--instance", "cpu", "--seq-len", "64", "--out", str(out)]) == 0
    found = read_plan(out).model
    assert found == trace_model(model, 64)
    assert found.graph is not None
    assert [one.layout for one in found.graph.parameters if one.tensor == "blocks.*.share"] == [""]


def test_an_edited_file_is_traced_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of the same size and time, and another one at the same relative path."""
    request = PlanRequest("mine.py:Model", seq_len=64, instance="cpu")
    counts = []
    for folder, width in ((tmp_path / "one", 64), (tmp_path / "one", 96), (tmp_path / "other", 32)):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        Path("mine.py").write_text(MY_FILE.format(function="tanh", more="", layers=2).replace("64", str(width)))
        os.utime("mine.py", (1e9, 1e9))
        counts.append(parameter_count(inputs_of(request)[0]))
    each = 2 * (32 + 32 + 1)  # of two blocks: a row of up with its bias, a column of down
    assert [count - counts[0] for count in counts] == [0, 32 * each, -32 * each]


def test_the_rule_that_the_readme_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hardswish(t: Tracer, x: Value) -> Value:
        return formula(t, "mul", x, clamp(t, formula(t, "div", formula(t, "add", x, 3.0), 6.0), 0.0, 1.0))

    monkeypatch.setitem(RULES, "hardswish", hardswish)
    assert plan(tmp_path, "nn.functional.hardswish") == 0
    graph = read_plan(tmp_path / "plan.json").model.graph
    assert graph is not None
    (text,) = (dict(op.attributes)["expression"] for op in graph.block if dict(op.attributes).get("expression"))
    x = torch.linspace(-5, 5, 50)
    torch.testing.assert_close(pointwise(text)(x), F.hardswish(x))


HOW_TO_ADD = (
    "rules are in autoshard/tracer/rules: to add one, register a function there with @rule('name') that gives the "
    "meaning in operators of autoshard/graph/operators.py"
)
WHERE = "at mine.py:10 (`return x + self.down(torch."
ONE_BLOCK = (
    "the traced model has no repeated blocks: at least two alike, one behind the other, are what a plan distributes; "
    "what differs (a size, an activation, an order) makes blocks different"
)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"function": "cumsum", "more": ", -1"},
            (
                f"cannot plan Model: cumsum {WHERE}cumsum(self.up(x), -1))`, in blocks.0): "
                f"it has a rule for the numbers of experts only; {HOW_TO_ADD}"
            ),
        ),
        (
            {"function": "i0"},
            f"cannot plan Model: i0 {WHERE}i0(self.up(x)))`, in blocks.0): it has no rule; {HOW_TO_ADD}",
        ),
        ({"function": "tanh", "layers": 1}, ONE_BLOCK),
        ({"function": "tanh", "name": "broken"}, "broken() failed: ValueError: no weights here"),
        ({"function": "tanh", "name": "Modle"}, "mine.py has no Modle"),
    ],
    ids=["a rule for something else", "no rule", "one block", "a constructor that fails", "no such class"],
)
def test_what_cannot_be_traced_is_one_error(
    given: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(tmp_path, **given) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.endswith(message + "\n")
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys\nsys.exit(0)\n", "mine.py cannot be imported: SystemExit: 0"),
        ("import sys\ndef Model():\n    sys.exit()\n", "mine.py:Model: Model() failed: SystemExit"),
        (
            "import sys, torch\nclass Model(torch.nn.Module):\n    def forward(self, ids):\n        sys.exit()\n",
            "(see --seq-len): SystemExit",
        ),
    ],
)
def test_a_file_that_exits_is_one_error(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command would end with the file's code, 0 where it thinks that all is well, and no plan."""
    (tmp_path / "mine.py").write_text(text)
    assert main(["plan", "--model", f"{tmp_path / 'mine.py'}:Model", "--instance", "cpu", "--seq-len", "64"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("if x.sum() > 0: x = -x", "if x.sum() > 0: x = -x"),
        ("x = x[:, : int(ids.max())]", "x = x[:, : int(ids.max())]"),
    ],
)
def test_what_depends_on_numbers_is_one_line_that_names_its_own(
    line: str, code: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """torch prints the graph up to there."""
    text = MY_FILE.format(function="tanh", more="", layers=2)
    (tmp_path / "mine.py").write_text(text.replace("        for block", f"        {line}\n        for block"))
    assert main(["plan", "--model", f"{tmp_path / 'mine.py'}:Model", "--instance", "cpu", "--seq-len", "64"]) == 2
    printed, error = capfd.readouterr()
    assert printed == ""
    assert error == (
        f"autoshard: error: Model does one thing or another by what numbers are at mine.py:19 (`{code}`); "
        "forward takes token ids [batch, seq] and gives logits [batch, seq, vocab], or an object with .logits, "
        "the same operators whatever the numbers\n"
    )


class Encoder(nn.Module):
    """What torch's own modules make of a causal mask. said: whether they are told that it is one."""

    def __init__(self, said: bool) -> None:
        super().__init__()
        self.said = said
        self.tokens, self.head = nn.Embedding(50, 32), nn.Linear(32, 50)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        logits: torch.Tensor = self.head(self.blocks(self.tokens(ids), mask, is_causal=self.said or None))
        return logits


def test_torchs_own_encoder_is_traced_with_a_mask_that_is_said_to_be_causal() -> None:
    check_computes_the_same(lambda: Encoder(said=True), "Encoder")
    with pytest.raises(AutoshardError) as error:
        trace_live(Encoder(said=False), SEQ)
    assert str(error.value).startswith("Encoder does one thing or another by what numbers are at test_trace.py:")
    assert str(error.value).endswith("; torch looks at the mask here: is_causal=True beside it says what it is")


def test_data_of_a_tensor_is_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(tmp_path, "tanh", ".data") == 2
    assert capsys.readouterr().err == (
        "autoshard: error: Model reads the .data of a tensor, where its gradient would end, and in a plan it passes on "
        "to every parameter; read the tensor itself\n"
    )


def test_a_square_matrix_that_ends_where_it_began_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = MY_FILE.format(function="tanh", more="", layers=2)
    text = text.replace("self.up, ", "self.square = nn.Linear(32, 32); self.up, ", 1)
    (tmp_path / "square.py").write_text(text.replace("x + self", "x + self.square(x) + self"))
    assert main(["plan", "--model", f"{tmp_path / 'square.py'}:Model", "--instance", "cpu", "--seq-len", "64"]) == 2
    assert capsys.readouterr().err == (
        "autoshard: error: einsum at square.py:10: [embed embed] has embed twice, which named dims cannot say: a "
        "matrix from embed to embed, whose result is added to or multiplied with embed; one through another width "
        "works\n"
    )


NO_GRADIENT = "the gradient would end here, and in a plan it passes on to every parameter; leave it out"


@pytest.mark.parametrize(
    ("before", "after", "place", "message"),
    [
        ("self.up(x)", "self.up(x).detach()", "detach at mine.py:10, in blocks.0", NO_GRADIENT),
        ("self.up(x)", "torch.no_grad()(self.up)(x)", "no_grad at mine.py:10, in blocks.0.up", NO_GRADIENT),
        (
            "nn.Embedding(300, 32)",
            "nn.Embedding(300, 32, scale_grad_by_freq=True)",
            "embedding at mine.py:18, in tokens",
            "it divides the gradient of a row by how often it is read; leave out scale_grad_by_freq",
        ),
        (
            "self.tokens(ids)",
            "self.tokens(ids) + nn.functional.embedding(torch.arange(ids.shape[1]), self.tokens.weight, 7)",
            "embedding at mine.py:18, in the model",
            "padding_idx=7 keeps the row of a position from being learned; leave it out",
        ),
    ],
)
def test_gradients_that_are_not_whole_are_refused(
    before: str, after: str, place: str, message: str, tmp_path: Path
) -> None:
    text = MY_FILE.format(function="tanh", more="", layers=2)
    assert text.count(before) == 1
    lines = text.replace(before, after).splitlines()
    (tmp_path / "mine.py").write_text("\n".join(lines))
    with pytest.raises(AutoshardError) as error:
        trace_model(f"{tmp_path / 'mine.py'}:Model", SEQ)
    where, inside = place.split(", ")
    code = lines[int(where.rpartition(":")[2]) - 1].strip()
    assert str(error.value) == f"cannot plan Model: {where} (`{code}`, {inside}): {message}; {HOW_TO_ADD}"


class StraightThrough(torch.autograd.Function):
    """Bounds, whose gradient passes as if there were none."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Straight(OddModel):
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = StraightThrough.apply(super().forward(input_ids))
        return logits


def test_a_backward_of_the_users_own_is_refused() -> None:
    """The graph would be trained with the gradient of clamp."""
    with pytest.raises(AutoshardError) as error:
        trace_live(Straight(), SEQ)
    text = str(error.value)
    assert re.sub(r":\d+ ", ":1 ", text) == (
        "Straight has a backward of its own, of StraightThrough at test_trace.py:1 (`logits: torch.Tensor = "
        "StraightThrough.apply(super().forward(input_ids))`), and a plan derives the gradient from the forward; write "
        "the forward without a torch.autograd.Function if that gradient is right"
    )
    assert StraightThrough.apply(torch.tensor(2.0)) == 1


ATTENTION_FILE = """
import torch
import torch.nn.functional as F
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qk, self.v, self.o = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(32, 32), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.register_buffer("seen", torch.ones({seq}, {seq}, dtype=torch.bool))
    def heads(self, x):
        return x.view(*x.shape[:2], 4, 8).transpose(1, 2)
    def forward(self, x):
        t = x.shape[1]
        qk, v, h = (one(self.norm(x)) for one in (self.qk, self.v, self.up)); q, k = qk[..., :32], qk[..., 32:]
        m = torch.ones(t, t, dtype=torch.bool).tril()
        r = h
        {lines}
        y = F.scaled_dot_product_attention(self.heads(q), self.heads(k), self.heads(v), attn_mask=m)
        return x + self.o(y.transpose(1, 2).flatten(2)) + self.down(torch.tanh(r))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(300, 32), nn.Linear(32, 300)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
"""


def attention_model(lines: str, folder: Path) -> str:
    """The name of a model with these lines in its blocks, after masks, queries, keys and values are made."""
    file = folder / "mine.py"
    file.write_text(ATTENTION_FILE.replace("{lines}", lines).replace("{seq}", str(SEQ)))
    return f"{file}:Model"


@pytest.mark.parametrize(
    ("lines", "window"),
    [
        ("m = m.triu(-7); m[:, 0] = True; m[8:, :1].fill_(False)", 8),
        ("m = torch.zeros(t, t, dtype=torch.bool)\n        for i in range(t): m[i, : i + 1] = True", None),
        ("m = torch.full((t, t), float('-inf'))\n        for i in range(t): m[i, : i + 1] = 0", None),
        ("m = torch.full((t, t), float('-inf')); m[torch.ones(t, t).tril() > 0] = 0", None),
        ("m = torch.ones(t, t); before = m == 1; m[:, 3] = 0; m = before.tril()", None),
        ("m = self.seen; m &= torch.ones_like(m).tril(); part = m[:, 0]; m = m.triu(-3); part.fill_(True)", 4),
        ("first, rest = m.chunk(2); rest.logical_not_(); m[t // 2 :] = rest.logical_not()", None),
        ("with torch.no_grad(): part = m[:4]; part.logical_not_(); part.logical_not_()", None),
    ],
)
def test_constants_that_are_changed_in_place_are_changed_in_all_views(
    lines: str, window: int | None, tmp_path: Path
) -> None:
    model = attention_model(lines, tmp_path)
    graph = trace_model(model, SEQ).graph
    assert graph is not None
    (attention,) = (op for op in graph.block if op.kind == "attention")
    assert dict(attention.attributes).get("sliding_window") == window
    check_computes_the_same(lambda: load_module_with_numbers(model), "Model")


def test_a_buffer_that_forward_changes_stays_the_modules_own(tmp_path: Path) -> None:
    module = load_module(attention_model("m = self.seen; m[:] = m.tril()", tmp_path))
    trace_module(module, "Model", SEQ)
    assert all(bool(buffer.all()) for buffer in module.buffers())


@pytest.mark.parametrize(
    "lines",
    [
        "h.relu_()",
        "h = F.relu(h, inplace=True); r = h",
        "h *= 0.5; h.clamp_(-2, 2); r = h",
        "r = self.up(x).view(*x.shape[:2], 8, 8); r.mul_(0.5); r = r.flatten(2)",
        "qv = torch.zeros_like(q); qv += q; qv *= 0.25; q = qv",
        "with torch.autocast('cpu', enabled=False): h = self.up(x); h *= 0.5\n        r = h",
        "q *= 0.5",
    ],
)
def test_tensors_that_are_changed_in_place_as_a_whole_are_traced(lines: str, tmp_path: Path) -> None:
    model = attention_model(lines, tmp_path)
    check_computes_the_same(lambda: load_module_with_numbers(model), "Model")


CHANGED_IN_PLACE = (
    "it changes a tensor in place of which another view, or the whole, is read later; write it out of place, with "
    "torch.where, torch.cat or masked_fill"
)


@pytest.mark.parametrize(
    ("lines", "operator", "message"),
    [
        (
            "m = m.triu(-7); m[:, 0] = True",
            "scaled_dot_product_attention",
            "its mask is neither causal nor causal with a window",
        ),
        (
            "m[10:, :1].fill_(False)",
            "scaled_dot_product_attention",
            "its mask is neither causal nor causal with a window",
        ),
        ("q[..., :4].mul_(0.5)", "mul_", CHANGED_IN_PLACE),
        ("q[..., :4] = 0", "fill_", CHANGED_IN_PLACE),
        ("h = q; q = h.view(*x.shape[:2], 4, 8); h.mul_(0.25); q = q.flatten(2)", "mul_", CHANGED_IN_PLACE),
        ("r = h.view(h.shape); F.relu(h, inplace=True)", "relu_", CHANGED_IN_PLACE),
        ("r = h.contiguous()[..., :]; h += 1", "add_", CHANGED_IN_PLACE),
    ],
)
def test_changes_in_place_that_a_trace_cannot_say_are_refused(
    lines: str, operator: str, message: str, tmp_path: Path
) -> None:
    model = attention_model(lines, tmp_path)
    with pytest.raises(AutoshardError) as error:
        trace_model(model, SEQ)
    number = 20 if operator == "scaled_dot_product_attention" else 19
    code = Path(model.rpartition(":")[0]).read_text().splitlines()[number - 1].strip()
    where = f"{operator} at mine.py:{number} (`{code[:120]}`, in blocks.0)"
    assert str(error.value) == f"cannot plan Model: {where}: {message}; {HOW_TO_ADD}"


@pytest.mark.parametrize("between", ["", "q = q * 2; "])
def test_rotary_positions_of_the_whole_width_are_refused(between: str, tmp_path: Path) -> None:
    """They turn other pairs of numbers than those of a head, whose size the operator rope would take."""
    turns = (
        "turns = torch.outer(torch.arange(t), 1e4 ** -(torch.arange(0, 32, 2) / 32)).repeat(1, 2); "
        "a, b = q.chunk(2, -1); q = q * turns.cos() + torch.cat([-b, a], -1) * turns.sin()"
    )
    with pytest.raises(AutoshardError) as error:
        trace_model(attention_model(f"{turns}; {between}m = m.tril()", tmp_path), SEQ)
    line = 19 if between else 20
    assert str(error.value) == (
        f"rope at mine.py:{line}: rotary positions turn heads of queries and keys, so split the width into heads "
        "first; this one is over [kvhead headdim]"
    )


def test_more_tokens_than_learned_positions_are_one_error_without_talk_of_rules() -> None:
    with pytest.raises(AutoshardError) as error:
        trace_module(transformers_model("gpt2"), "Model", 1024)
    assert str(error.value) == (
        "the model learned 64 positions and is traced with 1,024 tokens: give a sequence length (--seq-len, seq_len) "
        "of at most 64"
    )


def test_a_line_of_the_tracer_is_no_line_of_the_users() -> None:
    """torch writes down frames that are called forward alone: of a lambda's node it has ours, which called it."""
    made = type("Made", (Packed,), {"forward": lambda self, ids: Packed.forward(self, ids).cumsum(1)})
    with pytest.raises(AutoshardError) as error:
        trace_module(made(), "Made", SEQ)
    assert str(error.value).startswith(
        "cannot plan Made: cumsum at an unknown line, such as a lambda's (in the model): "
    )


def test_a_rule_that_fails_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tanh(t: Tracer, x: Value) -> Value:
        return t.view(x).axes[7]

    monkeypatch.setitem(RULES, "tanh", tanh)
    with pytest.raises(AutoshardError) as error:
        trace_model(attention_model("", tmp_path), SEQ)
    assert str(error.value) == (
        "cannot plan Model: tanh at mine.py:21 (`return x + self.o(y.transpose(1, 2).flatten(2)) + "
        "self.down(torch.tanh(r))`, in blocks.0): its rule fails (IndexError: tuple index out of range); write it in "
        f"another way; {HOW_TO_ADD}"
    )


@pytest.mark.parametrize(
    ("lines", "expression"),
    [
        ("r = F.silu(h).clamp(max=7)", "(tanh (minimum (silu x0) 7.0))"),
        ("r = F.gelu(h).clamp(-10, 10)", "(tanh (minimum (maximum (gelu_erf x0) -10.0) 10.0))"),
        ("r = (h * torch.sigmoid(h)).clamp_max(65504)", "(tanh (minimum (silu x0) 65504.0))"),
        ("r = F.silu(h).clamp(min=-0.2784)", "(tanh (maximum (silu x0) -0.2784))"),
        ("r = F.silu(h.clamp(max=7))", "(tanh (silu (minimum x0 7.0)))"),
        ("r = h / (1 + torch.exp(-h))", "(tanh (silu x0))"),
        ("r = 0.5 * h * (1 + torch.erf(h / 2**0.5))", "(tanh (gelu_erf x0))"),
        ("r = 0.5 * h * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (h + 0.044715 * h**3)))", "(tanh (gelu x0))"),
    ],
)
def test_activations_are_recognised_with_their_bounds(lines: str, expression: str, tmp_path: Path) -> None:
    model = attention_model(lines, tmp_path)
    graph = trace_model(model, SEQ).graph
    assert graph is not None
    texts = [dict(op.attributes).get("expression") for op in graph.block]
    assert expression in texts
    check_computes_the_same(lambda: load_module_with_numbers(model), "Model")


@pytest.mark.parametrize("function", ["F.elu(h)", "nn.ELU()(h)", "F.elu_(h)", "F.softplus(h)", "nn.Softplus()(h)"])
def test_default_arguments_that_are_given_are_the_defaults(function: str, tmp_path: Path) -> None:
    model = attention_model(f"r = {function}", tmp_path)
    check_computes_the_same(lambda: load_module_with_numbers(model), "Model")


@pytest.mark.parametrize("function", ["F.elu(h, 0.5)", "nn.Softplus(2)(h)", "nn.Softplus(1, 10)(h)"])
def test_other_arguments_than_the_defaults_are_refused(function: str, tmp_path: Path) -> None:
    with pytest.raises(AutoshardError, match="has a rule for torch's default arguments only"):
        trace_model(attention_model(f"r = {function}", tmp_path), SEQ)


def load_module_with_numbers(model: str) -> nn.Module:
    """The module that a file's class makes, with numbers in its parameters."""
    module = load_module(model)
    found: nn.Module = type(module)().eval()
    return found


def test_what_has_no_gradient_may_end_it() -> None:
    class Quiet(OddModel):
        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                ids = input_ids.clone()
            return super().forward(ids.detach())

    assert trace_module(Quiet(), "Quiet", 64).graph == ODD.graph


def test_a_forward_that_gives_something_else_says_what_is_wanted() -> None:
    class Scalar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(8, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.tokens(ids).sum()

    with pytest.raises(AutoshardError) as error:
        trace_module(Scalar(), "Scalar", SEQ)
    assert str(error.value) == (
        "Scalar: forward takes token ids [batch, seq] and gives logits [batch, seq, vocab], or an object with .logits; "
        "this gives a tensor of shape []"
    )


@pytest.mark.parametrize("frozen", [("blocks.1.up.weight",), ("blocks.1.up.weight", "vocabulary.weight")])
def test_a_plan_trains_every_parameter(frozen: tuple[str, ...]) -> None:
    module = OddModel()
    for name in frozen:
        module.get_parameter(name).requires_grad_(False)
    with pytest.raises(AutoshardError) as error:
        trace_module(module, "OddModel", SEQ)
    total = len(list(module.parameters()))
    assert str(error.value) == (
        f"OddModel has frozen parameters (requires_grad=False), {len(frozen)} of {total}, the first is "
        "blocks.1.up.weight: a plan trains all of them; call requires_grad_(True), or make constants buffers"
    )
