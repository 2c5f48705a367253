"""torch.neuron: the device's module."""

from __future__ import annotations

from typing import Any

import neuron_rules as rules
import torch

from . import refuse, twin

_in_bad_fork = False


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return bool(twin.touched())


def _is_in_bad_fork() -> bool:
    return _in_bad_fork


def _lazy_init() -> None:
    twin.touch()


def device_count() -> int:
    return int(twin.index()) + 1


def current_device() -> int:
    """LOCAL_RANK, whatever is asked."""
    return int(twin.index())


def set_device(device: Any) -> None:
    found = torch.device(device) if isinstance(device, (str, torch.device)) else torch.device("neuron", device)
    if found.index not in (None, current_device()):
        refuse("index", ValueError, f"Invalid device id: {found.index}")


def synchronize(device: Any = None) -> None:
    twin.synchronize()


def empty_cache() -> None:
    pass


def manual_seed(seed: int) -> None:
    twin.default_generator().manual_seed(seed)


manual_seed_all = manual_seed


def initial_seed() -> int:
    return int(twin.default_generator().initial_seed())


def get_rng_state(device: Any = None) -> torch.Tensor:
    return twin.default_generator().get_state()


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    twin.default_generator().set_state(state)


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def get_executed_ops() -> dict[str, int]:
    """Operators of the device -> how often they ran."""
    return dict(twin.executed())


def get_fallback_ops() -> list[str]:
    """Those that the real device leaves to the host."""
    return [name for name in rules.FALLS_BACK if name in twin.executed()]


def get_device_properties(device: Any = None) -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(name="twin", total_memory=24 * 2**30)


class Stream:
    """There is one; all is in order."""

    def __init__(self, device: Any = None, **_: Any) -> None:
        self.device, self.device_index, self.stream_id = torch.device("neuron", current_device()), current_device(), 0

    def wait_stream(self, stream: Any) -> None: ...

    def synchronize(self) -> None:
        twin.synchronize()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None: ...


current_stream = default_stream = Stream


def stream(which: Stream) -> Stream:
    return which


class Event:
    """Its times are worth nothing on the real device, either [3p 61474609800]."""

    def __init__(self, enable_timing: bool = False) -> None: ...

    def record(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None:
        twin.synchronize()

    def elapsed_time(self, end: Event) -> float:
        return 0.027
