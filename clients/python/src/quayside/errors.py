"""Exceptions that calls raise, and those that a handler raises to settle its job."""

from __future__ import annotations

import copyreg
from collections.abc import Sequence
from typing import Any, Literal

Outcome = Literal["nothing-changed", "unknown"]


class QuaysideError(Exception):
    """A call failed. `code` is stable: an error code of the HTTP interface, or one of this client."""

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
        #: The number of the rejected element of a call with many, from 1.
        self.line = line

    def __str__(self) -> str:
        return f"{self.args[0]} ({self.code})"

    def __reduce__(self) -> tuple[Any, ...]:
        return parts_of(self)


class ConnectionError(QuaysideError):
    """The server could not be reached, or the connection failed before the response was complete."""


class TimeoutError(QuaysideError):
    """A call or a handler timed out."""


class LeaseLostError(QuaysideError):
    """The reservation is no longer valid: its lease ended, or the element was settled elsewhere."""


class StoppedError(QuaysideError):
    """The client was closed."""


class ValidationError(QuaysideError):
    """An argument cannot be sent, or a body cannot be decoded. `issues` names each problem."""

    def __init__(self, issues: Sequence[str]) -> None:
        super().__init__("invalid-data", " ".join(issues))
        self.issues = tuple(issues)


def text_of(value: object) -> str:
    """Converts anything that was raised to a string. Never raises."""
    try:
        return str(value)
    except Exception:
        return f"{type(value).__name__} without text"


def failure_of(error: Exception) -> QuaysideError:
    """Returns the argument of the event `error`. The program's functions, such as `auth`, may raise anything."""
    if isinstance(error, QuaysideError):
        return error
    failure = QuaysideError("failed", f"{type(error).__name__}: {text_of(error)}")
    failure.__cause__ = error
    return failure


def parts_of(error: Exception) -> tuple[Any, ...]:
    """Implements `__reduce__` without calling `__init__`, which has other arguments.

    A process of a pool pickles its exceptions for the parent process.
    """
    return copyreg.__newobj__, (type(error), *error.args), error.__dict__  # type: ignore[attr-defined]


class RetryLater(Exception):
    """Raised by a handler: rolls the job back and delays its next delivery."""

    def __init__(self, delay: float, reason: str = "retry later") -> None:
        super().__init__(reason)
        self.delay = delay

    def __reduce__(self) -> tuple[Any, ...]:
        return parts_of(self)


class Bury(Exception):
    """Raised by a handler: moves the job to the dead-letter queue."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        #: Accepts exceptions, too: `raise Bury(error)`.
        self.reason = text_of(reason)
