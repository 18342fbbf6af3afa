"""A profile that was given wrong by two is learned from what an emulated instance really did.

The engine of the emulator is driven on a clock of its own, exactly and without waiting; the slow
variant sends the requests over HTTP, through the queue and the store, and runs the flow.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from hexprefect.completion import Message, Prompt
from hexprefect.flows import learn_profiles as flow_module
from hexprefect.instances.emulator import Emulator, Engine, EngineOptions
from hexprefect.instances.emulator import Sequence as EmulatedSequence
from hexprefect.instances.profiles import default_profile
from hexprefect.queue import QueueOptions, SharedQueue
from hexprefect.scheduling import Profile
from hexprefect.scheduling.profile_fitting import (
    FinishedRequest,
    Run,
    finished_requests,
    fit_profile,
    relative_error,
)
from hexprefect.store import InstanceSpec, Store, check_laws, upgrade
from hexprefect.store.fleet import enter_instance
from hexprefect.store.learning import observe

AIM = 0.15
"""Median relative error of predicted durations, on requests that the fit has not seen."""


def off_by(factor: float, true: Profile) -> Profile:
    return replace(
        true,
        fixed_s=factor * true.fixed_s,
        input_s_per_token=factor * true.input_s_per_token,
        output_s_per_token=factor * true.output_s_per_token,
    )


def served(true: Profile, *, rate: float, depth: int, number: int) -> list[FinishedRequest]:
    """Requests that arrive at `rate` a second and of which `depth` are in the engine at most."""
    draw = random.Random(f"{true.name} {rate}")
    at, arrivals = 0.0, []
    for _ in range(number):
        at += draw.expovariate(rate)
        lengths = (draw.choice((300, 900, 1600, 3200)), 1 + int(draw.lognormvariate(3.8, 1.0)))
        arrivals.append((at, *lengths))
    arrivals.reverse()
    engine = Engine(true, kv_tokens=true.kv_tokens or 97_000, options=EngineOptions())
    waiting: list[tuple[float, int, int]] = []
    done: list[EmulatedSequence] = []
    inside = 0
    while arrivals or inside:
        due = engine.next_at
        if arrivals and (due is None or arrivals[-1][0] <= due):
            now = arrivals[-1][0]
            waiting.append(arrivals.pop())
        else:
            assert due is not None
            now = due
            finished = engine.advance(now)
            done += finished
            inside -= len(finished)
        while waiting and inside < depth:
            _, read, written = waiting.pop(0)
            engine.submit(EmulatedSequence(read, written), now)
            inside += 1
    return finished_requests(
        [Run(s.arrived_at, s.finished_at or 0.0, s.prompt_tokens, s.output_tokens) for s in done]
    )


@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize("rate", [0.1, 0.6, 3.0], ids=["quiet", "busy", "overloaded"])
@pytest.mark.parametrize("hardware", ["a100", "h100", "l40s", "a6000"])
def test_after_one_fit_what_comes_is_predicted_within_the_aim(
    hardware: str, rate: float, factor: float
) -> None:
    true = default_profile(hardware)
    finished = served(true, rate=rate, depth=16, number=240)
    seen, to_come = finished[:160], finished[160:]
    given = off_by(factor, true)
    fit = fit_profile(given, seen)
    assert fit.improves
    assert relative_error(given, to_come).median > 2 * AIM
    assert relative_error(fit.profile, to_come).median < AIM / 2
    # Not only the sum is right: what one token costs is what the instance was made with.
    for name in ("input_s_per_token", "output_s_per_token"):
        assert getattr(fit.profile, name) == pytest.approx(getattr(true, name), rel=0.25)


# -- live ------------------------------------------------------------------------------------------

TIME_SCALE = 5.0
"""Slow enough that what the machine adds is little beside what the emulated engine takes."""


async def ask(queue: SharedQueue, lengths: Sequence[tuple[int, int]], *, every_s: float) -> None:
    """Requests of the given prompt and answer lengths, one every so many seconds on average."""
    query = await queue.query(slo_s=3600.0)
    draw = random.Random(7)

    async def one(number: int, read: int, written: int) -> None:
        text = f"{number} " + "x " * int(read * 1.6)
        prompt = Prompt(
            stage="ask",
            messages=(Message("user", text),),
            max_output_tokens=written,
            branch=str(number),
        )
        await query.complete(prompt)

    async with asyncio.TaskGroup() as group:
        for number, (read, written) in enumerate(lengths):
            group.create_task(one(number, read, written))
            await asyncio.sleep(draw.expovariate(1.0 / every_s))
    await query.end("answered")


@pytest.mark.slow
async def test_through_the_queue_the_flow_learns_and_the_next_requests_are_predicted(
    tmp_path: Any, open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'store.sqlite'}"
    upgrade(url)
    store = open_store(url)
    true = off_by(1.0 / TIME_SCALE, default_profile("a100"))
    given = off_by(2.0, true)
    draw = random.Random(3)
    lengths = [(draw.randrange(300, 3000), draw.randrange(20, 200)) for _ in range(150)]
    async with Emulator("a100", time_scale=TIME_SCALE, name="gpu") as endpoint:
        spec = InstanceSpec(
            name="gpu", url=endpoint.url, profile=given, slots=16, speaks="vllm", model="emulated"
        )
        store.transact(lambda tx: enter_instance(tx, spec))
        async with SharedQueue(url, options=QueueOptions(shortest_timeout_s=120.0)) as queue:
            await ask(queue, lengths[:100], every_s=0.3)
            result = await _learn(url, monkeypatch)
            assert result["instances"][0]["entered"]
            learned_at = store.now()
            store.transact(lambda tx: enter_instance(tx, spec))  # a worker reads the pools again
            await ask(queue, lengths[100:], every_s=0.3)
    learned = observe(store, "gpu").state.current
    to_come = observe(store, "gpu", window_s=store.now() - learned_at).requests
    assert len(to_come) >= 45
    assert relative_error(given, to_come).median > 2 * AIM
    assert relative_error(learned, to_come).median < AIM
    assert check_laws_of(store) == []


def check_laws_of(store: Store) -> list[Any]:
    now = store.now()
    return store.read(lambda connection: check_laws(connection, now=now))


async def _learn(url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    async def kept(*_: Any, **__: Any) -> None: ...

    monkeypatch.setattr(flow_module, "acreate_markdown_artifact", kept)
    monkeypatch.setattr(flow_module, "acreate_image_artifact", kept)
    state: State[dict[str, Any]] = await flow_module.learn_profiles.fn(store_url=url)
    assert state.is_completed(), state.message
    return dict(await state.aresult())  # type: ignore[arg-type]
