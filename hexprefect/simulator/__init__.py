"""The simulator: traces in, reports out. It drives the same policies as the running system.

The names below are what other rooms and users build on; `docs/simulator.md` teaches them.
"""

from __future__ import annotations

from hexprefect.simulator.arrivals import Arrivals, parse_arrivals
from hexprefect.simulator.cluster import Cluster, Instance, capacity, parse_cluster, read_profiles
from hexprefect.simulator.engine import Engine
from hexprefect.simulator.engine_values import EngineJob, EngineOptions
from hexprefect.simulator.experiment import Experiment, Measured, measure_all
from hexprefect.simulator.generator import Generator, named_workload
from hexprefect.simulator.outcome import Outcome, Summary
from hexprefect.simulator.policies import POLICIES, Policy, named_policy
from hexprefect.simulator.simulation import Simulation
from hexprefect.simulator.tuner import Tuning, tune
from hexprefect.simulator.workload import Call, Query, read_workload, write_workload

__all__ = [
    "POLICIES",
    "Arrivals",
    "Call",
    "Cluster",
    "Engine",
    "EngineJob",
    "EngineOptions",
    "Experiment",
    "Generator",
    "Instance",
    "Measured",
    "Outcome",
    "Policy",
    "Query",
    "Simulation",
    "Summary",
    "Tuning",
    "capacity",
    "measure_all",
    "named_policy",
    "named_workload",
    "parse_arrivals",
    "parse_cluster",
    "read_profiles",
    "read_workload",
    "tune",
    "write_workload",
]
