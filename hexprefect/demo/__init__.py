"""The demo database that the project ships, and sample questions with verified SQL."""

from __future__ import annotations

from hexprefect.demo.questions import SampleQuestion, sample_questions
from hexprefect.demo.shop import build_shop, load_shop

__all__ = ["SampleQuestion", "build_shop", "load_shop", "sample_questions"]
