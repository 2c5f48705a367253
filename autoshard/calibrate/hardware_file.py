"""Measurements and their fit as a hardware file (autoshard/hardware/README.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from autoshard.calibrate.fit import Fit, fit_collectives, fit_device
from autoshard.calibrate.values import Measurements
from autoshard.interop.json_file import read_json
from autoshard.spec.cluster import Cluster, load_cluster
from autoshard.spec.hardware_file import FOLDER, MAX_FILE_BYTES

OPERATORS = ("matmul", "flash", "plain", "norm", "loss", "vector", "pass", "memory")
"""Families of points that say something of one device."""


def hardware_file(
    found: Measurements, rates: Mapping[str, float], dtype: str, instance: str
) -> tuple[dict[str, Any], Fit, Fit | None]:
    """(content, fit of the device, fit of its collectives or None where it has no other to talk to).

    instance: the packaged file whose datasheet numbers stay; on a CPU, which has none, measured rates take their place.
    rates: FLOP/s of one large product by dtype.
    """
    content: Any = read_json(FOLDER / f"{instance}.json", "hardware file", MAX_FILE_BYTES)
    measured = f"measured by autoshard calibrate on {found.name}, {_today()}"
    if found.device == "cpu":
        _set_cpu(content, found, rates, dtype, measured)
    cluster = _cluster(content, instance)
    device = fit_device(found, cluster.device, dtype)
    for name, value in device.values.items():
        content["calibration"][name] = _entry(value, found, device, OPERATORS)
    together = fit_collectives(found.collectives, cluster) if found.collectives else None
    if together is not None:
        _set_collectives(content, found, together)
    count, error = device.error()
    about = f"{measured}: {count} times of operators, passes and memory, median error {error:.0%}"
    passes, pass_error = device.error("pass")
    about += f"; of the {passes} whole passes {pass_error:.0%}"
    if together is not None:
        count, error = together.error()
        about += f"; {count} collectives of {found.collectives[0].ranks} ranks, median error {error:.0%}"
    content["calibration"]["about"] = about
    return content, device, together


def _today() -> str:
    return datetime.now(timezone.utc).date().isoformat()


def _entry(value: float, found: Measurements, fit: Fit, families: tuple[str, ...] = ()) -> dict[str, Any]:
    count, error = fit.error(*families)
    points = f"{count} points, median error {error:.0%}"
    return {"value": value, "source": f"fitted by autoshard calibrate on {found.name}, {_today()}: {points}"}


def _set_cpu(content: dict[str, Any], found: Measurements, rates: Mapping[str, float], dtype: str, source: str) -> None:
    """One device is one process on one core; the machine is one chip."""
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


def _set_collectives(content: dict[str, Any], found: Measurements, fit: Fit) -> None:
    """Between the devices of this machine; between machines nothing was measured."""
    calibration, values = content["calibration"], fit.values
    for name in ("collective_launch_s", "all_to_all_efficiency"):
        calibration[name] = _entry(values[name], found, fit)
    calibration["hop_latency_s"] = {
        "value": 0.0,
        "source": f"in collective_launch_s: measured with {found.collectives[0].ranks} ranks alone",
    }
    bandwidth = _entry(values["bandwidth_bytes_per_s"], found, fit)
    if found.device == "cpu":
        calibration["chip_bus_bandwidth_bytes_per_s"] = {"1": bandwidth}
        return
    links = content["chip_link_bandwidth_bytes_per_s"]["value"]
    share = {**bandwidth, "value": float(f"{min(1.0, bandwidth['value'] / links):.4g}")}
    chips = content["chips_per_node"]["value"]
    calibration["link_efficiency_by_chips"] = {str(chips): share}


def _cluster(content: Mapping[str, Any], instance: str) -> Cluster:
    """As the packaged file has it, with what was measured in place of a CPU's guesses."""
    cluster = load_cluster(instance, 1)
    logical = content["lnc"][str(content["default_lnc"])]
    device = replace(
        cluster.device,
        flops_per_s=tuple(sorted((name, entry["value"]) for name, entry in logical["flops_per_s"].items())),
        memory_bandwidth_bytes_per_s=logical["memory_bandwidth_bytes_per_s"]["value"],
    )
    return replace(cluster, device=device)
