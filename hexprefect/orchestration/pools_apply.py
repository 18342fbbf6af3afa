"""Create and update work pools from a directory of base job templates, and say what changes."""

from __future__ import annotations

import copy
import difflib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Literal

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.exceptions import ObjectNotFound

from hexprefect.orchestration.pools import PoolMistake, describes_instances, template_defaults

HEXGEN = "hexgen"
"""The work pool type of `HexgenWorker`."""


@dataclass(frozen=True, slots=True)
class PoolChange:
    """What applying a template does to one pool."""

    pool: str
    action: Literal["create", "update", "keep"]
    diff: str
    """Unified diff of the base job template, empty when nothing changes."""


async def apply_pools(
    client: PrefectClient,
    directory: Path | None = None,
    *,
    only: Collection[str] | None = None,
    dry_run: bool = False,
) -> tuple[PoolChange, ...]:
    """Make the pools match the templates; applying twice changes nothing the second time.

    A file `NAME.json` is the pool `NAME`, created with the type `hexgen`. A pool that exists keeps
    its type, its pause and its limits. It also keeps its attached instances where the file lists
    none: these are registered while a stack runs, and a template is no reason to lose them.

    Args:
        client: of the Prefect API to change.
        directory: of the templates; by default those shipped with the project.
        only: names of the pools to create or update; all of the directory's when left out.
        dry_run: only tell what would change.

    Raises:
        PoolMistake: a file is no base job template, or the directory has none.
    """
    changes = []
    for name, wanted in read_templates(directory).items():
        if only is not None and name not in only:
            continue
        try:
            pool = await client.read_work_pool(name)
        except ObjectNotFound:
            changes.append(PoolChange(name, "create", _diff(name, {}, wanted)))
            if not dry_run:
                description = wanted["variables"].get("description")
                await client.create_work_pool(
                    WorkPoolCreate(
                        name=name, type=HEXGEN, description=description, base_job_template=wanted
                    )
                )
            continue
        merged = _with_attached_instances(wanted, pool.base_job_template)
        diff = _diff(name, pool.base_job_template, merged)
        changes.append(PoolChange(name, "update" if diff else "keep", diff))
        if diff and not dry_run:
            await client.update_work_pool(name, WorkPoolUpdate(base_job_template=merged))
    return tuple(changes)


def read_templates(directory: Path | None = None) -> dict[str, dict[str, Any]]:
    """The base job templates of a directory by pool name, sorted.

    Raises:
        PoolMistake: a file is not JSON or not a base job template, or there is no file.
    """
    if directory is None:
        with as_file(files("hexprefect.work_pools")) as shipped:
            return read_templates(shipped)
    templates = {path.stem: _read(path) for path in sorted(directory.glob("*.json"))}
    if not templates:
        raise PoolMistake(
            f"There is no work pool template in {directory}.",
            remedy="Give a directory with files such as a100.json.",
        )
    return templates


def _read(path: Path) -> dict[str, Any]:
    try:
        template = json.loads(path.read_text(encoding="utf-8"))
    except OSError as unreadable:
        raise PoolMistake(
            f"{path} cannot be read: {unreadable.strerror}.", remedy="Check its path."
        ) from unreadable
    except (ValueError, RecursionError) as invalid:
        raise PoolMistake(f"{path} is not JSON: {invalid}.") from invalid
    parts = template if isinstance(template, dict) else {}
    if not all(isinstance(parts.get(key), dict) for key in ("job_configuration", "variables")):
        raise PoolMistake(
            f"{path} is not a base job template.",
            remedy="It needs the objects `job_configuration` and `variables`; "
            "`prefect work-pool get-default-base-job-template --type hexgen` prints one.",
        )
    return parts


def _with_attached_instances(
    wanted: Mapping[str, Any], present: Mapping[str, Any]
) -> dict[str, Any]:
    merged: dict[str, Any] = copy.deepcopy(dict(wanted))
    if describes_instances(wanted) and describes_instances(present):
        listed = template_defaults(wanted).get("instances")
        attached = template_defaults(present).get("instances")
        if attached and not listed:
            merged["variables"]["properties"]["instances"]["default"] = attached
    return merged


def _diff(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    def lines(template: Mapping[str, Any]) -> list[str]:
        if not template:
            return []
        return json.dumps(template, indent=2, sort_keys=True, ensure_ascii=False).splitlines()

    return "\n".join(
        difflib.unified_diff(
            lines(before), lines(after), f"{name} (server)", f"{name} (template)", lineterm=""
        )
    )
