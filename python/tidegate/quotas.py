"""Quotas: units of calendar periods, with rollover and top-ups.

    from tidegate.quotas import Quota

    limiter = tidegate.Limiter(Quota(10_000, period="month", rollover=5_000))
    limiter.hit("user:42", cost=3)
    limiter.quota_status("user:42").available

The page "Quotas" of the documentation says what counts when.
"""

from tidegate.limiter.quotas.quota import Quota, Rollover
from tidegate.limiter.quotas.status import QuotaGrant, QuotaStatus
from tidegate.limiter.quotas.watch import QuotaEvent, QuotaWatch

__all__ = ["Quota", "QuotaEvent", "QuotaGrant", "QuotaStatus", "QuotaWatch", "Rollover"]
