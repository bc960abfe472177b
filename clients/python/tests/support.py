"""What the tests share. The test that starts them names the server, and a control that kills and starts it."""

from __future__ import annotations

import os
import unittest
import urllib.request
import uuid
from typing import Any

from quayside import Quayside, Queue

URL = os.environ["QUAYSIDE_URL"]


def control(action: str) -> None:
    """`restart` kills the server with SIGKILL and returns when a new one is ready; `kill` and `start` are its halves."""
    request = urllib.request.Request(os.environ["QUAYSIDE_TEST_CONTROL"] + action, method="POST")
    with urllib.request.urlopen(request, timeout=60):
        pass


def fresh_name() -> str:
    return f"N/q-{uuid.uuid4().hex[:12]}"


class ClientTest(unittest.TestCase):
    """A client and an unused queue for each test."""

    client: Quayside
    queue: Queue[Any]

    def setUp(self) -> None:
        self.client = Quayside()
        self.addCleanup(self.client.close)
        self.queue = self.client.queue(fresh_name())

    def taken(self) -> list[Any]:
        """Pops everything that is ready."""
        found = []
        while (element := self.queue.pop()) is not None:
            found.append(element.data)
        return found
