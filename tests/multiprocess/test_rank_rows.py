"""Which rows of a global batch each rank trains on: together all of them, and none twice."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.layout.mesh import AXIS_ORDER, Mesh, build_mesh
from autoshard.runtime.data import TokenStream
from autoshard.runtime.torch_backend.parameters import local_piece

DIMS = ("batch", "seq")


def pieces_of(mesh: Mesh, rank: int, batch: torch.Tensor, num_microbatches: int) -> torch.Tensor:
    """As Session cuts them: microbatches of the global batch, of each the rank's piece along dp, ep and cp."""
    _, index = mesh.coordinates(rank)
    state = tuple({"dp": "batch", "ep": "batch", "cp": "seq"}.get(axis, "I") for axis in mesh.stage_axes)
    return torch.cat([local_piece(one, DIMS, state, mesh, index) for one in batch.chunk(num_microbatches)])


@settings(deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4]), pp=st.integers(1, 3), dp=st.integers(1, 4), cp=st.sampled_from([1, 2]),
    num_microbatches=st.integers(1, 4), microbatch=st.integers(1, 3), seed=st.integers(0, 99), step=st.integers(0, 50),
    order=st.permutations(AXIS_ORDER),
)  # fmt: skip
def test_ranks_share_a_steps_rows_without_overlap(
    tp: int, pp: int, dp: int, cp: int, num_microbatches: int, microbatch: int, seed: int, step: int, order: list[str]
) -> None:
    mesh = build_mesh(tp=tp, pp=pp, dp=dp, cp=cp, ep=1, num_key_value_heads=2, order=tuple(order))
    size = num_microbatches * microbatch * dp
    stream = TokenStream(np.arange(30 * size * 5, dtype=np.int32), size, 4, seed)  # every token is another number
    inputs, _ = stream.batch(step)
    seen: dict[tuple[int, ...], torch.Tensor] = {}
    for rank in range(mesh.world_size):
        _, index = mesh.coordinates(rank)
        mine = pieces_of(mesh, rank, torch.from_numpy(inputs), num_microbatches)
        assert mine.shape == (size // dp, 4 // cp)
        place = (index.get("dp", 0), index.get("cp", 0))
        assert (seen.setdefault(place, mine) == mine).all()  # ranks of tp and pp read the same
    together = torch.cat([piece.flatten() for piece in seen.values()])
    assert sorted(together.tolist()) == sorted(inputs.ravel().tolist())
    assert len(set(together.tolist())) == len(together)
