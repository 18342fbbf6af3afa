"""The evaluation: its grid, its ratios, its report."""

from __future__ import annotations

import json
from math import inf, isnan
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hexprefect.simulator import Generator, write_workload
from hexprefect.simulator.command_line import app
from hexprefect.simulator.report import report_text
from hexprefect.simulator.reproduction import (
    BASELINES,
    FIGURES,
    Comparison,
    Evaluation,
    Place,
    Row,
    geometric_mean,
    reproduce_command,
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
    # The sweep is there in numbers, too.
    sweep = text.split("## α\n")[1].split("## Tables")[0]
    assert "### α: bird, llama-3.1-70b, heterogeneous-1, prefix caching on" in sweep
    assert "homogeneous" not in sweep
    assert "| α | hexgen | hexprefect |" in sweep
    assert sum(line.startswith(("| 0", "| 1")) for line in sweep.splitlines()) == 11
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
    assert geometric_mean([0.5, inf]) == inf
    assert geometric_mean([0.5, 0.0]) == 0.0
    assert isnan(geometric_mean([]))
    assert isnan(geometric_mean([0.0, inf]))


def row(label: str, load: float = 2.0, *, place: Place, **figures: float) -> Row:
    everywhere = dict.fromkeys(FIGURES, 1.0)
    return Row(place, load, label, 1.0, everywhere | figures, ())


EQUAL: Place = ("bird", "llama-3.1-70b", "homogeneous", True)
UNEQUAL: Place = ("bird", "llama-3.1-70b", "heterogeneous-1", True)
OTHER_MODEL: Place = ("bird", "qwen3-30b-a3b", "heterogeneous-1", True)


def test_each_place_is_compared_with_the_better_of_two() -> None:
    comparison = Comparison(
        [
            row("rr-fcfs", 1.0, place=EQUAL, p95_s=4.0, slo_attainment=0.2),
            row("least-loaded", 1.0, place=EQUAL, p95_s=6.0, slo_attainment=0.1),
            row("hexprefect", 1.0, place=EQUAL, p95_s=2.0, slo_attainment=0.8),
            row("rr-fcfs", 2.0, place=EQUAL, p95_s=9.0),
            row("least-loaded", 2.0, place=EQUAL, p95_s=6.0),
            row("hexprefect", 2.0, place=EQUAL, p95_s=6.0),
            row("least-loaded", 3.0, place=EQUAL, p95_s=6.0),
            row("hexprefect", 3.0, place=EQUAL, p95_s=6.0),
        ]
    )
    better = ("rr-fcfs", "least-loaded")
    assert comparison.ratios("hexprefect", better, "p95_s", clusters=("homogeneous",)) == [2.0, 1.0]
    ratios = comparison.ratios(
        "hexprefect", better, "slo_attainment", clusters=("homogeneous",), loads=lambda x: x < 2
    )
    assert ratios == [pytest.approx(4.0)]


def test_a_place_where_nothing_is_in_time_is_compared_all_the_same() -> None:
    comparison = Comparison(
        [
            row("hexgen", 1.0, place=UNEQUAL, slo_attainment=0.0),
            row("hexprefect", 1.0, place=UNEQUAL, slo_attainment=0.1),
            row("hexgen", 1.5, place=UNEQUAL, slo_attainment=0.2),
            row("hexprefect", 1.5, place=UNEQUAL, slo_attainment=0.0),
            row("hexgen", 2.0, place=UNEQUAL, slo_attainment=0.0),
            row("hexprefect", 2.0, place=UNEQUAL, slo_attainment=0.0),
        ]
    )
    ratios = comparison.ratios(
        "hexprefect", "hexgen", "slo_attainment", clusters=("heterogeneous-1",)
    )
    assert ratios == [inf, 0.0]


def test_only_what_is_evaluated_is_swept() -> None:
    evaluation = Evaluation(workloads={"bird": Generator().some(2)}, policies=("rr-fcfs", "hexgen"))
    labels = {label for _, _, label, _ in evaluation.experiments()}
    assert {label.split(" α=")[0] for label in labels} == {"rr-fcfs", "hexgen"}
    assert "hexgen α=0.5" in labels


def test_the_claims_of_each_model_stand_in_a_table_of_their_own() -> None:
    table = [
        row("hexgen", place=UNEQUAL, p95_s=3.0),
        row("hexprefect", place=UNEQUAL, p95_s=2.0),
        row("hexgen", place=OTHER_MODEL, p95_s=9.0),
        row("hexprefect", place=OTHER_MODEL, p95_s=2.0),
    ]
    text = report_text(Evaluation(workloads={}), table, [], command="hexprefect reproduce")
    llama, qwen = text.split("### With the profiles of ")[1:]
    claim = "| P95, hexprefect against hexgen, all loads | this project |"
    assert llama.startswith("llama-3.1-70b")
    assert f"{claim} 1.50 | 1.50 | 1.50 | 1 |" in llama
    assert f"{claim} 4.50 | 4.50 | 4.50 | 1 |" in qwen


def test_attainment_under_overload_and_equal_instances_are_claimed() -> None:
    table = [
        row("hexgen", 1.0, place=UNEQUAL, slo_attainment=0.5),
        row("hexprefect-attainment", 1.0, place=UNEQUAL, slo_attainment=0.6),
        row("hexgen", 1.5, place=UNEQUAL, slo_attainment=0.2),
        row("hexprefect-attainment", 1.5, place=UNEQUAL, slo_attainment=0.8),
        row("rr-fcfs", place=EQUAL, p95_s=3.0),
        row("least-loaded", place=EQUAL, p95_s=4.0),
        row("hexprefect", place=EQUAL, p95_s=2.0),
    ]
    text = report_text(Evaluation(workloads={}), table, [], command="hexprefect reproduce")
    assert "overload: at least 2.5 | this project | 4.00 | 4.00 | 4.00 | 1 |" in text
    assert "the better of rr-fcfs and least-loaded over that of hexprefect, equal" in text
    assert "| this project | 1.50 | 1.50 | 1.50 | 1 |" in text


def test_the_policy_for_attainment_is_in_the_evaluation() -> None:
    assert "hexprefect-attainment" in Evaluation(workloads={}).policies


def reproduced_by(*options: str, out: Path) -> str:
    result = CliRunner().invoke(app, ["reproduce", "--out", str(out), *options])
    assert result.exit_code == 0, result.output
    [_, command, *_] = (out / "report.md").read_text().split("`")
    return command


def test_the_report_names_every_option_that_made_it(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trace = tmp_path / "mine.jsonl"
    write_workload(Generator(seed=2).some(4), trace)
    options = (
        "--models", "llama-3.1-70b", "--policy", "rr-fcfs,hexgen", "--queries", "4",
        "--seeds", "1", "--no-workflow",
    )  # fmt: skip
    command = reproduced_by("--trace", str(trace), *options, out=tmp_path / "r")
    assert command == f"hexprefect reproduce --out DIR --trace mine.jsonl {' '.join(options)}"


def test_what_is_as_by_default_is_not_written_into_the_command() -> None:
    default = reproduce_command(
        traces=[], seeds=3, queries=None, models="llama-3.1-70b,qwen3-30b-a3b",
        policies=",".join(BASELINES), workflow=True, quick=False,
    )  # fmt: skip
    assert default == "hexprefect reproduce --out DIR"


def test_a_quick_look_is_named_as_one() -> None:
    quick = reproduce_command(
        traces=["a/b.json"], seeds=3, queries=None, models="qwen3-30b-a3b",
        policies=",".join(BASELINES), workflow=True, quick=True,
    )  # fmt: skip
    assert quick == ("hexprefect reproduce --out DIR --trace b.json --models qwen3-30b-a3b --quick")


def test_a_folder_that_cannot_be_is_said_before_anything_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["reproduce", "--out", str(tmp_path / "file"), "--json"])
    assert result.exit_code == 2
    assert "--out" in json.loads(result.stdout)["error"]
