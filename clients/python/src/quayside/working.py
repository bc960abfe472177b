"""Code shared by the blocking and the asyncio worker."""

from __future__ import annotations

import inspect
import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from .errors import QuaysideError, TimeoutError, ValidationError
from .models import FailedState
from .protocol import backoff, milliseconds

LOG = logging.getLogger("quayside")
#: How many seconds one take waits for jobs.
POLL_SECONDS = 20.0
#: The server's maximum of jobs per take.
MAX_TAKE = 1_000
#: Time limit in seconds for cancelling a take.
CANCEL_SECONDS = 2.0
#: How many seconds `stop` waits for handlers by default.
GRACE_SECONDS = 30.0
#: Renewals per lease length: two may fail before the lease ends.
RENEWALS = 3
#: The longest delay after a failed take, in seconds.
LONGEST_PAUSE = 5.0
#: Called with the failed tries and the exception. Returns seconds until the next try; None: the queue's delay.
Backoff = Callable[[int, BaseException], float | None]
WorkerEvent = Literal["taken", "committed", "rolled_back", "buried", "lease_lost", "idle", "error", "stopped"]
EVENTS = get_args(WorkerEvent)
#: The reason of jobs that are rolled back because their handlers did not end in time.
STOPPED = "the worker was stopped"


@dataclass(frozen=True)
class Stopped:
    """The result of stopping a worker."""

    #: Jobs whose handlers ended.
    finished: int
    #: Jobs that were released because they arrived too late, or rolled back because their handlers did not end in time.
    returned: int


def delay_of(backoff: Backoff | None, tries: int, error: BaseException) -> float | None:
    """Returns the seconds until the next try; None for the queue's retry delay, also if `backoff` raises."""
    if backoff is None:
        return None
    try:
        return backoff(tries, error)
    except Exception:
        LOG.exception("The backoff function failed.")
        return None


def check_options(
    queue: object, kind: type, handler: object, concurrency: int, lease: float, handler_timeout: float | None
) -> None:
    if not callable(handler):
        raise ValueError(f"handler {handler!r:.64} must be a function.")
    if is_function(handler, inspect.isgeneratorfunction) or is_function(handler, inspect.isasyncgenfunction):
        raise ValueError(f"handler {name_of(handler)} must not be a generator function: its code would not run.")
    if not isinstance(concurrency, int) or concurrency < 1:
        raise ValueError(f"concurrency={concurrency!r:.64} must be a whole number from 1.")
    milliseconds("lease", lease, at_least=1)
    if handler_timeout is not None and not handler_timeout > 0:
        raise ValidationError([f"handler_timeout={handler_timeout!r:.64} must be more than 0 seconds."])
    # The queue of the other client would fail at each take: it takes no jobs, or it takes them and runs no handler.
    if not isinstance(queue, kind):
        package = kind.__module__.removesuffix(".client")
        raise ValueError(f"queue {queue!r:.64} must be a queue of a client, {package}.Quayside().queue(name).")


def is_function(handler: object, is_kind: Callable[[object], bool]) -> bool:
    """Whether a function, or the `__call__` of an object, is of a kind."""
    return is_kind(handler) or is_kind(getattr(type(handler), "__call__", None))


def name_of(handler: object) -> str:
    return f"{getattr(handler, '__name__', handler)!r:.64}"


def check_result(result: object) -> None:
    """Raises if a handler returned work that has not run: a commit would lose it."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError("The handler returned a generator, whose code has not run. It must not yield.")


def too_long(handler_timeout: float) -> TimeoutError:
    """Returns the error of a job whose handler exceeded its time limit."""
    return TimeoutError("timeout", f"The handler took more than {handler_timeout} s.")


def event_of(state: FailedState) -> str:
    """Returns the event of a job whose handler raised."""
    return "buried" if state == "dead-lettered" else "rolled_back"


def is_renewal_due(lease_ends_at: float, lease: float, now: float) -> bool:
    """Whether a third of the lease is over. A handler may have extended it further: that is not shortened."""
    return lease_ends_at - now <= lease * (RENEWALS - 1) / RENEWALS


def consumer_name() -> str:
    """Returns a unique name, because a cancel ends all calls of a consumer."""
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


def pause_after(failed: int, error: QuaysideError) -> float:
    """Returns the delay in seconds after `failed` failed takes in a row."""
    return backoff(failed, error, 0.1, LONGEST_PAUSE)


class Listeners:
    """Calls the listeners of events. Logs exceptions of listeners, and `error` events without a listener."""

    def __init__(self) -> None:
        self._by_event: dict[str, list[Callable[..., object]]] = {event: [] for event in EVENTS}

    def add(self, event: str, listener: Callable[..., object]) -> None:
        if event not in self._by_event:
            raise ValueError(f"event {event[:64]!r} must be one of {', '.join(EVENTS)}.")
        if inspect.iscoroutinefunction(listener):
            name = listener.__name__[:64]
            raise ValueError(f"listener {name!r} of {event} must not be a coroutine function: nobody would await it.")
        self._by_event[event].append(listener)

    def emit(self, event: str, *values: object) -> None:
        listeners = self._by_event[event]
        if event == "error" and not listeners:
            LOG.warning("A worker's call failed: %s", *values)
        for listener in listeners:
            try:
                listener(*values)
            except Exception:
                LOG.exception("A listener of %s failed.", event)
            except SystemExit:
                # In another thread, it would end only that thread, and the job would stay reserved.
                if threading.current_thread() is threading.main_thread():
                    raise
                LOG.exception("A listener of %s tried to exit in a thread of the worker.", event)
