"""Runs the app in process, one page at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from streamlit.testing.v1 import AppTest

import dashboard

APP: Final = Path(dashboard.__file__).with_name("app.py")
PAGES: Final = ("overview", "timeline", "sweep", "selective", "layers", "memory", "what_if", "advise", "import_")


def open_page(monkeypatch: pytest.MonkeyPatch, root: Path, page: str, **address: str) -> AppTest:
    """The page over the captures of `root`, with these query parameters; fails the test if it raised."""
    monkeypatch.setattr("sys.argv", ["app.py", "--traces", str(root)])
    app = AppTest.from_file(str(APP), default_timeout=60)
    for name, value in address.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception, app.exception[0].value + "\n".join(app.exception[0].stack_trace)
    return app if page == "overview" else turn_to(app, page)


def turn_to(app: AppTest, page: str) -> AppTest:
    """Another page of an app that runs."""
    app.switch_page(f"views/{page}.py").run()
    assert not app.exception, app.exception[0].value + "\n".join(app.exception[0].stack_trace)
    return app


def texts(app: AppTest) -> list[str]:
    """Every piece of Markdown on the page and in the sidebar."""
    kinds = (app.title, app.header, app.markdown, app.caption, app.info, app.warning, app.error)
    return [element.value for kind in kinds for element in kind]


def said(app: AppTest) -> str:
    """All of it, unescaped."""
    return "\n".join(texts(app)).replace("\\", "")
