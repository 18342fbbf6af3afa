"""The figures of the evaluation, in the form of the paper's: one file a kind, one panel a place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hexprefect.errors import HexprefectError
from hexprefect.simulator.experiment import SLO_SCALES
from hexprefect.simulator.reproduction import ALPHA_SWEEP, SWEPT, Evaluation, Place, Row

_DRAWN = ("rr-fcfs", "least-loaded", "hexgen", "hexagent", "hexprefect")


class NoMatplotlib(HexprefectError):
    """Figures were asked for and the library that draws them is missing."""


def drawing() -> Any:
    """Matplotlib's `pyplot`, set up to write files.

    Raises:
        NoMatplotlib: when matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise NoMatplotlib(
            "the report's figures need matplotlib.", remedy="pip install matplotlib"
        ) from error
    return pyplot


def draw_figures(evaluation: Evaluation, table: Sequence[Row], out: Path) -> list[str]:
    """Draw every figure; returns the names of the files, relative to `out`.

    Raises:
        NoMatplotlib: when matplotlib is not installed.
    """
    pyplot = drawing()
    places = list(dict.fromkeys(row.place for row in table))
    middle = min(evaluation.loads, key=lambda load: abs(load - 1.0))

    def attainment(axes: Any, place: Place) -> None:
        for name in _DRAWN:
            for row in table:
                if (row.place, row.load, row.label) == (place, middle, name):
                    axes.plot(SLO_SCALES, [100 * share for share in row.attainment], label=name)
        axes.set(xlabel="SLO scale", ylabel="attainment, %", xlim=(1, 12))
        axes.axhline(95, linewidth=0.5, color="grey")

    def by_load(figure: str, label: str) -> Callable[[Any, Place], None]:
        def draw(axes: Any, place: Place) -> None:
            for name in _DRAWN:
                mine = [row for row in table if row.place == place and row.label == name]
                axes.plot(
                    [row.rate for row in mine],
                    [row.figures[figure] for row in mine],
                    marker="o",
                    markersize=3,
                    label=name,
                )
            axes.set(xlabel="queries/s offered", ylabel=label, ylim=(0, None))

        return draw

    def alphas(axes: Any, place: Place) -> None:
        for name in SWEPT:
            swept = [
                row.figures["p95_s"]
                for alpha in ALPHA_SWEEP
                for row in table
                if row.place == place and row.label == f"{name} α={alpha}"
            ]
            if swept:
                axes.plot(ALPHA_SWEEP[: len(swept)], swept, marker="o", markersize=3, label=name)
        axes.set(xlabel="α", ylabel="P95, s", ylim=(0, None))

    drawn = []
    for stem, draw in (
        ("attainment", attainment),
        ("throughput", by_load("throughput_qps", "queries/s served")),
        ("p95", by_load("p95_s", "P95, s")),
        ("alpha", alphas),
    ):
        name = f"{stem}.png"
        _panels(pyplot, places, draw, out / name)
        drawn.append(name)
    return drawn


def _panels(
    pyplot: Any, places: Sequence[Place], draw: Callable[[Any, Place], None], path: Path
) -> None:
    columns = min(4, len(places))
    height = -(-len(places) // columns)
    figure, grid = pyplot.subplots(
        height, columns, figsize=(4 * columns, 3 * height), squeeze=False
    )
    for axes in grid.flat[len(places) :]:
        axes.set_visible(False)
    for axes, place in zip(grid.flat, places, strict=False):
        trace, model, cluster, cached = place
        draw(axes, place)
        axes.set_title(
            f"{Path(trace).stem}, {model}\n{cluster}, cache {'on' if cached else 'off'}",
            fontsize=8,
        )
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.tight_layout()
    figure.legend(handles, labels, loc="upper center", ncols=max(1, len(labels)), fontsize=8)
    figure.subplots_adjust(top=1 - 0.6 / (3 * height))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
