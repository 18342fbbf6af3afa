"""A server that behaves like vLLM on a GPU that one does not have."""

from hexprefect.instances.emulator.content import Answer, Behind, Computed, Content, Filler, Replay
from hexprefect.instances.emulator.engine import Engine, EngineOptions, Sequence
from hexprefect.instances.emulator.fault import Fault
from hexprefect.instances.emulator.protocol import Generation
from hexprefect.instances.emulator.server import Emulator, serve_fleet

__all__ = [
    "Answer",
    "Behind",
    "Computed",
    "Content",
    "Emulator",
    "Engine",
    "EngineOptions",
    "Fault",
    "Filler",
    "Generation",
    "Replay",
    "Sequence",
    "serve_fleet",
]
