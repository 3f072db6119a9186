"""Tokens of an OpenID Connect issuer: accepted, refused, and while the issuer does not answer."""

from __future__ import annotations

import contextlib
import http.server
import json
import queue
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
import tidegate as tg
from admin_client import AdminService
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from polling import eventually
from tidegate.server.admin import oidc as oidc_module
from tidegate.server.admin.app import create_admin
from tidegate.server.admin.oidc import Oidc, OidcError
from tidegate.server.settings import Settings

AUDIENCE = "tidegate"
ROLES = {"ops": "operator", "root": "admin", "look": "viewer"}


class Issuer:
    """An issuer on loopback, with one RSA key at the beginning."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {}
        self.add("one", rsa.generate_private_key(public_exponent=65537, key_size=2048))
        self.asked = 0
        self.answers_now = threading.Event()
        self.answers_now.set()
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                issuer.answers_now.wait(60)
                body = json.dumps(issuer.answers[self.path]).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def add(self, kid: str, key: Any) -> None:
        self.keys[kid] = key

    @property
    def answers(self) -> dict[str, Any]:
        keys = []
        for kid, key in self.keys.items():
            algorithm: Any = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
            said = json.loads(algorithm.to_jwk(key.public_key()))
            keys.append({**said, "kid": kid, "use": "sig"})
        return {
            "/.well-known/openid-configuration": {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/keys",
            },
            "/keys": {"keys": keys},
        }

    def sign(self, kid: str = "one", algorithm: str = "RS256", **claims: Any) -> str:
        given = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "ada",
            "exp": time.time() + 600,
            "roles": ["ops"],
            **claims,
        }
        given = {name: value for name, value in given.items() if value is not None}
        return jwt.encode(given, self.keys[kid], algorithm=algorithm, headers={"kid": kid})

    def stop(self) -> None:
        self.answers_now.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.stop()


class Moments:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def _with(service: AdminService, oidc: Oidc) -> AdminService:
    service.app = create_admin(service.url, oidc=oidc, now=service.clock)
    return service


def test_a_token_of_the_issuer_has_the_role_of_its_claim(
    service: AdminService, issuer: Issuer
) -> None:
    _with(service, Oidc(issuer.url, AUDIENCE, roles=ROLES))
    me = service.ask("GET", "/whoami", token=issuer.sign())
    assert me.json() == {"name": "oidc:ada", "role": "operator"}
    highest = issuer.sign(roles=["look", "root", "other"])
    assert service.ask("GET", "/whoami", token=highest).json()["role"] == "admin"
    assert service.ask("GET", "/whoami", token=issuer.sign(roles="look")).json()["role"] == "viewer"
    assert service.ask("GET", "/whoami").json()["role"] == "admin", "tokens of the database too"
    assert issuer.asked == 2, "the keys are kept"


def test_a_token_without_a_role_is_forbidden_and_no_wrong_token(
    service: AdminService, issuer: Issuer
) -> None:
    _with(service, Oidc(issuer.url, AUDIENCE, roles=ROLES))
    token = issuer.sign(roles=None)
    assert {service.ask("GET", "/whoami", token=token).status_code for _ in range(12)} == {403}
    assert service.ask("GET", "/whoami", token="tg_wrong").status_code == 401


def test_the_claim_of_roles_has_one_default(issuer: Issuer) -> None:
    settings = Settings(admin={"oidc": {"issuer": issuer.url, "audience": AUDIENCE}}).admin.oidc
    assert settings is not None
    assert settings.role_claim == Oidc(issuer.url, AUDIENCE)._claim


def test_a_claim_names_the_user_and_users_need_no_role(issuer: Issuer) -> None:
    oidc = Oidc(issuer.url, AUDIENCE, user_claim="account", roles=ROLES)
    token = issuer.sign(roles=None, account="42")
    user = oidc.actor_of(token, None, needs_role=False)
    assert (user.name, user.role, user.user) == ("oidc:ada", "user", "42")
    with pytest.raises(OidcError, match="no role"):
        oidc.actor_of(token, None)
    for account in (None, "", 42, ["42"], "a\0b", "\ud800", "x" * 256):
        with pytest.raises(OidcError, match="no role"):
            oidc.actor_of(issuer.sign(roles=None, account=account), None, needs_role=False)


def test_a_claim_may_lie_inside_another(service: AdminService, issuer: Issuer) -> None:
    _with(service, Oidc(issuer.url, AUDIENCE, role_claim="realm_access.roles", roles=ROLES))
    token = issuer.sign(roles=None, realm_access={"roles": ["root"]})
    assert service.ask("GET", "/whoami", token=token).json()["role"] == "admin"
    assert service.ask("GET", "/whoami", token=issuer.sign()).status_code == 403


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "other"},
        {"aud": None},
        {"iss": "https://evil.example"},
        {"iss": None},
        {"exp": 1},
        {"exp": None},
        {"sub": None},
        {"sub": ""},
        {"sub": "a\0b"},
        {"sub": "\ud800"},
        {"nbf": time.time() + 3600},
    ],
)
def test_unexpected_claims_are_refused(
    service: AdminService, issuer: Issuer, claims: dict[str, Any]
) -> None:
    _with(service, Oidc(issuer.url, AUDIENCE, roles=ROLES))
    answer = service.ask("GET", "/whoami", token=issuer.sign(**claims))
    assert answer.status_code == 401, answer.text


@pytest.mark.parametrize("roles", [[], None, "nobody", {"ops": True}, [["ops"], 1, None]], ids=repr)
def test_a_claim_without_a_role_of_the_service_is_forbidden(
    service: AdminService, issuer: Issuer, roles: Any
) -> None:
    _with(service, Oidc(issuer.url, AUDIENCE, roles=ROLES))
    answer = service.ask("GET", "/whoami", token=issuer.sign(roles=roles))
    assert answer.status_code == 403, answer.text


def test_signatures_of_others_than_the_issuer_are_refused(
    service: AdminService, issuer: Issuer
) -> None:
    _with(service, Oidc(issuer.url, AUDIENCE, roles=ROLES))
    claims = jwt.decode(issuer.sign(), options={"verify_signature": False})
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    unsigned = jwt.encode(claims, None, algorithm="none", headers={"kid": "one"})
    secret = jwt.encode(claims, "x" * 64, algorithm="HS256", headers={"kid": "one"})
    foreign = jwt.encode(claims, other, algorithm="RS256", headers={"kid": "one"})
    no_key = jwt.encode(claims, issuer.keys["one"], algorithm="RS256")
    head, body, signature = issuer.sign().split(".")
    cut = f"{head}.{body}."
    for token in (unsigned, secret, foreign, no_key, cut, f"{head}.{body}", "a.b.c", "a" * 5000):
        assert service.ask("GET", "/whoami", token=token, address="::1").status_code in (401, 429)
        assert service.ask("GET", "/whoami", token=signature).status_code in (401, 429)


def test_a_new_key_is_fetched_but_not_each_unknown_id_causes_a_fetch(
    service: AdminService, issuer: Issuer
) -> None:
    moments = Moments()
    _with(service, Oidc(issuer.url, AUDIENCE, roles=ROLES, clock=moments))
    assert service.ask("GET", "/whoami", token=issuer.sign()).status_code == 200
    before = issuer.asked
    issuer.add("two", ec.generate_private_key(ec.SECP256R1()))
    token = issuer.sign("two", "ES256")
    for _ in range(3):
        assert service.ask("GET", "/whoami", token=token).status_code == 401
    assert issuer.asked == before
    moments.at += 30
    assert service.ask("GET", "/whoami", token=token).json()["role"] == "operator"
    assert issuer.asked == before + 1


def _accepted(service: AdminService, issuer: Issuer) -> tuple[Moments, str]:
    """The clock of a service that trusts the issuer, and a token that it has accepted."""
    moments = Moments()
    _with(service, Oidc(issuer.url, AUDIENCE, roles=ROLES, clock=moments))
    token = issuer.sign()
    assert service.ask("GET", "/whoami", token=token).status_code == 200
    return moments, token


def test_keys_that_the_issuer_has_dropped_are_forgotten(
    service: AdminService, issuer: Issuer
) -> None:
    moments, token = _accepted(service, issuer)
    issuer.keys = {"two": rsa.generate_private_key(public_exponent=65537, key_size=2048)}
    moments.at += 300
    # The old keys stay valid during the new fetch.
    eventually(lambda: service.ask("GET", "/whoami", token=token).status_code in (401, 429))


def test_a_dead_issuer_delays_requests_only_briefly(service: AdminService) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        _with(service, Oidc(url, AUDIENCE, roles=ROLES))
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        token = jwt.encode({"sub": "a"}, key, algorithm="RS256", headers={"kid": "one"})
        answer = service.ask("GET", "/whoami", token=token)
        assert answer.status_code == 503
        assert "does not answer" in answer.json()["detail"]
        assert service.ask("GET", "/whoami").status_code == 200, "other tokens work"


def test_few_requests_wait_for_a_silent_issuer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oidc_module, "_PATIENCE", 60.0)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        oidc = Oidc(url, AUDIENCE, roles=ROLES)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        token = jwt.encode({"sub": "a"}, key, algorithm="RS256", headers={"kid": "one"})
        ended: queue.Queue[str] = queue.Queue()

        def ask() -> None:
            with pytest.raises(OidcError) as caught:
                oidc.actor_of(token, None)
            ended.put(str(caught.value) if caught.value.is_outage else "no outage")

        threads = [threading.Thread(target=ask) for _ in range(20)]
        for thread in threads:
            thread.start()
        most = oidc_module._MOST_WAITING
        refused = [ended.get(timeout=30) for _ in range(20 - most)]
        assert {"too many requests wait for the issuer"} == set(refused)
        silent.accept()[0].close()  # the issuer has failed, so the fetch ends
        for thread in threads:
            thread.join(30)
        assert ended.qsize() == most


def test_known_keys_stay_valid_while_the_issuer_does_not_answer(
    service: AdminService, issuer: Issuer
) -> None:
    moments, token = _accepted(service, issuer)
    issuer.stop()
    moments.at += 10_000
    for _ in range(3):
        assert service.ask("GET", "/whoami", token=token).status_code == 200


def test_a_new_key_is_no_wrong_token_while_the_issuer_does_not_answer(
    service: AdminService, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments, token = _accepted(service, issuer)
    asked = issuer.asked
    issuer.add("two", rsa.generate_private_key(public_exponent=65537, key_size=2048))
    new = issuer.sign("two")

    def is_outage() -> bool:
        answer = service.ask("GET", "/whoami", token=new)
        return (answer.status_code, answer.headers.get("Retry-After")) == (503, "30")

    issuer.answers_now.clear()
    moments.at += 30
    monkeypatch.setattr(oidc_module, "_PATIENCE", 0.01)
    assert all(is_outage() for _ in range(12)), "the fetch is under way"
    with monkeypatch.context() as patched:
        patched.setattr(Issuer, "answers", {"/keys": "no keys"})
        issuer.answers_now.set()
        eventually(lambda: not _fetches())
    assert all(is_outage() for _ in range(12)), "the fetch has failed"
    assert issuer.asked == asked + 1
    assert service.ask("GET", "/whoami", token=token).status_code == 200
    assert service.ask("GET", "/whoami", token="tg_wrong").status_code == 401, "not locked out"
    moments.at += 30
    eventually(lambda: service.ask("GET", "/whoami", token=new).status_code == 200)
    assert issuer.asked == asked + 2


def _fetches() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "tidegate OIDC keys"]


@pytest.mark.parametrize("patience", [0.01, 60.0], ids=["silent", "slow"])
def test_requests_at_once_with_an_unknown_key_get_the_answer_of_one_fetch(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    moments = Moments()
    oidc = Oidc(issuer.url, AUDIENCE, roles=ROLES, clock=moments)
    oidc.actor_of(issuer.sign(), None)
    asked = issuer.asked
    issuer.add("two", rsa.generate_private_key(public_exponent=65537, key_size=2048))
    token = issuer.sign("two")
    del issuer.keys["two"]
    issuer.answers_now.clear()
    moments.at += 30
    monkeypatch.setattr(oidc_module, "_PATIENCE", patience)
    outages: queue.Queue[bool] = queue.Queue()

    def ask() -> None:
        with pytest.raises(OidcError) as caught:
            oidc.actor_of(token, None)
        outages.put(caught.value.is_outage)

    threads = [threading.Thread(target=ask) for _ in range(oidc_module._MOST_WAITING)]
    for thread in threads:
        thread.start()
    is_silent = patience < 1
    if is_silent:
        for thread in threads:
            thread.join(30)
    issuer.answers_now.set()
    for thread in threads:
        thread.join(30)
    assert [outages.get_nowait() for _ in threads] == [is_silent] * len(threads)
    assert issuer.asked == asked + 1
    eventually(lambda: not _fetches())
    with pytest.raises(OidcError, match="does not have"):
        oidc.actor_of(token, None)


def test_discovery_of_another_issuer_is_refused(service: AdminService, issuer: Issuer) -> None:
    oidc = Oidc(f"{issuer.url}/", AUDIENCE, roles=ROLES)  # the issuer's own URL has no slash
    answer = _with(service, oidc).ask("GET", "/whoami", token=issuer.sign(iss=f"{issuer.url}/"))
    assert answer.status_code == 503


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"issuer": "http://issuer.example"}, "https"),
        ({"issuer": "issuer.example"}, "https"),
        ({"issuer": "file:///etc/passwd"}, "https"),
        ({"jwks_url": "file:///etc/passwd"}, "jwks_url"),
        ({"audience": ""}, "audience"),
        ({"roles": {"x": "root"}}, "'root'"),
    ],
)
def test_impossible_settings_of_an_issuer_are_named(
    arguments: dict[str, Any], message: str
) -> None:
    given = {"issuer": "https://issuer.example", "audience": AUDIENCE, **arguments}
    with pytest.raises(tg.ConfigurationError, match=message):
        Oidc(**given)
