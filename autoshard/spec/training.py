"""How it is trained: batch, sequence, and the number format of everything that is kept or sent."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import inf
from typing import Annotated

from autoshard.errors import AutoshardError
from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Absence, Count, Limit, NotNegative, Positive, Whole
from autoshard.files.fields import check_choice, check_not_negative, show
from autoshard.spec.blocks import Blocks, told_apart
from autoshard.spec.product_format import PRODUCT_FORMATS, ProductFormat

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}
"""Bytes of one element."""
FLOATING_DTYPES = ("bfloat16", "float16", "float32", "float64")
FloatingDtype = Annotated[str, Limit(choices=FLOATING_DTYPES)]
INT8, FLOAT8 = EIGHT_BITS = ("int8", "float8_e4m3")
"""Formats of moments that are priced, and that no backend runs."""
SCALED_TOGETHER = 256
"""Neighbouring elements of a moment in int8 that share an FP32 scale [bitsandbytes optim/optimizer.py init_state:
blocks of 256; torchao optim: block_size=256, of its FP8 too]."""
MOMENT_BYTES: dict[str, float] = {
    **{dtype: DTYPE_BYTES[dtype] for dtype in FLOATING_DTYPES},
    INT8: 1 + DTYPE_BYTES["float32"] / SCALED_TOGETHER,
    FLOAT8: 1,
}
"""Bytes of one element of a moment, with its share of a scale. In float8_e4m3 a whole tensor has one scale [TE
optimizers/fused_adam.py]. Left out: bitsandbytes keeps moments of tensors of fewer than 4,096 elements in FP32, which
are a thousandth of a model or less."""
MomentDtype = Annotated[str, Limit(choices=tuple(MOMENT_BYTES))]
ADAMW, MUON = OPTIMIZERS = ("adamw", "muon")
"""Muon: momentum whose whole matrices are orthogonalised (graph/orthogonal.py), and AdamW for what is no matrix of a
block."""
MOST_EXPERTS = 4096
TokensOfExperts = Annotated[tuple[NotNegative, ...], Limit(items=1, most_items=MOST_EXPERTS)]


@dataclass(frozen=True)
class Precision:
    """The dtype of each kind of state.

    name: What the mixture is called: mixed_precision, bf16_sr (stochastic rounding), fp32, or as its products.
    parameter_dtype: Weights as forward and backward read them.
    compute_dtype: Operators and activations.
    master_dtype: The optimizer's own copy of the weights; null where it updates the parameters themselves.
    optimizer_dtype: Moments: both of AdamW, the one of Muon.
    gradient_accumulation_dtype: The sum of gradients over microbatches.
    gradient_reduce_dtype: Gradients as they are sent between data-parallel ranks.
    products: The format in which linear layers of blocks multiply; left out where it is the compute dtype.
    """

    name: str
    parameter_dtype: FloatingDtype
    compute_dtype: FloatingDtype
    master_dtype: FloatingDtype | None
    optimizer_dtype: MomentDtype
    gradient_accumulation_dtype: FloatingDtype
    gradient_reduce_dtype: FloatingDtype
    products: Annotated[ProductFormat | None, Absence.WRITTEN] = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise AutoshardError(f"name={show(self.name)} of the precision must be a text that is not empty")
        of = f"precision {self.name}"
        for field in (
            "parameter_dtype",
            "compute_dtype",
            "gradient_accumulation_dtype",
            "gradient_reduce_dtype",
        ):
            check_choice(of, field, getattr(self, field), FLOATING_DTYPES)
        check_choice(of, "optimizer_dtype", self.optimizer_dtype, MOMENT_BYTES)
        if self.master_dtype is not None:
            check_choice(of, "master_dtype", self.master_dtype, FLOATING_DTYPES)

    @property
    def fastest_dtype(self) -> str:
        """The dtype of the fastest products, under its name in hardware files: what a step is held against."""
        return self.compute_dtype if self.products is None else self.products.peak

    @property
    def sums_apart(self) -> bool:
        """Whether gradients are summed in another dtype than that of the parameters."""
        return self.gradient_accumulation_dtype != self.parameter_dtype

    @property
    def kept_dtype(self) -> FloatingDtype:
        """The dtype of the weights as the optimizer keeps and updates them: of its own copy, or of the parameters."""
        return self.master_dtype or self.parameter_dtype

    @property
    def moment_bytes(self) -> float:
        """Bytes of one moment of one parameter."""
        return MOMENT_BYTES[self.optimizer_dtype]

    def state_bytes(self, moments: int) -> float:
        """Bytes of the training state of one parameter with so many moments, which a checkpoint holds: the kept weight
        and these; of one that is not learned, and has none, the weight as it is read."""
        if not moments:
            return DTYPE_BYTES[self.parameter_dtype]
        return DTYPE_BYTES[self.kept_dtype] + moments * self.moment_bytes

    @property
    def rounds_at_random(self) -> bool:
        """Whether weights are bf16 without a master copy: they and moments in bf16 are rounded at random."""
        return self.master_dtype is None and self.parameter_dtype == "bfloat16"


PRECISIONS = {
    precision.name: precision
    for precision in (
        # NxD's mixed_precision: bf16 compute; master weights, moments, gradient accumulation and reduction in FP32.
        Precision("mixed_precision", "bfloat16", "bfloat16", "float32", "float32", "float32", "float32"),
        # NxD's bf16SR: everything bf16, no master weights; stochastic rounding stands in for the lost digits.
        Precision("bf16_sr", "bfloat16", "bfloat16", None, "bfloat16", "bfloat16", "bfloat16"),
        Precision("fp32", "float32", "float32", None, "float32", "float32", "float32"),
        # as mixed_precision, but for the products of linear layers
        *(
            Precision(name, "bfloat16", "bfloat16", "float32", "float32", "float32", "float32", products)
            for name, products in PRODUCT_FORMATS.items()
        ),
    )
}


def load_precision(name: str) -> Precision:
    """One of PRECISIONS; any other name is an AutoshardError that lists them."""
    check_choice("the training", "precision", name, PRECISIONS)
    return PRECISIONS[name]


@dataclass(frozen=True)
class TrainingSpec:
    """One optimizer step.

    sequence_length: Tokens of one sequence.
    global_batch_size: Sequences of one optimizer step.
    precision: The dtype of each kind of state.
    expert_capacity_factor: Slots of each expert over the even share of a sequence's tokens, where there are
        experts; num_local_experts / num_experts_per_tok drops no token, whatever the routers do; with zero_expert_num,
        the sum of both over it.
    unquantized: Modules and operators of a block that multiply in the compute dtype whatever the precision's products
        are, sorted; left out where there are none.
    unquantized_first: Blocks at the beginning of the model that do so whole; left out where it is 0.
    unquantized_last: Blocks at its end that do; left out where it is 0.
    expert_imbalance: Tokens that the experts of the busiest expert-parallel rank get over the mean of ranks; left out
        where it is 1.
    expert_tokens: Tokens that each expert gets, in any unit, in place of expert_imbalance, which then follows from them
        for each degree of expert parallelism; left out where they are not known.
    loss_chunks: Chunks of a rank's tokens of a microbatch, one after another, for each of which the logits and the loss
        are computed, again in backward; left out where it is 1: all at once, and kept.
    optimizer: One of OPTIMIZERS; left out where it is adamw.
    """

    sequence_length: Count
    global_batch_size: Count
    precision: Precision
    expert_capacity_factor: Positive = 1.0
    unquantized: Annotated[tuple[str, ...], Absence.WRITTEN] = ()
    unquantized_first: Annotated[Whole, Absence.WRITTEN] = 0
    unquantized_last: Annotated[Whole, Absence.WRITTEN] = 0
    expert_imbalance: Annotated[float, Limit(at_least=1), Absence.WRITTEN] = 1.0
    expert_tokens: Annotated[tuple[NotNegative, ...], Limit(most_items=MOST_EXPERTS), Absence.WRITTEN] = ()
    loss_chunks: Annotated[Count, Absence.WRITTEN] = 1
    optimizer: Annotated[str, Limit(choices=OPTIMIZERS), Absence.WRITTEN] = ADAMW

    def __post_init__(self) -> None:
        check_annotated("the training", self)
        if self.loss_chunks > self.sequence_length:
            raise AutoshardError(
                f"loss_chunks={self.loss_chunks} of the training: a sequence has {self.sequence_length} tokens, and a "
                "chunk has one at least"
            )
        check_choice("the training", "optimizer", self.optimizer, OPTIMIZERS)
        if self.optimizer == MUON and self.precision.rounds_at_random:
            raise AutoshardError(
                f"optimizer={MUON} of the training: its updates need master weights, which precision "
                f"{self.precision.name} lacks; mixed_precision has them"
            )
        known = PRECISIONS.get(self.precision.name, self.precision)
        for field in fields(self.precision):
            value, meant = getattr(self.precision, field.name), getattr(known, field.name)
            if value != meant:
                raise AutoshardError(
                    f"{field.name}={show(value)} of precision {known.name} must be {show(meant)}; "
                    "a mixture of one's own needs a name of its own"
                )
        if not all(isinstance(name, str) and re.fullmatch(r"[A-Za-z_][\w.]{0,99}", name) for name in self.unquantized):
            raise AutoshardError(
                "unquantized of the training must be a list of names of modules and operators of a block"
            )
        if self.kept_wide and self.precision.products is None:
            raise AutoshardError(
                f"keep_bf16={self.kept_wide} of the training: precision {self.precision.name} quantises "
                f"nothing; {', '.join(PRODUCT_FORMATS)} do"
            )
        self._check_routing()

    def _check_routing(self) -> None:
        for place, count in enumerate(self.expert_tokens):
            check_not_negative("the training", f"expert_tokens[{place}]", count)
        if self.expert_tokens and not 0 < sum(self.expert_tokens) < inf:
            raise AutoshardError(
                f"expert_tokens of the training add up to {sum(self.expert_tokens):g}; some are needed"
            )
        if self.expert_tokens and self.expert_imbalance != 1:
            raise AutoshardError(
                f"expert_imbalance={show(self.expert_imbalance)} of the training follows from its expert_tokens; "
                "give one of them"
            )

    def imbalance(self, ep: int) -> float:
        """Tokens of the busiest of ep expert-parallel ranks over their mean; each holds as many neighbouring experts.

        A rank of few gets no more than all tokens, so that a number for more ranks is cut to ep. 1 where every rank has
        all experts.
        """
        if not self.expert_tokens:
            return min(self.expert_imbalance, float(ep))
        each = len(self.expert_tokens) // ep
        ranks = [sum(self.expert_tokens[first : first + each]) for first in range(0, each * ep, each)]
        return max(ranks) * ep / sum(ranks)

    def expert_slots(self, ep: int) -> float:
        """Slots of each expert over the even share of a sequence's tokens in a layout of so many expert-parallel ranks:
        the capacity factor, or what the busiest rank's experts need where that is more."""
        return max(self.expert_capacity_factor, self.imbalance(ep))

    def of_length(self, tokens: int) -> TrainingSpec:
        """The training with sequences of so many tokens, and no more chunks of its loss than these."""
        return replace(self, sequence_length=tokens, loss_chunks=min(self.loss_chunks, tokens))

    @property
    def kept_wide(self) -> str:
        """Names of all that multiplies in the compute dtype, in the form that --keep-bf16 takes; empty without any."""
        blocks = (("first", self.unquantized_first), ("last", self.unquantized_last))
        return "+".join([*self.unquantized, *(f"{end}={count}" for end, count in blocks if count)])

    def wide_blocks(self, num_layers: int) -> tuple[int, ...]:
        """Places of the blocks that multiply whole in the compute dtype, of so many."""
        first, last = self.unquantized_first, max(self.unquantized_first, num_layers - self.unquantized_last)
        return (*range(min(first, num_layers)), *range(last, num_layers))

    def blocks_of(self, blocks: Blocks) -> Blocks:
        """The blocks of a model as they are priced: those that multiply whole in the compute dtype are kinds of their
        own."""
        wide = self.unquantized_first or self.unquantized_last
        return told_apart(blocks, self.wide_blocks(len(blocks.kind_of))) if wide else blocks

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step."""
        return self.sequence_length * self.global_batch_size


@lru_cache(maxsize=64)
def of_any_batch(training: TrainingSpec) -> TrainingSpec:
    """The training, one for all sizes of the batch."""
    return replace(training, global_batch_size=1)
