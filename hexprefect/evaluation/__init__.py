"""How good the answers are: the official measures, the share of each stage, and what it cost."""
