"""Calibration from Python: the cost model's constants from this machine or from results."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.atomic_file import write_text
from autoshard.files.fields import check_integer, show
from autoshard.interface.inputs import path_of
from autoshard.interface.limits import SHAPES
from autoshard.interface.shown import Shown
from autoshard.units import format_seconds


@dataclass(frozen=True, repr=False)
class Calibration(Shown):
    """Fitted constants. content: of a hardware file, as JSON values. lines: what was found, for people. path: where the
    file was written; None where it was not."""

    content: Mapping[str, Any]
    lines: tuple[str, ...]
    path: Path | None

    def _page(self, width: int, color: bool) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def calibrate(
    *,
    device: str | None = None,
    results: Sequence[str | Path] | None = None,
    collectives: str | Path | None = None,
    out: str | Path | None = None,
    instance: str | None = None,
    hardware: str | Path | None = None,
    processes: int | None = None,
    shapes: int = SHAPES,
    plot: str | Path | None = None,
) -> Calibration:
    """Fits the cost model's constants; `plan(..., hardware=out)` plans with them.

    device: cpu (the default), cuda or neuron, to measure this machine, which takes minutes and needs torch. results,
    collectives: CSV files of training runs and of collectives, to fit to those instead. out: the hardware file to
    write, JSON; None: none. instance: whose datasheet numbers hold. hardware: of results: a file in place of a packaged
    one. processes: ranks of the collectives. shapes: programs that are timed, at most 8. plot: picture of measured
    against fitted.

    Raises AutoshardError for arguments that do not go together, a device that is not there, a file that is wrong.
    """
    files = {"collectives": collectives, "out": out, "hardware": hardware, "plot": plot}
    paths = {name: path_of("calibrate", name, file) for name, file in files.items() if file is not None}
    for name, count in (("processes", processes), ("shapes", shapes)):
        if count is not None:
            check_integer("calibrate", name, count)
    measuring = {"device": device, "processes": processes, "plot": plot}
    if results is None and collectives is None:
        if hardware is not None:
            raise AutoshardError("hardware needs results or collectives")
        return _measure(device or "cpu", processes, min(SHAPES, shapes), paths.get("out"), instance, paths.get("plot"))
    for name, value in measuring.items():
        if value is not None:
            raise AutoshardError(f"{name} is of measuring this machine, which results and collectives do not")
    are_paths = isinstance(results, (list, tuple)) and results and all(isinstance(one, (str, Path)) for one in results)
    if results is not None and not are_paths:
        raise AutoshardError(f"results={show(results)} of calibrate must be paths of CSV files, one at least")
    from autoshard.calibration.measure import overwrites
    from autoshard.calibration.results.own import fit_own

    if "out" in paths:
        overwrites(paths["out"])
    content, page = fit_own(
        [Path(one) for one in results or ()],
        paths.get("collectives"),
        instance,
        paths.get("hardware"),
    )
    return _written(content, page, paths.get("out"))


def _measure(
    device: str,
    processes: int | None,
    shapes: int,
    out: Path | None,
    instance: str | None,
    picture: Path | None,
) -> Calibration:
    from autoshard.calibration.measure import default_instance, measure, overwrites
    from autoshard.calibration.plot import check_picture, plot

    if out is not None:
        overwrites(out)
    if picture is not None:
        overwrites(picture, "plot")
        check_picture(picture)
    machine, more = measure(device, processes, shapes, progress_line, instance)

    from autoshard.calibration.hardware_file import hardware_file

    name = instance or default_instance(machine.device, machine.name)
    content, one, together = hardware_file(machine, more["rates"], more["dtype"], name)
    if picture is not None:
        points = (*one.points, *(together.points if together is not None else ()))
        plot(points, f"{machine.name}: measured and fitted", picture)
    return _written(content, _page(content, one, together), out)


def _written(content: Mapping[str, Any], lines: Sequence[str], out: Path | None) -> Calibration:
    if out is None:
        return Calibration(content, tuple(lines), None)
    write_constants(out, content)
    more = ("", f"{out} ({content['instance']}): autoshard plan --hardware {out}")
    return Calibration(content, (*lines, *more), out)


def fit_packaged(
    results: Sequence[str | Path], collectives: str | Path | None, out: str | Path, details: str | Path | None = None
) -> tuple[str, ...]:
    """Fits all constants that autoshard packages, from scratch, and writes them; returns the lines of a page. For its
    maintainers.

    results, collectives: CSV files. out: the folder of the package. details: a folder for the fits themselves.
    """
    from autoshard.calibration.results.published import INTERVALS_FILE, SDK_FILE, fit_published

    given = None if collectives is None else Path(collectives)
    fits = fit_published([Path(one) for one in results], given, progress_line)
    hardware = {Path(out) / "hardware" / f"{name}.json": content for name, content in fits.hardware.items()}
    others = {Path(out) / "cost" / INTERVALS_FILE: fits.intervals, Path(out) / "spec" / SDK_FILE: fits.sdk}
    if details is not None:
        others |= {Path(details) / name: content for name, content in fits.details.items()}
    for file, content in {**hardware, **others}.items():
        write_constants(file, content, 2 if file in hardware else 1)
    return (*fits.page, "", *(str(file) for file in (*hardware, *others)))


def write_constants(file: Path, content: Mapping[str, Any], indent: int = 2) -> None:
    """Writes a hardware file, or what goes beside one; its folder is made. Raises AutoshardError where it cannot be."""
    with suppress(OSError):  # write_text says what is wrong
        file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(content, indent=indent) + "\n", "hardware file")


def progress_line(line: str) -> None:
    """Shows how far a calibration is."""
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
