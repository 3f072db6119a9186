"""docs/howto/fastapi.md: its program does what its sections say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tidegate as tg
from tidegate.testing import assert_allowed, assert_refused, configured, reset_all

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "fastapi.md"


@pytest.fixture(scope="module")
def program() -> Iterator[dict[str, Any]]:
    text = PAGE.read_text(encoding="utf-8")
    # Time stands still: its limits have a clock of the test.
    text = re.sub(
        r'(rate_limit\("[^"]+"|tg.Limiter\("[^"]+"|limit="[^"]+")', r"\1, clock=clock", text
    )
    clock = tg.ManualClock(1_700_000_000 * 10**9)
    namespace: dict[str, Any] = {"__name__": "answers", "clock": clock}
    with configured():
        for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            # The decorator reads its module's source, so lines must keep their numbers.
            above = "\n" * text.count("\n", 0, match.start(1))
            exec(compile(above + match[1], str(PAGE), "exec"), namespace)
        yield namespace


@pytest.fixture(autouse=True)
def _anew() -> None:
    reset_all()


def client(app: Any, address: str = "203.0.113.9") -> TestClient:
    async def from_address(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "client": (address, 5000)}, receive, send)

    return TestClient(from_address)


def sign_in(app: Any, name: str, address: str = "203.0.113.9") -> Any:
    return client(app, address).post("/sign-in", json={"name": name})


def test_names_and_addresses_have_counts_of_their_own(program: dict[str, Any]) -> None:
    app = program["app"]
    for number in range(5):
        assert_allowed(sign_in(app, "ann", f"203.0.113.{number}"))
    refused = sign_in(app, "ann", "203.0.113.77")
    assert_refused(refused, limit="5/minute")
    assert refused.json() == {"error": "too many requests", "retry_after": 12}
    for number in range(20):
        assert_allowed(sign_in(app, f"guess-{number}"))
    assert_refused(sign_in(app, "guess-20"), limit="20/minute")


def test_a_pair_of_address_and_name_has_one_count(program: dict[str, Any]) -> None:
    def ask(name: str, address: str) -> Any:
        return client(program["app"], address).post("/reset-password", json={"name": name})

    for _ in range(3):
        assert_allowed(ask("ann", "203.0.113.9"))
    assert_refused(ask("ann", "203.0.113.9"), limit="3/hour")
    assert_allowed(ask("ann", "203.0.113.10"))
    assert_allowed(ask("bob", "203.0.113.9"))


def test_the_user_of_a_dependency_is_counted(program: dict[str, Any]) -> None:
    orders = client(program["app"])
    for _ in range(2):
        assert orders.get("/orders", headers={"token": "token-of-ann"}).json() == "ann"
    assert_refused(orders.get("/orders", headers={"token": "token-of-ann"}), limit="2/minute")
    assert_allowed(orders.get("/orders", headers={"token": "token-of-bob"}))


def test_an_exempt_path_is_neither_refused_nor_charged(program: dict[str, Any]) -> None:
    service = client(program["app"])
    answers = [service.get("/health") for _ in range(101)]
    assert {answer.status_code for answer in answers} == {200}
    assert not any("ratelimit" in answer.headers for answer in answers)
    assert [service.get("/nowhere").status_code for _ in range(101)] == [404] * 100 + [429]


def test_a_handler_answers_with_all_fields(program: dict[str, Any]) -> None:
    shop = client(program["shop"])
    assert_allowed(shop.get("/price"))
    refused = shop.get("/price")
    assert (refused.status_code, refused.text) == (429, "Please wait 60 s.")
    assert refused.headers["retry-after"] == "60"
    assert "ratelimit" in refused.headers


def test_a_client_is_unlocked(program: dict[str, Any]) -> None:
    shop = client(program["shop"])
    assert_allowed(shop.get("/sign-out"))
    assert_refused(shop.get("/sign-out"), limit="1/hour")
    program["unlock"]("203.0.113.10")
    assert_refused(shop.get("/sign-out"), limit="1/hour")
    program["unlock"]("203.0.113.9")
    assert_allowed(shop.get("/sign-out"))


def test_the_page_has_the_prefix_of_a_route_without_a_scope() -> None:
    """As in ``tg:shop.routes.sign_out``."""

    def sign_out() -> str:
        return "bye"

    from fastapi import FastAPI

    sign_out.__module__, sign_out.__qualname__ = "shop.routes", "sign_out"
    clock = tg.ManualClock(1_700_000_000 * 10**9)
    counts = tg.Limiter("1/hour", prefix="tg:shop.routes.sign_out", clock=clock)
    app = FastAPI()
    app.get("/sign-out")(tg.rate_limit("1/hour", storage=counts.storage, clock=clock)(sign_out))
    shop = client(app)
    assert_allowed(shop.get("/sign-out"))
    assert_refused(shop.get("/sign-out"))
    counts.reset("203.0.113.9")
    assert_allowed(shop.get("/sign-out"))
