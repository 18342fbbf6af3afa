"""Work pools as the fleet: templates, attached instances, mistakes, and applying them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prefect.blocks.system import Secret
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.exceptions import PrefectHTTPStatusError

from hexprefect.orchestration.fleet_sync import spec_of_pool_instance
from hexprefect.orchestration.pools import (
    PoolMistake,
    read_pool_instances,
    set_pool_instances,
)
from hexprefect.orchestration.pools_apply import apply_pools, read_templates

TEMPLATES = Path(__file__).parents[2] / "work_pools"


def template(name: str = "local", **defaults: Any) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((TEMPLATES / f"{name}.json").read_text("utf-8"))
    for variable, value in defaults.items():
        content["variables"]["properties"][variable]["default"] = value
    return content


def without_schemas(content: dict[str, Any]) -> dict[str, Any]:
    """A template as somebody wrote it by hand: with it the server checks nothing for us."""
    for name, schema in content["variables"]["properties"].items():
        bare = {key: value for key, value in schema.items() if key == "default"}
        content["variables"]["properties"][name] = bare
    return content


async def create(client: PrefectClient, name: str, content: dict[str, Any]) -> None:
    await client.create_work_pool(
        WorkPoolCreate(name=name, type="hexgen", base_job_template=content)
    )


@pytest.fixture
async def client(prefect_client: PrefectClient) -> AsyncIterator[PrefectClient]:
    """The session's server, without the pools of other tests."""
    for pool in await prefect_client.read_work_pools():
        await prefect_client.delete_work_pool(pool.name)
    yield prefect_client
    for pool in await prefect_client.read_work_pools():
        await prefect_client.delete_work_pool(pool.name)


@pytest.mark.parametrize("name", ["a100", "h100", "l40s", "a6000", "local", "text2sql"])
def test_every_shipped_template_is_a_base_job_template(name: str) -> None:
    content = read_templates()[name]
    variables = content["variables"]["properties"]
    used = {value.strip("{} ") for value in content["job_configuration"].values()}
    assert used <= set(variables)
    assert all(schema.get("description") for schema in variables.values())


@pytest.mark.parametrize(
    ("name", "kind"), [("a100", "hexgen"), ("text2sql", "process"), ("text2sql", "hexgen")]
)
async def test_prefects_own_command_creates_a_pool_from_a_template(
    client: PrefectClient, prefect_server: Any, name: str, kind: str
) -> None:
    command = [sys.executable, "-m", "prefect", "work-pool", "create", name, "--type", kind]
    done = await asyncio.to_thread(
        subprocess.run,
        [*command, "--base-job-template", str(TEMPLATES / f"{name}.json")],
        env=prefect_server.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pool = await client.read_work_pool(name)
    assert pool.type == kind
    assert pool.base_job_template == template(name)


async def test_an_attached_instance_takes_from_its_pool_what_it_leaves_out(
    client: PrefectClient,
) -> None:
    await Secret(value="sk-for-gpus").save("gpu-key", overwrite=True, client=client)
    content = template(
        "a100",
        api_key_secret="gpu-key",
        instances=[
            {"url": "http://gpu-1:8000/v1/"},
            {
                "url": "http://gpu-2:8000",
                "name": "big",
                "slots": 7,
                "model": "qwen",
                "profile": "x",
            },
        ],
    )
    await create(client, "rack", content)
    first, second = await read_pool_instances(client)
    assert (first.name, first.pool, first.url) == ("rack-1", "rack", "http://gpu-1:8000")
    assert (first.slots, first.admission_depth, first.profile) == (64, 16, "a100")
    assert first.model == "meta-llama/Llama-3.1-70B-Instruct"
    assert first.launch is None
    assert (second.name, second.slots, second.model, second.profile) == ("big", 7, "qwen", "x")
    for instance in (first, second):
        assert instance.api_key is not None
        assert instance.api_key.get_secret_value() == "sk-for-gpus"
        assert "sk-for-gpus" not in repr(instance)
        assert instance.endpoint().headers() == {"Authorization": "Bearer sk-for-gpus"}


@pytest.mark.parametrize("pools_word", [True, False])
async def test_a_pool_or_an_instance_may_keep_its_described_profile(
    client: PrefectClient, pools_word: bool
) -> None:
    instances = [
        {"url": "http://gpu-1:8000"},
        {"url": "http://gpu-2:8000", "learn_profile": not pools_word},
    ]
    await create(client, "rack", template("a100", learn_profile=pools_word, instances=instances))
    first, second = await read_pool_instances(client)
    assert (first.learn_profile, second.learn_profile) == (pools_word, not pools_word)
    assert spec_of_pool_instance(second).learn_profile is not pools_word


async def test_a_key_may_come_from_the_environment(
    client: PrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    instances = [{"url": "http://gpu-1:8000", "context_tokens": 4096}]
    await create(client, "rack", template(api_key_secret="env:GPU_KEY", instances=instances))
    with pytest.raises(PoolMistake, match="'env:GPU_KEY', which is not set") as mistake:
        await read_pool_instances(client)
    assert mistake.value.pool == "rack"
    monkeypatch.setenv("GPU_KEY", "sk-env")
    [instance] = await read_pool_instances(client)
    assert instance.api_key is not None
    assert instance.api_key.get_secret_value() == "sk-env"
    assert instance.api_key_secret == "env:GPU_KEY"
    assert instance.context_tokens == 4096


async def test_launched_instances_count_their_ports_up(client: PrefectClient) -> None:
    launch = {"replicas": 2, "port": 9000, "tensor_parallel_size": 4, "quantization": "fp8"}
    await create(client, "rack", template("l40s", launch={**launch, "max_num_seqs": 24}))
    instances = await read_pool_instances(client)
    assert [(i.name, i.url, i.slots) for i in instances] == [
        ("rack-launched-1", "http://127.0.0.1:9000", 24),
        ("rack-launched-2", "http://127.0.0.1:9001", 24),
    ]
    assert instances[0].launch is not None
    assert instances[0].launch.quantization == "fp8"
    assert instances[0].launch.model == instances[0].model


async def test_a_paused_pool_is_read_as_draining(client: PrefectClient) -> None:
    await create(client, "rack", template(instances=[{"url": "http://127.0.0.1:1"}]))
    assert [instance.paused for instance in await read_pool_instances(client)] == [False]
    await client.update_work_pool("rack", WorkPoolUpdate(is_paused=True))
    assert [instance.paused for instance in await read_pool_instances(client)] == [True]


async def test_pools_without_instance_variables_are_none_of_our_business(
    client: PrefectClient,
) -> None:
    await create(client, "flows", template("text2sql"))
    await create(client, "empty", {})
    assert await read_pool_instances(client) == ()


@pytest.mark.parametrize(
    ("defaults", "said"),
    [
        ({"instances": [{"url": "ftp://gpu"}]}, "instances.0.url: .*not an http or https"),
        ({"instances": [{"url": "http://gpu", "slots": 0}]}, "instances.0.slots"),
        ({"instances": [{"url": "http://gpu", "slot": 1}]}, "instances.0.slot: Extra inputs"),
        ({"instances": [{"name": "nowhere"}]}, "instances.0.url: Field required"),
        ({"instances": [{"url": "http://gpu"}], "model": ""}, "without a model"),
        ({"instances": [{"url": "http://g"}], "api_key_secret": "lost"}, "'lost'.*does not exist"),
        (
            {"instances": [{"url": "http://g", "name": "a"}, {"url": "http://h", "name": "a"}]},
            "has the name 'a'",
        ),
        ({"instances": [{"url": "http://g"}, {"url": "http://g/v1"}]}, "is the same server"),
    ],
)
async def test_a_mistake_names_the_pool_and_the_remedy(
    client: PrefectClient, defaults: dict[str, Any], said: str
) -> None:
    await create(client, "rack", without_schemas(template(**defaults)))
    with pytest.raises(PoolMistake, match=said) as mistake:
        await read_pool_instances(client)
    assert "'rack'" in str(mistake.value)
    assert mistake.value.remedy


async def test_the_templates_make_the_server_refuse_a_wrong_value_at_once(
    client: PrefectClient,
) -> None:
    with pytest.raises(PrefectHTTPStatusError, match=r"instances\[0\]\.slots"):
        await create(client, "rack", template(instances=[{"url": "http://gpu", "slots": 0}]))


async def test_a_mistake_does_not_repeat_a_password(client: PrefectClient) -> None:
    await create(client, "rack", template(instances=[{"url": "ftp://me:hunter2@gpu"}]))
    with pytest.raises(PoolMistake) as mistake:
        await read_pool_instances(client)
    assert "hunter2" not in str(mistake.value)


async def test_one_bad_pool_does_not_take_the_others_away(client: PrefectClient) -> None:
    await create(client, "bad", template(instances=[{"url": "nonsense"}]))
    await create(client, "good", template(instances=[{"url": "http://127.0.0.1:1"}]))
    mistakes: list[PoolMistake] = []
    instances = await read_pool_instances(client, on_mistake=mistakes.append)
    assert [instance.name for instance in instances] == ["good-1"]
    assert len(mistakes) == 1


async def test_registering_attached_urls_replaces_those_before(client: PrefectClient) -> None:
    await create(client, "local-fast", template())
    await create(client, "local-slow", template())
    await set_pool_instances(client, "local-fast", [{"url": "http://127.0.0.1:7001"}])
    await set_pool_instances(client, "local-fast", [{"url": "http://127.0.0.1:7002", "slots": 3}])
    await set_pool_instances(client, "local-slow", [{"url": "http://127.0.0.1:7003"}])
    instances = await read_pool_instances(client)
    assert [(i.name, i.url, i.slots) for i in instances] == [
        ("local-fast-1", "http://127.0.0.1:7002", 3),
        ("local-slow-1", "http://127.0.0.1:7003", 1),
    ]
    await set_pool_instances(client, "local-fast", [])
    assert [i.pool for i in await read_pool_instances(client)] == ["local-slow"]


async def test_registering_refuses_what_reading_would_refuse(client: PrefectClient) -> None:
    await create(client, "local-fast", template())
    await create(client, "flows", template("text2sql"))
    with pytest.raises(PoolMistake, match=r"instances\.0\.url"):
        await set_pool_instances(client, "local-fast", [{"url": "nonsense"}])
    with pytest.raises(PoolMistake, match="no work pool 'nowhere'"):
        await set_pool_instances(client, "nowhere", [])
    with pytest.raises(PoolMistake, match="'flows' has no variables"):
        await set_pool_instances(client, "flows", [])
    assert await read_pool_instances(client) == ()


async def test_applying_creates_then_keeps_then_updates(
    client: PrefectClient, tmp_path: Path
) -> None:
    dry = await apply_pools(client, dry_run=True)
    assert {change.action for change in dry} == {"create"}
    assert await client.read_work_pools() == []

    created = await apply_pools(client)
    assert [change.pool for change in created] == [
        "a100", "a6000", "h100", "l40s", "local", "text2sql",
    ]  # fmt: skip
    assert {change.action for change in await apply_pools(client)} == {"keep"}

    (tmp_path / "local.json").write_text(json.dumps(template("local", slots=5)))
    [change] = await apply_pools(client, tmp_path, dry_run=True)
    assert change.action == "update"
    changed = [line for line in change.diff.splitlines() if line[:2] in ("- ", "+ ")]
    assert [line.replace(" ", "") for line in changed] == ['-"default":1,', '+"default":5,']
    assert await apply_pools(client, tmp_path, dry_run=True) == (change,)
    assert await apply_pools(client, tmp_path) == (change,)
    [kept] = await apply_pools(client, tmp_path)
    assert (kept.action, kept.diff) == ("keep", "")


async def test_applying_keeps_registered_instances_and_the_pause(client: PrefectClient) -> None:
    await apply_pools(client)
    await set_pool_instances(client, "local", [{"url": "http://127.0.0.1:7001"}])
    await client.update_work_pool("local", WorkPoolUpdate(is_paused=True))
    assert {change.action for change in await apply_pools(client)} == {"keep"}
    [instance] = await read_pool_instances(client)
    assert (instance.url, instance.paused) == ("http://127.0.0.1:7001", True)


def test_a_directory_that_holds_no_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PoolMistake, match="no work pool template"):
        read_templates(tmp_path)
    (tmp_path / "a100.json").write_text("{")
    with pytest.raises(PoolMistake, match=r"a100\.json is not JSON"):
        read_templates(tmp_path)
    (tmp_path / "a100.json").write_text('{"variables": {}}')
    with pytest.raises(PoolMistake, match="not a base job template"):
        read_templates(tmp_path)
