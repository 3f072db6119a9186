"""Requests over HTTP without TLS.

For each client that may need them httpx reads the certificates of 150 authorities, which takes
30 ms. These clients need none.
"""

from __future__ import annotations

from typing import Any

import httpx


def request(method: str, url: str, *, timeout: float = 60, **more: Any) -> httpx.Response:
    return httpx.request(method, url, timeout=timeout, verify=False, **more)


def get(url: str, **more: Any) -> httpx.Response:
    return request("GET", url, **more)


def post(url: str, **more: Any) -> httpx.Response:
    return request("POST", url, **more)


def client(*, timeout: float = 60, **more: Any) -> httpx.Client:
    return httpx.Client(timeout=timeout, verify=False, **more)
