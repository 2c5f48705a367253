"""Who is served when: one piece of work at a time for each client, a few at a time in all, answers kept for a while."""

from __future__ import annotations

import asyncio
import json
import os
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from autoshard.errors import AutoshardError
from autoshard.server.isolated import Limits, Say, Work
from autoshard.server.work import work

MOST_WAITING, MOST_KEPT = 200, 24


class BusyError(AutoshardError):
    """There is no room for another question now."""


class Desk:
    """Mutable: the work that runs, by client, and the answers that are kept."""

    def __init__(self, limits: Limits = Limits(), workers: int | None = None):  # noqa: B008  a frozen value
        self.limits = limits
        count = workers or max(1, min(4, os.cpu_count() or 1))
        self._places, self._threads = asyncio.Semaphore(count), ThreadPoolExecutor(count)
        self._turns: dict[str, asyncio.Lock] = {}
        self._running: dict[str, Work] = {}
        self._newest: dict[str, int] = {}
        self._kept: OrderedDict[str, Any] = OrderedDict()
        self._waiting = 0

    async def ask(self, client: str, job: Mapping[str, Any], *, latest_wins: bool, say: Say | None = None) -> Any:
        """The result of a job. say: gets what is known of it so far, now and then.

        latest_wins: a later question of the same client ends this one, which then raises BusyError; else it waits for
        its turn. Raises AutoshardError as the work does, BusyError where too many wait.
        """
        key = json.dumps({**job, "uploads": sorted(job["uploads"])}, sort_keys=True)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if self._waiting >= MOST_WAITING:
            raise BusyError("too many questions wait already; ask again in a moment")
        self._waiting += 1
        number = self._newest[client] = self._newest.get(client, 0) + 1
        if latest_wins and client in self._running:
            self._running[client].stop()
        turn = self._turns.setdefault(client, asyncio.Lock())
        try:
            async with turn, self._places:
                self._check_newest(client, number, latest_wins)
                result = await self._run(client, job, number, latest_wins, say)
        finally:
            self._waiting -= 1
            if self._newest.get(client) == number:
                for of_clients in (self._turns, self._newest):
                    of_clients.pop(client, None)
        self._keep(key, result)
        return result

    def _check_newest(self, client: str, number: int, latest_wins: bool) -> None:
        if latest_wins and self._newest.get(client, number) != number:
            raise BusyError("a later question took its place")

    async def _run(self, client: str, job: Mapping[str, Any], number: int, latest_wins: bool, say: Say | None) -> Any:
        loop = asyncio.get_running_loop()
        running = await loop.run_in_executor(self._threads, Work, work, job, self.limits)
        self._running[client] = running
        try:
            self._check_newest(client, number, latest_wins)  # a later question may have come while it was started
            return await loop.run_in_executor(self._threads, running.result, _from_thread(loop, say))
        except AutoshardError:
            self._check_newest(client, number, latest_wins)
            raise
        finally:
            running.stop()
            self._running.pop(client, None)

    def _keep(self, key: str, result: Any) -> None:
        self._kept[key] = result
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)


def _from_thread(loop: asyncio.AbstractEventLoop, say: Say | None) -> Say | None:
    """`say` for a thread beside the loop, in which it is called."""
    return None if say is None else lambda value: cast("None", loop.call_soon_threadsafe(say, value))
