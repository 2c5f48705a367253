"""`autoshard calibrate`: measure this machine, or take results, and write a hardware file."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from autoshard.commands.output import say
from autoshard.commands.parser import Parser
from autoshard.errors import AutoshardError
from autoshard.files.option_values import one_of, path, text, whole
from autoshard.units import format_seconds

SUMMARY = "measure this machine, or take results, and write a hardware file"
USAGE = "autoshard calibrate [options]"
DESCRIPTION = """\
Fit the cost model's constants and write a hardware file for `autoshard plan --hardware`.

With --device: to matrix products by shape, attention, other operators, memory and collectives, measured on this
machine. A few minutes; best on a machine that does nothing else.

  autoshard calibrate --device cpu -o my.json
  autoshard plan --model llama3-8b --hardware my.json
  autoshard calibrate --device cuda --plot fit.png

With --results: to step times of training runs, one row of a CSV file each, from what the packaged file says on.
Columns: instance nodes model layers hidden heads ffn vocab seq_len global_batch precision tp pp dp micro_batch sp zero1
recompute flash_attn, and step_time_s or seq_per_s; where they apply also id kv_heads vpp cp ep lnc.

  autoshard calibrate --results my_runs.csv --instance trn1.32xlarge -o my.json"""
SHAPES = 8


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--device",
        type=one_of("cpu", "cuda", "neuron"),
        metavar="NAME",
        help="measure cpu (one process a core), cuda or neuron (default: cpu)",
    )
    parser.add_argument(
        "--results", type=path, metavar="FILE", nargs="+", help="fit to the step times of training runs in CSV files"
    )
    parser.add_argument(
        "--collectives", type=path, metavar="FILE", help="fit to the times of collectives in a CSV file"
    )
    parser.add_argument(
        "-o",
        "--out",
        type=path,
        metavar="FILE",
        default="hardware.json",
        help="(default: hardware.json); of --results a folder: all that autoshard packages, from scratch",
    )
    parser.add_argument(
        "--instance",
        type=text,
        metavar="TYPE",
        help="packaged hardware file whose datasheet numbers hold (default: cpu, or what a GPU's name or all rows say)",
    )
    parser.add_argument(
        "--hardware",
        type=path,
        metavar="FILE",
        help="of --results: hardware file of your own in place of a packaged one",
    )
    parser.add_argument(
        "--processes", type=whole(), metavar="N", help="ranks of the collectives (default: all devices, at most 8)"
    )
    parser.add_argument(
        "--shapes",
        type=whole(),
        metavar="N",
        help=f"programs whose operators are timed, at most {SHAPES}; fewer are faster, less sure (default: {SHAPES})",
    )
    parser.add_argument(
        "--plot", type=path, metavar="FILE", help="picture of measured against fitted (.png, .svg, .pdf)"
    )
    parser.add_argument(
        "--details",
        type=path,
        metavar="DIR",
        help="of --results into a folder: also every constant of every stack, and what each group changes in them",
    )


def run(values: Mapping[str, Any]) -> int:
    measuring = ("device", "processes", "shapes", "plot")
    fitting = ("results", "collectives", "hardware", "details")
    if values["results"] is None and values["collectives"] is None:
        _none_of(values, fitting, "needs --results or --collectives")
        return _measure(values)
    _none_of(values, measuring, "is of measuring this machine, which --results and --collectives do not")
    return _fit(values)


def _none_of(values: Mapping[str, Any], names: tuple[str, ...], why: str) -> None:
    if given := [f"--{name}" for name in names if values[name] is not None]:
        raise AutoshardError(f"{given[0]} {why}")


def _measure(values: Mapping[str, Any]) -> int:
    from autoshard.calibration.measure import default_instance, measure, overwrites

    out, picture = Path(values["out"]), values["plot"]
    overwrites(out)
    if picture is not None:
        overwrites(Path(picture))
    shapes = min(SHAPES, values["shapes"] or SHAPES)
    machine, more = measure(values["device"] or "cpu", values["processes"], shapes, _progress, values["instance"])

    from autoshard.calibration.hardware_file import hardware_file

    instance = values["instance"] or default_instance(machine.device, machine.name)
    content, device, together = hardware_file(machine, more["rates"], more["dtype"], instance)
    _write(out, content)
    points = (*device.points, *(together.points if together is not None else ()))
    if picture is not None:
        from autoshard.calibration.plot import plot

        plot(points, f"{machine.name}: measured and fitted", Path(picture))
    say(*_page(content, device, together), "", f"{out} ({content['instance']}): autoshard plan --hardware {out}")
    return 0


def _fit(values: Mapping[str, Any]) -> int:
    from autoshard.calibration.measure import overwrites

    out, results = Path(values["out"]), [Path(one) for one in values["results"] or ()]
    collectives = Path(values["collectives"]) if values["collectives"] is not None else None
    if out.is_dir():
        return _fit_published(values, out, results, collectives)
    _none_of(values, ("details",), "needs a folder as -o")
    overwrites(out)

    from autoshard.calibration.results.own import fit_own

    hardware = Path(values["hardware"]) if values["hardware"] is not None else None
    content, page = fit_own(results, collectives, values["instance"], hardware)
    _write(out, content)
    say(*page, "", f"{out} ({content['instance']}): autoshard plan --hardware {out}")
    return 0


def _fit_published(values: Mapping[str, Any], out: Path, results: list[Path], collectives: Path | None) -> int:
    _none_of(values, ("instance", "hardware"), f"needs a file as -o; {out} is a folder")

    from autoshard.calibration.results.published import INTERVALS_FILE, SDK_FILE, fit_published

    fits = fit_published(results, collectives, _progress)
    hardware = {out / "hardware" / f"{name}.json": content for name, content in fits.hardware.items()}
    others = {out / "cost" / INTERVALS_FILE: fits.intervals, out / "spec" / SDK_FILE: fits.sdk}
    if values["details"] is not None:
        others |= {Path(values["details"]) / name: content for name, content in fits.details.items()}
    for file, content in {**hardware, **others}.items():
        _write(file, content, 2 if file in hardware else 1)
    say(*fits.page, "", *(str(file) for file in (*hardware, *others)))
    return 0


def _write(file: Path, content: Mapping[str, Any], indent: int = 2) -> None:
    from autoshard.files.atomic_file import write_text

    with suppress(OSError):  # write_text says what is wrong
        file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(content, indent=indent) + "\n", "hardware file")


def _progress(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _page(content: Mapping[str, Any], device: Any, together: Any) -> list[str]:
    """The lines of the page: the fitted constants, then how well the fit meets each family of measured points."""
    values = {**device.values, **(together.values if together is not None else {})}
    lines = [f"  {name:<28} {value:.4g}" for name, value in values.items()]
    lines += ["", f"  {'measured':<16} {'points':>6}  median error"]
    fits = [fit for fit in (device, together) if fit is not None]
    for fit in fits:
        for family in dict.fromkeys(point.family for point in fit.points):
            count, error = fit.error(family)
            lines.append(f"  {family:<16} {count:>6}  {error:.1%}")
    return [content["calibration"]["about"], "", *lines, *_curves(content["calibration"].get("measured"))]


def _curves(measured: Mapping[str, Any] | None) -> list[str]:
    """The lines of single operators by size; the notes on what may make all times wrong come last."""
    if measured is None:
        return []
    series = (
        ("product", "TFLOP/s", 1e12, measured["products_flops_per_s"]),
        ("attention", "% of the peak", 0.01, measured["attention_share_of_peak"]),
        ("memory", "GB/s", 1e9, measured["copies_bytes_per_s"]),
    )
    lines = []
    for what, unit, scale, values in (one for one in series if one[-1]):
        lines += ["", *(f"  {what:<10} {name:<44} {value / scale:8.4g} {unit}" for name, value in values.items())]
    if measured["launch_s"] is not None:
        lines += ["", f"  one launch takes {format_seconds(measured['launch_s'])}"]
    return [*lines, *(f"  note: {note}" for note in measured["notes"])]
