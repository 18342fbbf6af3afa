"""Work pools as the fleet: read model instances out of the variables of Prefect's work pools.

A pool describes instances when its base job template has the variables of `work_pools/*.json`. The
variables' *defaults* are the description: Prefect's own commands and its UI edit them, and nothing
else has to be stored. Keys are not among them, only the names of Secret blocks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from prefect.blocks.system import Secret
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.objects import WorkPool
from prefect.exceptions import ObjectNotFound
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from hexprefect.errors import CallerMistake, HexprefectError
from hexprefect.instances.endpoint import Dialect, Endpoint
from hexprefect.queue.values import environment_secret

_POOLS_A_PAGE = 200


class PoolMistake(HexprefectError):
    """A work pool's variables do not describe instances that could be used.

    Args:
        problem: what is wrong.
        remedy: what the reader can do about it.
        pool: the pool's name, so that whoever goes on without it does not take it for empty.
    """

    paused = False
    """Whether the pool is paused, which counts whatever else is wrong with it."""

    def __init__(self, problem: str, *, remedy: str | None = None, pool: str = "") -> None:
        super().__init__(problem, remedy=remedy)
        self.pool = pool


class InstanceVariables(BaseModel):
    """One attached instance, as a pool's `instances` variable lists it.

    What is left out is taken from the pool.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    url: str
    name: str | None = Field(default=None, min_length=1, max_length=200)
    model: str | None = Field(default=None, min_length=1)
    profile: str | None = Field(default=None, min_length=1)
    speaks: Dialect | None = None
    slots: int | None = Field(default=None, ge=1)
    admission_depth: int | None = Field(default=None, ge=1)
    context_tokens: int | None = Field(default=None, ge=1)
    api_key_secret: str | None = None
    learn_profile: bool | None = None

    @field_validator("url")
    @classmethod
    def _reachable_by_http(cls, url: str) -> str:
        try:
            return Endpoint(name="", url=url, model="").url
        except CallerMistake as mistake:
            # Said anew, because the endpoint's words name an instance that has no name yet.
            raise ValueError(
                "not an http or https address with a host, and without a query"
            ) from mistake


class LaunchVariables(BaseModel):
    """How a pool starts vLLM servers of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    replicas: int = Field(default=0, ge=0)
    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=8000, ge=1, le=65535)
    model: str | None = Field(default=None, min_length=1)
    tensor_parallel_size: int = Field(default=1, ge=1)
    quantization: str | None = None
    max_num_seqs: int | None = Field(default=None, ge=1)
    max_model_len: int | None = Field(default=None, ge=1)
    extra_arguments: tuple[str, ...] = ()
    executable: str = Field(default="vllm", min_length=1)
    environment: dict[str, str] = Field(default_factory=dict)


class PoolVariables(BaseModel):
    """The defaults of a pool's variables, as far as they describe instances."""

    model_config = ConfigDict(frozen=True, extra="ignore", str_strip_whitespace=True)

    instances: tuple[InstanceVariables, ...] = ()
    launch: LaunchVariables = LaunchVariables()
    model: str | None = Field(default=None, min_length=1)
    profile: str = Field(default="unknown", min_length=1)
    speaks: Dialect = "vllm"
    slots: int = Field(default=1, ge=1)
    admission_depth: int | None = Field(default=None, ge=1)
    context_tokens: int | None = Field(default=None, ge=1)
    api_key_secret: str | None = None
    learn_profile: bool = True


@dataclass(frozen=True, slots=True)
class VllmLaunch:
    """The arguments of one `vllm serve`, and where it will listen."""

    model: str
    host: str
    port: int
    tensor_parallel_size: int
    quantization: str | None
    max_num_seqs: int
    max_model_len: int | None
    extra_arguments: tuple[str, ...]
    executable: str
    """Name or path of vLLM's command on the machine of the pool's worker."""
    environment: Mapping[str, str]
    """Variables of the server's environment beside the worker's."""


@dataclass(frozen=True, slots=True)
class PoolInstance:
    """One model instance of the fleet, with everything filled in that its pool left out."""

    pool: str
    paused: bool
    """The pool is paused: the instance finishes what it has and gets nothing new."""
    name: str
    """Unique over all pools."""
    url: str
    """Base of the server, without a trailing `/v1`."""
    model: str
    profile: str
    speaks: Dialect
    slots: int
    admission_depth: int
    context_tokens: int | None = None
    """Longest prompt and answer together; None where only the server knows."""
    api_key_secret: str | None = None
    """Where the key is kept: a Secret block's name, or `env:VARIABLE`."""
    api_key: SecretStr | None = None
    learn_profile: bool = True
    """Whether finished requests may correct its hardware's profile."""
    launch: VllmLaunch | None = None
    """How to start it; `None` where it runs already (an attached URL)."""

    def endpoint(self) -> Endpoint:
        """Where and how the client talks to it."""
        return Endpoint(self.name, self.url, self.model, self.api_key, self.speaks)


async def read_pool_instances(
    client: PrefectClient, *, on_mistake: Callable[[PoolMistake], None] | None = None
) -> tuple[PoolInstance, ...]:
    """All instances that the work pools describe, by pool name and then in the pool's own order.

    Args:
        client: of the Prefect API that holds the pools.
        on_mistake: is given what is wrong with a pool, whose instances are then left out, so that
            one bad pool does not take the fleet away. Without it the first mistake is raised.

    Raises:
        PoolMistake: naming the pool, what is wrong and the remedy.
    """
    found: list[PoolInstance] = []
    secrets: dict[str, SecretStr] = {}
    for pool in sorted(await _all_pools(client), key=lambda pool: pool.name):
        try:
            instances = await _instances_of(pool, client, secrets)
            _refuse_duplicates(pool.name, [*found, *instances])
        except PoolMistake as mistake:
            if on_mistake is None:
                raise
            mistake.paused = pool.is_paused
            on_mistake(mistake)
        else:
            found.extend(instances)
    return tuple(found)


async def set_pool_instances(
    client: PrefectClient,
    pool_name: str,
    instances: Sequence[InstanceVariables | Mapping[str, Any]],
) -> None:
    """Make `instances` the attached instances of a pool, in place of those it has.

    Raises:
        PoolMistake: there is no such pool, its template does not describe instances, or an
            instance is not usable.
    """
    try:
        pool = await client.read_work_pool(pool_name)
    except ObjectNotFound as missing:
        raise PoolMistake(
            f"There is no work pool {pool_name!r}.",
            remedy="Create it with `hexprefect pools apply` or `prefect work-pool create`.",
            pool=pool_name,
        ) from missing
    if not describes_instances(pool.base_job_template):
        raise PoolMistake(
            f"The work pool {pool_name!r} has no variables that describe instances.",
            remedy="Create it from one of the templates in work_pools/, for example local.json.",
            pool=pool_name,
        )
    template = copy.deepcopy(pool.base_job_template)
    checked = _check(pool_name, {**template_defaults(template), "instances": list(instances)})
    template["variables"]["properties"]["instances"]["default"] = [
        instance.model_dump(mode="json", exclude_none=True) for instance in checked.instances
    ]
    await client.update_work_pool(pool_name, WorkPoolUpdate(base_job_template=template))


def describes_instances(template: Mapping[str, Any]) -> bool:
    """Whether a base job template has the variables of a pool of instances."""
    return {"instances", "profile"} <= set(_variables(template))


def template_defaults(template: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of a base job template's variables; a variable without one is left out."""
    return {
        name: schema["default"]
        for name, schema in _variables(template).items()
        if isinstance(schema, Mapping) and schema.get("default") not in (None, "")
    }


def _variables(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """The variables' schemas; a pool of another type may have none, or write anything there."""
    variables = template.get("variables")
    properties = variables.get("properties") if isinstance(variables, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


async def _all_pools(client: PrefectClient) -> list[WorkPool]:
    pools: list[WorkPool] = []
    while True:
        page = await client.read_work_pools(limit=_POOLS_A_PAGE, offset=len(pools))
        pools.extend(page)
        if len(page) < _POOLS_A_PAGE:
            return pools


async def _instances_of(
    pool: WorkPool, client: PrefectClient, secrets: dict[str, SecretStr]
) -> list[PoolInstance]:
    if not describes_instances(pool.base_job_template):
        return []
    variables = _check(pool.name, template_defaults(pool.base_job_template))
    attached: list[tuple[InstanceVariables, VllmLaunch | None]] = [
        (instance, None) for instance in variables.instances
    ]
    launched = [
        (_launched_variables(pool.name, variables, launch, replica), launch)
        for replica, launch in enumerate(_launches(pool.name, variables), start=1)
    ]
    instances = []
    for number, (given, launch) in enumerate([*attached, *launched], start=1):
        slots = given.slots or (launch.max_num_seqs if launch else variables.slots)
        depth = given.admission_depth or variables.admission_depth or slots
        secret = given.api_key_secret or variables.api_key_secret
        instances.append(
            PoolInstance(
                pool=pool.name,
                paused=pool.is_paused,
                name=given.name or f"{pool.name}-{number}",
                url=given.url,
                model=_model(pool.name, given.model or variables.model),
                profile=given.profile or variables.profile,
                speaks=given.speaks or variables.speaks,
                slots=slots,
                # Giving an instance more than it runs at once only hides requests from re-ordering.
                admission_depth=depth,
                context_tokens=given.context_tokens
                or (launch.max_model_len if launch else None)
                or variables.context_tokens,
                api_key_secret=secret,
                api_key=await _secret(pool.name, secret, client, secrets) if secret else None,
                learn_profile=(
                    variables.learn_profile if given.learn_profile is None else given.learn_profile
                ),
                launch=launch,
            )
        )
    return instances


def _launches(pool: str, variables: PoolVariables) -> list[VllmLaunch]:
    given = variables.launch
    if given.port + given.replicas - 1 > 65535:
        raise PoolMistake(
            f"The work pool {pool!r} would start servers on ports beyond 65535.",
            remedy="Lower its variable `launch.port` or `launch.replicas`.",
            pool=pool,
        )
    return [
        VllmLaunch(
            model=_model(pool, given.model or variables.model),
            host=given.host,
            port=given.port + offset,
            tensor_parallel_size=given.tensor_parallel_size,
            quantization=given.quantization,
            max_num_seqs=given.max_num_seqs or variables.slots,
            max_model_len=given.max_model_len,
            extra_arguments=given.extra_arguments,
            executable=given.executable,
            environment=given.environment,
        )
        for offset in range(given.replicas)
    ]


def _launched_variables(
    pool: str, variables: PoolVariables, launch: VllmLaunch, replica: int
) -> InstanceVariables:
    # An IPv6 address has colons of its own.
    host = f"[{launch.host}]" if ":" in launch.host else launch.host
    try:
        return InstanceVariables(
            url=f"http://{host}:{launch.port}",
            # One name for all servers of a pool, wherever each has the model from.
            model=variables.model or launch.model,
            # Of their own count: attaching a server must not rename those that run.
            name=f"{pool}-launched-{replica}",
        )
    except ValidationError:
        raise PoolMistake(
            f"The servers that the work pool {pool!r} launches could not be reached, or named.",
            remedy="Set its variable `launch.host` to an address or a name of the machine; a pool "
            "that launches servers has a name of 180 characters at most.",
            pool=pool,
        ) from None


def _model(pool: str, model: str | None) -> str:
    if model is None:
        raise PoolMistake(
            f"The work pool {pool!r} has an instance without a model.",
            remedy="Set the pool's variable `model`, or `model` of the instance.",
            pool=pool,
        )
    return model


def _check(pool: str, values: Mapping[str, Any]) -> PoolVariables:
    try:
        return PoolVariables.model_validate(values)
    except ValidationError as invalid:
        # The input itself is not repeated: a URL may hold a password.
        what = "; ".join(
            f"{'.'.join(str(part) for part in error['loc'])}: {error['msg']}"
            for error in invalid.errors(include_input=False, include_url=False)
        )
        raise PoolMistake(
            f"The variables of the work pool {pool!r} are not usable: {what}.",
            remedy="Correct them in the Prefect UI (Work pools, Edit), or with "
            f"`prefect work-pool update {pool} --base-job-template FILE`.",
            pool=pool,
        ) from None


def _refuse_duplicates(pool: str, instances: Sequence[PoolInstance]) -> None:
    by_name: dict[str, PoolInstance] = {}
    by_url: dict[str, PoolInstance] = {}
    for instance in instances:
        if (other := by_name.setdefault(instance.name, instance)) is not instance:
            same = f"has the name {instance.name!r}"
        elif instance.launch is not None:
            # It listens on the machine of its worker: the same address there is another server.
            continue
        elif (other := by_url.setdefault(_server(instance.url), instance)) is not instance:
            same = f"is the same server as {instance.name!r}"
        else:
            continue
        raise PoolMistake(
            f"An instance of the work pool {pool!r} {same}, like {other.name!r} of {other.pool!r}.",
            remedy="List each server once, under one name: its capacity must be counted once.",
            pool=pool,
        )


def _server(url: str) -> str:
    """The URL as every spelling of it comes to: hosts are of no case, and 80 is what http means."""
    return str(httpx.URL(url).copy_with(userinfo=b""))


async def _secret(
    pool: str, name: str, client: PrefectClient, known: dict[str, SecretStr]
) -> SecretStr:
    if name.startswith("env:"):
        try:
            return await environment_secret(name)
        except HexprefectError as missing:
            raise PoolMistake(
                f"The work pool {pool!r} takes its API key from {name!r}, which is not set.",
                remedy="Set the variable where this runs, or name a Secret block.",
                pool=pool,
            ) from missing
    if name not in known:
        try:
            # Prefect's decorators hide what this returns from a type checker.
            block: Any = await Secret.aload(name, client=client)
        except ValueError as missing:
            raise PoolMistake(
                f"The work pool {pool!r} takes its API key from the Secret block {name!r}, "
                "which does not exist.",
                remedy=f"Create a Secret block named {name!r}, or clear `api_key_secret`.",
                pool=pool,
            ) from missing
        value = block.get()
        if not isinstance(value, str) or not value:
            raise PoolMistake(
                f"The Secret block {name!r}, named by the work pool {pool!r}, holds no text.",
                remedy="Save the API key in it as a plain string.",
                pool=pool,
            )
        known[name] = SecretStr(value)
    return known[name]
