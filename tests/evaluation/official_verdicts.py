"""Ask the official evaluators, in a process of their own: they import by bare names.

Reads `[[database, predicted, gold], …]` as JSON from standard input, and writes for each
`[bird_ex, bird_soft_f1, spider_execution, spider_keep_distinct]`. The folder of the originals is
the one argument; each database must be alone in its folder, for Spider's evaluator asks all that
lie beside each other.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from typing import Any


def _stand_in(name: str) -> None:
    """The originals import drivers and progress bars that this comparison does without."""
    try:
        importlib.import_module(name)
    except ImportError:
        module = types.ModuleType(name)
        module.func_timeout = lambda limit, call, args: call(*args)  # type: ignore[attr-defined]
        module.FunctionTimedOut = TimeoutError  # type: ignore[attr-defined]
        sys.modules[name] = module


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    for name in ("psycopg2", "pymysql", "tqdm", "func_timeout"):
        _stand_in(name)
    exact: Any = importlib.import_module("evaluation_ex")
    soft: Any = importlib.import_module("evaluation_f1")
    spider: Any = importlib.import_module("exec_eval")
    verdicts = []
    for number, (database, predicted, gold) in enumerate(json.load(sys.stdin)):
        bird = [
            evaluator.execute_model(predicted, gold, database, number, 60.0, "SQLite")["res"]
            for evaluator in (exact, soft)
        ]
        matches = [
            spider.eval_exec_match(database, predicted, gold, False, keep_distinct, False)
            for keep_distinct in (False, True)
        ]
        verdicts.append([bool(bird[0]), float(bird[1]), *(bool(item) for item in matches)])
    json.dump(verdicts, sys.stdout)


if __name__ == "__main__":
    main()
