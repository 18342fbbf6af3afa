"""Pictures for the block types, from the set that Prefect itself uses."""

from __future__ import annotations

from pydantic import HttpUrl

_LOGOS = (
    "https://raw.githubusercontent.com/PrefectHQ/prefect/"
    "420d0d6a78bb6df1fc18bcf188fdad43c1d22ea9/assets/block-logos"
)
INSTANCE = HttpUrl(f"{_LOGOS}/process.png")
DATABASE = HttpUrl(f"{_LOGOS}/filesystem.png")
STORE = HttpUrl(f"{_LOGOS}/redis.png")
DOCUMENTATION = HttpUrl("https://docs.prefect.io/v3/concepts/blocks")
