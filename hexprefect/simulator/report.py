"""The text of the evaluation's report: claims beside measurements, then every table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from hexprefect.simulator.experiment import Measured
from hexprefect.simulator.reproduction import (
    ALPHA_SWEEP,
    SWEPT,
    Comparison,
    Evaluation,
    Place,
    Row,
    geometric_mean,
)
from hexprefect.simulator.workflow_effect import Effect

_UNEQUAL = ("heterogeneous-1", "heterogeneous-2")
_EQUAL = ("homogeneous",)


def write_records(results: Sequence[Measured], path: Path) -> None:
    """Every run as a record, one a line in a JSON list."""
    lines = ",\n".join(json.dumps(each.as_record(), ensure_ascii=False) for each in results)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def report_text(
    evaluation: Evaluation,
    table: Sequence[Row],
    figures: Sequence[str],
    *,
    command: str,
    effects: Sequence[Effect] = (),
) -> str:
    """The report in Markdown."""
    parts = [
        "# The evaluation, reproduced\n",
        f"Made by `{command}`: {evaluation.seeds} seeds, "
        f"{'at least 300' if evaluation.number is None else evaluation.number} queries a run, "
        "means over the seeds. Loads are multiples of the estimated capacity. Every ratio is "
        "written so that above 1 is better.\n",
        "## Claims and measurements\n",
        *_claims(table),
        *_effects(effects),
        "## Figures\n",
        *(f"![{Path(name).stem}]({name})\n" for name in figures),
        *_sweeps(table),
        "## Tables\n",
        *_tables(table),
    ]
    return "\n".join(parts)


def _claims(table: Sequence[Row]) -> list[str]:
    """One table a model: a mean over models would hide that a claim holds with one alone."""
    parts = []
    for model in dict.fromkeys(row.place[1] for row in table):
        mine = [row for row in table if row.place[1] == model]
        parts += [f"### With the profiles of {model}\n", _claims_table(mine)]
    return parts


def _claims_table(table: Sequence[Row]) -> str:
    comparison = Comparison(table)
    highest = max(row.load for row in table)

    def overload(load: float) -> bool:
        return load >= 1.5

    def saturated(load: float) -> bool:
        return load == highest

    lines = [
        "| claim | source | measured: geometric mean | least | most | runs |",
        "| --- | --- | --- | --- | --- | --- |",
    ]

    def add(claim: str, source: str, ratios: list[float]) -> None:
        if ratios:
            mean, least, most = geometric_mean(ratios), min(ratios), max(ratios)
            lines.append(
                f"| {claim} | {source} | {mean:.2f} | {least:.2f} | {most:.2f} | {len(ratios)} |"
            )

    ratios = comparison.ratios
    paper = "arXiv 2505.05286"
    add(
        "P95 of vLLM behind round-robin over that of HEXGEN-FLOW, unequal clusters: 1.42-1.56",
        paper,
        ratios("hexgen", "rr-fcfs", "p95_s", clusters=_UNEQUAL),
    )
    add(
        "throughput at saturation, the same: 1.49-1.81",
        paper,
        ratios("hexgen", "rr-fcfs", "throughput_qps", clusters=_UNEQUAL, loads=saturated),
    )
    for name in ("rr-pq", "wb-fcfs"):
        add(
            f"ablation: P95 of rr-fcfs over that of {name}",
            paper,
            ratios(name, "rr-fcfs", "p95_s", clusters=_UNEQUAL),
        )
    for figure, what in (
        ("p95_s", "P95"),
        ("mean_s", "mean latency"),
        ("slo_scale_at_95", "SLO scale for 95 %"),
        ("slo_scale_at_99", "SLO scale for 99 %"),
        ("slo_attainment", "SLO attainment"),
    ):
        for when, loads in (("all loads", lambda _: True), ("overload", overload)):
            add(
                f"{what}, hexprefect against hexgen, {when}",
                "this project",
                ratios("hexprefect", "hexgen", figure, clusters=_UNEQUAL, loads=loads),
            )
    add(
        "SLO attainment, hexprefect-attainment against hexgen, overload: at least 2.5",
        "this project",
        ratios(
            "hexprefect-attainment",
            "hexgen",
            "slo_attainment",
            clusters=_UNEQUAL,
            loads=overload,
        ),
    )
    add(
        "P95 of the better of rr-fcfs and least-loaded over that of hexprefect, equal instances",
        "this project",
        ratios("hexprefect", ("rr-fcfs", "least-loaded"), "p95_s", clusters=_EQUAL),
    )
    return "\n".join(lines) + "\n"


def _effects(effects: Sequence[Effect]) -> list[str]:
    if not effects:
        return []
    reference = effects[0]
    lines = [
        "## The workflow's effect\n",
        "The same generated questions under `hexprefect`; the SLO is that of the reference.\n",
        "| workflow | mean s at low load | times sooner | queries/s at 95 % | times more |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines.extend(
        f"| {effect.workflow} | {effect.mean_s_at_low_load:.1f} | "
        f"{reference.mean_s_at_low_load / effect.mean_s_at_low_load:.2f} | "
        f"{effect.capacity_qps:.3f} | {effect.capacity_qps / reference.capacity_qps:.2f} |"
        for effect in effects
    )
    return [*lines, ""]


def _sweeps(table: Sequence[Row]) -> list[str]:
    """P95 over α, in seconds: a column for each place and policy that was swept."""
    swept = {(row.place, row.label): row for row in table if "α=" in row.label}
    if not swept:
        return []
    parts = ["## α\n", "P95 in seconds over α, at the highest load.\n"]
    for place in dict.fromkeys(place for place, _ in swept):
        names = [name for name in SWEPT if (place, f"{name} α={ALPHA_SWEEP[0]}") in swept]
        parts += [
            f"### α: {_title(place)}\n",
            f"| α | {' | '.join(names)} |",
            "| --- " * (1 + len(names)) + "|",
        ]
        for alpha in ALPHA_SWEEP:
            rows = [swept[place, f"{name} α={alpha}"] for name in names]
            parts.append(
                f"| {alpha:g} | " + " | ".join(f"{row.figures['p95_s']:.1f}" for row in rows) + " |"
            )
        parts.append("")
    return parts


def _title(place: Place) -> str:
    trace, model, cluster, cached = place
    return f"{Path(trace).stem}, {model}, {cluster}, prefix caching {'on' if cached else 'off'}"


def _tables(table: Sequence[Row]) -> list[str]:
    parts = []
    for place in dict.fromkeys(row.place for row in table):
        parts.append(f"### {_title(place)}\n")
        parts.append(
            "| load | rate | policy | mean s | P95 s | P99 s | longest s | queries/s | attainment "
            "at 3 | scale for 95 % | for 99 % |"
        )
        parts.append("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        parts.extend(_line(row) for row in table if row.place == place and "α=" not in row.label)
        parts.append("")
    return parts


def _line(row: Row) -> str:
    figures = row.figures
    return (
        f"| {row.load:g} | {row.rate:.3f} | {row.label} | {figures['mean_s']:.1f} | "
        f"{figures['p95_s']:.1f} | {figures['p99_s']:.1f} | {figures['longest_latency_s']:.0f} | "
        f"{figures['throughput_qps']:.3f} | {100 * figures['slo_attainment']:.1f} % | "
        f"{figures['slo_scale_at_95']:.2f} | {figures['slo_scale_at_99']:.2f} |"
    )
