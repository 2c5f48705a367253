"""Turn the user's class into an exported graph. Parameters have no numbers, so a model of any size can be traced."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import Function
from torch.export import ExportedProgram, export
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from autoshard.errors import AutoshardError
from autoshard.plugins.found import RAISED
from autoshard.tracer.source import line_of

BATCH = 2
"""Sequences of the trace: more than one, so that the dim is seen."""
CONTRACT = "forward takes token ids [batch, seq] and gives logits [batch, seq, vocab], or an object with .logits"


@dataclass(frozen=True)
class Exported:
    """The graph of one forward, as torch.export gives it.

    parameters: placeholder -> the user's name, one for tied ones. constants: placeholder -> its numbers.
    """

    program: ExportedProgram
    parameters: dict[str, str]
    constants: dict[str, torch.Tensor]


def load_module(model: str) -> nn.Module:
    """The module that MyModel() of 'my_file.py:MyModel' gives; its parameters have no numbers.

    Runs the user's file. Raises AutoshardError where there is no such class or it fails.
    """
    file, _, name = model.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise AutoshardError(f"model={model}: there is no file {file}")
    made = getattr(_imported(path), name, None)
    if made is None:
        raise AutoshardError(f"model={model}: {path.name} has no {name}")
    if isinstance(made, nn.Module):
        raise AutoshardError(f"model={model}: {name} is a module already; name its class, or a function that makes it")
    try:
        with _without_numbers():
            module = made()
    except RAISED as error:
        raise AutoshardError(f"model={model}: {name}() failed: {text_of(error)}") from error
    if not isinstance(module, nn.Module):
        raise AutoshardError(f"model={model}: {name}() gives {type(module).__name__}, not a torch.nn.Module")
    return module.eval()


def _imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"autoshard_user_{path.stem}", path)
    if spec is None:
        raise AutoshardError(f"model={path}: it must be a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        # not exec_module: its cached bytecode is told apart by whole seconds and the size of the file
        exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), vars(module))  # noqa: S102  the user's file
    except RAISED as error:
        raise AutoshardError(f"{path} cannot be imported: {text_of(error)}") from error
    finally:
        sys.path.pop(0)
    return module


@contextlib.contextmanager
def _without_numbers() -> Iterator[None]:
    """Register parameters on torch's meta device inside the context; buffers, whose numbers matter, stay where they
    are.
    """
    register = nn.Module.register_parameter

    def on_meta(self: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.device.type != "meta":
            parameter = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
        register(self, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


class _OwnBackward(Exception):
    """A torch.autograd.Function of the user's is applied; the text is its name."""


@contextlib.contextmanager
def _no_own_backward() -> Iterator[None]:
    """Raise _OwnBackward where a torch.autograd.Function that is not torch's own is applied inside the context: the
    export has its forward alone, and a plan would go on with the gradient of that.
    """
    before = vars(Function)["apply"]

    def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        if cls.__module__.partition(".")[0] != "torch":
            raise _OwnBackward(cls.__qualname__.rpartition(".")[2])
        return before.__get__(None, cls)(*args, **kwargs)

    Function.apply = classmethod(apply)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Function.apply = before  # type: ignore[method-assign]


class _Logits(nn.Module):
    """The user's module with its logits alone as the result."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        found = self.module(input_ids)
        found = getattr(found, "logits", found)
        if isinstance(found, (tuple, list)):
            found = found[0]
        if not isinstance(found, torch.Tensor) or found.dim() != 3:
            what = f"a tensor of shape {list(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
            raise AutoshardError(f"{type(self.module).__name__}: {CONTRACT}; this gives {what}")
        return found


def export_module(module: nn.Module, seq: int) -> Exported:
    """The graph of one forward over BATCH sequences of seq tokens. The module's parameters are replaced by
    stand-ins.
    """
    config = getattr(module, "config", None)
    if config is not None and hasattr(config, "use_cache"):
        config.use_cache = False
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    _stand_ins(module, mode)
    wrapped = _Logits(module).eval()
    with mode:
        ids = torch.zeros(BATCH, seq, dtype=torch.int64)
    try:
        with warnings.catch_warnings(), _torch_says_nothing(), _no_own_backward():
            warnings.simplefilter("ignore")
            program = export(wrapped, (ids,), strict=False)
    except AutoshardError:
        raise
    except _OwnBackward as error:
        raise AutoshardError(
            f"{type(module).__name__} has a backward of its own, of {error}{line_of(error)}, and a plan derives the "
            "gradient from the forward; write the forward without a torch.autograd.Function if that gradient is right"
        ) from None
    except GuardOnDataDependentSymNode as error:
        raise AutoshardError(
            f"{type(module).__name__} does one thing or another by what numbers are{line_of(error)}; {CONTRACT}, the "
            f"same operators whatever the numbers{_hint(config) or _mask_hint(error)}"
        ) from error
    except RAISED as error:
        raise AutoshardError(
            f"torch.export cannot trace {type(module).__name__} with token ids [{BATCH}, {seq}] (see --seq-len): "
            f"{text_of(error)}{line_of(error)}; {CONTRACT}, the same operators whatever the numbers{_hint(config)}"
        ) from error
    return _exported(program, wrapped)


@contextlib.contextmanager
def _torch_says_nothing() -> Iterator[None]:
    """Silence torch inside the context: where an export fails, it prints the graph so far; the error says what is
    wrong.

    What the module itself writes to stderr while it is traced is written afterwards.
    """
    before, written = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(written):
            yield
    finally:
        logging.disable(before)
    sys.stderr.write(written.getvalue())


def _hint(config: Any) -> str:
    if hasattr(config, "_experts_implementation"):
        return "; experts of transformers trace with experts_implementation='grouped_mm'"
    return ""


def _mask_hint(error: BaseException) -> str:
    """A clause on `is_causal=True` where nn.Transformer or nn.TransformerEncoder looked whether a mask is causal, and
    could not, as it has no numbers; '' for other errors."""
    looks = any(frame.name == "_detect_is_causal_mask" for frame in extract_tb(error.__traceback__))
    return "; torch looks at the mask here: is_causal=True beside it says what it is" if looks else ""


def _stand_ins(module: nn.Module, mode: FakeTensorMode) -> None:
    """Replace parameters by some that have a shape, no numbers, and the CPU as device for torch; tied ones stay one.
    Those of 16 bits become FP32, so that tables of positions are not rounded to theirs: what a plan keeps in how many
    bits is said by its precision."""
    made: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                with mode:
                    dtype = torch.float32 if parameter.dtype in (torch.bfloat16, torch.float16) else parameter.dtype
                    empty = torch.empty(parameter.shape, dtype=dtype)
                made[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
            part._parameters[name] = made[id(parameter)]


def _exported(program: ExportedProgram, wrapped: nn.Module) -> Exported:
    signature = program.graph_signature
    names: dict[int, str] = {}
    parameters = {}
    for placeholder, name in signature.inputs_to_parameters.items():
        parameter = wrapped.get_parameter(name)
        parameters[placeholder] = names.setdefault(id(parameter), name.removeprefix("module."))
    constants = {}
    for placeholder, name in signature.inputs_to_buffers.items():
        constants[placeholder] = wrapped.get_buffer(name)
    for placeholder, name in signature.inputs_to_lifted_tensor_constants.items():
        constants[placeholder] = program.constants[name]
        if isinstance(constants[placeholder], FakeTensor):
            raise AutoshardError(
                f"{type(wrapped.module).__name__} reads the .data of a tensor, where its gradient would end, and in a "
                "plan it passes on to every parameter; read the tensor itself"
            )
    return Exported(program, parameters, constants)


def text_of(error: BaseException) -> str:
    """The first line of an error's text."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].strip()[:300]}" if lines else type(error).__name__
