"""Folded groups on the real library with 4 processes: a node of four rows of one rank, tp=2 of them on two rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch.distributed as dist

from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.worker import Reporter
from autoshard.spec.cluster import Cluster
from autoshard.spec.platform import TRN2_TORUS, Fold
from tests.nxd.cases import plan_of
from tests.nxd.workers import compared, connect, make_session, trained

LAYOUTS: dict[str, dict[str, Any]] = {
    "dp2": {"dp": 2},
    "dp2, no ZeRO-1": {"dp": 2, "zero": 0},
    "dp2, one key-value head, biases": {"model": "qwen2 one kv head", "dp": 2},
    "dp2, one key-value head, biases, no ZeRO-1": {"model": "qwen2 one kv head", "dp": 2, "zero": 0},
    "pp2": {"pp": 2},
}
"""What tp=2 is combined with."""


@contextmanager
def folded(mended: bool = True) -> Iterator[None]:
    """NxD takes its LOGIC2 for tp=2, as for tp=32 at lnc 2, and plans for 4 devices are folded.

    mended: whether the backend puts the plan's groups in the place of the library's.
    """
    from neuronx_distributed.parallel_layers import parallel_state

    def chosen(*unused: object, tp: int) -> Any:
        logic = parallel_state.PG_Group_Logic.LOGIC2 if tp == 2 else parallel_state.PG_Group_Logic.LOGIC1
        parallel_state._REPLICA_LOGIC = logic
        return logic

    def fold(cluster: Cluster, tp: int) -> Fold | None:
        return Fold(4, TRN2_TORUS.row_order) if tp == 2 and cluster.devices_per_node == 4 else None

    with ExitStack() as patched:
        patched.enter_context(patch.object(parallel_state, "get_logic_chosen", chosen))
        patched.enter_context(patch.object(Cluster, "fold", fold))
        patched.enter_context(patch("autoshard.runtime.nxd_backend.rank_groups.FOLDED", ((None, 1, 2),)))
        if not mended:
            for name in ("mend_folded_groups", "check_groups", "check_key_value_groups"):
                patched.enter_context(patch(f"autoshard.runtime.nxd_backend.session.{name}"))
        yield


def conformance(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """As workers.conformance; and the losses and norms of the torch backend in the same folded layout."""
    connect(reporter)
    found = {}
    with folded():
        for name, layout in LAYOUTS.items():
            reporter.last_action = name
            plan = plan_of(tp=2, **layout)
            found[name] = compared(plan, reporter)
            found[name]["groups"] = plan.mesh.groups(("tp", "tp0", "tp1"))
            found[name]["torch folded"] = trained(make_session(plan, reporter.rank, Session), plan)
    return found


def gradients(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """How far a parameter's gradient without ZeRO-1 is from one process's, relative: with the library's own groups."""
    connect(reporter)
    with folded(mended=False):
        return {"nxd": compared(plan_of(tp=2, dp=2, zero=0), reporter)["differences"]["gradient"]}


def saved(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Names of the model files that NxD's save_checkpoint writes with its own groups, and with the mended ones."""
    from neuronx_distributed.trainer.checkpoint import finalize_checkpoint, save_checkpoint

    connect(reporter)
    found = {}
    for name, mended in (("nxd", False), ("mended", True)):
        with folded(mended):
            session = make_session(plan_of(tp=2, dp=2), reporter.rank)
            save_checkpoint(arguments["folder"], name, model=session._model)
            finalize_checkpoint()
        dist.barrier()
        found[name] = sorted(path.name for path in (Path(arguments["folder"]) / name / "model").iterdir())
    return found


def context_ranks(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """This rank's place along cp: as the library tells it, and in the list that ring attention's pairs go by."""
    from neuronx_distributed.parallel_layers import parallel_state

    connect(reporter)
    with folded():
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=2, context_parallel_size=2)
        groups = parallel_state.get_context_model_parallel_replica_groups()
        listed = next(group.index(reporter.rank) for group in groups if reporter.rank in group)
        told = parallel_state.get_context_model_parallel_rank()
    return {"told": told, "listed": listed}
