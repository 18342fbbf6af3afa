"""HEXGEN-FLOW scheduling of agentic Text-to-SQL on unequal GPUs, as a Prefect 3 plugin."""

__version__ = "0.1.0"
