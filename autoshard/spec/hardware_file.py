"""Read a hardware file: one JSON file an instance type, every number with its source (autoshard/hardware/README.md)."""

import os
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.files.fields import check_format, check_integer, check_measure, is_count, near, show
from autoshard.files.json_file import read_json
from autoshard.files.strict import Reader
from autoshard.plugins.found import every, load
from autoshard.plugins.table import Table
from autoshard.spec.cluster import Cluster, Domain
from autoshard.spec.evidence import Evidence
from autoshard.spec.sdk import is_before, release, release_slowdown

FOLDER = Path(__file__).parent.parent / "hardware"
MAX_FILE_BYTES = 1_000_000
FORMAT_VERSION = 1


class Section(Reader):
    """One object of a hardware file, in which every number stands as {"value": ..., "source": "..."}."""

    def child(self, name: str) -> "Section":
        """The object under `name`."""
        return Section(self.any(name), f"{self.path}.{name}")

    def sourced(self, name: str) -> Any:
        """The value of a sourced entry. Errors: no source, or anything else beside the two."""
        entry = self.child(name)
        value = entry.any("value")
        entry.text("source")
        entry.finish()
        return value

    def number(self, name: str) -> float:
        """A sourced number of at least 0."""
        value = self.sourced(name)
        if isinstance(value, bool) or value != 0:
            check_measure(self.path, name, value)
        return float(value)

    def share(self, name: str) -> float:
        """A sourced number from 0 to 1: of a datasheet's bandwidth. 85 for 85 % is an error."""
        value = self.number(name)
        if value > 1:
            raise AutoshardError(f"{name}={value:g} of {self.path} is a share of the links' bandwidth, at most 1")
        return value

    def integer(self, name: str) -> int:
        """A sourced whole number of at least 1."""
        value = self.sourced(name)
        check_integer(self.path, name, value)
        return int(value)


def packaged_instances() -> tuple[str, ...]:
    """Names of the files that come with autoshard, sorted."""
    return tuple(sorted(path.name.removesuffix(".json") for path in FOLDER.glob("*.json")))


def find(instance: str | None, hardware_file: Path | None) -> Path:
    """The user's file, or the packaged one of that instance. Errors: an unknown instance lists the known ones."""
    if hardware_file is not None:
        return Path(hardware_file)
    known = packaged_instances()
    if instance in known:
        return FOLDER / f"{instance}.json"
    also = {name: aliases(name) for name in known}
    found = next((name for name, others in also.items() if instance in others), None)
    if found is not None:
        return FOLDER / f"{found}.json"
    own, failing = plugin_files()
    if isinstance(instance, str) and instance in own:
        return _only(instance, own[instance])
    if isinstance(instance, os.PathLike) or (isinstance(instance, str) and re.search(r"/|\.json$", instance)):
        raise AutoshardError(f"instance={show(str(instance))} is the name of a file; hardware takes files")
    close = near(str(instance), [*known, *own, *(other for others in also.values() for other in others)])
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    listed = [f"{name} ({', '.join(others)})" if others else name for name, others in also.items()]
    listed += own
    raise AutoshardError(
        f"instance={show(instance)} is not known; {meant}known: {', '.join(listed)}, or a hardware file of your own"
        + "".join(f"; {problem}" for problem in failing)
    )


HARDWARE = Table[Path](
    "hardware",
    lambda value: isinstance(value, (str, os.PathLike)) and Path(value).exists(),
    "the path of a hardware file, or of a folder of them",
    of=Path,
)
"""Places of the hardware files of plug-ins."""


def plugin_files() -> tuple[dict[str, list[tuple[Path, str]]], list[str]]:
    """(instance -> each hardware file that describes it with the package that brings it, why other plug-ins do not
    load)."""
    found: dict[str, list[tuple[Path, str]]] = {}
    failing = []
    for plugin in every(HARDWARE.group):
        try:
            place = HARDWARE.check(plugin, load(plugin))
        except AutoshardError as error:  # noqa: PERF203  it is that plug-in's alone
            failing.append(str(error))
        else:
            for file in _files(place):
                same = found.setdefault(_instance(file), [])
                if all(file != other for other, _ in same):
                    same.append((file, plugin.package))
    return found, failing


def check_files(place: Path) -> None:
    """Raise AutoshardError, a sentence for each file of a plug-in that gives no instance."""
    problems, own = [], plugin_files()[0]
    taken = {name: (name, *aliases(name)) for name in packaged_instances()}
    for file in _files(place):
        instance = _instance(file)
        try:
            if any(instance in names for names in taken.values()):
                raise AutoshardError(
                    f"{instance} of {file.name} is built in, and what is built in is taken; give it another name"
                )
            read_cluster(_only(instance, own[instance]), None, 1, None)
        except AutoshardError as error:
            problems.append(str(error))
    if problems:
        raise AutoshardError("; ".join(problems))


def _files(place: Path) -> list[Path]:
    return sorted(place.glob("*.json")) if place.is_dir() else [place]


def _instance(file: Path) -> str:
    """The instance that a file describes; the name of a file that does not say it, so that asking for it says why."""
    try:
        content = read_json(file, "hardware file", MAX_FILE_BYTES)
    except AutoshardError:
        content = None
    said = content.get("instance") if isinstance(content, dict) else None
    return said if isinstance(said, str) else file.name.removesuffix(".json")


def _only(instance: str | None, files: list[tuple[Path, str]]) -> Path:
    """The file of an instance. Raises AutoshardError where several describe it."""
    (file, package), *others = files
    if others:
        other, another = others[0]
        raise AutoshardError(
            f"instance {instance} comes from {file.name} of {package} and from {other.name} of {another}; "
            "uninstall or rename one of them"
        )
    return file


def aliases(instance: str) -> tuple[str, ...]:
    """Other names of a packaged instance."""
    content = read_json(FOLDER / f"{instance}.json", "hardware file", MAX_FILE_BYTES)
    return tuple(content.get("aliases", ())) if isinstance(content, dict) else ()


def read_cluster(path: Path, instance: str | None, nodes: int, lnc: int | None, sdk: str | None = None) -> Cluster:
    """The Cluster that a file describes, for so many nodes at one LNC (None: the file's default) and under a release
    of the Neuron SDK (None: the newest one)."""
    file = Section(read_content(path), path.name)
    check_format(file.path, file.any("format_version"), FORMAT_VERSION)
    name = file.text("instance")
    others = file.any("aliases") if "aliases" in file.names else []
    if not isinstance(others, list) or not all(isinstance(one, str) for one in others):
        raise AutoshardError(f"{file.path}.aliases is {show(others)}; it must be a list of names")
    if instance not in (None, name, *others):
        raise AutoshardError(f"instance={show(instance)} but {file.path} describes {name}; use {name}")
    check_integer("the cluster", "nodes", nodes)
    return under_release(from_json(Cluster, _cluster_values(file, name, nodes, lnc), file.path), sdk)


def under_release(cluster: Cluster, sdk: str | None) -> Cluster:
    """A cluster with the speeds of the newest release of the Neuron SDK, as it is under another one; None: under the
    platform's usual one.

    Raises AutoshardError for a release that is not known, or older than the device, and for one of a device that runs
    none.
    """
    if not cluster.platform.is_trainium:
        if sdk is not None:
            raise AutoshardError(f"sdk={show(sdk)} but {cluster.instance} does not run the Neuron SDK; leave sdk out")
        return cluster
    platform = cluster.platform
    named = platform.usual_release if sdk is None else release(sdk)
    if is_before(named, platform.first_release):
        raise AutoshardError(
            f"sdk={named} does not run on {cluster.instance}: the first release that does is {platform.first_release}"
        )
    return replace(cluster.slowed(release_slowdown(cluster.layout_rules, named)), sdk=named)


def read_content(path: Path) -> Any:
    """The content of a hardware file; values that it leaves out come from the packaged file that it is `like`.

    Raises AutoshardError where it cannot be read, is too large or no JSON, and where no packaged file has that name.
    """
    content = read_json(path, "hardware file", MAX_FILE_BYTES)
    if not isinstance(content, dict) or "like" not in content:
        return content
    own = {name: value for name, value in content.items() if name != "like"}
    if content["like"] not in packaged_instances():
        raise AutoshardError(
            f"like={show(content['like'])} of {path.name} must be one of: {', '.join(packaged_instances())}"
        )
    like = read_content(FOLDER / f"{content['like']}.json")
    return _over({name: value for name, value in like.items() if name != "aliases"}, own)


def _over(below: Any, above: Any) -> Any:
    """Objects are joined, key by key; a sourced number takes the place of the other one whole."""
    if not (isinstance(below, dict) and isinstance(above, dict)) or "value" in above:
        return above
    return {**below, **{name: _over(below.get(name), value) for name, value in above.items()}}


def _cluster_values(file: Section, name: str, nodes: int, lnc: int | None) -> dict[str, Any]:
    """The JSON form of a Cluster: `from_json` makes one of it, which checks the values."""
    default_lnc, offered = file.any("default_lnc"), file.child("lnc")
    if not offered.names:
        raise AutoshardError(f'{offered.path} is empty; it must have the devices at an LNC, such as "1"')
    lnc = default_lnc if lnc is None else lnc
    if isinstance(lnc, bool) or str(lnc) not in offered.names:
        raise AutoshardError(f"lnc={show(lnc)} is not offered by {name}; it offers lnc {' and '.join(offered.names)}")
    logical, calibration = offered.child(str(lnc)), file.child("calibration")
    calibration.text("about")
    for key in ("power_w", "host_link_bandwidth_bytes_per_s"):  # of one chip, for fits to results alone
        if key in file.names:
            file.number(key)
    _check_fits(calibration)
    if "measured" in calibration.names:  # curves for the reader alone
        calibration.any("measured")
    chips, per_chip = file.integer("chips_per_node"), logical.integer("devices_per_chip")
    reserved = _reserved_bytes(file.child("reserved_memory_bytes"), logical.integer("physical_cores_per_device"))
    values = {
        "instance": name,
        "nodes": nodes,
        "lnc": lnc,
        "devices_per_node": chips * per_chip,
        "devices_per_chip": per_chip,
        "device": {
            "name": f"{name} lnc {lnc}",
            "reserved_memory_bytes": reserved,
            **_device_values(logical, calibration),
        },
        "intra_node": _intra_node_values(
            calibration, lnc, (chips, per_chip), file.number("chip_link_bandwidth_bytes_per_s")
        ),
        **_domain_values(file, calibration, nodes),
        "adapters_per_node": file.integer("adapters_per_node"),
        "inter_node": {
            "name": "network adapter",
            "bandwidth_bytes_per_s": file.number("adapter_bandwidth_bytes_per_s")
            * calibration.share("adapter_efficiency"),
            "latency_s": calibration.number("inter_node_hop_latency_s"),
        },
        "collective_launch_s": calibration.number("collective_launch_s"),
        "all_to_all_efficiency": calibration.number("all_to_all_efficiency"),
        "price_per_node_hour_usd": file.sourced("price_per_node_hour_usd"),
        "layout_rules": file.text("layout_rules"),
        **({"most_nodes": file.integer("most_nodes")} if "most_nodes" in file.names else {}),
    }
    for section in (file, logical, calibration):
        section.finish()
    return values


def _domain_values(file: Section, calibration: Section, nodes: int) -> dict[str, Any]:
    """Links between nodes that are not the network: most devices have none. nodes: of the job."""
    if "domain" not in file.names:
        return {"nodes_per_domain": 1, "intra_domain": None}
    domain = file.child("domain")
    link = {
        "name": domain.text("link"),
        "bandwidth_bytes_per_s": domain.number("chip_link_bandwidth_bytes_per_s")
        * calibration.share("domain_link_efficiency"),
        "latency_s": calibration.number("domain_hop_latency_s"),
    }
    whole = _domain(domain)
    domain.finish()
    return {"nodes_per_domain": whole.taken_by(nodes), "intra_domain": link, "domain": to_json(whole)}


@lru_cache(maxsize=64)
def packaged_domain(instance: str) -> Domain | None:
    """The scale-up domain of a packaged instance; None where it has none, or is not packaged."""
    if instance not in packaged_instances():
        return None
    file = Section(read_content(FOLDER / f"{instance}.json"), instance)
    return _domain(file.child("domain")) if "domain" in file.names else None


def _domain(section: Section) -> Domain:
    nodes = section.integer("nodes")
    multiple = section.integer("segment_multiple") if "segment_multiple" in section.names else nodes
    return Domain(nodes, multiple)


def _check_fits(calibration: Section) -> None:
    """Raise AutoshardError for a fit that is not Evidence or that names a constant which the file has not.

    A file without `fits` has no fitted constants.
    """
    fits = calibration.any("fits") if "fits" in calibration.names else []
    if not isinstance(fits, list):
        raise AutoshardError(f"{calibration.path}.fits is {show(fits)}; it must be a list of fits")
    for number, fit in enumerate(fits):
        path = f"{calibration.path}.fits[{number}]"
        for name in from_json(Evidence, fit, path).constants:
            if name.partition(".")[0] not in calibration.names:
                raise AutoshardError(f"{path} names {show(name)}, which is no constant of {calibration.path}")


def _reserved_bytes(reserve: Section, physical_cores: int) -> float:
    """Microcode is held by every physical core, the rest by every device once."""
    per_core, per_device = reserve.number("microcode_per_physical_core"), reserve.child("per_device")
    reserve.finish()
    return per_core * physical_cores + sum(per_device.number(name) for name in per_device.names)


def _device_values(logical: Section, calibration: Section) -> dict[str, Any]:
    return {
        "flops_per_s": _numbers(logical.child("flops_per_s")),
        **{name: logical.number(name) for name in ("memory_bytes", "memory_bandwidth_bytes_per_s")},
        **{name: logical.integer(name) for name in ("tile_rows", "tile_columns")},
        **{
            name: calibration.number(name)
            for name in ("matmul_efficiency", "matmul_k0", "memory_efficiency", "operator_overhead_s", "pass_launch_s")
        },
        **{name: calibration.number(name) for name in ("attention_efficiency",) if name in calibration.names},
        **{name: _numbers(calibration.child(name)) for name in ("quantized_efficiency",) if name in calibration.names},
    }


def _numbers(section: Section) -> dict[str, float]:
    return {name: section.number(name) for name in section.names}


def _intra_node_values(
    calibration: Section, lnc: int, sizes: tuple[int, int], chip_link: float
) -> list[dict[str, Any]]:
    """Inside a chip a bus bandwidth as measured; over several chips a share of one chip's links, by number of chips.

    sizes: chips of a node, devices of a chip. Shares over more chips than a node has, of a larger instance that the
    file is like, are not used.
    """
    per_node, per_chip = sizes
    hop_s, inside = calibration.number("hop_latency_s"), calibration.child("chip_bus_bandwidth_bytes_per_s")
    steps = [("inside a chip", 1, inside.number(str(lnc)))]
    shares = calibration.child("link_efficiency_by_chips")
    for chips in shares.names:
        if not is_count(chips):
            raise AutoshardError(f"{show(chips)} of {shares.path} must be a number of chips")
        share = shares.share(chips)
        if int(chips) <= per_node:
            steps.append((f"{chips} chips", int(chips), chip_link * share))
    return [
        {"devices": chips * per_chip, "link": {"name": name, "bandwidth_bytes_per_s": bandwidth, "latency_s": hop_s}}
        for name, chips, bandwidth in steps
    ]
