"""Client and worker for Quayside. `quayside.aio` has the same interface for asyncio."""

from .client import Quayside, Queue, Reservation
from .codec import Codec, DefaultCodec
from .errors import (
    Bury,
    ConnectionError,
    LeaseLostError,
    QuaysideError,
    RetryLater,
    StoppedError,
    TimeoutError,
    ValidationError,
)
from .models import (
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
from .protocol import Retry
from .worker import Worker
from .working import Stopped, WorkerEvent

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
