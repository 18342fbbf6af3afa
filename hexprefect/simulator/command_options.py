"""What the simulator's commands have in common: their options, and how each is read."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from typing import Annotated, cast

import typer

from hexprefect.errors import HexprefectError
from hexprefect.simulator.arrivals import Arrivals, recorded_rate
from hexprefect.simulator.cluster import Cluster, capacity, parse_cluster, read_profiles
from hexprefect.simulator.engine_values import EngineOptions, Prefill
from hexprefect.simulator.experiment import Experiment, in_order_of_arrival
from hexprefect.simulator.facts import MODELS, profiles
from hexprefect.simulator.generator import named_workload
from hexprefect.simulator.policies import Policy
from hexprefect.simulator.recorded import from_store, read_cluster, read_window
from hexprefect.simulator.tuner import OBJECTIVES, Objective, Tuning, tune
from hexprefect.simulator.workload import Query, read_workload

TUNING_SEED = 1000
"""Windows for tuning are drawn with other seeds than the runs that are reported."""

Traces = Annotated[
    list[str],
    typer.Argument(
        metavar="TRACE…",
        help="Workloads: a file (the reference's JSON list, or JSONL, one query a line), the name "
        "of a generated one (bird, spider, bird-ours, spider-ours), or the URL of a store, whose "
        "answered queries are taken.",
    ),
]
ClusterText = Annotated[
    str,
    typer.Option(
        "--cluster",
        help="HARDWARE:COUNT,… such as a100:2,a6000:1,l40s:1, or heterogeneous-1, heterogeneous-2, "
        "homogeneous, or the URL of a store, whose instances are taken as they are profiled now.",
    ),
]
Rates = Annotated[
    str | None,
    typer.Option(
        "--rate",
        help="Queries a second, several with commas. With an x, multiples of the cluster's "
        "estimated capacity for the trace: 0.5x,1x,2x. Default: 1x; of recorded arrivals, their "
        "own. Phases have theirs.",
    ),
]
ArrivalText = Annotated[
    str,
    typer.Option(
        "--arrivals", help="poisson, gamma:CV, deterministic, phases:RATExSECONDS,… or recorded."
    ),
]
SloScale = Annotated[
    float,
    typer.Option(min=0.1, help="SLO of a query, in multiples of its duration alone."),
]
NoPrefixCache = Annotated[
    bool, typer.Option("--no-prefix-cache", help="Switch the engines' prefix caching off.")
]
PrefillMode = Annotated[
    str, typer.Option(help="How engines treat prompts: chunked (vLLM's default) or first.")
]
Slots = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Sequences an engine runs at once (vLLM's max_num_seqs). Default: 256; of a store's "
        "instances, what each has, and never more.",
    ),
]
KvTokens = Annotated[
    int | None,
    typer.Option(min=1, help="KV memory of every instance, in tokens, instead of its profile's."),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="Profiles: llama-3.1-70b (default) or qwen3-30b-a3b. A store's instances have theirs."
    ),
]
ProfileFile = Annotated[
    Path | None, typer.Option("--profiles", help="JSON file with profiles of your own.")
]
Number = Annotated[
    int | None,
    typer.Option(
        "--queries", min=1, help="Queries that arrive. Default: the whole trace, at least 300."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")]
Cores = Annotated[int, typer.Option(min=1, help="Processes at once.")]
ObjectiveText = Annotated[str, typer.Option("--objective", help="p95, attainment or mean.")]


class BadOption(HexprefectError):
    """An option of the command line that cannot be understood."""


class Setting:
    """What all experiments of one command have in common."""

    def __init__(
        self, *, cluster: Cluster, arrivals: Arrivals, slo_scale: float, number: int | None
    ) -> None:
        if not isfinite(slo_scale):
            raise BadOption(
                f"--slo-scale {slo_scale} is no number.", remedy="Give one of at least 0.1."
            )
        self.cluster = cluster
        self.arrivals = arrivals
        self.slo_scale = slo_scale
        self.number = number

    def experiment(
        self, trace: str, queries: tuple[Query, ...], rate: float, policy: Policy
    ) -> Experiment:
        """One run of a trace at a rate under a policy."""
        return Experiment(
            trace=name_of(trace),
            queries=queries,
            cluster=self.cluster,
            policy=policy,
            rate=rate,
            arrivals=self.arrivals,
            slo_scale=self.slo_scale,
            number=self.number,
        )


def name_of(trace: str) -> str:
    """What a trace is called in records; a URL may hold a password, and so is not shown."""
    return "store" if is_store(trace) else Path(trace).stem


def is_store(text: str) -> bool:
    """Whether an argument is the URL of a store."""
    return "://" in text


def workload_of(trace: str) -> tuple[Query, ...]:
    """The queries of a trace: a file, a generated workload's name, or the URL of a store."""
    if is_store(trace):
        return from_store(trace, read_window).queries
    if trace.partition("-")[0] in ("bird", "spider") and not Path(trace).exists():
        return named_workload(trace)
    return read_workload(Path(trace))


def cluster_of(
    text: str,
    *,
    model: str | None,
    profile_file: Path | None,
    prefill: str,
    slots: int | None,
    no_prefix_cache: bool,
    kv_tokens: int | None = None,
) -> Cluster:
    """The cluster, with the engines and the profiles that the options say.

    Raises:
        BadOption: for an option that cannot be understood, or not beside a store's instances.
    """
    if prefill not in ("chunked", "first"):
        raise BadOption(f"--prefill {prefill!r} does not exist.", remedy="Use chunked or first.")
    options = EngineOptions(prefill=cast(Prefill, prefill), prefix_cache=not no_prefix_cache)
    if is_store(text):
        for option, given in (("--model", model), ("--profiles", profile_file)):
            if given is not None:
                raise BadOption(
                    f"{option} has no meaning beside the instances of a store: each has its own "
                    "profile.",
                    remedy="Leave it out, or write the cluster as HARDWARE:COUNT,….",
                )
        cluster = _with_engines(from_store(text, read_cluster), options, slots)
    else:
        known = dict(profiles(model or MODELS[0]))
        if profile_file is not None:
            known |= read_profiles(profile_file)
        options = options if slots is None else replace(options, slots=slots)
        cluster = parse_cluster(text, options=options, known=known)
    return cluster if kv_tokens is None else _with_memory(cluster, kv_tokens)


def _with_engines(cluster: Cluster, options: EngineOptions, slots: int | None) -> Cluster:
    """The instances with these options, but no more slots than each has."""
    return replace(
        cluster,
        instances=tuple(
            replace(
                each,
                options=replace(
                    options, slots=min(each.options.slots, slots or each.options.slots)
                ),
            )
            for each in cluster.instances
        ),
    )


def _with_memory(cluster: Cluster, kv_tokens: int) -> Cluster:
    return replace(
        cluster,
        instances=tuple(
            replace(each, profile=replace(each.profile, kv_tokens=kv_tokens))
            for each in cluster.instances
        ),
    )


def rates_of(text: str | None, workload: tuple[Query, ...], setting: Setting) -> list[float]:
    """Queries a second; multiples of the estimated capacity where they end in x.

    Raises:
        BadOption: for what is no rate, or a rate beside phases.
        BadArrivals: for a recording in which a query has no moment.
    """
    if setting.arrivals.kind == "phases":
        if text is not None:
            raise BadOption(
                f"--rate {text!r} has no meaning beside --arrivals phases.",
                remedy="Leave it out: the phases have their rates.",
            )
        return [setting.arrivals.phases_rate]
    if setting.arrivals.kind == "recorded" and text is None:
        return [recorded_rate(in_order_of_arrival(workload)[1])]
    rates = []
    for part in (text or "1x").split(","):
        number, relative = part.strip(), part.strip().endswith("x")
        try:
            rate = float(number.removesuffix("x"))
        except ValueError:
            rate = 0.0
        if relative and rate > 0:
            rate *= capacity(workload, setting.cluster)
        if not 0 < rate < inf:
            raise BadOption(
                f"--rate {part!r} is no positive, finite rate.",
                remedy="Write 0.2,0.4 or 0.5x,1x.",
            )
        rates.append(rate)
    return rates


def alpha_of(text: str | None) -> tuple[float | None, bool]:
    """α as a number, and whether it is to be tuned."""
    if text is None or text == "tuned":
        return None, text == "tuned"
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise BadOption(f"--alpha {text!r} is not in [0, 1].", remedy="Give a number, or tuned.")
    return number, False


def objective_of(text: str) -> Objective:
    """What tuning aims at."""
    if text not in OBJECTIVES:
        raise BadOption(
            f"--objective {text!r} does not exist.", remedy=f"Use {', '.join(OBJECTIVES)}."
        )
    return text


def tuned_for(window: Experiment, objective: Objective, cores: int) -> Tuning:
    """The window's policy tuned on a window of its own; α alone, except for ours."""
    return tune(
        replace(window, number=min(window.number or 200, 200)),
        objective=objective,
        seeds=(TUNING_SEED, TUNING_SEED + 1),
        alphas=tuple(round(0.1 * step, 1) for step in range(11)),
        jointly=window.policy.name == "hexprefect",
        cores=cores,
    )
