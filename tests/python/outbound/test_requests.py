"""The adapter of requests."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import tidegate as tg

requests = pytest.importorskip("requests")

from servers import wsgi_server  # noqa: E402
from tidegate.outbound import pacing  # noqa: E402
from tidegate.requests import RateLimitAdapter  # noqa: E402

URL = "http://api.example.org/tides"


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long adapters have slept, where nobody did."""
    waits: list[float] = []
    moved = SimpleNamespace(monotonic=lambda: sum(waits), sleep=waits.append)
    monkeypatch.setattr(pacing, "time", moved)
    return waits


class Answering(requests.adapters.BaseAdapter):
    """Gives these answers in turn, the last one for ever, and keeps the bodies it was sent."""

    def __init__(self, *answers: tuple[int, dict[str, str]]) -> None:
        super().__init__()
        self.answers = list(answers)
        self.bodies: list[Any] = []
        self.closed = 0

    def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        body = request.body
        if hasattr(body, "read"):
            body = body.read()
        elif body is not None and not isinstance(body, (str, bytes)):
            body = b"".join(body)
        self.bodies.append(body)
        response = requests.Response()
        status, headers = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        response.status_code = status
        response.headers.update(headers)
        response.raw = io.BytesIO(b"")
        response.request, response.url = request, request.url
        return response

    def close(self) -> None:
        self.closed += 1


def session(beneath: Any, **options: Any) -> Any:
    one = requests.Session()
    one.mount("http://", RateLimitAdapter(beneath, **{"jitter": 0, **options}))
    return one


def test_a_refusal_is_waited_out(waits: list[float]) -> None:
    beneath = Answering((429, {"Retry-After": "2"}), (429, {"RateLimit": '"a";r=0;t=3'}), (200, {}))
    assert session(beneath).get(URL).status_code == 200
    assert waits == [2.0, 3.0]


def test_it_gives_up_after_the_retries_and_before_long_waits(waits: list[float]) -> None:
    assert session(Answering((429, {"retry-after": "1"})), retries=2).get(URL).status_code == 429
    assert waits == [1.0, 1.0]
    assert session(Answering((429, {"retry-after": "100"}))).get(URL).status_code == 429
    assert len(waits) == 2


def test_bodies_are_sent_again_as_they_were(waits: list[float]) -> None:
    def once() -> Iterator[bytes]:
        yield b"ebb"

    for body in (b"ebb", "ebb", io.BytesIO(b"ebb")):
        beneath = Answering((429, {"retry-after": "1"}), (200, {}))
        assert session(beneath).post(URL, data=body).status_code == 200
        assert [
            bytes(each, "ascii") if isinstance(each, str) else each for each in beneath.bodies
        ] == [b"ebb"] * 2
    beneath = Answering((429, {"retry-after": "1"}), (200, {}))
    assert session(beneath).post(URL, data=once()).status_code == 429
    assert beneath.bodies == [b"ebb"]
    assert len(waits) == 3


def test_each_attempt_waits_for_its_turn(waits: list[float]) -> None:
    limiter = tg.Limiter("2/minute", clock=tg.ManualClock())
    one = session(Answering((429, {"retry-after": "1"}), (200, {})), limiter=limiter, timeout=0)
    assert one.get(URL).status_code == 200
    assert limiter.peek("api.example.org").remaining == 0
    with pytest.raises(tg.RateLimitExceeded):
        one.get(URL)


def test_before_a_real_service(waits: list[float]) -> None:
    from tidegate.wsgi import RateLimitMiddleware

    clock = tg.ManualClock(1_700_000_000 * 10**9)

    def hello(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Length", "5")])
        return [b"hello"]

    with wsgi_server(RateLimitMiddleware(hello, limit="1/minute", clock=clock)) as client:
        address = f"http://{client._connection.host}:{client._connection.port}"
        with requests.Session() as one:
            one.mount("http://", RateLimitAdapter(jitter=0, retries=2))
            assert one.get(address).content == b"hello"
            refused = one.get(address)
    assert (refused.status_code, refused.json()["retry_after"]) == (429, 60)
    # One before it is sent, since the first answer says that nothing is left; two after refusals.
    assert waits == [60.0] * 3


def test_closing_closes_what_is_beneath() -> None:
    beneath = Answering((200, {}))
    with session(beneath):
        pass
    assert beneath.closed == 1


def test_a_session_can_be_pickled() -> None:
    one = pickle.loads(pickle.dumps(session(None)))
    assert isinstance(one.get_adapter(URL), RateLimitAdapter)


def test_wrong_options_are_refused_at_construction() -> None:
    with pytest.raises(tg.ConfigurationError, match="retries is -1"):
        RateLimitAdapter(retries=-1)
    with pytest.raises(tg.ConfigurationError, match="expected an adapter of requests"):
        RateLimitAdapter("https://api.example.org")
