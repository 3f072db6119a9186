"""Quotas, where newcomers look for them."""

raise ModuleNotFoundError(
    "there is no tidegate.quota; expected `from tidegate.quotas import Quota`",
    name="tidegate.quota",
)
