"""Prefect's UI as a person uses it, in headless Chromium: the run form, a flow run, its artifacts.

For the screenshots of the docs, and for the test that clicks through it. Chromium is the machine's
own (Debian: `apt-get install chromium`), or the one that CHROMIUM names.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Locator, Page, async_playwright

WIDTH, HEIGHT = 1500, 1000
TIMEOUT_MS = 180_000
"""Of one step. A flow run's page redraws its graph all the time, which a busy machine feels."""

STATES = re.compile("^(Completed|Failed|Crashed|Cancelled)$")


def find_chromium() -> str | None:
    """The browser's program, or None where there is none."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@asynccontextmanager
async def browser_page(chromium: str) -> AsyncIterator[Page]:
    """An empty page of a browser of its own, that reaches nothing but this machine."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium,
            args=[
                *("--no-sandbox", "--disable-gpu", "--disable-background-networking"),
                *("--disable-component-update", "--disable-sync", "--no-first-run"),
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            ],
        )
        try:
            page = await browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.set_default_timeout(TIMEOUT_MS)
            yield page
        finally:
            await browser.close()


class PrefectPages:
    """What a person clicks.

    Args:
        page: of the browser.
        ui_url: of Prefect's UI, without a slash at its end.
    """

    def __init__(self, page: Page, ui_url: str) -> None:
        self.page = page
        self._ui_url = ui_url

    async def open_run_form(self, deployment: str) -> None:
        """Deployments → the deployment → Run → Custom run."""
        await self.page.goto(f"{self._ui_url}/deployments")
        await self.page.get_by_role("link", name=deployment, exact=True).first.click()
        await self.page.get_by_role("button", name="Run", exact=True).click()
        await self.page.get_by_text("Custom run").click()
        await self._parameter("question").wait_for()

    async def fill_run_form(self, parameters: Mapping[str, str]) -> None:
        """Type each parameter into the field of its name."""
        for name, value in parameters.items():
            await self._parameter(name).fill(value)

    async def descriptions_in_run_form(self) -> dict[str, str]:
        """What the form says of each parameter."""
        found = {}
        for field in await self.page.locator(".schema-form-property").all():
            label = await field.locator(".schema-form-property__label").first.inner_text()
            found[label.split(" ")[0]] = await field.inner_text()
        return found

    async def submit_run_form(self) -> None:
        """Submit; back on the deployment's page."""
        await self.page.get_by_role("button", name="Submit").click()
        await self.page.wait_for_url(re.compile(r"/deployments/deployment/[0-9a-f-]+(\?.*)?$"))

    async def follow_flow_run(self, name: str, *, timeout_s: float = TIMEOUT_MS / 1000) -> str:
        """Open the flow run of this name and stay until it ends; the name of its last state."""
        await self.page.get_by_role("link", name=name).first.click()
        await self.page.wait_for_url("**/runs/flow-run/**")
        state = self.page.locator(".state-badge").filter(has_text=STATES).first
        await state.wait_for(timeout=1000 * timeout_s)
        return (await state.inner_text()).strip()

    async def open_artifacts(self) -> dict[str, str]:
        """The tab of the open flow run's artifacts: address of each by its description."""
        await self.page.locator("#artifacts").click()
        links = self.page.locator("a[href*='/artifacts/artifact/']")
        await links.first.wait_for()
        found = {}
        for link in await links.all():
            address = await link.get_attribute("href")
            found[(await link.inner_text()).split("\n")[-1]] = f"{self._ui_url}{address}"
        return found

    async def open_artifact(self, address: str, expect: str) -> str:
        """Open an artifact's page; its text, once these words are in it."""
        await self.page.goto(address)
        await self.page.get_by_text(expect).first.wait_for()
        return await self.page.inner_text("body")

    async def photograph(self, image: Path) -> None:
        """The visible page as PNG."""
        await self.page.screenshot(path=image, timeout=TIMEOUT_MS)

    def _parameter(self, name: str) -> Locator:
        label = self.page.locator(
            ".schema-form-property__label", has_text=re.compile(f"^{re.escape(name)}( |$)")
        )
        field = self.page.locator(".schema-form-property").filter(has=label)
        return field.locator("textarea, input").first
