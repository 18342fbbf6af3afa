"""`learn-profiles/hourly`: fit each instance's profile to what has finished there.

Dispatch uses a fitted profile from the next request on, in every process; nothing is restarted.
"""

import asyncio
import base64
import io
from collections.abc import Sequence
from typing import Annotated, Any

from matplotlib.figure import Figure
from prefect import flow
from prefect.artifacts import acreate_image_artifact, acreate_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from pydantic import Field

from hexprefect.errors import HexprefectError
from hexprefect.scheduling.profile_fitting import FitOptions, predicted_seconds
from hexprefect.settings import settings
from hexprefect.store.learning import Learning, learn_all
from hexprefect.store.opening import open_current

_COLUMNS = 3
_PANEL_INCHES = 3.2


@flow(
    name="learn-profiles",
    description="Fit each instance's cost profile to its finished requests; dispatch by it.",
)
async def learn_profiles(
    store_url: str | None = None,
    window_hours: Annotated[float, Field(gt=0)] = 24.0,
    least_requests: Annotated[int, Field(ge=12)] = 30,
    dry_run: bool = False,
) -> State[dict[str, Any]]:
    """Learn the profiles of a store's instances.

    Args:
        store_url: URL of the store; HEXPREFECT_STORE when left out.
        window_hours: How far back finished requests are looked at, in hours.
        least_requests: An instance with fewer finished requests keeps its profile.
        dry_run: Fit and show, but write nothing.

    Returns:
        Completed with what became of each instance's profile. Completed with the name
        `NothingToLearn` when none was changed.
    """

    def learned() -> Sequence[Learning]:
        store = open_current(store_url or settings().store.get_secret_value())
        try:
            return learn_all(
                store,
                window_s=3600 * window_hours,
                options=FitOptions(least_requests=least_requests),
                dry_run=dry_run,
            )
        finally:
            store.close()

    try:
        learnings = await asyncio.to_thread(learned)
    except HexprefectError as mistake:
        return Failed(message=str(mistake))
    await acreate_markdown_artifact(
        profiles_markdown(learnings),
        key="learned-profiles",
        description=f"Profiles of {len(learnings)} instances.",
    )
    if any(learning.fit for learning in learnings):
        await acreate_image_artifact(
            await asyncio.to_thread(fits_as_image_url, learnings),
            key="predicted-against-seen",
            description="Each finished request: what the profile says, and how long it took.",
        )
    record = {"instances": [learning.as_record() for learning in learnings]}
    entered = [learning.observed.state.instance for learning in learnings if learning.entered]
    if not entered:
        return Completed(name="NothingToLearn", message="No profile was changed.", data=record)
    return Completed(message=f"Learned: {', '.join(entered)}.", data=record)


def profiles_markdown(learnings: Sequence[Learning]) -> str:
    """What became of each instance's profile, as a table.

    Errors are the median and the P95 of relative errors on requests that the fit has not seen.
    """

    def line(learning: Learning) -> str:
        fit = learning.fit
        profile = fit.profile if fit is not None else learning.observed.state.current
        errors = "| | "
        if fit is not None:
            errors = (
                f"| {fit.before.median:.1%}, {fit.before.p95:.1%} "
                f"| {fit.after.median:.1%}, {fit.after.p95:.1%} "
            )
        return (
            f"| {learning.observed.state.instance} | {learning.outcome} "
            f"| {1e3 * profile.fixed_s:.3g} | {1e3 * profile.input_s_per_token:.3g} "
            f"| {1e3 * profile.output_s_per_token:.3g} | {profile.batch_growth:.3g} "
            f"| {len(learning.observed.requests)} | {fit.rejected if fit else ''} {errors}|"
        )

    return "\n".join(
        [
            "| instance | profile | c ms | a ms/token | b ms/token | growth | requests | rejected "
            "| error before | error after |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
            *map(line, learnings),
        ]
    )


def fits_as_image_url(learnings: Sequence[Learning]) -> str:
    """Predicted against seen durations, a panel an instance, as a `data:` URL of a PNG.

    Grey is the profile as it was, blue as fitted; on the diagonal a prediction is right.
    """
    drawn = [learning for learning in learnings if learning.fit is not None]
    height = -(-len(drawn) // _COLUMNS)
    figure = Figure(figsize=(_COLUMNS * _PANEL_INCHES, height * _PANEL_INCHES), dpi=100)
    for place, learning in enumerate(drawn, start=1):
        assert learning.fit is not None
        requests = learning.observed.requests
        seen = [request.seconds for request in requests]
        axes = figure.add_subplot(height, _COLUMNS, place)
        for profile, colour, label in (
            (learning.observed.state.current, "0.7", "before"),
            (learning.fit.profile, "C0", "fitted"),
        ):
            axes.scatter(seen, predicted_seconds(profile, requests), s=4, c=colour, label=label)
        ends = (min(seen), max(seen))
        axes.plot(ends, ends, linewidth=0.5, color="black")
        axes.set(xscale="log", yscale="log", xlabel="seen, s", ylabel="predicted, s")
        axes.set_title(learning.observed.state.instance, fontsize=9)
        axes.legend(fontsize=7)
    figure.tight_layout()
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return f"data:image/png;base64,{base64.b64encode(image.getvalue()).decode('ascii')}"
