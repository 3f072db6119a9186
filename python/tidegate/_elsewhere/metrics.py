"""Metrics, where newcomers look for them."""

raise ModuleNotFoundError(
    "there is no tidegate.metrics; expected `from tidegate.prometheus import RateLimitCollector`, "
    "or `from tidegate.opentelemetry import instrument`",
    name="tidegate.metrics",
)
