"""Clusters: the packaged hardware files, a user's own, the round trip through JSON, and what is refused."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from autoshard.calibration.calibration import leaf_entry, leaves
from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.spec.cluster import Cluster, Link, instances, load_cluster
from autoshard.units import GB, GIB, TFLOPS

HARDWARE = Path(__file__).parents[2] / "autoshard" / "hardware"


def test_instances() -> None:
    ampere = ("a100-40gb", "a100-80gb", "p4d.24xlarge", "p4de.24xlarge")
    hopper = ("h100-80gb", "h200-141gb", "h800-80gb", "p5.4xlarge")
    blackwell = ("b200-180gb", "b300-288gb", "gb200-186gb", "gb300-288gb")
    trn1, trn2 = (
        ("trn1.2xlarge", "trn1.32xlarge", "trn1n.32xlarge"),
        ("trn2.3xlarge", "trn2.48xlarge", "trn2u.48xlarge"),
    )
    assert sorted(instances()) == sorted(("cpu", *ampere, *hopper, *blackwell, *trn1, *trn2, "trn3-gen1", "trn3-gen2"))


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("p5.48xlarge", "h100-80gb"),
        ("p5e.48xlarge", "h200-141gb"),
        ("p5en.48xlarge", "h200-141gb"),
        ("p6-b200.48xlarge", "b200-180gb"),
        ("p6-b300.48xlarge", "b300-288gb"),
        ("p6e-gb200.36xlarge", "gb200-186gb"),
    ],
)
def test_gpus_are_known_by_their_ec2_names(alias: str, name: str) -> None:
    assert load_cluster(alias, 2) == load_cluster(name, 2)


@pytest.mark.parametrize(
    ("name", "as_one", "devices", "network"),
    [
        ("p4d.24xlarge", "a100-40gb", 8, 0.25),
        ("p4de.24xlarge", "a100-80gb", 8, 0.25),
        ("p5.4xlarge", "h100-80gb", 1, 1 / 32),
    ],
)
def test_a_gpu_of_ec2_with_less_network_is_the_same_device(
    name: str, as_one: str, devices: int, network: float
) -> None:
    small, large = load_cluster(name, 2), load_cluster(as_one, 2)
    assert (replace(small.device, name=large.device.name), small.devices_per_node) == (large.device, devices)
    of_nodes = [one.adapters_per_node * one.inter_node.bandwidth_bytes_per_s for one in (small, large)]
    assert of_nodes[0] == pytest.approx(network * of_nodes[1])


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("h100", "h100-80gb"),
        ("H100", "h100-80gb"),
        ("a100", "a100-40gb or a100-80gb"),
        ("trn2", "trn2.3xlarge or trn2.48xlarge or trn2u.48xlarge"),
        ("p5.48xlage", "p5.48xlarge or p5e.48xlarge or p5.4xlarge"),
    ],
)
def test_a_near_name_is_suggested(given: str, meant: str) -> None:
    with pytest.raises(AutoshardError) as error:
        load_cluster(given, 1)
    assert str(error.value).startswith(
        f"instance='{given}' is not known; did you mean {meant}? known: a100-40gb, a100-80gb, "
    )


@pytest.mark.parametrize("given", ["mine.json", "may/not/be/entered/mine", Path("mine.json")])
def test_a_file_is_no_instance(given: Any) -> None:
    with pytest.raises(AutoshardError) as error:
        load_cluster(given, 1)
    assert str(error.value) == f"instance='{given}' is the name of a file; hardware takes files"


def test_names_of_hardware_are_each_of_one_file() -> None:
    aliases = [json.loads((HARDWARE / f"{name}.json").read_text()).get("aliases", []) for name in instances()]
    names = [*instances(), *(one for some in aliases for one in some)]
    assert len(set(names)) == len(names)


def test_a_file_that_is_like_another_has_not_its_aliases(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"instance": "mine", "like": "h100-80gb", "aliases": ["other"]}')
    assert load_cluster("other", 1, hardware_file=file).instance == "mine"
    with pytest.raises(AutoshardError) as error:
        load_cluster("p5.48xlarge", 1, hardware_file=file)
    assert str(error.value) == "instance='p5.48xlarge' but mine.json describes mine; use mine"
    file.write_text('{"instance": "mine", "like": "h100-80gb", "aliases": "other"}')
    with pytest.raises(AutoshardError) as error:
        load_cluster("mine", 1, hardware_file=file)
    assert str(error.value) == "mine.json.aliases is 'other'; it must be a list of names"


def test_trn1_is_16_chips_of_two_cores() -> None:
    cluster = load_cluster("trn1.32xlarge", 16)
    assert cluster.lnc == 1 and cluster.devices_per_node == 32 and cluster.devices_per_chip == 2
    assert cluster.world_size == 512
    assert cluster.device.peak_flops_per_s("bfloat16") == 95 * TFLOPS
    assert cluster.device.memory_bytes == 16 * GIB
    assert cluster.device.memory_bandwidth_bytes_per_s == 410 * GB
    assert cluster.price_per_node_hour_usd == 21.5
    assert cluster.layout_rules == "trn1"
    # 8 adapters x 12.5 GB/s x 0.52 over 32 ranks
    assert cluster.inter_node_bandwidth_bytes_per_s(32) == pytest.approx(8 * 12.5 * GB * 0.52 / 32)


def test_trn1n_has_twice_the_adapters_of_trn1() -> None:
    one, two = load_cluster("trn1.32xlarge", 2), load_cluster("trn1n.32xlarge", 2)
    assert (one.adapters_per_node, two.adapters_per_node) == (8, 16)
    # 1,600 Gb/s a node: 16 adapters x 12.5 GB/s x 0.52 over 32 ranks
    assert two.inter_node_bandwidth_bytes_per_s(32) == pytest.approx(16 * 12.5 * GB * 0.52 / 32)


def test_reserve_of_trn1_is_microcode_runtime_code_and_scratchpad() -> None:
    device = load_cluster("trn1.32xlarge", 1).device
    assert device.reserved_memory_bytes == pytest.approx(96e6 + 0.3e6 + 500e6 + 500e6)


@pytest.mark.parametrize(("lnc", "devices", "memory_gib"), [(1, 128, 12), (2, 64, 24), (None, 64, 24)])
def test_trn2_at_each_lnc(lnc: int | None, devices: int, memory_gib: int) -> None:
    cluster = load_cluster("trn2.48xlarge", 2, lnc)
    assert cluster.devices_per_node == devices
    assert cluster.world_size == 2 * devices
    assert cluster.device.memory_bytes == memory_gib * GIB
    # a chip is a chip at either lnc: 667 TFLOP/s
    assert cluster.device.peak_flops_per_s("bfloat16") * cluster.devices_per_chip == pytest.approx(667 * TFLOPS)
    # two physical cores' microcode are held by one logical core at lnc 2
    assert cluster.device.reserved_memory_bytes == pytest.approx(96e6 * cluster.lnc + 1000.3e6)


def test_ranks_of_one_trn2_chip_share_its_adapter() -> None:
    cluster = load_cluster("trn2.48xlarge", 2)
    one_adapter = cluster.inter_node.bandwidth_bytes_per_s
    assert 0.7 * 25 * GB < one_adapter < 0.9 * 25 * GB
    assert cluster.inter_node_bandwidth_bytes_per_s(1) == pytest.approx(one_adapter)
    assert cluster.inter_node_bandwidth_bytes_per_s(4) == pytest.approx(one_adapter / 4)
    assert cluster.inter_node_bandwidth_bytes_per_s(64) == pytest.approx(one_adapter / 4)


def test_intra_node_link_by_span() -> None:
    cluster = load_cluster("trn1.32xlarge", 1)
    assert cluster.intra_node_link(2).name == "inside a chip"
    assert cluster.intra_node_link(3).name == "2 chips"
    assert cluster.intra_node_link(8).name == "4 chips"
    assert cluster.intra_node_link(32).bandwidth_bytes_per_s == pytest.approx(384 * GB * 0.271)


@pytest.mark.parametrize(
    ("instance", "nodes", "devices", "memory_gib", "tflops"),
    [
        ("trn1.2xlarge", 1, 2, 16, 95),
        ("trn2.3xlarge", 4, 4, 24, 667 / 4),
        ("trn3-gen1", 4, 64, 36, 671 / 4),
        ("Trn3 Gen1 UltraServer", 8, 64, 36, 671 / 4),
        ("trn3-gen2", 36, 16, 36, 671 / 4),
    ],
)
def test_chips_and_ultraservers(instance: str, nodes: int, devices: int, memory_gib: int, tflops: float) -> None:
    """An UltraServer of Gen1 is 4 nodes of 16 chips, 64; one of Gen2 is 36 nodes of 4 chips, 144."""
    cluster = load_cluster(instance, nodes)
    assert (cluster.devices_per_node, cluster.device.memory_bytes) == (devices, memory_gib * GIB)
    assert cluster.device.peak_flops_per_s("bfloat16") == pytest.approx(tflops * TFLOPS)
    chips = {"trn3-gen1": 64, "trn3-gen2": 144}.get(cluster.instance, 1)
    assert cluster.nodes_per_domain * cluster.chips_per_node == chips


def test_an_instance_without_efa_works_alone() -> None:
    alone = load_cluster("trn1.2xlarge", 1)
    assert alone.can_have(1) and not alone.can_have(2) and load_cluster("trn1.32xlarge", 1).can_have(1000)
    text = r"^nodes=2 of cluster trn1\.2xlarge must be at most 1: one cannot work with others$"
    with pytest.raises(AutoshardError, match=text):
        load_cluster("trn1.2xlarge", 2)
    with pytest.raises(AutoshardError, match=text):
        replace(alone, nodes=2)


def test_cpus_have_a_platform() -> None:
    cluster = load_cluster("cpu", 3)
    assert cluster.world_size == 24 and cluster.layout_rules == "cpu" and cluster.is_host
    assert cluster.device.peak_flops_per_s("float64") > 0
    assert replace(cluster, layout_rules="none").is_host  # of an older plan
    assert not replace(cluster, layout_rules="none", instance="mine").is_host


@pytest.mark.parametrize("instance", instances())
def test_round_trip_through_json_text(instance: str) -> None:
    cluster = load_cluster(instance, 1)
    text = json.dumps(to_json(cluster))
    again = from_json(Cluster, json.loads(text), "cluster")
    assert again == cluster and hash(again) == hash(cluster)
    assert json.dumps(to_json(again)) == text
    unset = {name for name in ("most_nodes", "sdk", "stack", "domain") if getattr(cluster, name) is None}
    assert set(to_json(cluster)) == {field.name for field in fields(Cluster)} - unset
    assert cluster.platform.is_trainium == (cluster.sdk == cluster.platform.usual_release)


@pytest.mark.parametrize("instance", instances())
def test_every_number_has_a_source(instance: str) -> None:
    def check(value: Any) -> None:
        if isinstance(value, dict) and "value" in value:
            assert set(value) == {"value", "source"} and value["source"]
        elif isinstance(value, dict):
            for name, item in value.items():
                if name not in ("format_version", "default_lnc", "fits", "aliases"):
                    check(item)
        else:
            assert isinstance(value, str), value

    check(json.loads((HARDWARE / f"{instance}.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("leaf", "told"),
    [
        (("adapter_efficiency",), "adapter_efficiency=85 of mine.json.calibration"),
        (("link_efficiency_by_chips", "16"), "16=85 of mine.json.calibration.link_efficiency_by_chips"),
        (("domain_link_efficiency",), "domain_link_efficiency=85 of mine.json.calibration"),
    ],
)
def test_a_share_of_links_in_per_cent_is_refused(leaf: tuple[str, ...], told: str, tmp_path: Path) -> None:
    calibration: dict[str, Any] = {"value": 85, "source": "my own"}
    for key in reversed(leaf):
        calibration = {key: calibration}
    like = "trn2u.48xlarge" if leaf == ("domain_link_efficiency",) else "trn1.32xlarge"
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"format_version": 1, "instance": "mine", "like": like, "calibration": calibration}))
    with pytest.raises(AutoshardError) as error:
        load_cluster(None, 1, hardware_file=file)
    assert str(error.value) == f"{told} is a share of the links' bandwidth, at most 1"


@pytest.mark.parametrize("instance", instances())
def test_every_fitted_number_has_evidence(instance: str) -> None:
    """And nothing else has."""
    calibration = json.loads((HARDWARE / f"{instance}.json").read_text(encoding="utf-8")).get("calibration", {})
    fitted = {
        ".".join(leaf)
        for leaf in leaves(calibration)
        if leaf_entry(calibration, leaf)["source"].startswith("fitted to ")
    }
    assert fitted == {name for fit in calibration.get("fits", []) for name in fit["constants"]}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ("trn9", 1),
            (
                "instance='trn9' is not known; known: a100-40gb, a100-80gb, b200-180gb (p6-b200.48xlarge), "
                "b300-288gb (p6-b300.48xlarge), cpu, gb200-186gb (p6e-gb200.36xlarge), gb300-288gb, "
                "h100-80gb (p5.48xlarge), h200-141gb (p5e.48xlarge, p5en.48xlarge), h800-80gb, "
                "p4d.24xlarge, p4de.24xlarge, p5.4xlarge, "
                "trn1.2xlarge, trn1.32xlarge, trn1n.32xlarge, trn2.3xlarge, trn2.48xlarge, trn2u.48xlarge, "
                "trn3-gen1 (Trn3 Gen1 UltraServer), trn3-gen2 (Trn3 Gen2 UltraServer), or a hardware file of your own"
            ),
        ),
        (("trn1.32xlarge", 1, 2), "lnc=2 is not offered by trn1.32xlarge; it offers lnc 1"),
        (("trn2.48xlarge", 1, 4), "lnc=4 is not offered by trn2.48xlarge; it offers lnc 1 and 2"),
        (
            ("trn1.32xlarge", 0),
            "nodes=0 of the cluster must be a whole number from 1 to 1,000,000,000",
        ),
    ],
)
def test_what_load_refuses(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        load_cluster(*arguments)
    assert str(error.value) == text


def test_unknown_dtype() -> None:
    with pytest.raises(AutoshardError) as error:
        load_cluster("trn1.32xlarge", 1).device.peak_flops_per_s("int4")
    assert (
        str(error.value)
        == "dtype int4 has no peak FLOP/s for device trn1.32xlarge lnc 1; it lists bfloat16, cfp8, float32"
    )


def own_file(folder: Path, **changes: Any) -> Path:
    data = json.loads((HARDWARE / "cpu.json").read_text(encoding="utf-8"))
    path = folder / "my.json"
    path.write_text(json.dumps({**data, "instance": "my-box", **changes}), encoding="utf-8")
    return path


@pytest.mark.parametrize("chips", ["two", "9" * 5000])
def test_a_share_of_the_links_of_no_number_of_chips_is_refused(chips: str, tmp_path: Path) -> None:
    """Python raises for a text of 5,000 digits, which is none either."""
    path = own_file(tmp_path)
    data = json.loads(path.read_text(encoding="utf-8"))
    data["calibration"]["link_efficiency_by_chips"] = {chips: {"value": 0.5, "source": "measured"}}
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(AutoshardError, match="link_efficiency_by_chips must be a number of chips"):
        load_cluster(None, 2, hardware_file=path)


def test_a_file_of_the_users_own(tmp_path: Path) -> None:
    path = own_file(tmp_path, chips_per_node={"value": 2, "source": "two sockets"})
    data = json.loads(path.read_text(encoding="utf-8"))
    data["calibration"]["link_efficiency_by_chips"] = {"2": {"value": 0.5, "source": "measured"}}
    path.write_text(json.dumps(data), encoding="utf-8")
    cluster = load_cluster(None, 2, hardware_file=path)
    assert cluster == load_cluster("my-box", 2, hardware_file=path)
    assert cluster.instance == "my-box" and cluster.world_size == 32


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"format_version": 9}, "my.json has format_version 9; this autoshard reads 1"),
        ({"format_version": True}, "my.json has format_version True; this autoshard reads 1"),
        ({"format_version": 1.0}, "my.json has format_version 1.0; this autoshard reads 1"),
        ({"chips_per_node": 1}, "my.json.chips_per_node must be an object with named fields, not a number"),
        ({"chips_per_node": {"value": 1}}, "my.json.chips_per_node lacks source"),
        *(
            (
                {"adapter_bandwidth_bytes_per_s": {"value": value, "source": "x"}},
                f"adapter_bandwidth_bytes_per_s={value} of my.json must be from 1e-100 to 1e+100",
            )
            for value in (1e300, 1e-300)
        ),
        (
            {"price_per_node_hour_usd": {"value": 1e308, "source": "x"}},
            "price_per_node_hour_usd=1e+308 of cluster my-box must be 0 or from 1e-100 to 1e+100",
        ),
        ({"colour": "red"}, "my.json has a field that is not known: 'colour'; known: "),
        ({"adapters_per_node": {"value": 0, "source": "x"}}, "adapters_per_node=0 of my.json must be a whole number"),
        (
            {"adapter_bandwidth_bytes_per_s": {"value": "fast", "source": "x"}},
            "adapter_bandwidth_bytes_per_s='fast' of my.json must be a finite number above 0",
        ),
        ({"lnc": {}}, 'my.json.lnc is empty; it must have the devices at an LNC, such as "1"'),
        (
            {"layout_rules": "tpu"},
            "layout_rules='tpu' of cluster my-box must be one of: trn1, trn2, trn3, cuda, cpu, none",
        ),
    ],
)
def test_wrong_file_of_the_users_own(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        load_cluster(None, 1, hardware_file=own_file(tmp_path, **changes))
    assert str(error.value).startswith(text)


def test_a_device_without_a_peak(tmp_path: Path) -> None:
    path = own_file(tmp_path)
    data = json.loads(path.read_text(encoding="utf-8"))
    (lnc,) = data["lnc"]
    data["lnc"][lnc]["flops_per_s"] = {}
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(AutoshardError) as error:
        load_cluster(None, 1, hardware_file=path)
    assert str(error.value) == (
        f"flops_per_s of device my-box lnc {lnc} is empty; it must have the peak of a dtype, such as bfloat16"
    )


def test_file_and_instance_must_agree(tmp_path: Path) -> None:
    with pytest.raises(AutoshardError) as error:
        load_cluster("trn1.32xlarge", 1, hardware_file=own_file(tmp_path))
    assert str(error.value) == "instance='trn1.32xlarge' but my.json describes my-box; use my-box"


def test_file_that_is_missing_or_not_json(tmp_path: Path) -> None:
    path = tmp_path / "my.json"
    with pytest.raises(AutoshardError, match="does not exist"):
        load_cluster(None, 1, hardware_file=path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(AutoshardError, match="cut off"):
        load_cluster(None, 1, hardware_file=path)


def changed(path: str, value: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(to_json(load_cluster("trn1.32xlarge", 1))))
    *parents, last = path.split(".")
    target: dict[str, Any] = data
    target = data
    for name in parents:
        target = target[name]
    target[last] = value
    return data


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("nodes", 0),
        ("nodes", 1.0),
        ("nodes", True),
        ("instance", ""),
        ("instance", "a\nb"),
        ("device", None),
        ("device.flops_per_s", [1]),
        ("device.flops_per_s", {"bfloat16": -1}),
        ("device.memory_bytes", float("nan")),
        ("device.memory_bytes", "16"),
        ("device.reserved_memory_bytes", 1e12),
        ("device.matmul_efficiency", 1.2),
        ("device.surprise", 1),
        ("inter_node.latency_s", -1),
        ("inter_node", {"name": "x"}),
        ("nodes_per_domain", 4),
        ("nodes_per_domain", 0),
        ("intra_domain", {"name": "Z", "bandwidth_bytes_per_s": 1.0, "latency_s": 0.0}),
        ("intra_domain", 3),
        ("intra_node", {}),
        ("intra_node", []),
        ("intra_node", [{"devices": 32}]),
        ("intra_node", [{"devices": 16, "link": {"name": "x", "bandwidth_bytes_per_s": 1, "latency_s": 0}}]),
        ("intra_node", [{"devices": "32", "link": {"name": "x", "bandwidth_bytes_per_s": 1, "latency_s": 0}}]),
        ("devices_per_chip", 3),
        ("price_per_node_hour_usd", "free"),
        ("collective_launch_s", None),
        ("all_to_all_efficiency", 0),
        ("layout_rules", 7),
    ],
)
def test_from_dict_refuses_a_wrong_value_and_names_the_field(path: str, value: Any) -> None:
    with pytest.raises(AutoshardError) as error:
        from_json(Cluster, changed(path, value), "cluster")
    message = str(error.value)
    assert "\n" not in message and len(message) < 320
    assert path.rsplit(".", maxsplit=1)[-1] in message


def test_rules_that_nobody_knows_are_refused_beside_a_software_stack() -> None:
    """Which stacks there are follows from the rules."""
    native = replace(load_cluster("trn2.48xlarge", 1), stack="neuron-compiled")
    with pytest.raises(AutoshardError) as error:
        from_json(Cluster, {**to_json(native), "layout_rules": "trn9"}, "cluster")
    assert str(error.value).startswith("layout_rules='trn9' of cluster trn2.48xlarge must be one of: trn1, trn2, ")


@pytest.mark.parametrize("data", [None, 3, [], "x", {}])
def test_from_dict_refuses_other_things(data: object) -> None:
    with pytest.raises(AutoshardError, match="cluster"):
        from_json(Cluster, data, "cluster")


def test_two_links_differ_by_value() -> None:
    assert Link("x", 1.0, 0.0) == Link("x", 1.0, 0.0) != Link("x", 2.0, 0.0)
    cluster = load_cluster("cpu", 1)
    assert replace(cluster, nodes=2) != cluster
