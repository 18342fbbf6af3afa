"""vLLM servers that we start ourselves, and that never outlive whoever started them."""

from hexprefect.instances.launched.capacity import Capacity, read_capacity
from hexprefect.instances.launched.command import VllmOptions
from hexprefect.instances.launched.log import StartProgress
from hexprefect.instances.launched.server import ServerEnded, VllmServer

__all__ = [
    "Capacity",
    "ServerEnded",
    "StartProgress",
    "VllmOptions",
    "VllmServer",
    "read_capacity",
]
