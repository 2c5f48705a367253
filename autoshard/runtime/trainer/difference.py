"""The tensors of ranks at the end against those of one process: gradients and parameters, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from autoshard.errors import AutoshardError
from autoshard.plans.plan import Plan
from autoshard.runtime.session import Session
from autoshard.runtime.torch_backend.parameters import assemble

NEGLIGIBLE_GRADIENT = 1e-5
"""A gradient this much smaller than the largest is rounding, which Adam scales up: a key's bias has none."""
Tensors = dict[str, dict[str, torch.Tensor]]
"""'gradient' and 'parameter' -> whole tensors by name."""


def comparable(session: Session, prefix: str) -> dict[str, torch.Tensor]:
    """Gradients and master weights of the pieces that this rank is the first to hold, as far as they are learned, by
    '<prefix>.<what>/<name>'."""
    found = {"gradient": session.optimizer.gradients(), "parameter": session.optimizer.masters()}
    return {
        f"{prefix}.{what}/{stage}/{name}": values[name].cpu().clone()
        for what, values in found.items()
        for stage, module in session.modules.items()
        for name in (tensor.name for tensor in module.program.graph.learned())
        if session.is_first_holder(module.program, name)
    }


class RankFiles:
    """The tensors that ranks left in rank-*.safetensors of a folder, read one at a time."""

    def __init__(self, folder: Path):
        self._files = [safe_open(path, framework="pt") for path in sorted(folder.glob("rank-*.safetensors"))]
        self._keys = [set(file.keys()) for file in self._files]

    def pieces(self, key: str) -> dict[int, torch.Tensor]:
        """Rank -> its tensor of this key, for the ranks that have one."""
        return {r: self._files[r].get_tensor(key) for r, keys in enumerate(self._keys) if key in keys}


def differences_to(others: Tensors, session: Session) -> dict[str, Any]:
    """For gradients and parameters: the largest relative difference to the session's, and the tensor that has it."""
    mine = own_tensors(session)
    norms = {name: float(torch.linalg.vector_norm(value)) for name, value in mine["gradient"].items()}
    rounding = NEGLIGIBLE_GRADIENT * max(norms.values())
    worst: dict[str, Any] = {}
    for what, values in mine.items():
        assert others[what].keys() == values.keys()
        pairs = [(_relative(others[what][name], values[name]), name) for name in values if norms[name] >= rounding]
        difference, name = max(pairs)
        worst[what] = {"relative_difference": difference, "tensor": name}
    return worst


def own_tensors(session: Session) -> Tensors:
    """Whole gradients and master weights of a session that is one process."""
    gradients, masters = session.optimizer.gradients(), session.optimizer.masters()
    return {"gradient": gradients, "parameter": {name: masters[name] for name in gradients}}


def save(tensors: Mapping[str, torch.Tensor], file: Path) -> None:
    """Write tensors to a safetensors file among the temporary ones. Raises AutoshardError where that is impossible."""
    try:
        save_file(dict(tensors), file)
    except (SafetensorError, OSError) as error:
        raise AutoshardError(f"cannot write {file} (TMPDIR chooses where): {error}") from error


def leave(tensors: Tensors, file: Path) -> None:
    """Write tensors for another process, to be read with `left` once the file exists."""
    part = file.with_suffix(".part")
    save({f"{what}/{name}": one.clone() for what, named in tensors.items() for name, one in named.items()}, part)
    part.rename(file)


def left(file: Path) -> Tensors:
    """The tensors that `leave` wrote."""
    tensors: Tensors = {}
    for key, value in load_file(file).items():
        what, _, name = key.partition("/")
        tensors.setdefault(what, {})[name] = value
    return tensors


def sharded_tensors(plan: Plan, files: RankFiles, prefix: str) -> Tensors:
    return {what: dict(_whole_tensors(plan, files, f"{prefix}.{what}")) for what in ("gradient", "parameter")}


def _whole_tensors(plan: Plan, files: RankFiles, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    for stage in plan.stages:
        program = plan.program(stage.layers, stage.has_embedding, stage.has_head)
        for tensor in program.graph.learned():
            pieces = files.pieces(f"{prefix}/{stage.index}/{tensor.name}")
            yield tensor.name, assemble(pieces, tensor.dims, program.states[tensor.name], plan.mesh)


def _relative(sharded: torch.Tensor, alone: torch.Tensor) -> float:
    """|sharded - alone| / |alone| in the 2-norm; padding beyond the unsharded size must be zero and is cut off."""
    padded = sharded
    for dim, size in enumerate(alone.shape):
        sharded = sharded.narrow(dim, 0, size)
    assert padded.count_nonzero() == sharded.count_nonzero(), "padding was trained"
    scale = torch.linalg.vector_norm(alone, dtype=torch.float64)
    difference = torch.linalg.vector_norm(sharded.double() - alone.double())
    return float(difference / scale) if scale else float(difference)
