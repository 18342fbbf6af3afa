"""What Prefect finds through the entry point `prefect.collections`: our worker and our blocks.

Every Prefect command that lists workers or blocks imports this module, so it imports nothing that
is slow and nothing that talks to a database or an instance.
"""

from __future__ import annotations

from hexprefect.blocks import HexgenStore, ModelInstance, Text2SQLDatabase
from hexprefect.orchestration.worker import HexgenWorker

__all__ = ["HexgenStore", "HexgenWorker", "ModelInstance", "Text2SQLDatabase"]
