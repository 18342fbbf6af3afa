"""`served_flow.py NAME POLL_SECONDS`: `text2sql` by `flow.serve()`, as a user would serve it."""

from __future__ import annotations

import sys
from typing import get_type_hints

from prefect.settings import PREFECT_RUNNER_POLL_FREQUENCY, temporary_settings

from hexprefect.flows.text2sql import ask

if __name__ == "__main__":
    name, poll_seconds = sys.argv[1:]
    # `serve()` pickles the flow's function by value: annotations that are text find no names there.
    ask.fn.__annotations__ = get_type_hints(ask.fn, include_extras=True)
    with temporary_settings({PREFECT_RUNNER_POLL_FREQUENCY: int(poll_seconds)}):
        ask.serve(name=name)
