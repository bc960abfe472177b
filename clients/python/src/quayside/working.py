"""What the blocking and the asyncio worker share."""

from __future__ import annotations

import inspect
import logging
import os
import random
import socket
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from .errors import Bury, QuaysideError, TimeoutError, ValidationError
from .protocol import milliseconds

LOG = logging.getLogger("quayside")
#: How long one request waits for jobs.
POLL_SECONDS = 20.0
#: The most jobs that one request takes, as the server has it.
MAX_TAKE = 1_000
#: How long the cancel of such a request may take.
CANCEL_SECONDS = 2.0
#: How long `stop` waits for handlers, if the caller does not say.
GRACE_SECONDS = 30.0
#: A lease is renewed so often in its length: two renewals may fail before it ends.
RENEWALS = 3
#: Of seconds between takes that fail.
LONGEST_PAUSE = 5.0
#: Given the failed tries so far and the exception: seconds until the next try, None for the queue's retry delay.
Backoff = Callable[[int, BaseException], float | None]
EVENTS = ("taken", "committed", "rolled_back", "buried", "lease_lost", "idle", "error", "stopped")
#: Why the jobs of handlers that still run are rolled back.
STOPPED = "the worker was stopped"


@dataclass(frozen=True)
class Stopped:
    """What a worker did until it stopped."""

    #: Jobs whose handler ended.
    finished: int
    #: Jobs that came too late to be started, and those that were rolled back because their handler did not end in time.
    returned: int


def delay_of(backoff: Backoff | None, tries: int, error: BaseException) -> float | None:
    """Seconds until the next try; None for the queue's retry delay, also if `backoff` fails."""
    if backoff is None:
        return None
    try:
        return backoff(tries, error)
    except Exception:
        LOG.exception("The backoff function failed.")
        return None


def check_options(
    queue: object, handler: object, concurrency: int, lease: float, handler_timeout: float | None
) -> None:
    if isinstance(queue, str):
        raise ValueError(f"queue {queue!r:.64} must be a queue of a client, not its name.")
    if not callable(handler):
        raise ValueError(f"handler {handler!r:.64} must be a function.")
    if not isinstance(concurrency, int) or concurrency < 1:
        raise ValueError(f"concurrency={concurrency!r:.64} must be a whole number from 1.")
    milliseconds("lease", lease, at_least=1)
    if handler_timeout is not None and not handler_timeout > 0:
        raise ValidationError([f"handler_timeout={handler_timeout!r:.64} must be more than 0 seconds."])


def too_long(handler_timeout: float) -> TimeoutError:
    """Why the job of a handler that has not ended in time is rolled back."""
    return TimeoutError("timeout", f"The handler took more than {handler_timeout} s.")


def event_of(error: BaseException) -> str:
    """The event of a job whose handler raised."""
    return "buried" if isinstance(error, Bury) else "rolled_back"


def consumer_name() -> str:
    """Unique, since a cancel ends every call of that name."""
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


def pause_after(failed: int, error: QuaysideError) -> float:
    """Seconds to wait after so many takes in a row have failed. Partly random, so that workers do not return together."""
    longest = min(0.1 * 2.0 ** min(failed - 1, 10), LONGEST_PAUSE)
    return max(longest * random.uniform(0.5, 1.0), min(error.retry_after or 0.0, LONGEST_PAUSE))


class Listeners:
    """Calls listeners. One that raises is logged and disturbs nothing; an error without a listener is logged."""

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
                # In any other thread, it would end that thread alone, and the job would stay reserved.
                if threading.current_thread() is threading.main_thread():
                    raise
                LOG.exception("A listener of %s tried to exit in a thread of the worker.", event)
