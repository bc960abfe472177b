"""The examples of docs/sdk/python.md, and that of the package's README."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import os
import re
import signal
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

from quayside import Holder, Quayside, QueueStatus, Worker, aio

PAGE = Path(__file__).parents[3] / "docs" / "sdk" / "python.md"
README = Path(__file__).parents[1] / "README.md"


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
        self.assertEqual(ran, 8)
        for line in ("{'order': 1} ", "working on {'order': 4}", "working on {'order': 8}", "0 0", "{'order': 3} 20", "202"):
            self.assertIn(f"\n{line}", f"\n{printed.getvalue()}")

    def test_the_readme_of_the_package_inserts_an_element(self) -> None:
        (program,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
        # The address and the user of this server, in place of those of the page.
        own = program.replace('"http://127.0.0.1:3444", auth=("user", "password")', "")
        self.assertNotEqual(own, program)
        with Quayside() as client:
            orders = client.queue("N/orders")
            before = orders.status().total
            exec(compile(own, str(README), "exec"), {})
            self.assertEqual(orders.status().total, before + 1)

    def test_the_page_has_the_options_of_a_worker_with_their_defaults(self) -> None:
        _, after = PAGE.read_text().split("| option of a worker | default | meaning |\n")
        table = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", after.split("\n\n")[0], re.MULTILINE))

        def defaults(worker: type) -> dict[str, str]:
            return {one.name: str(one.default) for one in list(inspect.signature(worker).parameters.values())[2:]}

        self.assertEqual(table, defaults(Worker))
        concurrency = re.findall(r"with asyncio they are tasks, and the default is (\d+)", after)[0]
        self.assertEqual({**table, "concurrency": concurrency}, defaults(aio.Worker))

    def test_the_page_names_what_a_status_and_a_browsed_element_have(self) -> None:
        names = [one.name for kind in (QueueStatus, Holder) for one in dataclasses.fields(kind)]
        missing = [name for name in [*names, "inserted_at", "expires_at", "reason"] if f"`{name}`" not in PAGE.read_text()]
        self.assertEqual(missing, [])

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
