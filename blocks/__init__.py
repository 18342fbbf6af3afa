"""Block types: what a deployment needs and what must not stand in code or in a work pool.

Register them with `prefect block register -m hexprefect.blocks`.
"""

from __future__ import annotations

from hexprefect.blocks.database import Text2SQLDatabase
from hexprefect.blocks.instance import ModelInstance
from hexprefect.blocks.store import HexgenStore

__all__ = ["HexgenStore", "ModelInstance", "Text2SQLDatabase"]
