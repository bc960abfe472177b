"""Values that calls return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Generic, Literal, TypeVar

from .codec import Codec
from .errors import QuaysideError, ValidationError

T = TypeVar("T")
State = Literal["ready", "scheduled", "reserved"]
#: Where an element is after a failed try. `unknown`: the response to the first attempt of a rollback was lost.
FailedState = Literal["waiting", "dead-lettered", "unknown"]


class ElementId(str):
    """The id of an inserted element."""

    #: Whether the idempotency key was used before, so that this insert stored nothing.
    is_repeat: bool

    def __new__(cls, value: str, is_repeat: bool = False) -> ElementId:
        self = super().__new__(cls, value)
        self.is_repeat = is_repeat
        return self


def decode(codec: Codec[T], element_id: str, body: bytes, content_type: str) -> T:
    try:
        return codec.decode(body, content_type)
    except (ValueError, TypeError) as error:
        what = content_type or "no content type"
        raise ValidationError([f"The body of element {element_id} ({what}) cannot be decoded: {error}"]) from error


@dataclass(frozen=True)
class Content:
    """The content of an element, as received from the server."""

    id: str
    body: bytes
    content_type: str
    content_encoding: str | None
    headers: Mapping[str, str]
    #: Failed tries so far.
    tries: int
    mature: datetime
    #: Whether the user may browse the queue, but not see bodies.
    is_hidden: bool = False


@dataclass(frozen=True)
class Receipt:
    """Identifies one reservation of an element."""

    id: str
    token: str
    group: str | None


class Element(Generic[T]):
    """An element that was taken."""

    def __init__(self, content: Content, codec: Codec[T]) -> None:
        self._codec = codec
        self._is_hidden = content.is_hidden
        self.id = content.id
        self.body = content.body
        self.content_type = content.content_type
        self.content_encoding = content.content_encoding
        self.headers = content.headers
        self.tries = content.tries
        self.mature = content.mature

    def __repr__(self) -> str:
        # Not the body, which may be large or confidential.
        return f"<{type(self).__name__} {self.id!r} tries={self.tries}>"

    @cached_property
    def data(self) -> T:
        """The decoded body. It is decoded on access, so that an invalid body fails its handler, not the take."""
        if self._is_hidden:
            raise QuaysideError("body-hidden", "The user may not see bodies in this namespace.")
        return decode(self._codec, self.id, self.body, self.content_type)


@dataclass(frozen=True)
class Holder:
    """The holder of a reserved element."""

    consumer: str | None
    #: None: an exchange.
    user: str | None
    since: datetime
    until: datetime


@dataclass(frozen=True)
class Look:
    """What browsing returns of an element in addition to its content."""

    state: State
    inserted_at: datetime
    expires_at: datetime | None
    reason: str | None
    holder: Holder | None


class BrowsedElement(Element[T]):
    """An element returned by `browse`. It remains in its queue."""

    def __init__(self, content: Content, codec: Codec[T], look: Look) -> None:
        super().__init__(content, codec)
        self.state = look.state
        self.inserted_at = look.inserted_at
        #: When the element expires; None: never.
        self.expires_at = look.expires_at
        #: Why the last try failed.
        self.reason = look.reason
        self.holder = look.holder


@dataclass(frozen=True)
class SelectorError:
    """An error of a selector, and the element that caused it."""

    id: str
    message: str


@dataclass(frozen=True)
class SelectorFailure:
    """The elements that a page lacks because the selector raised."""

    failed: int
    #: The error for the first of them.
    error: SelectorError


@dataclass(frozen=True)
class RawResponse:
    """The response to a request for which the client has no method."""

    status: int
    #: Their names are in lower case.
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass(frozen=True)
class QueueStatus:
    """Size and counters of a queue."""

    #: `<engine>:<variant>`.
    type: str
    is_paused: bool
    total: int
    #: Elements that can be taken now.
    ready: int
    scheduled: int
    reserved: int
    #: The earliest maturity of the waiting elements.
    next_mature: datetime | None
    #: How many seconds the oldest ready element has been ready.
    oldest_ready: float | None
    #: Counters since the queue was created: `put`, `get`, `reserve`, `commit`, `rollback`, `deadletter`.
    stats: Mapping[str, int]
