"""Values that calls return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from .codec import Codec
from .errors import ValidationError

T = TypeVar("T")
State = Literal["ready", "scheduled", "reserved"]


def decode(codec: Codec[T], element_id: str, body: bytes, content_type: str) -> T:
    try:
        return codec.decode(body, content_type)
    except (ValueError, TypeError) as error:
        what = content_type or "no content type"
        raise ValidationError([f"The body of element {element_id} ({what}) cannot be decoded: {error}"]) from error


@dataclass(frozen=True)
class Content:
    """What an element holds, as it came from the server."""

    id: str
    body: bytes
    content_type: str
    content_encoding: str | None
    headers: Mapping[str, str]
    #: Failed tries so far.
    tries: int
    mature: datetime


@dataclass(frozen=True)
class Receipt:
    """Names one reservation of an element."""

    id: str
    token: str
    group: str | None


class Element(Generic[T]):
    """An element that was taken."""

    def __init__(self, content: Content, codec: Codec[T]) -> None:
        self._codec = codec
        self.id = content.id
        self.body = content.body
        self.content_type = content.content_type
        self.content_encoding = content.content_encoding
        self.headers = content.headers
        self.tries = content.tries
        self.mature = content.mature

    @property
    def data(self) -> T:
        """The decoded body. Decoded here and not on arrival, so that a broken body fails its handler and not the take."""
        return decode(self._codec, self.id, self.body, self.content_type)


class BrowsedElement(Element[T]):
    """An element that was looked at and remains in its queue."""

    def __init__(
        self, content: Content, codec: Codec[T], state: State, inserted_at: datetime, reason: str | None
    ) -> None:
        super().__init__(content, codec)
        self.state = state
        self.inserted_at = inserted_at
        #: Why the last try failed.
        self.reason = reason


@dataclass(frozen=True)
class QueueStatus:
    """Counts of a queue. `raw` is the whole record of the HTTP interface."""

    #: Elements that are eligible now.
    size: int
    #: Elements that wait for their maturity.
    sched_size: int
    #: Elements that are reserved.
    resv_size: int
    total_size: int
    paused: bool
    next_mature: datetime | None
    oldest_ready_age: float | None
    raw: Mapping[str, Any] = field(repr=False)
