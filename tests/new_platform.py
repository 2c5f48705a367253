"""A generation of Trainium that nobody knows, added as CONTRIBUTING says: one record and one hardware file."""

import json
from pathlib import Path
from typing import Any

from autoshard.spec.platform import Platform, Torus, Variable

TRN9 = Platform(
    name="trn9",
    device="joined NeuronCore",
    default_backend="torch",
    is_trainium=True,
    tp_degrees={2: (1, 8), 4: (1, 4, 16)},
    has_aligned_groups=True,
    has_adjacent_tp_ranks=True,
    torus=Torus(chips_per_node=16, folded_groups_per_node=2, row_order=(0, 2, 1, 3)),
    kv_heads_innermost=True,
    flash_sequence_multiple=4096,
    ring_sequence_multiple=512,
    variables=(Variable("NEURON_NINE", "1", "the ninth generation wants it"),),
)


def own(value: float) -> dict[str, Any]:
    """A sourced number of a hardware file."""
    return {"value": value, "source": "made up"}


HARDWARE = {
    "format_version": 1,
    "instance": "trn9.mine",
    "like": "trn2.48xlarge",
    "layout_rules": "trn9",
    "default_lnc": 4,
    "lnc": {
        "4": {
            "devices_per_chip": own(2),
            "physical_cores_per_device": own(4),
            "flops_per_s": {"bfloat16": own(300e12), "float32": own(80e12)},
            "memory_bytes": own(48 * 2**30),
            "memory_bandwidth_bytes_per_s": own(1.5e12),
            "tile_rows": own(128),
            "tile_columns": own(128),
        }
    },
    "calibration": {"chip_bus_bandwidth_bytes_per_s": {"4": own(200e9)}},
}


def hardware_file(folder: Path) -> Path:
    """Writes it; two nodes at lnc 4 are 64 devices."""
    file = folder / "trn9.json"
    file.write_text(json.dumps(HARDWARE))
    return file
