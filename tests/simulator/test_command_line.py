"""The commands: records on stdout, nothing else; errors that teach."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hexprefect.simulator import (
    Experiment,
    Generator,
    named_policy,
    parse_cluster,
    read_workload,
    write_workload,
)
from hexprefect.simulator.command_line import app
from hexprefect.simulator.command_options import tuned_for

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
        (["--cluster", "a100:999999999999"], "at most 10,000"),
        (["--cluster", "sqlite:////nowhere/gone.sqlite"], "no store at /nowhere/gone.sqlite"),
        (["--rate", "fast"], "0.5x"),
        (["--alpha", "2"], "tuned"),
        (["--objective", "joy"], "attainment"),
        (["--arrivals", "often"], "poisson"),
        (["--prefill", "last"], "chunked"),
        (["--model", "gpt-9"], "llama"),
        (["--rate", "inf"], "0.5x"),
        (["--rate", "1e999x"], "0.5x"),
        (["--rate", "nan"], "0.5x"),
        (["--arrivals", "gamma:inf"], "gamma:CV with CV from"),
        (["--cluster", "a100:²"], "at least 1"),
        (["--slo-scale", "inf"], "at least 0.1"),
        (["--arrivals", "phases:1x10", "--rate", "1"], "Leave it out"),
        (["--arrivals", "recorded"], "12 of 12 queries have no recorded arrival"),
        (["--cluster", "sqlite:///gone", "--model", "llama-3.1-70b"], "each has its own profile"),
        (["--cluster", "sqlite:///gone", "--profiles", "own.json"], "each has its own profile"),
    ],
)
def test_a_mistake_is_answered_with_the_way_out(
    trace: str, options: list[str], remedy: str
) -> None:
    result = CliRunner().invoke(app, ["simulate", trace, "--json", *options])
    assert result.exit_code == 2
    assert remedy in json.loads(result.stdout)["error"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"a": 0.0, "b": 0.0, "c": 0.0}, "a and b must be numbers above 0"),
        ({"b": float("inf")}, "a and b"),
        ({"c": -5}, "c and batch_growth"),
        ({"c": float("nan")}, "c and batch_growth"),
        ({"batch_growth": -1}, "c and batch_growth"),
        ({"kv_tokens": "40000"}, "whole number"),
        ({"kv_tokens": 0}, "whole number"),
        ({"kv_tokens": True}, "whole number"),
        ({"a": "fast"}, "fast"),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused_by_name(
    trace: str, tmp_path: Path, changed: dict[str, object], says: str
) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps({"profiles": {"mine": {"c": 0.1, "a": 1e-4, "b": 0.02} | changed}}))
    code, stdout = run("simulate", trace, "--cluster", "mine:1", "--profiles", str(path), "--json")
    assert code == 2
    error = json.loads(stdout)["error"]
    assert says in error
    assert str(path) in error


def write_recording(path: Path, gap_s: float) -> str:
    queries = Generator(seed=1).some(6)
    write_workload(
        (replace(query, arrived_at=50 + gap_s * place) for place, query in enumerate(queries)), path
    )
    return str(path)


def test_a_recording_is_replayed_at_its_own_rate_unless_another_is_given(tmp_path: Path) -> None:
    trace = write_recording(tmp_path / "r.jsonl", gap_s=40.0)
    options = ("simulate", trace, "--arrivals", "recorded", "--policy", "hexgen", "--json")
    [own] = json.loads(run(*options)[1])
    assert own["rate"] == pytest.approx(1 / 40)
    assert own["queries"] == 6
    [faster] = json.loads(run(*options, "--rate", "0.1")[1])
    assert faster["rate"] == 0.1
    assert faster["p95_s"] > own["p95_s"]
    # What was recorded lasted 200 s before its last query came.
    assert own["queries"] / own["throughput_qps"] > 200 > 6 / faster["throughput_qps"]


def test_a_recording_is_tuned_on_its_end(tmp_path: Path) -> None:
    queries = Generator(seed=1).some(14)
    moments = [0.0, 1e5, 2e5, 3e5, *(3e5 + 1000 + 20.0 * place for place in range(10))]
    timed = [replace(each, arrived_at=at) for each, at in zip(queries, moments, strict=True)]
    write_workload(reversed(timed), tmp_path / "r.jsonl")
    _, stdout = run(
        "tune", str(tmp_path / "r.jsonl"), "--arrivals", "recorded", "--queries", "10",
        "--seeds", "1", "--policy", "hexgen", "--cluster", "a100:1,l40s:1", "--json",
    )  # fmt: skip
    [record] = json.loads(stdout)
    assert record["rate"] == pytest.approx(1 / 20)


def test_phases_run_once_at_their_mean_rate(trace: str) -> None:
    _, stdout = run(
        "simulate", trace, "--arrivals", "phases:0.1x30,0.3x10", "--policy", "hexgen", "--json"
    )
    [record] = json.loads(stdout)
    assert record["rate"] == pytest.approx(0.15)


def test_a_tuned_policy_is_told_in_whole_and_that_round_robin_would_have_been_better(
    trace: str,
) -> None:
    # Under overload on one instance, first come, first served has the shortest tail.
    result = CliRunner().invoke(
        app,
        ["simulate", trace, "--policy", "hexgen", "--rate", "0.3", "--alpha", "tuned",
         "--queries", "30", "--cluster", "l40s:1", "--json"],
    )  # fmt: skip
    assert result.exit_code == 0
    [record] = json.loads(result.stdout)
    assert f"tuned: alpha {record['alpha']:.4g}, order urgency" in " ".join(result.stderr.split())
    assert "round-robin would have been better" in " ".join(result.stderr.split())


def test_ours_is_tuned_with_the_rest_of_its_policy_for_every_objective(trace: str) -> None:
    queries = read_workload(Path(trace))
    cluster = parse_cluster("a100:1,l40s:1")
    for name, jointly in (("hexprefect", True), ("hexgen", False)):
        window = Experiment(
            trace="t", queries=queries, cluster=cluster, policy=named_policy(name), rate=0.1,
            number=10,
        )  # fmt: skip
        points = tuned_for(window, "p95", 1).points
        assert (len({point.policy.slowdown for point in points}) > 3) == jointly


def test_a_missing_trace_is_named() -> None:
    result = CliRunner().invoke(app, ["simulate", "gone.json"])
    assert result.exit_code == 2
    assert "gone.json" in result.stderr


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["simulate", f"sqlite:///{tmp_path}/gone.sqlite", "--json"])
    assert result.exit_code == 2
    assert "gone.sqlite" in json.loads(result.stdout)["error"]
    assert list(tmp_path.iterdir()) == []


def test_a_trace_that_is_nested_without_end_is_named(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 200_000)
    for option in (["bird", "--profiles"], []):
        named = [*option, f"{tmp_path}/deep.json"]
        result = CliRunner().invoke(app, ["simulate", *named, "--json"])
        assert result.exit_code == 2
        assert "deep.json" in json.loads(result.stdout)["error"]
