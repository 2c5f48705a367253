"""What the chip's kernels are handed, with a kernel that computes the same on CPU in their place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from autoshard.graph.partition import OperatorStep, Program
from autoshard.runtime.nxd_backend.attention import nxd_attention
from autoshard.runtime.torch_backend.context import Context
from tests.nxd.cases import plan_of


def block(model: str) -> tuple[Program, OperatorStep, list[torch.Tensor]]:
    """One block on tensors [seq, batch, ...], its attention, and random inputs of that."""
    from autoshard.runtime.nxd_backend.layers import sequence_first  # brings the library

    program = sequence_first(plan_of(model=model).program(range(1), False, False))
    steps = [one for one in program.steps if isinstance(one, OperatorStep)]
    (step,) = (one for one in steps if one.operator.kind == "attention")
    graph = program.graph
    shapes = [[graph.sizes[dim] for dim in graph.tensors[name].dims] for name in step.operator.inputs]
    return program, step, [torch.randn(shape) for shape in shapes]


@pytest.mark.parametrize("model", ["llama", "one kv head"])
def test_flash_attention_gets_its_layout_and_each_head_its_keys(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """[batch, heads, seq, headdim], keys and values repeated, and the same back."""
    from neuronx_distributed.kernels import flash_attn

    seen: dict[str, Any] = {}

    def kernel(q: Any, k: Any, v: Any, lnc: int, causal: bool, transpose_nki_inputs: bool) -> torch.Tensor:
        seen.update(shapes=(q.shape, k.shape, v.shape), lnc=lnc, transposed=transpose_nki_inputs)
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    monkeypatch.setattr(flash_attn, "nki_flash_attn_func", kernel)
    program, step, inputs = block(model)
    chip, cpu = (nxd_attention(Context(program, None), step, mode, 2)(*inputs) for mode in (False, True))
    assert chip.shape == cpu.shape == inputs[0].shape
    torch.testing.assert_close(chip, cpu)
    sizes = program.graph.sizes
    heads = (sizes["batch"], sizes["kvhead"] * sizes["group"], sizes["seq"], sizes["headdim"])
    assert seen == {"shapes": (heads,) * 3, "lnc": 2, "transposed": False}


def test_a_window_is_a_constant_mask() -> None:
    """The kernel knows none: the scores are written out, as in CPU mode."""
    program, step, inputs = block("mistral")
    chip, cpu = (nxd_attention(Context(program, None), step, mode, 1)(*inputs) for mode in (False, True))
    assert torch.equal(chip, cpu)


def test_a_layer_is_given_no_tensor_with_gaps() -> None:
    """Its backward views [seq, batch, heads x headdim] as a matrix; what attention gives may lie in another order."""
    from autoshard.runtime.nxd_backend.model import Section

    class Rows(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(-1, x.shape[2])

    section = Section.__new__(Section)
    torch.nn.Module.__init__(section)
    section.add_module("o_proj", Rows())
    heads = torch.arange(24.0).view(3, 2, 2, 2).transpose(0, 1)
    assert torch.equal(section._through("o_proj", heads), heads.reshape(6, 4))
