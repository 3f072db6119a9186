"""The admin API under uvicorn, called over HTTP."""

from __future__ import annotations

import sys

import httpx
import plain_http
import tidegate as tg
from admin_client import API_RULE, BASE, AdminService
from polling import eventually
from ports import free_port
from processes import running
from tidegate.rules.sql import SqlRules

SERVER = """
import sys, uvicorn
from tidegate.server.admin.app import create_admin
uvicorn.run(create_admin(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]),
            proxy_headers=False, log_level="error")
"""


def test_a_change_over_http_reaches_limiters_of_other_processes(any_service: AdminService) -> None:
    port = free_port()
    token = {"Authorization": f"Bearer {any_service.tokens['admin']}"}
    command = [sys.executable, "-c", SERVER, any_service.url, str(port)]
    with (
        running(command),
        plain_http.client(base_url=f"http://127.0.0.1:{port}{BASE}") as client,
        SqlRules(any_service.url, interval=0.1) as rules,
    ):

        def answers() -> bool:
            return client.get("/whoami", headers=token).status_code == 200

        eventually(answers, 60, despite=httpx.TransportError)
        assert client.get("/whoami").status_code == 401
        asked = {"json": {"rules": [API_RULE]}, "headers": token}
        assert client.post("/ratelimit/rules", **asked).status_code == 201
        limiter = tg.Limiter(rules=rules)
        eventually(lambda: limiter.peek(user="1", tier="free", endpoint="/api/x").limit == 10)
        for path in ("/users/..%2f..%2fetc", "/users/%FF", "/users/%00", "/users?tier=%FF"):
            assert client.get(path, headers=token).status_code == 400, path
        big = client.post("/tokens", content=b" " * (9 * 2**20), headers=token)
        assert big.status_code == 413
        assert client.get("/whoami", headers=token).status_code == 200
