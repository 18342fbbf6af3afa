"""The block types: Prefect's own standards, their rules, their secrets, their connections."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prefect.blocks.core import Block
from prefect.settings import PREFECT_API_URL
from prefect.testing.standard_test_suites import BlockStandardTestSuite
from prefect.testing.utilities import prefect_test_harness
from pydantic import SecretStr, ValidationError

from hexprefect.blocks import HexgenStore, ModelInstance, Text2SQLDatabase
from hexprefect.demo import build_shop
from hexprefect.errors import CallerMistake

BLOCKS = [HexgenStore, ModelInstance, Text2SQLDatabase]


@pytest.fixture(scope="module")
def prefect() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture
def model_server() -> Iterator[str]:
    """A server that lists one model to whoever has the key."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers.get("Authorization") == "Bearer sk-right"
            body = json.dumps({"data": [{"id": "qwen"}]} if allowed else {"error": "no"}).encode()
            self.send_response(200 if allowed else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(timeout=10)


class TestStandards(BlockStandardTestSuite):
    @pytest.fixture(params=BLOCKS)
    def block(self, request: pytest.FixtureRequest) -> type[Block]:
        block: type[Block] = request.param
        return block

    def test_has_a_valid_image(self, block: type[Block]) -> None:
        """Prefect's own version fetches the picture; tests here stay on this machine."""
        assert str(block._logo_url).startswith("https://")
        assert str(block._logo_url).endswith(".png")


def test_prefect_registers_exactly_our_blocks(prefect: None) -> None:
    import hexprefect.blocks as module
    from hexprefect import collection

    found = {
        value.__name__
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Block)
    }
    assert found == {"HexgenStore", "ModelInstance", "Text2SQLDatabase"}
    assert found < set(collection.__all__)
    for block in BLOCKS:
        block.register_type_and_schema(_sync=True)  # type: ignore[call-arg]


def test_prefects_own_command_registers_them(prefect: None) -> None:
    api = PREFECT_API_URL.value()
    assert api is not None
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "block", "register", "-m", "hexprefect.blocks"],
        env={**os.environ, "PREFECT_API_URL": api, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("Model Instance", "Text2SQL Database", "HEXGEN Store"):
        assert name in done.stdout


def test_the_collection_is_cheap_to_import() -> None:
    code = "import sys, hexprefect.collection\nprint(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert not {"numpy", "sqlglot", "xllamacpp", "bm25s", "alembic"} & set(done.stdout.split())


class TestModelInstance:
    def test_it_survives_saving_with_its_key_hidden(self, prefect: None) -> None:
        ModelInstance(
            url="http://gpu-1:8000/v1/", model="qwen", api_key=SecretStr("sk-secret"), slots=4
        ).save("fast", overwrite=True, _sync=True)  # type: ignore[call-arg]
        loaded: Any = ModelInstance.load("fast", _sync=True)  # type: ignore[call-arg]
        endpoint = loaded.get_endpoint()
        assert (endpoint.name, endpoint.url, endpoint.model) == (
            "fast",
            "http://gpu-1:8000",
            "qwen",
        )
        assert endpoint.headers() == {"Authorization": "Bearer sk-secret"}
        assert loaded.slots == 4
        assert "sk-secret" not in repr(loaded)

    @pytest.mark.parametrize("url", ["gpu-1:8000", "ftp://gpu", "http://", ""])
    def test_it_refuses_what_is_no_address(self, url: str) -> None:
        with pytest.raises(ValidationError, match="http or https"):
            ModelInstance(url=url, model="qwen")

    @pytest.mark.parametrize("wrong", [{"slots": 0}, {"model": ""}, {"speaks": "grpc"}])
    def test_it_refuses_nonsense(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            ModelInstance(**{"url": "http://gpu", "model": "qwen", **wrong})

    async def test_it_tells_whether_its_model_is_served(self, model_server: str) -> None:
        good = ModelInstance(url=model_server, model="qwen", api_key=SecretStr("sk-right"))
        assert await good.atest_connection() == ("qwen",)
        assert await asyncio.to_thread(good.test_connection) == ("qwen",)
        other = good.model_copy(update={"model": "llama"})
        with pytest.raises(CallerMistake, match=r"'llama'. It serves: qwen"):
            await other.atest_connection()
        unknown = good.model_copy(update={"api_key": SecretStr("sk-wrong")})
        with pytest.raises(CallerMistake, match="refuses the API key") as mistake:
            await unknown.atest_connection()
        assert "sk-wrong" not in str(mistake.value)

    async def test_a_server_that_is_not_there_is_named(self) -> None:
        with pytest.raises(CallerMistake, match="does not answer"):
            await ModelInstance(url="http://127.0.0.1:9", model="qwen").atest_connection()

    async def test_an_unsaved_ones_password_is_not_its_name(self) -> None:
        unsaved = ModelInstance(url="http://user:pass-1@127.0.0.1:9", model="qwen")
        with pytest.raises(CallerMistake, match=r"user:\*\*\*@127.0.0.1:9") as mistake:
            await unsaved.atest_connection()
        assert "pass-1" not in str(mistake.value)

    async def test_it_is_reached_as_requests_reach_it(
        self, model_server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        good = ModelInstance(url=model_server, model="qwen", api_key=SecretStr("sk-right"))
        assert await good.atest_connection() == ("qwen",)
        assert await asyncio.to_thread(good.test_connection) == ("qwen",)


class TestText2SQLDatabase:
    def test_it_connects(self, tmp_path: Path) -> None:
        shop = build_shop(tmp_path / "shop.sqlite")
        database = Text2SQLDatabase(url=SecretStr(f"sqlite:///{shop}"))
        assert database.test_connection() == "sqlite"

    def test_a_mistyped_path_is_refused_and_no_file_appears(self, tmp_path: Path) -> None:
        database = Text2SQLDatabase(url=SecretStr(f"sqlite:///{tmp_path}/shpo.sqlite"))
        with pytest.raises(CallerMistake, match=r"shpo\.sqlite does not exist"):
            database.test_connection()
        assert list(tmp_path.iterdir()) == []

    def test_a_refused_connection_keeps_the_password_to_itself(self) -> None:
        for kind in ("postgresql+psycopg2", "postgresql", "mysql", "mariadb+mysqlconnector"):
            for url in (
                f"{kind}://me:hunter2@127.0.0.1:9/db",
                f"{kind}://me@127.0.0.1:9/db?password=hunter2",
            ):
                with pytest.raises(CallerMistake, match="cannot be reached") as mistake:
                    Text2SQLDatabase(url=SecretStr(url)).test_connection()
                assert "hunter2" not in str(mistake.value)

    def test_what_is_no_url_is_refused_without_being_repeated(self) -> None:
        with pytest.raises(ValidationError, match="not a SQLAlchemy URL") as mistake:
            Text2SQLDatabase(url=SecretStr("hunter2 at db"))
        assert "hunter2" not in str(mistake.value)

    @pytest.mark.parametrize(
        "given", [{}, {"url": SecretStr("sqlite:///a.sqlite"), "connector": "b"}]
    )
    def test_it_wants_one_connection(self, given: dict[str, Any]) -> None:
        with pytest.raises(ValidationError, match="either `url` or `connector`"):
            Text2SQLDatabase(**given)

    def test_tenants_read_what_they_may(self) -> None:
        database = Text2SQLDatabase(
            url=SecretStr("sqlite:///a.sqlite"),
            schemas=["sales", "stock"],
            tenants={"shop": ["sales"], "board": []},
        )
        assert database.schemas_for("shop") == ("sales",)
        assert database.schemas_for("board") == ("sales", "stock")
        with pytest.raises(CallerMistake, match="'guest' may not ask"):
            database.schemas_for("guest")
        open_to_all = Text2SQLDatabase(url=SecretStr("sqlite:///a.sqlite"))
        assert open_to_all.schemas_for("guest") == ()

    def test_a_tenant_cannot_be_allowed_more_than_all(self) -> None:
        with pytest.raises(ValidationError, match="'shop' may read payroll"):
            Text2SQLDatabase(
                url=SecretStr("sqlite:///a.sqlite"),
                schemas=["sales"],
                tenants={"shop": ["sales", "payroll"]},
            )

    def test_it_takes_the_connection_of_a_connector_block(
        self, prefect: None, tmp_path: Path
    ) -> None:
        sqlalchemy = pytest.importorskip("prefect_sqlalchemy")
        shop = build_shop(tmp_path / "shop.sqlite")
        connector = sqlalchemy.SqlAlchemyConnector(
            connection_info=sqlalchemy.ConnectionComponents(
                driver=sqlalchemy.SyncDriver.SQLITE_PYSQLITE, database=str(shop)
            )
        )
        connector.save("shop", overwrite=True, _sync=True)
        Text2SQLDatabase(connector="shop").save("shop", overwrite=True, _sync=True)  # type: ignore[call-arg]
        loaded: Any = Text2SQLDatabase.load("shop", _sync=True)  # type: ignore[call-arg]
        assert loaded.get_url().get_secret_value() == f"sqlite+pysqlite:///{shop}"
        assert asyncio.run(loaded.aget_url()) == loaded.get_url()
        assert loaded.test_connection() == "sqlite"

    def test_a_connector_that_is_missing_is_named(self, prefect: None) -> None:
        pytest.importorskip("prefect_sqlalchemy")
        with pytest.raises(CallerMistake, match="'lost', which does not exist"):
            Text2SQLDatabase(connector="lost").get_url()

    def test_a_connectors_password_reaches_the_url(self, prefect: None) -> None:
        sqlalchemy = pytest.importorskip("prefect_sqlalchemy")
        sqlalchemy.SqlAlchemyConnector(
            connection_info=sqlalchemy.ConnectionComponents(
                driver="postgresql+psycopg",
                username="me",
                password="p@ss",
                host="db",
                database="shop",
            )
        ).save("pg", overwrite=True, _sync=True)
        url = Text2SQLDatabase(connector="pg").get_url()
        assert url.get_secret_value() == "postgresql+psycopg://me:p%40ss@db/shop"


class TestHexgenStore:
    async def test_it_connects_and_hides_its_url(self, prefect: None, tmp_path: Path) -> None:
        path = build_shop(tmp_path / "store.sqlite")
        store = HexgenStore(url=SecretStr(f"sqlite:///{path}"))
        assert await store.atest_connection() == "sqlite"
        assert str(path) not in repr(store)

    def test_it_refuses_what_is_no_url(self) -> None:
        with pytest.raises(ValidationError, match="not a SQLAlchemy URL"):
            HexgenStore(url=SecretStr("nonsense"))

    def test_a_url_needs_no_driver_in_it_and_shows_no_secret(self) -> None:
        url = "postgresql://me@127.0.0.1:9/db?sslpassword=hunter2"
        with pytest.raises(CallerMistake, match="does not answer") as mistake:
            HexgenStore(url=SecretStr(url)).test_connection()
        assert "hunter2" not in str(mistake.value)

    def test_a_driver_that_is_missing_is_named(self) -> None:
        with pytest.raises(CallerMistake, match="driver that is not installed"):
            HexgenStore(url=SecretStr("mysql+mysqlconnector://me@127.0.0.1/db")).test_connection()
