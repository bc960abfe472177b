"""The asyncio worker."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import signal
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Generic, TypeVar

from ..errors import LeaseLostError, StoppedError, failure_of
from ..protocol import Settlement
from ..working import (
    CANCEL_SECONDS,
    GRACE_SECONDS,
    MAX_TAKE,
    POLL_SECONDS,
    RENEWALS,
    STOPPED,
    Backoff,
    Listeners,
    Stopped,
    WorkerEvent,
    check_options,
    check_result,
    consumer_name,
    delay_of,
    event_of,
    is_renewal_due,
    pause_after,
    too_long,
)
from .client import Queue, Reservation

T = TypeVar("T")
LOG = logging.getLogger("quayside")
#: The job of the running handler.
HANDLED: ContextVar[object] = ContextVar("HANDLED", default=None)


class Worker(Generic[T]):
    """Runs a function, usually a coroutine function, for each job of a queue.

    If the handler returns, the job is committed; if it raises, the job is rolled back; if the lease is lost, neither. A
    job is taken only if it can start immediately. Leases are renewed while handlers run. A handler is cancelled if its
    lease is lost, or if it exceeds `handler_timeout`. A plain function blocks the event loop until it returns.

    States: new -> `start` -> running -> `stop` -> stopped.
    """

    def __init__(
        self,
        queue: Queue[T],
        handler: Callable[[Reservation[T]], object],
        *,
        concurrency: int = 16,
        group: str | None = None,
        lease: float = 30.0,
        handler_timeout: float | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        check_options(queue, Queue, handler, concurrency, lease, handler_timeout)
        self._queue = queue
        self._handler = handler
        self._concurrency = concurrency
        self._group = group
        self._lease = lease
        self._handler_timeout = handler_timeout
        self._backoff = backoff
        self._name = consumer_name()
        self._listeners = Listeners()
        #: Jobs whose handler is running, or that are being settled after it.
        self._active: dict[Reservation[T], asyncio.Task[None]] = {}
        #: Active jobs whose handler has ended.
        self._ended: set[Reservation[T]] = set()
        self._changed = asyncio.Condition()
        self._stopping = asyncio.Event()
        self._is_paused = False
        #: Set while no take is in flight.
        self._take_ended = asyncio.Event()
        self._take_ended.set()
        self._takes = 0
        #: Set to end `run`.
        self._received = asyncio.Event()
        self._stopper: asyncio.Task[None] | None = None
        #: The earliest end of the grace period of all calls of `stop`.
        self._grace_until = math.inf
        self._grace_over = asyncio.Event()
        self._grace_timer: asyncio.TimerHandle | None = None
        self._finished = 0
        self._returned = 0
        self._taker: asyncio.Task[None] | None = None
        self._renewer: asyncio.Task[None] | None = None

    def on(self, event: WorkerEvent, listener: Callable[..., object]) -> Worker[T]:
        """Adds a listener. `docs/sdk/python.md` lists the events and their arguments."""
        self._listeners.add(event, listener)
        return self

    def start(self) -> Worker[T]:
        """Starts the worker in the running event loop and returns. Does nothing if it runs already, or was stopped."""
        if self._taker is None and not self._stopping.is_set():
            self._taker = asyncio.ensure_future(self._take_jobs())
            self._renewer = asyncio.ensure_future(self._renew_leases())
        return self

    async def run(
        self, *, signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT), grace: float = GRACE_SECONDS
    ) -> Stopped:
        """Runs until one of the signals arrives or the call is cancelled, then stops.

        Must be called in the event loop of the main thread.
        """
        loop = asyncio.get_running_loop()
        for number in signals:
            loop.add_signal_handler(number, self._received.set)
        try:
            try:
                self.start()
                await self._received.wait()
            finally:
                # Restore the signal handlers before waiting for jobs, so that a second signal ends the process.
                for number in signals:
                    loop.remove_signal_handler(number)
        finally:
            # Also if this call is cancelled: no other code would stop the worker.
            stopped = await self.stop(grace)
        return stopped

    async def pause(self) -> None:
        """Stops taking jobs until `resume`. Jobs that were taken are finished."""
        self._is_paused = True
        await self._end_take(time.monotonic() + POLL_SECONDS)

    async def resume(self) -> None:
        self._is_paused = False
        async with self._changed:
            self._changed.notify_all()

    async def stop(self, grace: float = GRACE_SECONDS) -> Stopped:
        """Stops taking jobs and waits for the handlers. After `grace` seconds, cancels the rest and rolls back their
        jobs.

        If a commit or a rollback is being sent at that time, this waits for it, as long as a call may take. In a
        handler it returns immediately.
        """
        stopper = self._begin_stop(grace)
        # A handler that calls `stop` would wait for itself.
        if HANDLED.get() not in self._active:
            # All callers share the task: if one of them is cancelled, it must continue.
            await asyncio.shield(stopper)
        return Stopped(self._finished, self._returned)

    def _begin_stop(self, grace: float) -> asyncio.Task[None]:
        """Returns the task that stops the worker. A later call may shorten the grace period."""
        until = time.monotonic() + grace
        if until < self._grace_until:
            self._grace_until = until
            if self._grace_timer is not None:
                self._grace_timer.cancel()
            self._grace_timer = asyncio.get_running_loop().call_later(max(grace, 0.0), self._grace_over.set)
        if self._stopper is None:
            self._stopper = asyncio.ensure_future(self._stop())
        return self._stopper

    async def _stop(self) -> None:
        self._received.set()
        self._stopping.set()
        async with self._changed:
            self._changed.notify_all()
        await self._end_take(self._grace_until)
        if self._active:
            ended = asyncio.ensure_future(asyncio.wait(self._active.values()))
            over = asyncio.ensure_future(self._grace_over.wait())
            await asyncio.wait((ended, over), return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            over.cancel()
        rest = {job: task for job, task in self._active.items() if job not in self._ended}
        for job in rest:
            del self._active[job]
        self._returned += len(rest)
        await asyncio.gather(*(self._give_up(job) for job in rest))
        own = [task for task in (self._taker, self._renewer) if task is not None]
        for task in (*own, *rest.values()):
            task.cancel()
        await asyncio.gather(*own, *rest.values(), *self._active.values(), return_exceptions=True)
        if self._grace_timer is not None:
            self._grace_timer.cancel()
        self._listeners.emit("stopped")

    async def __aenter__(self) -> Worker[T]:
        return self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _take_jobs(self) -> None:
        failed = 0
        while (free := await self._wait_for_capacity()) > 0:
            try:
                jobs = await self._queue.take_once(
                    free, wait=POLL_SECONDS, group=self._group, lease=self._lease, consumer=self._name
                )
                failed = 0
            except Exception as error:
                self._take_ended.set()
                failure = failure_of(error)
                if failure.code == "pop-cancelled":
                    # Cancelled by `stop`, by `pause` or by an operator.
                    continue
                failed += 1
                self._listeners.emit("error", failure)
                if isinstance(failure, StoppedError):
                    self._begin_stop(GRACE_SECONDS)
                    return
                await self._pause(pause_after(failed, failure))
                continue
            if self._stopping.is_set():
                if jobs:
                    await self._release(jobs)
                jobs = []
            elif not jobs:
                self._listeners.emit("idle")
            for job in jobs:
                self._active[job] = asyncio.ensure_future(self._work(job))
            self._take_ended.set()

    async def _release(self, jobs: Sequence[Reservation[T]]) -> None:
        """Releases jobs that arrived while the worker was stopping."""
        try:
            await self._queue.settle([Settlement("release", job.receipt) for job in jobs], None)
        except Exception as error:
            # The jobs return to the queue when their leases end.
            self._listeners.emit("error", failure_of(error))
        self._returned += len(jobs)

    async def _wait_for_capacity(self) -> int:
        """Waits until jobs may be taken, and returns how many; 0 if the worker stops."""
        async with self._changed:
            while not self._stopping.is_set():
                free = self._concurrency - len(self._active)
                if free > 0 and not self._is_paused:
                    self._take_ended.clear()
                    self._takes += 1
                    return min(free, MAX_TAKE)
                await self._changed.wait()
        return 0

    async def _end_take(self, until: float) -> None:
        """Cancels the take in flight. The cancel is repeated, because the take may not have reached the server yet."""
        number = self._takes
        # Without a grace period, too: the take would get jobs that no handler runs.
        until = max(until, time.monotonic() + CANCEL_SECONDS)
        is_reached = True
        # End only this take: if the worker is resumed, the next one must continue.
        while is_reached and not self._take_ended.is_set() and self._takes == number and time.monotonic() < until:
            try:
                await self._queue.cancel(self._name, CANCEL_SECONDS)
            except Exception as error:
                # The server is unreachable. If the take got jobs, their leases end.
                is_reached = False
                LOG.debug("The waiting call was not cancelled: %s", error)
            try:
                await asyncio.wait_for(self._take_ended.wait(), 0.1)
            except asyncio.TimeoutError:
                continue

    async def _work(self, job: Reservation[T]) -> None:
        started_at = time.monotonic()
        HANDLED.set(job)
        self._listeners.emit("taken", job)
        try:
            try:
                await asyncio.wait_for(self._handle(job), self._handler_timeout)
            except asyncio.TimeoutError as error:
                limit = self._handler_timeout
                if limit is None or time.monotonic() - started_at < limit:
                    # Raised by the handler itself.
                    await self._conclude(job, error, started_at)
                else:
                    await self._conclude(job, too_long(limit), started_at)
            except asyncio.CancelledError as error:
                # The worker cancelled a lost job, the event loop ends, or the handler awaited something cancelled.
                await self._conclude(job, error, started_at)
            except BaseException as error:
                await self._conclude(job, error, started_at)
            else:
                await self._conclude(job, None, started_at)
        finally:
            self._ended.discard(job)
            if self._active.pop(job, None) is not None:
                self._finished += 1
            async with self._changed:
                self._changed.notify_all()

    async def _handle(self, job: Reservation[T]) -> None:
        result = self._handler(job)
        check_result(result)
        if inspect.isawaitable(result):
            await result

    async def _conclude(self, job: Reservation[T], error: BaseException | None, started_at: float) -> None:
        """Settles a job whose handler has ended. Repeats that until the lease ends. A stop ends the pause before the last attempt."""
        if job.lost.is_set() or job.settled:
            return
        self._ended.add(job)
        delay = None if error is None else delay_of(self._backoff, job.tries, error)
        failed = 0
        while True:
            try:
                if error is None:
                    await job.commit()
                    self._listeners.emit("committed", job, time.monotonic() - started_at)
                else:
                    state = await job.fail(error, delay)
                    self._listeners.emit(event_of(state), job, error)
                return
            except LeaseLostError:
                job.lost.set()
                self._listeners.emit("lease_lost", job)
                return
            except Exception as reason:
                failure = failure_of(reason)
            self._listeners.emit("error", failure)
            failed += 1
            # Without its commit, the work would be done twice. After the end of the lease, another worker may have it.
            # If the event loop ends, which cancels the handler, it must not wait for this job.
            is_over = time.monotonic() >= job.lease_ends_at or isinstance(error, asyncio.CancelledError)
            if is_over or self._stopping.is_set():
                return
            await self._pause(pause_after(failed, failure))

    async def _pause(self, seconds: float) -> None:
        """Waits this long, or until the worker is stopped."""
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except asyncio.TimeoutError:
            pass

    async def _renew_leases(self) -> None:
        while True:
            await asyncio.sleep(self._lease / RENEWALS / 2)
            now = time.monotonic()
            due = [
                job
                for job in self._active
                if job not in self._ended
                and not job.settled
                and not job.lost.is_set()
                and is_renewal_due(job.lease_ends_at, self._lease, now)
            ]
            if due:
                await self._extend(due, now)

    async def _extend(self, jobs: Sequence[Reservation[T]], now: float) -> None:
        settlements = [Settlement("extend", job.receipt, lease=self._lease) for job in jobs]
        try:
            results = await self._queue.settle(settlements, self._lease / RENEWALS)
        except Exception as error:
            self._listeners.emit("error", failure_of(error))
            for job in jobs:
                if job in self._active and time.monotonic() >= job.lease_ends_at:
                    self._lose(job)
            return
        for job, result in zip(jobs, results):
            if isinstance(result, Exception):
                self._lose(job)
            elif isinstance(result, datetime):
                job.lease_ends_at = now + self._lease
                job.lease_until = result

    def _lose(self, job: Reservation[T]) -> None:
        # Once the handler has ended, its settlement decides: the renewal fails if that was applied, too.
        task = self._active.get(job)
        if task is None or job in self._ended or job.settled or job.lost.is_set():
            return
        job.lost.set()
        self._listeners.emit("lease_lost", job)
        task.cancel()

    async def _give_up(self, job: Reservation[T]) -> None:
        """Rolls back a job whose handler is still running."""
        if job.settled or job.lost.is_set():
            return
        job.lost.set()
        try:
            await job.rollback(delay=0, reason=STOPPED)
        except Exception as error:
            self._listeners.emit("error", failure_of(error))
