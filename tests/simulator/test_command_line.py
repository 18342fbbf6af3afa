"""The commands: records on stdout, nothing else; errors that teach."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hexprefect.simulator import Generator, write_workload
from hexprefect.simulator.command_line import app

RECORD = [
    "trace", "cluster", "rate", "policy", "alpha", "seed", "requests", "mean_s", "p50_s", "p95_s",
    "p99_s", "throughput_qps", "slo_attainment", "slo_scale_at_95", "slo_scale_at_99", "wall_s",
]  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "small.jsonl"
    write_workload(Generator(seed=1).some(12), path)
    return str(path)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout


def test_one_record_per_combination_with_the_documented_fields(trace: str) -> None:
    code, stdout = run(
        "simulate", trace, "--cluster", "a100:1,l40s:1", "--rate", "0.05,1x", "--policy",
        "rr-fcfs,hexgen", "--seeds", "2", "--queries", "12", "--json",
    )  # fmt: skip
    records = json.loads(stdout)
    assert code == 0
    assert len(records) == 2 * 2 * 2
    for record in records:
        assert list(record)[: len(RECORD)] == RECORD
        assert record["trace"] == "small"
        assert record["cluster"] == "a100:1,l40s:1"
    assert {r["alpha"] for r in records if r["policy"] == "rr-fcfs"} == {None}
    assert {r["rate"] for r in records} >= {0.05}


def test_options_change_what_they_say(trace: str) -> None:
    def p95(*options: str) -> float:
        code, stdout = run(
            "simulate", trace, "--policy", "hexgen", "--rate", "0.1", "--queries", "24",
            "--cluster", "a100:1,l40s:1", "--json", *options,
        )  # fmt: skip
        assert code == 0, stdout
        return float(json.loads(stdout)[0]["p95_s"])

    base = p95()
    assert p95() == base
    assert p95("--no-prefix-cache") > base
    assert p95("--alpha", "1") != base
    assert p95("--arrivals", "gamma:3") != base
    assert p95("--prefill", "first") != base
    assert p95("--kv-tokens", "15000") > base
    assert p95("--model", "qwen3-30b-a3b") < base
    assert p95("--check-laws") == base


def test_tuned_alpha_and_tune(trace: str) -> None:
    code, stdout = run(
        "simulate", trace, "--policy", "hexgen", "--rate", "0.1", "--alpha", "tuned",
        "--queries", "15", "--cluster", "a100:1,l40s:1", "--json",
    )  # fmt: skip
    assert code == 0
    assert 0 <= json.loads(stdout)[0]["alpha"] <= 1
    code, stdout = run(
        "tune", trace, "--cluster", "a100:1,l40s:1", "--seeds", "1", "--queries", "12", "--json"
    )
    [record] = json.loads(stdout)
    assert code == 0
    assert len(record["grid"]) >= 21
    assert record["choice"]["p95_s"] <= record["round_robin"]["p95_s"]


def test_tables_are_for_people(trace: str) -> None:
    code, stdout = run("simulate", trace, "--queries", "12", "--rate", "0.1")
    assert code == 0
    assert "slo_attainment" in stdout
    assert "hexprefect" in stdout


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (["--policy", "best"], "hexprefect"),
        (["--cluster", "b200:1"], "a100"),
        (["--cluster", "a100:0"], "at least 1"),
        (["--rate", "fast"], "0.5x"),
        (["--alpha", "2"], "tuned"),
        (["--objective", "joy"], "attainment"),
        (["--arrivals", "often"], "poisson"),
        (["--prefill", "last"], "chunked"),
        (["--model", "gpt-9"], "llama"),
    ],
)
def test_a_mistake_is_answered_with_the_way_out(
    trace: str, options: list[str], remedy: str
) -> None:
    result = CliRunner().invoke(app, ["simulate", trace, "--json", *options])
    assert result.exit_code == 2
    assert remedy in json.loads(result.stdout)["error"]


def test_a_missing_trace_is_named() -> None:
    result = CliRunner().invoke(app, ["simulate", "gone.json"])
    assert result.exit_code == 2
    assert "gone.json" in result.stderr
