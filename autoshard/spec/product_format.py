"""Number formats of linear layers' products below 16 bits, a record each: a recipe for training in 8 or 4 bits.

Weights, activations and gradients stay in the compute dtype; products read quantised copies of them. Which layers:
autoshard/graph/quantize.py. Sources in brackets: TE = the recipes of NVIDIA Transformer Engine's user guide, Megatron =
Megatron-LM's arguments (--fp8-recipe, --fp8-param-gather, --reuse-grad-buf-for-mxfp8-param-ag), NKI = AWS's Neuron
Kernel Interface. Activations travel in fewer bits only in stacks that say so (Software.gathers_quantized).
"""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.errors import AutoshardError
from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Count, Positive, Whole
from autoshard.files.fields import show

ROW_ELEMENTS = 16
"""Rows of operands in 8 or 4 bits have a multiple of so many."""


@dataclass(frozen=True)
class ProductFormat:
    """The format in which linear layers of blocks multiply.

    name: What it is called.
    peak: Under this name a hardware file states a device's FLOP/s in it.
    forward_dtype: Of both operands of forward.
    backward_dtype: Of gradients, as operands of backward.
    block_size: Elements along a row that share a scale; 0 where the whole tensor has one.
    operand_bytes: Bytes of one element of a quantised activation, gradient or weight, with its share of the scales.
    reads: Times that a tensor is read to be cast: twice where its largest element must be known first.
    weight_bytes: Bytes of one weight that a rank holds where ranks share the optimizer state, in all copies: for both
        directions of a product and, where there is one, in the compute dtype.
    gathered_bytes: Bytes of one weight as ranks that share the optimizer state gather it.
    """

    name: str
    peak: str
    forward_dtype: str
    backward_dtype: str
    block_size: Whole
    operand_bytes: Positive
    reads: Count
    weight_bytes: Positive
    gathered_bytes: Positive

    def __post_init__(self) -> None:
        for field in ("name", "peak", "forward_dtype", "backward_dtype"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value or not value.isprintable() or len(value) > 100:
                raise AutoshardError(f"{field}={show(value)} of a product format must be a short printable text")
        of = f"product format {self.name}"
        check_annotated(of, self)

    @property
    def multiple(self) -> int:
        """The number of elements of which a layer's inputs and outputs, as a rank has them, must be multiples; products
        of other layers stay in the compute dtype. Tokens need not be: they are padded.

        Rows of operands are multiples of 16 elements (TE, pytorch/utils.py: assert_dim_for_fp8_exec), in either
        direction of a weight, as backward contracts the other one. Where the matrix unit applies the scales, which
        gives a format a peak of its own, blocks are whole besides: TE asserts multiples of MXFP8_BLOCK_SCALING_SIZE and
        of NVFP4_BLOCK_SCALING_SIZE. For cfp8 it is a guess.
        """
        return max(ROW_ELEMENTS, self.block_size) if self.peak == self.name else ROW_ELEMENTS

    @property
    def copies_bytes(self) -> float:
        """Bytes of one element in both copies that its products read: each contracts it in another direction."""
        return 2 * self.operand_bytes

    def held_bytes(self, element_bytes: float, zero: int) -> float:
        """Bytes of one weight that a rank holds, in all copies. element_bytes: of the weight as it is trained, which a
        rank holds too where it shares no optimizer state: Megatron asserts that --fp8-param-gather has a distributed
        optimizer or FSDP."""
        return self.weight_bytes if zero else element_bytes + self.copies_bytes

    @property
    def travels_cast(self) -> bool:
        """Whether ranks gather weights that their owners have cast; otherwise each casts what it has gathered."""
        return self.gathered_bytes <= self.operand_bytes

    def cast_bytes(self, element_bytes: float) -> float:
        """Bytes moved to cast one element: it is read, and both copies are written. element_bytes: of what is cast."""
        return self.reads * element_bytes + self.copies_bytes


PRODUCT_FORMATS = {
    one.name: one
    for one in (
        # [TE DelayedScaling, Format.HYBRID] scales of the steps before. Weights are held in FP8 alone, once as they are
        # and once transposed, which Hopper's products want, and gathered in FP8 [Megatron].
        ProductFormat("fp8", "float8", "float8_e4m3", "float8_e5m2", 0, 1.0, 1, 2.0, 1.0),
        # [TE Float8BlockScaling] 1 x 128 elements of activations and gradients share an FP32 scale, 128 x 128 of
        # weights; otherwise as fp8
        ProductFormat("fp8_block", "float8", "float8_e4m3", "float8_e4m3", 128, 1 + 4 / 128, 1, 2.0, 1.0),
        # [TE MXFP8BlockScaling] 32 elements share a scale of one byte, along either direction: two copies, neither of
        # which is the other's transpose; parameters are gathered in bf16, in the buffer of gradients [Megatron]
        ProductFormat("mxfp8", "mxfp8", "float8_e4m3", "float8_e4m3", 32, 1 + 1 / 32, 1, 2 + 2 / 32, 2.0),
        # [TE NVFP4BlockScaling] 16 elements share a scale of one byte, and a tensor one of 4, which needs its largest
        # element first. Weights stay in bf16 beside both copies.
        ProductFormat("nvfp4", "nvfp4", "float4_e2m1", "float4_e2m1", 16, 0.5 + 1 / 16, 2, 2 + 2 * (0.5 + 1 / 16), 2.0),
        # [NKI: configurable FP8 of the tensor engine] No recipe for training is documented. A guess: scales as fp8's,
        # weights in bf16 beside both copies, nothing travels in 8 bits.
        ProductFormat("cfp8", "cfp8", "cfp8", "cfp8", 0, 1.0, 1, 2 + 2 * 1.0, 2.0),
    )
}
"""By name."""
