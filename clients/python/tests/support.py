"""What the tests share. The environment names the server, and a control that restarts it."""

from __future__ import annotations

import os
import unittest
import urllib.request
import uuid
from typing import Any

from quayside import Quayside, Queue

URL = os.environ["QUAYSIDE_URL"]


def restart_server() -> None:
    """Kills the server with SIGKILL and returns when a new one is ready."""
    request = urllib.request.Request(os.environ["QUAYSIDE_TEST_CONTROL"] + "restart", method="POST")
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
