"""`python -m hexprefect.demo PATH`: write the demo shop as a SQLite file."""

from __future__ import annotations

import argparse

from hexprefect.demo.shop import build_shop


def main() -> None:
    """Build the shop and say where it is."""
    parser = argparse.ArgumentParser(prog="python -m hexprefect.demo", description=__doc__)
    parser.add_argument("path", help="the SQLite file to write; an existing one is replaced")
    parser.add_argument("--seed", type=int, default=7, help="another seed gives other rows")
    arguments = parser.parse_args()
    print(build_shop(arguments.path, seed=arguments.seed))


if __name__ == "__main__":
    main()
