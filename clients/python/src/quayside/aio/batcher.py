"""Combines concurrent calls into one request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..errors import Outcome, TimeoutError

I = TypeVar("I")
R = TypeVar("R")

#: Larger batches would hardly reduce the cost per element.
MAX_ITEMS = 500
#: The server processes larger requests of a user one at a time.
MAX_BYTES = 900_000
#: Two, so that the server processes one request while the next one is being sent.
MAX_IN_FLIGHT = 2


@dataclass(eq=False)
class Entry(Generic[I, R]):
    """A waiting call, or one whose request is in flight."""

    item: I
    size: int
    result: asyncio.Future[R]
    deadline: float
    is_sent: bool = False


class Batcher(Generic[I, R]):
    """Sends the waiting items in one request when a request may start.

    `send` returns the result of each item, in order. A result that is an exception is raised in its own call only; an
    exception that `send` raises, in all calls. The first call is not delayed: items gather while requests are in
    flight. The time limit of a request is the longest of its calls; the other calls end earlier, and leave it in
    flight.
    """

    def __init__(self, send: Callable[[Sequence[I], float], Awaitable[Sequence[R | Exception]]]) -> None:
        self._send = send
        self._waiting: list[Entry[I, R]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_scheduled = False

    async def submit(self, item: I, size: int, timeout: float, on_abandoned: Callable[[], None] = lambda: None) -> R:
        """Adds an item. `timeout` covers the wait for the request to start and for its response.

        `on_abandoned` is called if the call is cancelled while its request is in flight, which may still be applied.
        """
        loop = asyncio.get_running_loop()
        entry: Entry[I, R] = Entry(item, size, loop.create_future(), time.monotonic() + timeout)
        self._waiting.append(entry)
        if not self._is_scheduled:
            # Start in the next turn of the loop: callers of this turn share the request.
            self._is_scheduled = True
            loop.call_soon(self._start)
        try:
            return await asyncio.wait_for(entry.result, timeout)
        except asyncio.CancelledError:
            if entry.is_sent:
                on_abandoned()
            raise
        except asyncio.TimeoutError:
            message = f"The call was not answered within {timeout:g} s."
            outcome: Outcome = "unknown" if entry.is_sent else "nothing-changed"
            raise TimeoutError("timeout", message, outcome=outcome) from None

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

    def _next(self) -> list[Entry[I, R]]:
        batch: list[Entry[I, R]] = []
        seen = 0
        total = 0
        for entry in self._waiting:
            # Skip calls that were cancelled or timed out while waiting.
            if not entry.result.done():
                total += entry.size
                if len(batch) == MAX_ITEMS or (batch and total > MAX_BYTES):
                    break
                entry.is_sent = True
                batch.append(entry)
            seen += 1
        del self._waiting[:seen]
        return batch

    async def _flush(self, batch: list[Entry[I, R]]) -> None:
        results: Sequence[R | Exception]
        timeout = max(entry.deadline for entry in batch) - time.monotonic()
        try:
            results = await self._send([entry.item for entry in batch], timeout)
        except Exception as error:
            results = [error] * len(batch)
        for entry, result in zip(batch, results):
            if entry.result.done():
                # The caller was cancelled, or its call has timed out.
                continue
            if isinstance(result, Exception):
                entry.result.set_exception(result)
            else:
                entry.result.set_result(result)
