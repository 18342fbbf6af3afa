"""The embedded stack: everything a question needs, on this machine, started and stopped as one."""
