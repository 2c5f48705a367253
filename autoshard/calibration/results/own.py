"""Makes a user's own hardware file: a packaged one with its constants fitted to the user's results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autoshard.calibration.results.collective_fit import own_priors
from autoshard.calibration.results.constants import STACKS
from autoshard.calibration.results.fit_file import add_collectives, add_results, hardware_content
from autoshard.calibration.results.gpu_files import said_by, set_family
from autoshard.calibration.results.held_out import fit_stacks
from autoshard.calibration.results.instance_fit import OWN_NOISE, own_constants
from autoshard.calibration.results.machine import hardware
from autoshard.calibration.results.pages import evidence_line
from autoshard.calibration.results.stack_fit import fitted_cases
from autoshard.calibration.results.usable import Results, read_results
from autoshard.errors import AutoshardError
from autoshard.spec.hardware_file import find

KNOWN = ", ".join(dict.fromkeys(name for _, name, _ in STACKS))


def fit_own(
    results: Sequence[Path], collectives: Path | None, instance: str | None, hardware_file: Path | None
) -> tuple[dict[str, Any], list[str]]:
    """(content of the hardware file, lines on what was found). instance: None where all rows name the same one.

    Raises AutoshardError as read_results does, and where neither rows nor arguments say which instance it is.
    """
    base = None if hardware_file is None and instance is None else find(instance, hardware_file)
    if base is None:
        instance = _only_instance(read_results(results, collectives))
        base = find(instance, None)
    content = hardware_content(base, instance)
    name = str(content["instance"])
    found = read_results(results, collectives, name, hardware_file)
    about, page = str(content["calibration"]["about"]), found.notes()
    if found.collectives is not None:
        _, lines = add_collectives(content, found.collectives, own_priors(content))
        page += lines
    instances = found.instances
    if instances is not None:
        if found.collectives is not None:  # the links of the results are those that were fitted
            instances = _read_as(content, results, base.name).instances
            assert instances is not None, results
        _, lines = add_results([content], instances, own_constants(content), content, OWN_NOISE)
        page += lines
    if found.gpus is not None:
        if not fitted_cases(found.gpus.cases, memory=False):
            raise AutoshardError(f"{found.gpus.path}: no row has iter_time_s and a framework that is known: {KNOWN}")
        _, family = hardware(found.gpus.cases[0])
        fit = fit_stacks(found.gpus.cases, said_by(content, family))
        page.append(evidence_line(name, set_family(content, family, fit, found.gpus)))
    files = " and ".join(dict.fromkeys(path.name for path in (*results, *([collectives] if collectives else []))))
    content["calibration"]["about"] = f"Fitted to {files}, see fits; what that leaves alone: {about}"
    return content, page


def _read_as(content: Mapping[str, Any], results: Sequence[Path], name: str) -> Results:
    """The cases in files of results on the machine that a hardware file's content describes. name: of that file."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_text(json.dumps(content), encoding="utf-8")
        return read_results(results, None, str(content["instance"]), file)


def _only_instance(found: Results) -> str:
    names = {case.cluster.instance for one in (found.instances, found.collectives) if one for case in one.cases}
    names |= {hardware(case)[0] for case in found.gpus.cases} if found.gpus else set()
    if len(names) > 1:
        raise AutoshardError(f"instance is missing: the rows are of {' and '.join(sorted(names))}; one file is of one")
    return names.pop()
