"""Eligible instances: where a request goes that not every instance could ever hold."""

from __future__ import annotations

from hexprefect.scheduling import Decision, dispatch
from hexprefect.simulator.appointing import Appoint, Load, weigh
from hexprefect.simulator.engine_values import PromptTooLong
from hexprefect.simulator.requests import Request


def appoint_among_able(
    request: Request,
    now: float,
    *,
    load: Load,
    appoint: Appoint,
    decisions: list[Decision] | None,
) -> int:
    """Appoint a request among the instances that could run it alone, as the store does.

    Args:
        request: to appoint; its `completion_s` and `cached_tokens` are written.
        now: the moment, in seconds.
        load: of the cluster, and the policy that decides.
        appoint: what appoints where all instances could; round-robin takes its turns from it.
        decisions: where every dispatch by score is recorded, if anywhere.

    Raises:
        PromptTooLong: when it fits into no instance's memory.
    """
    able = [index for index, each in enumerate(load.instances) if each.can_hold(request)]
    if not able:
        raise _too_long(request, load)
    policy = load.policy
    delays = load.delays(now)
    match policy.dispatch:
        case "round-robin":
            while (index := appoint(request, now)) not in able:
                pass
            return index
        case "normalised" | "paper" as rule:
            _, _, costs = weigh(load, request)
            decision = dispatch(
                [load.instances[index].name for index in able],
                [costs[index] for index in able],
                [delays[index] for index in able],
                alpha=policy.alpha,
                policy=rule,
                beta=policy.beta,
            )
            if decisions is not None:
                decisions.append(decision)
            [index] = [each for each in able if load.instances[each].name == decision.instance]
        case "shortest-wait":
            index = min(able, key=lambda each: delays[each])
        case _:
            index = min(able, key=lambda each: load.unfinished[each])
    request.cached_tokens, request.completion_s = load.cost_at(request, index)
    return index


def _too_long(request: Request, load: Load) -> PromptTooLong:
    stage = request.run.query.calls[request.index].stage
    largest = max(load.instances, key=lambda each: each.most_tokens)
    return PromptTooLong(
        f"a {stage} call of {request.input_tokens} input and {request.output_tokens} output "
        f"tokens fits into no instance: the largest, {largest.name}, holds {largest.most_tokens} "
        "tokens.",
        remedy="Add larger hardware to the cluster, or leave the query out of the trace.",
    )
