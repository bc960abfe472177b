"""The blocking worker: one thread takes jobs, one renews leases, and the others run handlers."""

from __future__ import annotations

import inspect
import logging
import math
import queue as queues
import signal
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from types import FrameType
from typing import Generic, TypeVar

from .client import Queue, Reservation
from .errors import LeaseLostError, QuaysideError, StoppedError, TimeoutError, failure_of
from .models import FailedState
from .protocol import Settlement, settlement_of
from .working import (
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
    is_function,
    is_renewal_due,
    name_of,
    pause_after,
    too_long,
)

T = TypeVar("T")
LOG = logging.getLogger("quayside")


class Worker(Generic[T]):
    """Runs `handler` for each job of a queue.

    If the handler returns, the job is committed; if it raises, the job is rolled back; if the lease is lost, neither. A
    job is taken only if a thread is free, so that no lease runs while a job waits. Leases are renewed while handlers
    run. A thread cannot be stopped from outside: if `job.lost` is set, the handler should return. `handler_timeout`
    rolls the job back and sets `job.lost`, but the handler keeps its thread until it returns.

    States: new -> `start` -> running -> `stop` -> stopped.
    """

    def __init__(
        self,
        queue: Queue[T],
        handler: Callable[[Reservation[T]], object],
        *,
        concurrency: int = 4,
        group: str | None = None,
        lease: float = 30.0,
        handler_timeout: float | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        check_options(queue, Queue, handler, concurrency, lease, handler_timeout)
        if is_function(handler, inspect.iscoroutinefunction):
            name = name_of(handler)
            raise ValueError(f"handler {name} must not be a coroutine function; quayside.aio has a Worker for those.")
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
        self._active: dict[Reservation[T], Run] = {}
        self._changed = threading.Condition()
        self._is_started = False
        self._stopping = threading.Event()
        self._is_paused = False
        #: Whether a take is in flight, and how many takes there were.
        self._is_taking = False
        self._takes = 0
        #: Ends `run`: a signal, or 0 from `stop`. A SimpleQueue is safe in signal handlers; an Event may deadlock.
        self._received: queues.SimpleQueue[int] = queues.SimpleQueue()
        #: The earliest end of the grace period of all calls of `stop`.
        self._grace_until = math.inf
        #: Held by the thread that waits for jobs. Reentrant: a signal handler may call `stop` in that thread.
        self._stop_lock = threading.RLock()
        self._ended = threading.Event()
        self._finished = 0
        self._returned = 0
        self._jobs: queues.SimpleQueue[Reservation[T] | None] = queues.SimpleQueue()
        self._taker = threading.Thread(target=self._take_jobs, name="quayside-taker", daemon=True)
        self._renewer = threading.Thread(target=self._renew_leases, name="quayside-renewer", daemon=True)
        # Daemon threads: a handler that never returns must not keep the process alive.
        self._threads = [
            threading.Thread(target=self._run_jobs, name=f"quayside-handler-{number}", daemon=True)
            for number in range(concurrency)
        ]

    def on(self, event: WorkerEvent, listener: Callable[..., object]) -> Worker[T]:
        """Adds a listener, called in the thread of the event. `docs/sdk/python.md` lists events and arguments."""
        self._listeners.add(event, listener)
        return self

    def start(self) -> Worker[T]:
        """Starts the threads and returns. Does nothing if the worker runs already, or was stopped."""
        with self._changed:
            is_new = not self._is_started and not self._stopping.is_set()
            self._is_started = True
        if is_new:
            for thread in (self._taker, self._renewer, *self._threads):
                thread.start()
        return self

    def run(
        self, *, signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT), grace: float = GRACE_SECONDS
    ) -> Stopped:
        """Runs until one of the signals arrives, then stops. Must be called in the main thread."""

        def receive(number: int, frame: FrameType | None) -> None:
            self._received.put(number)

        before = {number: signal.signal(number, receive) for number in signals}
        try:
            self.start()
            self._received.get()
        finally:
            # Restore the signal handlers before waiting for jobs, so that a second signal ends the process.
            for number, handler in before.items():
                signal.signal(number, handler)
        return self.stop(grace)

    def pause(self) -> None:
        """Stops taking jobs until `resume`. Jobs that were taken are finished."""
        with self._changed:
            self._is_paused = True
        self._end_take(time.monotonic() + POLL_SECONDS)

    def resume(self) -> None:
        with self._changed:
            self._is_paused = False
            self._changed.notify_all()

    def stop(self, grace: float = GRACE_SECONDS) -> Stopped:
        """Stops taking jobs and waits for the handlers. Jobs that are not finished after `grace` seconds are rolled
        back.

        If a commit or a rollback is being sent at that time, this waits for it, as long as a call may take.
        """
        with self._changed:
            self._grace_until = min(self._grace_until, time.monotonic() + grace)
            self._stopping.set()
            self._changed.notify_all()
            is_of_job = any(run.thread == threading.get_ident() for run in self._active.values())
        self._received.put(0)
        if threading.current_thread() is self._renewer:
            # Called by a listener. Do not block this thread, which renews the leases of the jobs to wait for.
            threading.Thread(target=self.stop, args=(grace,), name="quayside-stopper", daemon=True).start()
            return Stopped(self._finished, self._returned)
        # In a handler, do not wait for another thread in `stop`, which waits for this job.
        if self._stop_lock.acquire(blocking=not is_of_job):
            try:
                self._stop()
            finally:
                self._stop_lock.release()
        return Stopped(self._finished, self._returned)

    def _stop(self) -> None:
        self._end_take(self._grace_until)
        with self._changed:
            # Another call may shorten the grace period.
            while self._others() and (remaining := self._grace_until - time.monotonic()) > 0:
                self._changed.wait(min(remaining, threading.TIMEOUT_MAX))
            rest = [job for job, run in self._others().items() if not run.has_ended]
            for job in rest:
                del self._active[job]
        self._returned += len(rest)
        self._give_up([(job, Settlement("rollback", job.receipt, delay=0, reason=STOPPED)) for job in rest])
        with self._changed:
            self._changed.wait_for(lambda: not self._others())
        self._end()

    def _end(self) -> None:
        """Ends the threads if the last job has ended."""
        with self._changed:
            if self._active or self._ended.is_set():
                return
            self._ended.set()
        for _ in self._threads:
            self._jobs.put(None)
        self._listeners.emit("stopped")

    def _others(self) -> dict[Reservation[T], Run]:
        """Returns the active jobs, except that of the calling thread, which would wait for itself."""
        thread = threading.get_ident()
        return {job: run for job, run in self._active.items() if run.thread != thread}

    def __enter__(self) -> Worker[T]:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _take_jobs(self) -> None:
        failed = 0
        while (free := self._wait_for_capacity()) > 0:
            try:
                jobs = self._queue.take_once(
                    free, wait=POLL_SECONDS, group=self._group, lease=self._lease, consumer=self._name
                )
                failed = 0
            except Exception as error:
                self._add([])
                failure = failure_of(error)
                if failure.code == "pop-cancelled":
                    # Cancelled by `stop`, by `pause` or by an operator.
                    continue
                failed += 1
                self._listeners.emit("error", failure)
                if isinstance(failure, StoppedError):
                    self.stop()
                    return
                self._stopping.wait(pause_after(failed, failure))
                continue
            is_stopping = self._stopping.is_set()
            if is_stopping and jobs:
                self._release(jobs)
                jobs = []
            self._add(jobs)
            # After `_add`: a listener may call `stop`, which waits for the end of the take.
            if not jobs and not is_stopping:
                self._listeners.emit("idle")
            for job in jobs:
                self._jobs.put(job)

    def _release(self, jobs: Sequence[Reservation[T]]) -> None:
        """Releases jobs that arrived while the worker was stopping."""
        try:
            self._queue.settle([Settlement("release", job.receipt) for job in jobs], None)
        except Exception as error:
            # The jobs return to the queue when their leases end.
            self._listeners.emit("error", failure_of(error))
        self._returned += len(jobs)

    def _add(self, jobs: Sequence[Reservation[T]]) -> None:
        """Ends a take, and adds its jobs."""
        now = time.monotonic()
        with self._changed:
            self._is_taking = False
            for job in jobs:
                self._active[job] = Run(now)
            self._changed.notify_all()

    def _wait_for_capacity(self) -> int:
        """Waits until jobs may be taken, and returns how many; 0 if the worker stops."""
        with self._changed:
            while not self._stopping.is_set():
                free = self._concurrency - len(self._active)
                if free > 0 and not self._is_paused:
                    self._is_taking = True
                    self._takes += 1
                    return min(free, MAX_TAKE)
                self._changed.wait()
        return 0

    def _end_take(self, until: float) -> None:
        """Cancels the take in flight. The cancel is repeated, because the take may not have reached the server yet."""
        number = self._takes
        # Without a grace period, too: the take would get jobs that no handler runs.
        until = max(until, time.monotonic() + CANCEL_SECONDS)

        def is_take_over() -> bool:
            # End only this take: if the worker is resumed, the next one must continue.
            return not self._is_taking or self._takes != number

        is_over = is_take_over()
        is_reached = True
        while is_reached and not is_over and time.monotonic() < until:
            try:
                self._queue.cancel(self._name, CANCEL_SECONDS)
            except Exception as error:
                # The server is unreachable. If the take got jobs, they are released, or their leases end.
                is_reached = False
                LOG.debug("The waiting call was not cancelled: %s", error)
            with self._changed:
                is_over = self._changed.wait_for(is_take_over, 0.1)

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            started_at = time.monotonic()
            failure: BaseException | None = None
            with self._changed:
                run = self._active.get(job)
                if run is None:
                    # `stop` has already given the job up.
                    continue
                run.thread = threading.get_ident()
            self._listeners.emit("taken", job)
            try:
                result = self._handler(job)
                check_result(result)
                # The awaitable has not run, so a commit would lose the work.
                if inspect.isawaitable(result):
                    if inspect.iscoroutine(result):
                        result.close()
                    raise TypeError("The handler returned an awaitable; the Worker of quayside.aio awaits handlers.")
            except BaseException as error:
                failure = error
            with self._changed:
                run.has_ended = job in self._active
            # Otherwise `stop` has given the job up.
            if run.has_ended:
                self._conclude(job, failure, started_at)
            with self._changed:
                if self._active.pop(job, None) is not None:
                    self._finished += 1
                self._changed.notify_all()
            # The last job may have called `stop` itself. Otherwise the thread in `stop` ends the worker.
            if self._stopping.is_set() and self._stop_lock.acquire(blocking=False):
                try:
                    self._end()
                finally:
                    self._stop_lock.release()

    def _conclude(self, job: Reservation[T], error: BaseException | None, started_at: float) -> None:
        """Settles a job whose handler has ended. Repeats that until the lease ends. A stop ends the pause before the last attempt."""
        if job.lost.is_set() or job.settled:
            return
        delay = None if error is None else delay_of(self._backoff, job.tries, error)
        failed = 0
        while True:
            try:
                if error is None:
                    job.commit()
                    self._listeners.emit("committed", job, time.monotonic() - started_at)
                else:
                    state = job.fail(error, delay)
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
            if self._stopping.is_set() or time.monotonic() >= job.lease_ends_at:
                return
            self._stopping.wait(pause_after(failed, failure))

    def _renew_leases(self) -> None:
        while not self._ended.wait(self._until_check()):
            now = time.monotonic()
            due: list[Reservation[T]] = []
            late: list[Reservation[T]] = []
            with self._changed:
                for job, run in self._active.items():
                    if run.has_ended or job.lost.is_set() or job.settled:
                        continue
                    if self._handler_timeout is not None and now - run.started_at >= self._handler_timeout:
                        late.append(job)
                    elif is_renewal_due(job.lease_ends_at, self._lease, now):
                        due.append(job)
            if late and self._handler_timeout is not None:
                self._time_out(late, too_long(self._handler_timeout))
            if due:
                self._extend(due, now)

    def _until_check(self) -> float:
        """Returns the seconds until the next check for leases to renew and handlers to time out."""
        pause = self._lease / RENEWALS / 2
        if self._handler_timeout is None:
            return pause
        now = time.monotonic()
        with self._changed:
            limits = [
                run.started_at + self._handler_timeout - now
                for job, run in self._active.items()
                if not run.has_ended and not job.lost.is_set() and not job.settled
            ]
        # Limit the pause to `handler_timeout`, for handlers that start before the next check.
        return max(min(pause, self._handler_timeout, *limits), 0.001)

    def _time_out(self, jobs: Sequence[Reservation[T]], error: TimeoutError) -> None:
        for job, state in self._give_up(
            [(job, settlement_of(job.receipt, error, delay_of(self._backoff, job.tries, error))) for job in jobs]
        ):
            self._listeners.emit(event_of(state), job, error)

    def _extend(self, jobs: Sequence[Reservation[T]], now: float) -> None:
        settlements = [Settlement("extend", job.receipt, lease=self._lease) for job in jobs]
        try:
            results = self._queue.settle(settlements, self._lease / RENEWALS)
        except Exception as error:
            self._listeners.emit("error", failure_of(error))
            for job in jobs:
                if job in self._active and time.monotonic() >= job.lease_ends_at:
                    self._lose(job)
            return
        for job, result in zip(jobs, results):
            if isinstance(result, QuaysideError):
                self._lose(job)
            elif isinstance(result, datetime):
                job.lease_ends_at = now + self._lease
                job.lease_until = result

    def _lose(self, job: Reservation[T]) -> None:
        # Once the handler has ended, its settlement decides: the renewal fails if that was applied, too.
        run = self._active.get(job)
        if run is not None and not run.has_ended and not job.settled and not job.lost.is_set():
            job.lost.set()
            self._listeners.emit("lease_lost", job)

    def _give_up(
        self, jobs: Sequence[tuple[Reservation[T], Settlement]]
    ) -> list[tuple[Reservation[T], FailedState]]:
        """Settles jobs whose handlers are still running, in one request. Returns those that were, and their states."""
        given = [(job, settlement) for job, settlement in jobs if not job.settled and not job.lost.is_set()]
        for job, _ in given:
            job.settled = True
            job.lost.set()
        try:
            results = self._queue.settle([settlement for _, settlement in given], None) if given else []
        except Exception as error:
            # The elements return to the queue when their leases end.
            self._listeners.emit("error", failure_of(error))
            return []
        settled: list[tuple[Reservation[T], FailedState]] = []
        for (job, _), result in zip(given, results):
            if isinstance(result, QuaysideError):
                self._listeners.emit("lease_lost", job)
            elif not isinstance(result, datetime):
                settled.append((job, result))
        return settled


class Run:
    """The run of a handler for one job."""

    def __init__(self, now: float) -> None:
        self.started_at = now
        #: Id of the thread that runs the handler; None until it starts.
        self.thread: int | None = None
        self.has_ended = False
