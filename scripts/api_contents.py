"""What the pages of the Python API are, and what is on each of them; see render-api.py."""

from __future__ import annotations

from typing import NamedTuple


class Page(NamedTuple):
    """A page of the API: each of `names` is a public name, or a module with all that it exports."""

    file: str
    title: str
    about: str
    names: tuple[str, ...]


# By what a user does.
SECTIONS: dict[str, tuple[Page, ...]] = {
    "Limits in any code": (
        Page("limiters", "Limiters", "",
             ("tidegate.Limiter", "tidegate.Slot", "tidegate.BaseLimiter")),
        Page("plans", "Plans", "",
             ("tidegate.Plan", "tidegate.Reservation", "tidegate.UsageCost", "tidegate.usage_in")),
        Page("limits", "Limits and decisions", "",
             ("tidegate.Limit", "tidegate.parse", "tidegate.parse_many", "tidegate.Decision",
              "tidegate.Stats", "tidegate.replay", "tidegate.ManualClock", "tidegate.types",
              "tidegate.__version__")),
        Page("quotas", "Quotas", "[Quotas](../../quotas.md) explains them.",
             ("tidegate.quotas",)),
        Page("load", "Limits by load", "Lower limits while a service is overloaded: "
             "[Limits by load](../../howto/limits-by-load.md).", ("tidegate.load",)),
        Page("errors", "Errors", "",
             ("tidegate.TidegateError", "tidegate.ConfigurationError",
              "tidegate.ArgumentTypeError", "tidegate.StorageError",
              "tidegate.LimiterClosedError", "tidegate.RateLimitExceeded",
              "tidegate.ReservationError")),
    ),
    "Limits in a web service": (
        Page("web", "One decorator, one configuration", "For FastAPI, Starlette, Flask and Django: "
             "[In a web service](../../web.md).", ("tidegate.rate_limit", "tidegate.configure")),
        Page("keys", "Keys", "Who is counted: "
             "[Who is counted](../../web.md#who-is-counted).", ("tidegate.keys",)),
        Page("fastapi", "FastAPI and Starlette", "", ("tidegate.fastapi", "tidegate.starlette")),
        Page("flask", "Flask", "The extension: [In Flask](../../flask.md).", ("tidegate.flask",)),
        Page("django", "Django", "Middleware and decorator: [In Django](../../django.md).",
             ("tidegate.django",)),
        Page("middleware", "Middleware of ASGI and WSGI", "",
             ("tidegate.asgi", "tidegate.wsgi")),
    ),
    "Rules": (
        Page("rule-limiters", "Limiters with rules", "",
             ("tidegate.RuleLimiter", "tidegate.RuleSet")),
        Page("rules", "Rules", "Rules as objects, and their files: [Rules](../../rules.md).",
             ("tidegate.rules",)),
        Page("rules-in-a-database", "Rules in a database", "Rules, tiers, usage and violations: "
             "[Rules in a database](../../rules-in-a-database.md).",
             ("tidegate.rules.sql", "tidegate.rules.usage", "tidegate.rules.violations")),
    ),
    "Calls to APIs": (
        Page("outbound", "httpx and requests", "Calls that wait for their turn: "
             "[Calling APIs within their limits](../../outbound.md).",
             ("tidegate.httpx", "tidegate.requests")),
    ),
    "Looking at what happens": (
        Page("observability", "Metrics and refusals", "[Observability](../../observability.md) "
             "explains them.",
             ("tidegate.refusals", "tidegate.prometheus", "tidegate.opentelemetry")),
        Page("anomaly", "Anomalies", "Callers whose number of requests is unusual: "
             "[Anomaly detection](../../anomalies.md).", ("tidegate.anomaly",)),
    ),
    "Choosing a limit": (
        Page("tuning-logs", "Logs as columns", "[Reading logs](../../tuning-logs.md) explains it.",
             ("tidegate.tuning.read_log", "tidegate.tuning.Log", "tidegate.tuning.BadLine",
              "tidegate.tuning.Keys", "tidegate.tuning.as_keys", "tidegate.tuning.Frame")),
        Page("tuning", "Replays", "[Tuning](../../tuning.md) explains them.",
             ("tidegate.tuning.replay", "tidegate.tuning.Replay", "tidegate.tuning.Clients",
              "tidegate.tuning.compare", "tidegate.tuning.Comparison", "tidegate.tuning.Effect")),
        Page("tuning-recommend", "Recommendations", "[Choosing a limit](../../tuning-recommend.md) "
             "explains them.", ("tidegate.tuning",)),
        Page("tuning-plots", "Pictures, sliders and live services",
             "[Pictures, sliders and live services](../../tuning-plots.md) shows them.",
             ("tidegate.tuning.plots", "tidegate.tuning.widgets", "tidegate.tuning.live")),
        Page("tuning-traffic", "Generated traffic", "",
             ("tidegate.tuning.traffic",)),
    ),
    "Tests, and other libraries": (
        Page("testing", "Tests and fixtures", "[Test a service that has "
             "limits](../../howto/testing.md) shows them.",
             ("tidegate.testing", "tidegate.pytest_plugin")),
        Page("limits-package", "Storages of the limits package", "For programs that count with "
             "`limits`: [Coming from another limiter](../../migrate/index.md).",
             ("tidegate.limits",)),
    ),
}  # fmt: skip

# A class with many methods has them in groups; what is in none of them is in a last one.
GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "tidegate.Limiter": {
        "Decide": ("hit", "allow", "peek", "hit_many"),
        "Charge what was used": ("charge", "charge_up_to", "refund"),
        "Wait instead of being refused": ("acquire", "acquired", "slot"),
        "Start anew": ("reset", "forget"),
        "Quotas": ("quota_status", "top_up", "bring_forward"),
        "The limiter itself": ("limits", "storage", "stats", "ping", "close"),
    },
    "tidegate.RuleLimiter": {
        "Decide": ("check", "peek", "explain"),
        "Charge what was used": ("charge", "refund", "release"),
        "Start anew": ("reset", "forget"),
        "Quotas": ("quota_status", "top_up", "bring_forward"),
        "Its rules": ("rules", "use", "rule_stats", "violations"),
        "The limiter itself": ("storage", "stats", "ping", "close"),
    },
}

# What has no docstring of its own.
TEXTS = {"tidegate._core.__version__": 'The release of the package, such as `"0.1.0"`.'}
