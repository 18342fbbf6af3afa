"""The evaluation: its grid, its ratios, its report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hexprefect.simulator import Generator
from hexprefect.simulator.reproduction import (
    Comparison,
    Evaluation,
    geometric_mean,
    rows,
    write_report,
)


def test_the_report_has_claims_tables_figures_and_every_record(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    evaluation = Evaluation(
        workloads={"bird": Generator(seed=2).some(8)},
        clusters=("heterogeneous-1", "homogeneous"),
        caching=(True,),
        loads=(0.5, 2.0),
        policies=("rr-fcfs", "hexgen", "hexprefect"),
        seeds=2,
        number=8,
    )
    results = evaluation.run()
    assert len(results) == evaluation.size
    report = write_report(evaluation, results, tmp_path / "r", command="hexprefect reproduce")
    text = report.read_text()
    assert "arXiv 2505.05286" in text
    assert "hexprefect reproduce" in text
    for cluster in evaluation.clusters:
        assert f"llama-3.1-70b, {cluster}" in text
    for name in ("attainment", "throughput", "p95", "alpha"):
        assert f"{name}.png" in text
        assert (tmp_path / "r" / f"{name}.png").stat().st_size > 5_000
    assert len(json.loads((tmp_path / "r" / "records.json").read_text())) == len(results)

    table = rows(evaluation, results)
    ratios = Comparison(table).ratios("hexgen", "rr-fcfs", "p95_s", clusters=("heterogeneous-1",))
    [first] = [
        r for r in table if (r.load, r.label, r.place[2]) == (0.5, "hexgen", "heterogeneous-1")
    ]
    [other] = [
        r for r in table if (r.load, r.label, r.place[2]) == (0.5, "rr-fcfs", "heterogeneous-1")
    ]
    assert ratios[0] == pytest.approx(other.figures["p95_s"] / first.figures["p95_s"])
    assert len(ratios) == 2


def test_the_mean_of_ratios_is_geometric() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
