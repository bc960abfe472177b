"""What calls raise, and what a handler raises to decide what becomes of its job."""

from __future__ import annotations

import copyreg
from collections.abc import Sequence
from typing import Any, Literal

Outcome = Literal["nothing-changed", "unknown"]


class QuaysideError(Exception):
    """A call failed. `code` is stable: a code of the HTTP interface, or one of this client."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        outcome: Outcome = "nothing-changed",
        line: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.request_id = request_id
        #: Seconds that the server asks to wait before the next attempt.
        self.retry_after = retry_after
        #: Whether the call may have been applied.
        self.outcome: Outcome = outcome
        #: Of a call about many elements: which one was rejected, from 1.
        self.line = line

    def __str__(self) -> str:
        return f"{self.args[0]} ({self.code})"

    def __reduce__(self) -> tuple[Any, ...]:
        return parts_of(self)


class ConnectionError(QuaysideError):
    """The server could not be reached, or the connection failed before the response was complete."""


class TimeoutError(QuaysideError):
    """A call took longer than it may."""


class LeaseLostError(QuaysideError):
    """The reservation is over: its lease ended, or the element was settled elsewhere."""


class StoppedError(QuaysideError):
    """The client was closed."""


class ValidationError(QuaysideError):
    """An argument cannot be sent, or a body cannot be decoded. `issues` names each problem."""

    def __init__(self, issues: Sequence[str]) -> None:
        super().__init__("invalid-data", " ".join(issues))
        self.issues = tuple(issues)


def text_of(value: object) -> str:
    """Text of what somebody raised. Whatever it is, this raises nothing."""
    try:
        return str(value)
    except Exception:
        return f"{type(value).__name__} without text"


def failure_of(error: Exception) -> QuaysideError:
    """What the event `error` brings: a function of the program, such as `auth`, may raise anything."""
    if isinstance(error, QuaysideError):
        return error
    failure = QuaysideError("failed", f"{type(error).__name__}: {text_of(error)}")
    failure.__cause__ = error
    return failure


def parts_of(error: Exception) -> tuple[Any, ...]:
    """For `pickle`, without a call of `__init__`, which takes other arguments: a process of a pool raises them in its parent."""
    return copyreg.__newobj__, (type(error), *error.args), error.__dict__  # type: ignore[attr-defined]


class RetryLater(Exception):
    """Raised by a handler: rolls the job back and delays its next delivery."""

    def __init__(self, delay: float, reason: str = "retry later") -> None:
        super().__init__(reason)
        self.delay = delay

    def __reduce__(self) -> tuple[Any, ...]:
        return parts_of(self)


class Bury(Exception):
    """Raised by a handler: moves the job to the dead-letter queue at once."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        #: Also of an exception, which is given easily: `raise Bury(error)`.
        self.reason = text_of(reason)
