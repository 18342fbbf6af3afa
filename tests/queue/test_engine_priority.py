"""Our urgency inside the engine: vLLM's `priority`, lower first, alike on all instances."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from hexprefect.instances.emulator import Emulator, Engine, EngineOptions, Sequence
from hexprefect.queue import QueueOptions
from hexprefect.queue.request import PRIORITY_PER_SECOND, engine_priority
from hexprefect.scheduling import Profile
from hexprefect.store import InstanceSpec
from hexprefect.store.fleet import enter_instance

PROFILE = Profile("p", fixed_s=0.0, input_s_per_token=0.0, output_s_per_token=0.01)
MOMENTS = st.floats(
    datetime(2023, 12, 1, tzinfo=UTC).timestamp(), datetime(2030, 8, 1, tzinfo=UTC).timestamp()
)


@given(MOMENTS, MOMENTS)
def test_what_must_start_earlier_is_never_served_later(one: float, other: float) -> None:
    earlier, later = sorted((one, other))
    assert engine_priority(earlier) <= engine_priority(later)
    if later - earlier > 1 / PRIORITY_PER_SECOND:
        assert engine_priority(earlier) < engine_priority(later)


@given(MOMENTS)
def test_it_fits_into_the_integers_that_engines_order_by(latest_start: float) -> None:
    assert -(2**31) <= engine_priority(latest_start) < 2**31


async def test_what_is_inside_the_engine_is_served_by_urgency(fleet, new_queue, prompt, eventually):
    """Four are admitted at once and one runs: the order of the rest is the engine's to keep."""
    emulator = Emulator(PROFILE, name="m", options=EngineOptions(max_num_seqs=1))
    await fleet.stack.enter_async_context(emulator)
    spec = InstanceSpec(
        name="m",
        url=emulator.endpoint.url,
        profile=PROFILE,
        slots=4,
        admission_depth=4,
        model=emulator.endpoint.model,
        speaks="vllm",
    )
    fleet.store.transact(lambda tx: enter_instance(tx, spec))
    queue = await new_queue(QueueOptions(shortest_timeout_s=300.0))

    async def ask(slo_s: float, tokens: int) -> None:
        query = await queue.query(slo_s=slo_s)
        await query.complete(prompt(f"due in {slo_s}", tokens=tokens))
        await query.end("answered")

    engine = emulator.instance.engine
    inside: list[Sequence] = []

    def submit(sequence: Sequence, now: float) -> None:
        inside.append(sequence)
        Engine.submit(engine, sequence, now)

    engine.submit = submit
    # So slow that the first one runs until the others are inside, however long that takes.
    await emulator.set_fault("slow:100")
    asking = [asyncio.create_task(ask(1000.0, 60))]
    await eventually(lambda: engine.running == 1)
    for number, slo_s in enumerate((4000.0, 2000.0, 3000.0), start=1):
        asking.append(asyncio.create_task(ask(slo_s, 4)))
        await eventually(lambda waiting=number: engine.waiting == waiting)
    await emulator.set_fault(None)
    await asyncio.gather(*asking)
    first, latest, earliest, between = inside
    assert earliest.priority < between.priority < latest.priority
    by_start = sorted(inside, key=lambda sequence: sequence.first_scheduled_at)
    assert by_start == [first, earliest, between, latest]
