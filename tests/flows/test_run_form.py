"""What Prefect's run form says of every deployed flow: each parameter, and what it must be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import Flow
from prefect.utilities.callables import parameter_schema
from prefect.utilities.importtools import import_object

REPOSITORY = Path(__file__).parents[2]


def deployed_flows() -> list[Any]:
    """Every flow that one of the two deployment files names, once."""
    entrypoints = {
        deployment["entrypoint"]
        for file in ("prefect.yaml", "prefect.fleet.yaml")
        for deployment in yaml.safe_load((REPOSITORY / file).read_text())["deployments"]
    }
    split = [entrypoint.split(".py:") for entrypoint in sorted(entrypoints)]
    return [
        pytest.param(f"hexprefect.{module.replace('/', '.')}.{name}", id=name)
        for module, name in split
    ]


@pytest.mark.parametrize("name", deployed_flows())
def test_the_form_describes_every_parameter(name: str) -> None:
    """Prefect shows what the docstring says of a parameter, not what its annotation says."""
    flow = import_object(name)
    assert isinstance(flow, Flow)
    properties = parameter_schema(flow.fn).model_dump()["properties"]
    assert properties
    assert {name for name, shown in properties.items() if not shown.get("description")} == set()


@pytest.mark.parametrize("name", deployed_flows())
def test_the_form_shows_what_the_flow_does(name: str) -> None:
    assert import_object(name).description


@pytest.mark.parametrize("name", deployed_flows())
def test_a_flow_can_be_served(name: str) -> None:
    """`serve()` pickles the function by value: annotations that are text find no names there."""
    annotations = import_object(name).fn.__annotations__
    assert {key for key, kind in annotations.items() if isinstance(kind, str)} == set()
