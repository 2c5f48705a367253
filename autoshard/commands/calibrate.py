"""`autoshard calibrate`: measure this machine and write its hardware file."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoshard.commands.output import say
from autoshard.commands.parser import Parser, one_of, path, text, whole

SUMMARY = "measure this machine and write its hardware file"
USAGE = "autoshard calibrate [options]"
DESCRIPTION = """\
Measure matrix products by shape, attention, other operators, memory and collectives on this machine, fit the cost
model's constants to them, and write a hardware file for `autoshard plan --hardware`. A few minutes; best on a machine
that does nothing else.

  autoshard calibrate --device cpu -o my.json
  autoshard plan --model llama3-8b --hardware my.json
  autoshard calibrate --device cuda --plot fit.png"""
SHAPES = 8


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--device",
        type=one_of("cpu", "cuda", "neuron"),
        metavar="NAME",
        default="cpu",
        help="cpu (one process a core), cuda or neuron (default: cpu)",
    )
    parser.add_argument(
        "-o", "--out", type=path, metavar="FILE", default="hardware.json", help="(default: hardware.json)"
    )
    parser.add_argument(
        "--instance",
        type=text,
        metavar="TYPE",
        help="packaged hardware file whose datasheet numbers hold (default: cpu, or what a GPU's name says)",
    )
    parser.add_argument(
        "--processes", type=whole(), metavar="N", help="ranks of the collectives (default: all devices, at most 8)"
    )
    parser.add_argument(
        "--shapes",
        type=whole(),
        metavar="N",
        default=SHAPES,
        help=f"programs whose operators are timed, at most {SHAPES}; fewer are faster, less sure (default: {SHAPES})",
    )
    parser.add_argument(
        "--plot", type=path, metavar="FILE", help="picture of measured against fitted (.png, .svg, .pdf)"
    )


def run(values: Mapping[str, Any]) -> int:
    from autoshard.calibrate.measure import default_instance, measure, overwrites

    out, picture = Path(values["out"]), values["plot"]
    overwrites(out)
    if picture is not None:
        overwrites(Path(picture))
    found, more = measure(values["device"], values["processes"], min(SHAPES, values["shapes"]), _progress)

    from autoshard.calibrate.hardware_file import hardware_file
    from autoshard.interop.atomic_file import write_text

    instance = values["instance"] or default_instance(found.device, found.name)
    content, device, together = hardware_file(found, more["rates"], more["dtype"], instance)
    write_text(out, json.dumps(content, indent=2) + "\n", "hardware file")
    points = (*device.points, *(together.points if together is not None else ()))
    if picture is not None:
        from autoshard.calibrate.plot import plot

        plot(points, f"{found.name}: measured and fitted", Path(picture))
    say(*_page(content, device, together), "", f"{out} ({content['instance']}): autoshard plan --hardware {out}")
    return 0


def _progress(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _page(content: Mapping[str, Any], device: Any, together: Any) -> list[str]:
    """Constants, then how well every family of points is met."""
    values = {**device.values, **(together.values if together is not None else {})}
    lines = [f"  {name:<28} {value:.4g}" for name, value in values.items()]
    lines += ["", f"  {'measured':<16} {'points':>6}  median error"]
    fits = [fit for fit in (device, together) if fit is not None]
    for fit in fits:
        for family in dict.fromkeys(point.family for point in fit.points):
            count, error = fit.error(family)
            lines.append(f"  {family:<16} {count:>6}  {error:.1%}")
    return [content["calibration"]["about"], "", *lines]
