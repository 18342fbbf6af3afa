"""Take the screenshots of the docs anew: `make screenshots`.

Runs the embedded stack, asks a question, and photographs its flow run in Prefect's UI with headless
Chromium (from Debian: `apt-get install chromium`, or name another in CHROMIUM).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

from hexprefect.commands.demo import DEFAULT_QUESTION, ask_deployment
from hexprefect.embedded.folders import Folders
from hexprefect.embedded.stack import embedded_stack

IMAGES = Path(__file__).parent
SIZE = "1500,1000"
RENDER_MS = 20_000
TIMEOUT_S = 120.0


def find_chromium() -> str:
    """The browser's program."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        sys.exit("No Chromium: install it (Debian: apt-get install chromium) or set CHROMIUM.")
    return found


async def photograph(chromium: str, url: str, image: Path) -> None:
    """Render a page and write it as PNG."""
    with tempfile.TemporaryDirectory() as profile:
        process = await asyncio.create_subprocess_exec(
            chromium,
            *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *("--no-first-run", "--disable-quic", f"--user-data-dir={profile}"),
            *(f"--window-size={SIZE}", f"--virtual-time-budget={RENDER_MS}"),
            *(f"--screenshot={image}", url),
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await asyncio.wait_for(process.wait(), TIMEOUT_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    print(image)


async def find_artifact(api_url: str, flow_run_id: str, words: str) -> str:
    """Id of a flow run's artifact whose description has these words."""
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

    of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run_id]))
    async with PrefectClient(api_url) as client:
        found = await client.read_artifacts(artifact_filter=of_run)
    return str(next(one.id for one in found if words in (one.description or "")))


async def main() -> None:
    """Ask, and photograph what a person sees of it."""
    chromium = find_chromium()
    model = sys.argv[1] if len(sys.argv) > 1 else "1.5B"
    with tempfile.TemporaryDirectory() as state:
        async with embedded_stack(Folders(Path(state)), model=model, tell=print) as stack:
            asked = {"question": DEFAULT_QUESTION, "database": "demo", "slo_s": 300}
            record = await ask_deployment(stack, asked)
            run = f"{stack.ui_url}/runs/flow-run/{record['flow_run_id']}"
            await photograph(chromium, run, IMAGES / "flow-run.png")
            for words, image in ((DEFAULT_QUESTION, "sql.png"), ("LLM calls", "timeline.png")):
                artifact = await find_artifact(stack.api_url, record["flow_run_id"], words)
                page = f"{stack.ui_url}/artifacts/artifact/{artifact}"
                await photograph(chromium, page, IMAGES / image)


if __name__ == "__main__":
    asyncio.run(main())
