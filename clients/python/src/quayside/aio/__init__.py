"""Client and worker for asyncio, with the names, arguments and errors of `quayside`."""

from ..codec import Codec, DefaultCodec
from ..errors import (
    Bury,
    ConnectionError,
    LeaseLostError,
    QuaysideError,
    RetryLater,
    StoppedError,
    TimeoutError,
    ValidationError,
)
from ..models import (
    BrowsedElement,
    Element,
    ElementId,
    FailedState,
    Holder,
    QueueStatus,
    RawResponse,
    SelectorError,
    SelectorFailure,
    State,
)
from ..protocol import Retry
from ..working import Stopped, WorkerEvent
from .client import Quayside, Queue, Reservation
from .worker import Worker

__all__ = [
    "BrowsedElement",
    "Bury",
    "Codec",
    "ConnectionError",
    "DefaultCodec",
    "Element",
    "ElementId",
    "FailedState",
    "Holder",
    "LeaseLostError",
    "Quayside",
    "QuaysideError",
    "Queue",
    "QueueStatus",
    "RawResponse",
    "Reservation",
    "Retry",
    "RetryLater",
    "SelectorError",
    "SelectorFailure",
    "State",
    "Stopped",
    "StoppedError",
    "TimeoutError",
    "ValidationError",
    "Worker",
    "WorkerEvent",
]
