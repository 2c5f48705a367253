"""The page of `benchmarks.on_gpu`: from its JSON to Markdown, with what is known so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autoshard.units import GIB, format_seconds


def page(found: Mapping[str, Any]) -> str:
    """Markdown. found: as on_gpu.json holds it; a part may have a note: how it was measured, what was changed since."""
    known = {name: part["result"] for name, part in found["parts"].items() if "result" in part}
    lines = ["# What a device does, beside what the plan says", "", _how(found["options"]), ""]
    if "environment" in known:
        lines += [*_environment(known["environment"]), ""]
    steps = {name: one for name, one in known.items() if name.startswith("step, ")}
    if steps:
        lines += ["## Steps", "", *_steps(steps), ""]
    if "attention" in known:
        lines += ["## Attention that torch's flash kernel does not know", "", *_attention(known["attention"]), ""]
    parities = {name: one for name, one in known.items() if name.startswith("parity")}
    if parities:
        lines += ["## FP32 against the CPU", "", *_parity(parities), ""]
    sharded = {name: one for name, one in known.items() if name.startswith("sharded, ")}
    if sharded:
        lines += ["## Several devices", "", *_sharded(sharded), ""]
    if "calibration" in known:
        lines += ["## Calibration", "", *_calibration(known["calibration"]), ""]
    noted = {name: part["note"] for name, part in found["parts"].items() if "note" in part}
    if noted:
        lines += ["## Notes", "", *(f"* {name}: {note}" for name, note in noted.items()), ""]
    failed = {name: part for name, part in found["parts"].items() if "error" in part}
    if failed:
        lines += ["## Without a result", "", *(f"* {name}: {part['error']}" for name, part in failed.items()), ""]
    return "\n".join(lines)


def _how(options: Mapping[str, Any]) -> str:
    command = f"python -m benchmarks.on_gpu --device {options['device']}{' --quick' if options['quick'] else ''}"
    stand_in = " **The CPU stood in for a GPU: these numbers only show that the program runs.**"
    return f"Written by `{command}`.{stand_in if options['device'] == 'cpu' else ''}"


def _environment(one: Mapping[str, Any]) -> Iterator[str]:
    cuda = f", CUDA {one['cuda']}" if one["cuda"] else ""
    memory, free = one["memory_bytes"] / GIB, one["free_bytes"] / GIB
    yield (f"{one['devices']} x {one['name']}, {memory:.1f} GiB each ({free:.1f} free); torch {one['torch']}{cuda}.")


def _steps(steps: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield (
        "| step | layout | measured | in kernels | predicted, packaged | calibrated | tokens/s | peak memory | audited "
        "| planned |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for name, one in steps.items():
        predicted = one["predicted"]
        memory = next(iter(predicted.values()), None)
        yield _row(
            name.removeprefix("step, "),
            one["layout"],
            format_seconds(one["step_time_s"]),
            f"{format_seconds(one['kernels_s'])} in {one['kernels']:,}" if "kernels" in one else "-",
            *(_beside(predicted.get(kind), one["step_time_s"]) for kind in ("packaged", "calibrated")),
            f"{one['tokens_per_s']:,.0f}",
            _gib(one["peak_memory_bytes"]),
            _off_memory(one["audited_memory_bytes"], one["peak_memory_bytes"]),
            "-" if memory is None else _gib(memory["memory_bytes"]),
        )
    yield ""
    for name, one in steps.items():
        if one["slowed_by"]:
            yield f"* {name}: the clock was held down ({', '.join(one['slowed_by'])})"
    yield (
        "Times: the median step after three that warm up; in kernels: what those of one step take, and how many they "
        "are. Memory: the peak of torch's allocator (on a CPU: of the "
        "process), beside what an audit expects of this runtime, uncompiled, and beside the plan's without its "
        "reserve. A plain module keeps other things than the plan says."
    )


def _attention(one: Mapping[str, Any]) -> Iterator[str]:
    yield "| forward and backward, 4,096 tokens | by flex_attention | in tiles, or behind a mask | |"
    yield "|---|---|---|---|"
    for name, times in one["kinds"].items():
        faster = f"{times['otherwise_s'] / times['flex_s']:.1f} times"
        yield _row(name, format_seconds(times["flex_s"]), format_seconds(times["otherwise_s"]), faster)


def _off_memory(expected_bytes: float, measured_bytes: float) -> str:
    return f"{_gib(expected_bytes)} ({expected_bytes / measured_bytes - 1:+.1%})"


def _beside(predicted: Mapping[str, float] | None, measured_s: float) -> str:
    if predicted is None:
        return "-"
    return f"{format_seconds(predicted['step_time_s'])} ({predicted['step_time_s'] / measured_s - 1:+.0%})"


SHOWN = 8
"""Rows of a part of many models: those that are off the most."""


def _parity(parities: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    right = all(one["right"] for one in parities.values())
    close = next(iter(parities.values()))["close"]
    yield f"Losses and gradient norms of three steps; all within {close:g}: {'yes' if right else 'NO'}."
    yield ""
    yield "| variant | largest relative difference |"
    yield "|---|---|"
    for part, one in parities.items():
        variants = one["variants"]
        shown = sorted(variants, key=lambda name: -_off(variants[name]))
        yield from (_row(name, _difference(variants[name])) for name in shown[:SHOWN])
        if len(shown) > SHOWN:
            yield _row(f"{len(shown) - SHOWN} others of {part}", f"at most {_difference(variants[shown[SHOWN]])}")


def _off(variant: Mapping[str, Any]) -> float:
    return float(variant.get("off", float("inf")))


def _difference(variant: Mapping[str, Any]) -> str:
    return str(variant["error"]) if "error" in variant else f"{variant['off']:.1e}"


def _sharded(layouts: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "| layout | losses off from one device | model | measured | predicted, packaged | calibrated |"
    yield "|---|---|---|---|---|---|"
    for name, one in layouts.items():
        yield _row(
            name.removeprefix("sharded, "),
            f"{one['off']:.1e}{'' if one['right'] else ' WRONG'}",
            one["model"],
            format_seconds(one["step_time_s"]),
            *(_beside(one["predicted"].get(kind), one["step_time_s"]) for kind in ("packaged", "calibrated")),
        )


def _calibration(one: Mapping[str, Any]) -> Iterator[str]:
    yield "| constant | fitted |"
    yield "|---|---|"
    yield from (_row(name, f"{value:.4g}") for name, value in one["constants"].items())
    yield ""
    yield "| measured | points | median error of the fit |"
    yield "|---|---|---|"
    yield from (_row(family, str(int(count)), f"{error:.1%}") for family, (count, error) in one["errors"].items())
    yield ""
    yield "| product, attention, copy | reached |"
    yield "|---|---|"
    yield from (_row(name, f"{value / 1e12:.4g} TFLOP/s") for name, value in one["products_flops_per_s"].items())
    yield from (
        _row(f"attention {name}", f"{value:.0%} of the peak") for name, value in one["attention_share_of_peak"].items()
    )
    yield from (_row(name, f"{value / 1e9:.4g} GB/s") for name, value in one["copies_bytes_per_s"].items())
    if one["launch_s"] is not None:
        yield _row("one launch", format_seconds(one["launch_s"]))
    yield ""
    yield from (f"* {note}" for note in one["notes"])


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _gib(count: float) -> str:
    return f"{count / GIB:.2f} GiB"
