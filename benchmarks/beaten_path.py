"""Writes what is known to have run, autoshard/precedents/known.json: `python -m benchmarks.beaten_path`.

--trainium takes files with the columns of data/measured_trainium.csv, --layouts with those of
data/published_layouts.csv, --graphs with those of data/compiler_graphs.csv. Without them, all such files in data/ are
read. Left out are rows whose layout is not complete, rows on a single chip, whose groups say nothing about a node, and
rows of stacks that are no backend here (AXLearn).
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from autoshard.calibration.results.instance_rows import row_model, row_precision, row_strategy
from autoshard.calibration.results.rows import Row, read_rows
from autoshard.cost.local_shape import LocalShape
from autoshard.files.atomic_file import write_text
from autoshard.files.codec import to_json
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.models.registry import load_model
from autoshard.plans.plan_json import compact_json
from autoshard.precedents.graph_size import GraphSize, forward_size, graph_size, largest_of, size_of
from autoshard.precedents.runs import FILE, BeatenPath, Compiled, Known, Run, fitted_instructions, pipeline_place
from autoshard.schedules import usual_schedule
from autoshard.spec.cluster import Cluster, load_cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec, load_precision
from benchmarks.one_error import one_error

DATA = Path(__file__).parent / "data"
MADE_BY = "python -m benchmarks.beaten_path"
CHIPS_OF_A_NODE = 16
MOST_SOURCES = 3
RECOMPUTE = {
    "selective[CoreAttention]": "core_attention",
    "selective[CoreAttention;LlamaMLP]": "core_attention+mlp",
    "full": "full",
}
"""What a published layout recomputes, as autoshard calls it."""
Found = tuple[str, str, Run]
"""(generation, backend, run)."""


def runs_of_results(rows: Sequence[Row]) -> Iterator[Found]:
    """Yields the runs of measured rows that count."""
    for row in rows:
        complete = row.get("config_complete", "").startswith("yes")
        if not complete or int(row["chips"]) < CHIPS_OF_A_NODE or "AXLearn" in row["model"]:
            continue
        cluster = load_cluster(row["instance"].split("/")[0], int(row["nodes"]))
        training = TrainingSpec(int(row["seq_len"]), int(row["global_batch"]), row_precision(row))
        yield _found(row["model"], row_model(row), training, cluster, row_strategy(row), row["source"])


def runs_of_layouts(rows: Sequence[Row]) -> Iterator[Found]:
    """Yields the runs of published layouts. A row that leaves its microbatch or its pipeline open counts as 1."""
    for row in rows:
        model, cluster = load_model(row["model"]), load_cluster(row["instance"], int(row["nodes"]))
        tp, pp, vpp, cp, ep = (int(row[name]) for name in ("tp", "pp", "vpp", "cp", "ep"))
        strategy = Strategy(
            tp=tp,
            pp=pp,
            dp=cluster.world_size // (tp * pp * cp),
            cp=cp,
            ep=ep,
            num_virtual_stages=vpp,
            microbatch_size=int(row["micro_batch"]),
            schedule=usual_schedule(vpp),
            recompute=(RECOMPUTE[row["recompute"]],),
            sequence_parallel=row["sequence_parallel"] == "true",
            zero=int(row["zero1"] == "true"),
            attention_kernel="plain" if "no flash attention" in row["source"] else "flash",
            stage_layers=even_stage_layers(model.num_hidden_layers, pp * vpp),
            context_parallel="ring" if cp > 1 else "all_gather",
        )
        training = TrainingSpec(int(row["seq_len"]), int(row["global_batch"]), load_precision(row["precision"]))
        yield _found(row["model"], model, training, cluster, strategy, row["source"])


def _found(
    name: str, model: ModelSpec, training: TrainingSpec, cluster: Cluster, strategy: Strategy, source: str
) -> Found:
    graph = _rounded(graph_size(model, training, cluster, strategy))
    place = pipeline_place(strategy, cluster.devices_per_node)
    run = Run(
        model=name,
        tp=strategy.tp,
        cp=strategy.cp,
        ep=strategy.ep,
        num_virtual_stages=strategy.num_virtual_stages,
        microbatch_size=strategy.microbatch_size,
        pipeline=place,
        recompute=strategy.recompute[0],
        graph=graph,
        results=1,
        sources=(source,),
    )
    return cluster.platform.name, "nxd", run


def _rounded(size: GraphSize) -> GraphSize:
    return GraphSize(*(float(f"{value:.6g}") for value in (size.operators, size.tiles, size.logits)))


def paths(found: Sequence[Found], compiled: Sequence[Compiled]) -> tuple[BeatenPath, ...]:
    """The runs by generation and backend; rows that differ in their source alone are one run. compiled: graphs, of
    which those that compile count too."""
    every: dict[tuple[str, str], dict[Run, list[str]]] = {}
    for generation, backend, run in found:
        same = every.setdefault((generation, backend), {})
        same.setdefault(replace(run, sources=("",)), []).extend(run.sources)
    return tuple(
        BeatenPath(
            generation,
            backend,
            tuple(
                replace(run, results=len(sources), sources=tuple(dict.fromkeys(sources))[:MOST_SOURCES])
                for run, sources in runs.items()
            ),
            largest_of(
                [run.graph for run in runs]
                + [one.graph for one in compiled if one.compiles and one.generation == generation]
            ),
        )
        for (generation, backend), runs in every.items()
    )


def compiled_graphs(rows: Sequence[Row]) -> Iterator[Compiled]:
    """Yields what compilers were given, each as a graph of this project: on one device, attention written out."""
    cluster = load_cluster("trn1.32xlarge", 1)
    for row in rows:
        layers = int(row["layers"])
        llama = row["model_type"] == "llama"
        model = ModelSpec(
            name=row["name"],
            model_type=row["model_type"],
            hidden_size=int(row["hidden"]),
            intermediate_size=int(row["ffn"]),
            num_hidden_layers=layers,
            num_attention_heads=int(row["heads"]),
            num_key_value_heads=int(row["kv_heads"]),
            head_dim=int(row["head_dim"]),
            vocab_size=int(row["vocab"]),
            max_position_embeddings=int(row["seq_len"]),
            hidden_act="silu" if llama else "gelu_new",
            norm_eps=1e-5,
            rope_theta=10000.0 if llama else None,
            rope_scaling=None,
            tie_word_embeddings=False,
            sliding_window=None,
            attention_bias=not llama,
            mlp_bias=not llama,
        )
        sequences = int(row["micro_batch"])
        training = TrainingSpec(int(row["seq_len"]), sequences, load_precision("mixed_precision"))
        shape = LocalShape(1, 1, 1, sequences, False, "plain")
        if row["phase"] == "training":
            size = size_of(model, training, cluster, shape, 1, (layers,))
        else:
            size = forward_size(model, training, cluster, shape, layers)
        yield Compiled(
            row["name"],
            row["generation"],
            _rounded(size),
            float(row["instructions"]) if row["instructions"] else None,
            float(row["limit"]),
            row["compiled"] == "yes",
            row["source"],
        )


def known(trainium: Sequence[Path], layouts: Sequence[Path], graphs: Sequence[Path]) -> Known:
    """The content of known.json, from files."""
    found = [run for file in trainium for run in runs_of_results(read_rows(file))]
    found += [run for file in layouts for run in runs_of_layouts(read_rows(file))]
    compiled = tuple(one for file in graphs for one in compiled_graphs(read_rows(file)))
    fit = fitted_instructions(compiled)
    fit = replace(fit, per_tile=float(f"{fit.per_tile:.4g}"), left_out_error=float(f"{fit.left_out_error:.3g}"))
    return Known(MADE_BY, paths(found, compiled), compiled, fit)


@one_error
def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--trainium", type=Path, nargs="+", default=sorted(DATA.glob("measured_trainium*.csv")))
    parser.add_argument("--layouts", type=Path, nargs="+", default=sorted(DATA.glob("published_layouts*.csv")))
    parser.add_argument("--graphs", type=Path, nargs="+", default=sorted(DATA.glob("compiler_graphs*.csv")))
    parser.add_argument("-o", "--out", type=Path, default=FILE)
    options = parser.parse_args(arguments)
    written = known(options.trainium, options.layouts, options.graphs)
    write_text(options.out, compact_json(to_json(written)) + "\n", "known runs")
    for path in written.paths:
        values = {name: sorted(map(str, values)) for name, values in path.values.items()}
        print(f"{path.name}: {len(path.runs)} layouts, {path.results} results; {values}; {path.largest_graph}")
    print(written.instructions)
    return 0


if __name__ == "__main__":
    sys.exit(main())
