"""Write output files while their weights come, in any order, from a few threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from autoshard.checkpoint.boxes import Box
from autoshard.conversion.checksums import Checksums
from autoshard.conversion.output_file import OutputFile
from autoshard.conversion.page_cache import WrittenOnce, pass_on_all
from autoshard.conversion.regions import Array, OpenFiles, Region, runs_of

THREADS = 2
"""Each has its own files: what is written to one stays in order."""
_AHEAD = 2
"""Arrays that wait to be written, at most, beside the one that is read."""


class OutputFolder:
    """Writes the files of a folder. As a context manager it waits for its threads at the end.

    order: of the parameters, as they will come.
    """

    def __init__(self, folder: Path, files: Sequence[OutputFile], order: Iterable[str]):
        self._writers = [_Writer(folder) for _ in range(THREADS)]
        self._writer_of = {one.path: self._writers[number % THREADS] for number, one in enumerate(files)}
        self._regions: dict[str, list[Region]] = {}
        for one in files:
            for name, region in one.regions:
                self._regions.setdefault(name, []).append(region)
        position = {name: index for index, name in enumerate(order)}
        held = {one.path: one.parameters for one in files}
        self._last = {path: max(names, key=position.__getitem__) for path, names in held.items() if names}
        self._finished: dict[Path, Future[str]] = {}
        self._waiting: deque[list[Future[None]]] = deque()
        try:
            for one in files:
                self._waiting.append([self._writer_of[one.path].begin(one)])
            self._wait(0)
        except BaseException:
            self._close()  # nobody is inside the `with` yet, and the folder is about to be deleted
            raise

    def regions(self, parameter: str) -> Sequence[Region]:
        return self._regions.get(parameter, ())

    def write(self, parameter: str, box: Box, values: Array) -> None:
        """Write the values of a box of a parameter wherever a file has it. The values must not be changed afterwards.

        Raises OSError, also for earlier writes.
        """
        jobs = []
        for region in self.regions(parameter):
            common = region.box.common(box)
            if common is not None:
                part = values[common.slices(box.offsets)]
                jobs.append(self._writer_of[region.path].put(region, common, part))
        self._waiting.append(jobs)
        self._wait(_AHEAD)

    def complete(self, parameter: str) -> None:
        """Tell that all of a parameter was written: files without a later parameter can go to the disk."""
        for path in [path for path, last in self._last.items() if last == parameter]:
            self._finished[path] = self._writer_of[path].finish(path)
            del self._last[path]

    def finish(self) -> dict[Path, str]:
        """Wait until all is on the disk, and return the SHA-256 of each file; "" if it is not wanted. Raises
        OSError.
        """
        self._wait(0)
        for path, writer in self._writer_of.items():
            if path not in self._finished:
                self._finished[path] = writer.finish(path)
        checksums = {path: future.result() for path, future in self._finished.items()}
        for future in [writer.sync(path) for path, writer in self._writer_of.items()]:
            future.result()  # together at the end: one commit of a journal is of use to all of them
        return checksums

    def _wait(self, most: int) -> None:
        while len(self._waiting) > most:
            for future in self._waiting.popleft():
                future.result()

    def __enter__(self) -> OutputFolder:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._close()

    def _close(self) -> None:
        for writer in self._writers:
            writer.close()


class _Writer:
    """A thread that writes some of the files."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._checksums: dict[Path, Checksums] = {}
        self._passing: dict[Path, WrittenOnce] = {}
        self._open = OpenFiles(os.O_RDWR)
        self._thread = ThreadPoolExecutor(1, "convert")

    def begin(self, file: OutputFile) -> Future[None]:
        return self._thread.submit(self._begin, file)

    def put(self, region: Region, box: Box, values: Array) -> Future[None]:
        return self._thread.submit(self._put, region, box, values)

    def finish(self, path: Path) -> Future[str]:
        return self._thread.submit(self._finish, path)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._open.close()

    def _begin(self, file: OutputFile) -> None:
        path = self._folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as created:
            created.truncate(file.size)
        self._checksums[file.path] = Checksums(file.size, file.crcs, file.sha256)
        self._passing[file.path] = WrittenOnce()
        for start, data in file.known:
            self._write(file.path, start, memoryview(data))

    def _put(self, region: Region, box: Box, values: Array) -> None:
        for start, data in runs_of(region, box, values):
            self._write(region.path, start, data)

    def _write(self, path: Path, start: int, data: memoryview) -> None:
        descriptor, checksums = self._open[self._folder / path], self._checksums[path]
        while len(data):
            count = os.pwrite(descriptor, data, start)
            checksums.wrote(start, data[:count])
            self._passing[path].wrote(descriptor, start, count)
            data, start = data[count:], start + count

    def _finish(self, path: Path) -> str:
        descriptor = self._open[self._folder / path]
        checksum = self._checksums[path].finish(descriptor)
        pass_on_all(descriptor)
        return checksum

    def sync(self, path: Path) -> Future[None]:
        return self._thread.submit(lambda: os.fsync(self._open[self._folder / path]))
