"""Compares stages compiled by inductor with one uncompiled process, in more layouts than `make test` does.

For each layout two steps in FP64 (gradients and parameters to 1e-9), one in FP32 (loss, norm and gradients to 1e-5, the
collectives executed are the plan's), and the losses of two steps in bf16 (1e-3, against one process that rounds in the
same way). About a minute a layout on 2 cores where inductor's cache is empty. tests/multiprocess/test_compiled.py has
fewer layouts.

    python -m benchmarks.compiled_parity      # the last line is JSON
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tests.multiprocess.started import first_rank, start

LAYOUTS: dict[int, tuple[str, ...]] = {
    1: ("one process",),
    2: (
        "tp",
        "tp, no sequence parallel",
        "dp",
        "dp, ZeRO-3",
        "cp",
        "zigzag ring",
        "pp, zero bubble",
        "mixtral ep",
        "gpt2 tp, padded vocabulary",
        "dropout, gpt2 tp, recompute all",
        "recompute single operators",
    ),
    4: ("tp x pp, interleaved, recompute", "tp x dp, ZeRO-3, recompute"),
}
"""Number of processes -> names of layouts, from the parity matrix or compiled_workers.ALSO."""
AGREES = {"executed": "{}", "planned": "{}"}


def right(found: dict[str, Any]) -> bool:
    exact, single = found["fp64"], found["fp32"]
    close = exact["loss"] < 1e-12 and max(exact["norm"], exact["gradient"], exact["parameter"]) < 1e-9
    close &= max(single["loss"], single["norm"], single["gradient"]) < 1e-5 and found["bf16"] < 1e-3
    return close and all(one == AGREES for one in single["collectives"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="*", default=list(LAYOUTS), choices=list(LAYOUTS))
    parser.add_argument("--layouts", nargs="*", help="of the parity matrix, instead of the ones here")
    parser.add_argument("--results", type=Path, help="a JSON file: what it holds of other layouts stays")
    arguments = parser.parse_args()
    table: dict[str, dict[str, Any]] = {}
    for processes in arguments.processes:
        for name in arguments.layouts or LAYOUTS[processes]:
            asked = {"layouts": {name: ["fp64", "fp32", "bf16"]}, "backend": "inductor"}
            found = first_rank(start("compiled_workers:parity", processes, asked, 600))[name]
            exact, single = found["fp64"], found["fp32"]
            segments, distinct = exact["compiled"][0]
            table[name] = {
                "right": right(found),
                "segments": segments,
                "distinct": distinct,
                "fp64": max(exact["norm"], exact["gradient"], exact["parameter"]),
                "fp32": max(single["loss"], single["norm"], single["gradient"]),
                "bf16_loss": found["bf16"],
            }
            print(f"{processes} processes, {name}: {table[name]}", flush=True)
    if arguments.results is not None:
        before = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
        arguments.results.write_text(json.dumps(before | table, indent=1) + "\n", encoding="utf-8")
    wrong = [name for name, row in table.items() if not row["right"]]
    print(json.dumps({"layouts": len(table), "wrong": wrong}))
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
