"""Joins calls of the same moment into one request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

I = TypeVar("I")
R = TypeVar("R")

#: More elements in a request hardly make it cheaper for each.
MAX_ITEMS = 500
#: The server reads larger requests of one user in turn.
MAX_BYTES = 900_000
#: While one request is stored, the next one is on its way.
MAX_IN_FLIGHT = 2


class Batcher(Generic[I, R]):
    """Sends the items that wait when a request may start.

    `send` returns the result of each item, in order. A result that is an exception is raised in its own call only;
    what `send` raises, in all of them. The first call is not delayed: items gather while requests are in flight.
    """

    def __init__(self, send: Callable[[Sequence[I]], Awaitable[Sequence[R | Exception]]]) -> None:
        self._send = send
        self._waiting: list[tuple[I, int, asyncio.Future[R]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_scheduled = False

    async def submit(self, item: I, size: int) -> R:
        loop = asyncio.get_running_loop()
        result: asyncio.Future[R] = loop.create_future()
        self._waiting.append((item, size, result))
        if not self._is_scheduled:
            # Not at once: callers of the same turn of the loop share the request.
            self._is_scheduled = True
            loop.call_soon(self._start)
        return await result

    def _start(self) -> None:
        self._is_scheduled = False
        while self._waiting and len(self._tasks) < MAX_IN_FLIGHT:
            if batch := self._next():
                task = asyncio.ensure_future(self._flush(batch))
                self._tasks.add(task)
                task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._start()

    def _next(self) -> list[tuple[I, int, asyncio.Future[R]]]:
        batch: list[tuple[I, int, asyncio.Future[R]]] = []
        seen = 0
        total = 0
        for entry in self._waiting:
            _, size, future = entry
            # A call that was cancelled while it waited is not sent any more.
            if not future.done():
                total += size
                if len(batch) == MAX_ITEMS or (batch and total > MAX_BYTES):
                    break
                batch.append(entry)
            seen += 1
        del self._waiting[:seen]
        return batch

    async def _flush(self, batch: list[tuple[I, int, asyncio.Future[R]]]) -> None:
        results: Sequence[R | Exception]
        try:
            results = await self._send([item for item, _, _ in batch])
        except Exception as error:
            results = [error] * len(batch)
        for (_, _, future), result in zip(batch, results):
            if future.done():
                # Its caller was cancelled.
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
