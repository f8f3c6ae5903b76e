"""The server that `hprof dashboard` starts: Streamlit's, behind a look at the name that a browser called it by.

A page elsewhere can have a name of its own lead to this machine (DNS rebinding); its scripts would then be "the same
origin" and read the captures. Their requests still carry that name, and are refused.
"""

from __future__ import annotations

import ipaddress
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import streamlit as st
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit import config

from dashboard.cli import OPENS_BROWSER

ALWAYS_ALLOWED: Final = ("localhost",)


_SHORTENING: Final = (b"accept-encoding", b"if-none-match", b"if-modified-since")


class KnownNames:
    """Refuses requests whose Host header is neither an address in numbers nor one of `names`.

    Numbers need no leave: nobody's name can lead here under them.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str]) -> None:
        self._app = app
        self._names = {name.lower().rstrip(".") for name in (*ALWAYS_ALLOWED, *names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request or WebSocket; others than those pass."""
        name = host_of(scope) if scope["type"] in ("http", "websocket") else None
        if name is None or name in self._names or is_numbers(name):
            await self._app(scope, receive, send)
            return
        said = f"The dashboard is not to be called by this name; start it with `hprof dashboard --allow-host {name}`.\n"
        await PlainTextResponse(said, status_code=400)(scope, receive, send)


class WithScript:
    """Puts a script of ours into the page, before Streamlit's: it must be there before the first address is written."""

    def __init__(self, app: ASGIApp, path: Path) -> None:
        self._app = app
        self._tag = f"<script>{path.read_text(encoding='utf-8')}</script>".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; what is no page passes as it is."""
        if scope["type"] != "http" or b"text/html" not in dict(scope["headers"]).get(b"accept", b""):
            await self._app(scope, receive, send)
            return
        # whole and as plain text: one that the browser kept has perhaps no script, or an older one
        asked = [pair for pair in scope["headers"] if pair[0] not in _SHORTENING]
        start: Message | None = None
        parts: list[bytes] = []

        async def send_changed(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and _is_html(message):
                start = message  # its length is known with the last part
            elif start is None or message["type"] != "http.response.body":
                await send(message)
            else:
                parts.append(message.get("body", b""))
                if not message.get("more_body"):
                    body = b"".join(parts).replace(b"<head>", b"<head>" + self._tag, 1)
                    headers = [pair for pair in start["headers"] if pair[0].lower() != b"content-length"]
                    await send({**start, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
                    await send({"type": "http.response.body", "body": body})

        await self._app({**scope, "headers": asked}, receive, send_changed)


def _is_html(start: Message) -> bool:
    return any(name.lower() == b"content-type" and value.startswith(b"text/html") for name, value in start["headers"])


def host_of(scope: Scope) -> str:
    """The name in the Host header, without the port; empty where there is none."""
    found = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1").strip().lower()
    if found.startswith("["):
        return found[1:].partition("]")[0]
    return found.partition(":")[0].rstrip(".")


def is_numbers(name: str) -> bool:
    """Whether this is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def allowed_names(words: Sequence[str]) -> list[str]:
    """The names that `hprof dashboard` passed on as `--allow-host`."""
    return [word for flag, word in pairwise(words) if flag == "--allow-host"]


@asynccontextmanager
async def _with_browser(_: Any) -> AsyncIterator[None]:
    """Opens the browser where one is wanted; the socket is there already, and answers when the server does."""
    if OPENS_BROWSER in sys.argv:
        address = f"http://{config.get_option('browser.serverAddress')}:{config.get_option('server.port')}"
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    yield


app = st.App(
    str(Path(__file__).with_name("app.py")),
    middleware=[
        Middleware(KnownNames, names=allowed_names(sys.argv)),
        Middleware(WithScript, path=Path(__file__).with_name("history.js")),
    ],
    lifespan=_with_browser,
)
