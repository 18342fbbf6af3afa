"""`served_flow.py NAME POLL_SECONDS`: `text2sql` by `flow.serve()`, as a user would serve it."""

from __future__ import annotations

import sys

from prefect.settings import PREFECT_RUNNER_POLL_FREQUENCY, temporary_settings

from hexprefect.flows.text2sql import ask

if __name__ == "__main__":
    name, poll_seconds = sys.argv[1:]
    with temporary_settings({PREFECT_RUNNER_POLL_FREQUENCY: int(poll_seconds)}):
        ask.serve(name=name)
