"""The examples of docs/sdk/python.md."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

from quayside import Quayside

PAGE = Path(__file__).parents[3] / "docs" / "sdk" / "python.md"


class Examples(unittest.TestCase):
    def setUp(self) -> None:
        self.blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)

    def test_run_one_after_the_other_and_print_what_the_page_says(self) -> None:
        names: dict[str, Any] = {}
        printed = io.StringIO()
        ran = 0
        with contextlib.redirect_stdout(printed):
            for block in self.blocks:
                if ".run()" not in block:
                    exec(compile(block, str(PAGE), "exec"), names)
                    ran += 1
        self.assertEqual(ran, 7)
        for line in ("{'order': 1} ", "working on {'order': 4}", "working on {'order': 8}", "0 0", "{'order': 3} 20"):
            self.assertIn(f"\n{line}", f"\n{printed.getvalue()}")

    def test_the_worker_ships_until_it_is_terminated(self) -> None:
        (program,) = [block for block in self.blocks if ".run()" in block]
        with Quayside() as client:
            shipments = client.queue("N/shipments")
            shipments.insert_many([{"order": -1}, {"order": 0}])
            process = subprocess.Popen(
                [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
            )
            with process:
                assert process.stdout is not None
                self.assertEqual(process.stdout.readline(), "shipped 0\n")
                process.send_signal(signal.SIGTERM)
                self.assertEqual(process.wait(), 0)
            self.assertEqual(shipments.status().total, 0)
            dead = client.queue("N/__deadletter__").pop(wait=None)
            assert dead is not None
            self.assertEqual(dead.headers["x-dl-reason"], "an order number is positive")
