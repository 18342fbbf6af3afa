"""What Prefect sees: the task runner, LLM tasks, the worker, work pools as instances."""
