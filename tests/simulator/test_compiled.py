"""The compiled simulator (`make compiled`): another speed, and otherwise the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TIMED = """
import time
from hexprefect.simulator import Experiment, Generator, capacity, engine
from hexprefect.simulator import named_policy, parse_cluster
queries, cluster = Generator(family="bird").some(60), parse_cluster("heterogeneous-1")
run = Experiment(trace="bird", queries=queries, cluster=cluster, rate=capacity(queries, cluster),
                 policy=named_policy("hexprefect"), number=200)
seconds = []
for _ in range(3):
    began = time.process_time()
    run.run()
    seconds.append(time.process_time() - began)
print(engine.__file__.rpartition(".")[2], min(seconds))
"""

# Imported before pytest puts the checkout first.
CASES = """
import sys
import pytest
from hexprefect.simulator import simulation
assert not simulation.__file__.endswith(".py")
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-m", "not slow", *sys.argv[1:]]))
"""

HELD = (
    "simulator/test_fingerprints.py",
    "simulator/test_engine.py",
    "simulator/test_knowledge.py",
    "simulator/test_held_prefixes.py",
    "scheduling",
)
"""The recorded results, and what holds each short cut to what it stands for."""


def python(*arguments: str, beside: Path | None) -> str:
    """Run Python on the checkout, or on the unpacked wheel where one is given."""
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    environment["PYTHONPATH"] = str(ROOT if beside is None else beside)
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    return ran.stdout


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make compiled` makes of this checkout, unpacked."""
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("there is no C compiler on this machine")
    made = tmp_path_factory.mktemp("compiled")
    python("-m", "hatchling", "build", "-t", "sdist", "-d", str(made), beside=None)
    [source] = made.glob("*.tar.gz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HATCH_BUILD_HOOK_ENABLE_MYPYC", "true")
        patch.setenv("CFLAGS", "-ffp-contract=off")
        wheel = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(made))
        python(*wheel, str(source), beside=None)
    [built] = made.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(made / "unpacked")
    return made / "unpacked"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_it_decides_the_same_bit_for_bit_and_faster(compiled: Path) -> None:
    suffix, seconds = python("-c", TIMED, beside=compiled).split()
    assert suffix in ("so", "pyd"), "the wheel's simulator is not compiled"
    plain_suffix, plain_seconds = python("-c", TIMED, beside=None).split()
    assert plain_suffix == "py", "the checkout holds compiled modules, which hide its source"
    print(f"\n{float(plain_seconds) / float(seconds):.1f} times as fast, compiled")
    assert float(seconds) < 0.6 * float(plain_seconds)
    said = python("-c", CASES, *(f"tests/{case}" for case in HELD), beside=compiled)
    assert " passed" in said
