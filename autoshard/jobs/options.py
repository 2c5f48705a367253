"""Options of a launch: what a job needs to know beyond the plan."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from autoshard.errors import AutoshardError
from autoshard.files.fields import show

PRECOMPILE_STEPS = 3
"""The first step, one that accumulates onto its gradients, and one after an update."""
FIRST_PORT, NUM_PORTS = 15_000, 15_000
"""Range of ports for the rendezvous of Slurm jobs, one by the job's number: two that share a node rarely have the same.
Our own choice: above the well-known ports, below those that Linux gives to connections that go out, from 32768 on."""

SLURM_TIME = r"(\d+-)?\d+(:\d+){0,2}|UNLIMITED"
"""Minutes, minutes:seconds, hours:minutes:seconds, days-hours with or without :minutes:seconds [man sbatch]."""


@dataclass(frozen=True)
class LaunchOptions:
    """Options of a launch. Raises AutoshardError for a value that is not one line of text, or not in the form that
    Slurm or Kubernetes wants.

    plan_file: path of the plan on the nodes. program: what torchrun starts; None is `autoshard run` of the plan.
    precompile: compile the graphs of a few steps, run nothing. cache: folder that all nodes share.
    partition, time_limit: of Slurm; None is the cluster's default. image, claim: of Kubernetes: the container and the
    volume claim that is mounted at /shared.
    """

    plan_file: str
    program: str | None = None
    precompile: bool = False
    cache: str | None = None
    partition: str | None = None
    time_limit: str | None = None
    image: str | None = None
    claim: str | None = None

    def __post_init__(self) -> None:
        for name in ("plan_file", "program", "cache", "partition", "time_limit", "image", "claim"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value.strip() and value.isprintable()):
                raise AutoshardError(f"{name}={show(value)} must be one line of text")
        if self.partition is not None and not re.fullmatch(r"[\w,.-]+", self.partition):
            raise AutoshardError(f"partition={self.partition!r} is no name of a Slurm partition")
        if self.time_limit is not None and not re.fullmatch(SLURM_TIME, self.time_limit):
            raise AutoshardError(f"time={self.time_limit!r} is no Slurm time; 24:00:00 and 2-00:00:00 are")
        if self.image is not None and re.search(r"\s", self.image):
            raise AutoshardError(f"image={self.image!r} is no container's name, such as REGISTRY/NAME:TAG")
        if self.claim is not None and not re.fullmatch(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?", self.claim):
            raise AutoshardError(f"claim={self.claim!r} is no name in Kubernetes: small letters, digits, - and .")
        try:
            words = shlex.split(self.program or "x")
        except ValueError as error:
            raise AutoshardError(f"program={self.program!r} is no command line: {error}") from None
        if not words:
            raise AutoshardError(f"program={self.program!r} names no program")
        if re.fullmatch(r"(.*/)?python[\d.]*", words[0]):
            raise AutoshardError(f"program={self.program!r}: torchrun starts Python itself; leave {words[0]} out")

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the command line that follow torchrun's own options: a program and its arguments."""
        if self.program is not None:
            return tuple(shlex.split(self.program))
        steps = ("--steps", str(PRECOMPILE_STEPS)) if self.precompile else ()
        return ("-m", "autoshard", "run", self.plan_file, *steps)


def quoted(words: tuple[str, ...]) -> str:
    """The words as text for a shell, quoted where needed."""
    return " ".join(map(shlex.quote, words))
