"""Writes measurements and their fit as a hardware file (autoshard/hardware/README.md)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autoshard.calibration.calibration import Leaf, digest, evidence, set_fitted, today
from autoshard.calibration.fit import Fit, fit_collectives, fit_device, left_out_collectives, left_out_device
from autoshard.calibration.values import LAUNCH, Measurements
from autoshard.files.codec import to_json
from autoshard.spec.cluster import Cluster, load_cluster
from autoshard.spec.evidence import Evidence
from autoshard.spec.hardware_file import find, read_content
from autoshard.units import MIB

BEYOND_CACHES_BYTES = 128 * MIB
"""Copies that move at least so much are beyond any cache."""


def hardware_file(
    found: Measurements, rates: Mapping[str, float], dtype: str, instance: str
) -> tuple[dict[str, Any], Fit, Fit | None]:
    """(content, fit of the device, fit of its collectives or None where only one device was measured).

    instance: the one whose datasheet numbers are kept, by any of its names; a CPU has none, so measured rates take
    their place.
    rates: measured FLOP/s of one large product, by dtype.
    """
    content = read_content(find(instance, None))
    measured = f"measured by autoshard calibrate on {found.name}, {today()}"
    if found.device == "cpu":
        _set_cpu(content, found, rates, dtype, measured)
    if found.device == "cuda" and found.devices != content["chips_per_node"]["value"]:
        _set_gpus(content, found.devices, measured)
    cluster = _cluster(content, instance)
    fitted = with_curves(found, dtype)
    device = fit_device(fitted, cluster.device, dtype)
    programs = len({one.name.partition(" of ")[2] for one in fitted.operators})
    left_out = left_out_device(fitted, cluster.device, dtype)
    values: dict[Leaf, float] = {(name,): value for name, value in device.values.items()}
    of = _evidence(found, "operators, passes and memory", device, programs, left_out, values)
    for name in device.values:
        content["calibration"].setdefault(name, {})
    set_fitted(content, {name: (value, _points(device)) for name, value in values.items()}, of)
    together = fit_collectives(found.collectives, cluster) if found.collectives else None
    if together is not None:
        _set_collectives(content, found, together, left_out_collectives(found.collectives, cluster))
    content["calibration"]["about"] = f"{measured}, see fits"
    if found.curves or found.notes:
        peaks = {**rates, dtype: cluster.device.peak_flops_per_s(dtype)}
        content["calibration"]["measured"] = measured_curves(found, peaks)
    return content, device, together


def with_curves(found: Measurements, dtype: str) -> Measurements:
    """The measurements to fit: a GPU's curves count among its operators and its copies. A CPU's programs are as small
    as its curves, and say more.

    Left out: products in another dtype; copies that may stay in a cache; the launch, which is no transfer.
    """
    if found.device != "cuda":
        return found
    single = tuple(one for one in found.curves if one.dtype == dtype)
    large = tuple(one for one in found.copies if one.moved_bytes >= BEYOND_CACHES_BYTES)
    return replace(found, operators=(*found.operators, *single), memory=(*found.memory, *large))


def measured_curves(found: Measurements, peaks: Mapping[str, float]) -> dict[str, Any]:
    """Gives what single operators reached, by name, for the reader of a hardware file: nothing is computed from it.

    peaks: FLOP/s by dtype; attention's share is of its dtype's.
    """
    products: dict[str, float] = {}
    shares: dict[str, float] = {}
    for one in found.curves:
        name = one.name.partition(" of ")[0]
        if one.needs.kind == "matmul":
            products[f"{name} {one.dtype}"] = _rounded(one.needs.flops / one.forward_s)
            continue
        peak = peaks[one.dtype]
        for phase, flops, seconds in (
            ("forward", one.needs.flops, one.forward_s),
            ("backward", one.needs.flops * one.needs.backward_ratio, one.backward_s),
        ):
            if seconds is not None:
                shares[f"{phase}, {name}"] = _rounded(flops / seconds / peak)
    return {
        "products_flops_per_s": products,
        "attention_share_of_peak": shares,
        "copies_bytes_per_s": {
            one.name: _rounded(one.moved_bytes / one.seconds) for one in found.copies if one.moved_bytes
        },
        "launch_s": next((_rounded(one.seconds) for one in found.copies if one.name == LAUNCH), None),
        "notes": list(found.notes),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _evidence(
    found: Measurements, what: str, fit: Fit, groups: int, left_out: Sequence[float] | None, constants: Iterable[Leaf]
) -> Evidence:
    sha256 = digest(json.dumps(to_json(found), sort_keys=True).encode())
    errors = [point.error for point in fit.points]
    return evidence(constants, f"{what} of {found.name}", sha256, groups, (errors, left_out))


def _points(fit: Fit) -> str:
    count, error = fit.error()
    return f"{count} points, median error {error:.0%}"


def _set_cpu(content: dict[str, Any], found: Measurements, rates: Mapping[str, float], dtype: str, source: str) -> None:
    """Fills in a CPU machine: one device is one process on one core, and the machine is one chip."""
    products = [(one.needs, one.forward_s) for one in found.operators if one.needs.kind == "matmul"]
    fastest = max(2 * needs.m * needs.n * needs.k / seconds for needs, seconds in products)
    logical = content["lnc"]["1"]
    peaks = {**rates, dtype: max(fastest, rates[dtype])}
    logical["flops_per_s"] = {
        name: {"value": float(f"{peak:.4g}"), "source": f"{source}: the fastest product"}
        for name, peak in sorted(peaks.items())
    }
    bandwidth = max(one.moved_bytes / one.seconds for one in found.memory)
    logical["memory_bandwidth_bytes_per_s"] = {
        "value": float(f"{bandwidth:.4g}"),
        "source": f"{source}: the fastest of copy, sum and AdamW over 16 MB buffers",
    }
    logical["memory_bytes"] = {"value": found.memory_bytes, "source": f"{source}: a core's share of the machine's"}
    logical["devices_per_chip"] = {"value": found.devices, "source": f"{source}: cores"}


def _set_gpus(content: dict[str, Any], gpus: int, source: str) -> None:
    """Writes how many GPUs the machine has, where it is no usual node of them."""
    content["chips_per_node"] = {"value": gpus, "source": f"{source}: GPUs that torch saw"}
    adapters = min(gpus, content["adapters_per_node"]["value"])
    content["adapters_per_node"] = {"value": adapters, "source": "guess: one a GPU, as in a usual node"}


def _set_collectives(content: dict[str, Any], found: Measurements, fit: Fit, left_out: Sequence[float]) -> None:
    """Writes the constants of collectives between the devices of this machine; nothing was measured between
    machines."""
    calibration, ranks = content["calibration"], found.collectives[0].ranks
    calibration["hop_latency_s"] = {
        "value": 0.0,
        "source": f"in collective_launch_s: measured with {ranks} ranks alone",
    }
    leaf, bandwidth = ("chip_bus_bandwidth_bytes_per_s", "1"), fit.values["bandwidth_bytes_per_s"]
    if found.device != "cpu":
        leaf = ("link_efficiency_by_chips", str(content["chips_per_node"]["value"]))
        links = content["chip_link_bandwidth_bytes_per_s"]["value"]
        bandwidth = float(f"{min(1.0, bandwidth / links):.4g}")
    calibration[leaf[0]] = {leaf[1]: {}}
    kinds = len({one.kind for one in found.collectives})
    values: dict[Leaf, float] = {(name,): fit.values[name] for name in ("collective_launch_s", "all_to_all_efficiency")}
    values[leaf] = bandwidth
    of = _evidence(found, f"collectives of {ranks} ranks", fit, kinds, left_out, values)
    set_fitted(content, {name: (value, _points(fit)) for name, value in values.items()}, of)


def _cluster(content: Mapping[str, Any], instance: str) -> Cluster:
    """The cluster of the packaged file; for a CPU with measured values in place of the file's guesses."""
    cluster = load_cluster(instance, 1)
    logical = content["lnc"][str(content["default_lnc"])]
    device = replace(
        cluster.device,
        flops_per_s=tuple(sorted((name, entry["value"]) for name, entry in logical["flops_per_s"].items())),
        memory_bandwidth_bytes_per_s=logical["memory_bandwidth_bytes_per_s"]["value"],
    )
    return replace(cluster, device=device)
