"""Take the screenshots of the docs anew: `make screenshots`.

Runs the embedded stack, asks a question through the run form of Prefect's UI, follows its flow run,
and photographs what a person sees; and a nightly report, opened as a file.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from docs.images.prefect_pages import PrefectPages, browser_page, find_chromium
from hexprefect.commands.demo import ANSWER_TIMEOUT_S, DEFAULT_QUESTION
from hexprefect.embedded.folders import Folders
from hexprefect.embedded.stack import RunningStack, embedded_stack

IMAGES = Path(__file__).parent
REPORT, ARCHIVE = "shop_daily", "shop-daily"


async def main() -> None:
    """Ask, report, and photograph what a person sees of it."""
    chromium = find_chromium()
    if chromium is None:
        sys.exit("No Chromium: install it (Debian: apt-get install chromium) or set CHROMIUM.")
    model = sys.argv[1] if len(sys.argv) > 1 else "1.5B"
    with tempfile.TemporaryDirectory() as state:
        async with (
            embedded_stack(Folders(Path(state)), model=model, tell=print) as stack,
            browser_page(chromium) as page,
        ):
            await ask(PrefectPages(page, stack.ui_url))
            document = await report(stack)
            await page.goto(document.as_uri())
            await page.screenshot(path=IMAGES / "report.png")
            print(IMAGES / "report.png")


async def ask(pages: PrefectPages) -> None:
    """One question, from the run form to its artifacts."""

    async def photograph(name: str) -> None:
        await pages.photograph(IMAGES / name)
        print(IMAGES / name)

    await pages.open_run_form("ask")
    await pages.fill_run_form({"question": DEFAULT_QUESTION, "database": "demo"})
    await photograph("run-form.png")
    await pages.submit_run_form()
    await pages.follow_flow_run(DEFAULT_QUESTION, timeout_s=ANSWER_TIMEOUT_S)
    await photograph("flow-run.png")
    artifacts = await pages.open_artifacts()
    await pages.open_artifact(artifacts[DEFAULT_QUESTION], "SELECT")
    await photograph("sql.png")
    calls = next(address for words, address in artifacts.items() if "LLM calls" in words)
    await pages.open_artifact(calls, "candidate_generation")
    await photograph("timeline.png")


async def report(stack: RunningStack) -> Path:
    """Run a shipped report; its document."""
    run = ("deployment", "run", "sql-report/nightly", "-p", f"report={REPORT}", "--watch")
    await stack.prefect(*run, timeout_s=900)
    return max((stack.folders.state / "reports" / ARCHIVE).glob("*/report.html"))


if __name__ == "__main__":
    asyncio.run(main())
