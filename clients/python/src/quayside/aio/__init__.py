"""The client and the worker for asyncio. Names, arguments and errors are those of `quayside`."""

from .client import Quayside, Queue, Reservation
from .worker import Worker

__all__ = ["Quayside", "Queue", "Reservation", "Worker"]
