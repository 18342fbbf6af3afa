"""A PostgreSQL server for Prefect, which on SQLite serves only a few flow runs at once.

Prefect needs the extension `pg_trgm`, which the PostgreSQL of the store's tests has not: this takes
an installed one, or the URL in `HEXPREFECT_TEST_PREFECT_DATABASE`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

START_LIMIT_S = 60.0


@contextmanager
def prefect_database() -> Iterator[str | None]:
    """URL of an empty database for a Prefect server; `None` where there is no PostgreSQL for it."""
    if given := os.environ.get("HEXPREFECT_TEST_PREFECT_DATABASE"):
        yield given
        return
    programs = _programs()
    user = _unprivileged_user()
    if programs is None or user is None:
        yield None
        return
    # A socket's path has 107 characters at most: the folder's must be short.
    folder = Path(tempfile.mkdtemp(prefix="hp-"))
    data = folder / "data"
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, user)
        subprocess.run(
            [programs / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "-N"],
            check=True,
            capture_output=True,
            user=user if os.geteuid() == 0 else None,
            cwd=folder,
        )
        with _running(programs, data, folder, user):
            yield f"postgresql+asyncpg://postgres@/postgres?host={folder}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _running(programs: Path, data: Path, folder: Path, user: str) -> Iterator[None]:
    options = {"listen_addresses": "", "unix_socket_directories": str(folder), "fsync": "off"}
    server = subprocess.Popen(
        [
            *(programs / "postgres", "-D", data),
            *(part for key, value in options.items() for part in ("-c", f"{key}={value}")),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=user if os.geteuid() == 0 else None,
        cwd=folder,
    )
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while not _answers(folder):
            assert server.poll() is None, "PostgreSQL ended while it was starting"
            assert time.monotonic() < deadline, "PostgreSQL did not start"
            time.sleep(0.1)
        yield
    finally:
        server.send_signal(signal.SIGINT)  # does not wait for clients, as SIGTERM does
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(10)


def _answers(folder: Path) -> bool:
    try:
        with psycopg.connect(f"postgresql://postgres@/postgres?host={folder}"):
            return True
    except psycopg.OperationalError:
        return False


def _programs() -> Path | None:
    """The folder of an installed PostgreSQL with `pg_trgm`."""
    for found in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        share = Path("/usr/share/postgresql") / found.parent.name / "extension"
        if (found / "initdb").exists() and (share / "pg_trgm.control").exists():
            return found
    return None


def _unprivileged_user() -> str | None:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()).pw_name
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    return None
