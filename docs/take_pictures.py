"""Takes docs/img/dashboard-*.png: pages of the dashboard over one capture, as chromium shows them.

The README shows a run and these pictures of it, so both are made anew together, on a machine that does nothing else:

COLUMNS=80 hprof run --link-gb-s 0.5 -n 8 -o traces/mine
python -m docs.take_pictures traces/mine
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click
from playwright.sync_api import sync_playwright

from tests.dashboard.browser import served, settled
from tests.support import chromium_path

HERE: Final = Path(__file__).parent / "img"
PAGES: Final = {"overview": "", "timeline": "timeline"}
SIZE: Final = {"width": 1280, "height": 1000}  # pixels; a README shows a picture some 900 wide
_DRAWN_MS: Final = 3_000  # charts fade in after the page has settled


@click.command()
@click.argument("capture", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--into", type=click.Path(file_okay=False, path_type=Path), default=HERE, help="The folder of pictures.")
def main(capture: Path, into: Path) -> None:
    """Take a picture of each page in PAGES over CAPTURE."""
    into.mkdir(parents=True, exist_ok=True)
    with served(capture.parent) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        for name, path in PAGES.items():
            page.goto(f"{address}/{path}?capture={capture.name}")
            settled(page)
            page.wait_for_timeout(_DRAWN_MS)
            page.screenshot(path=into / f"dashboard-{name}.png")
            click.echo(f"Wrote {into / f'dashboard-{name}.png'}")
        browser.close()


if __name__ == "__main__":
    main()
