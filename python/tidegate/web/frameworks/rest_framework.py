"""Limits views of Django REST framework by its throttles, which run once the user is known."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from tidegate.limiter.errors import ConfigurationError
from tidegate.limiter.limit import as_limits
from tidegate.web.active_limits import refuse_places
from tidegate.web.callables import check_synchronous
from tidegate.web.decisions import GRANTED, binding
from tidegate.web.execution import BLOCKING
from tidegate.web.named_keys import key_function
from tidegate.web.options import charged_methods
from tidegate.web.request_limiter import RequestDecision, RequestLimiter
from tidegate.web.settings import Settings
from tidegate.web.shared_counters import check_scope

__all__ = ["Throttle", "refuse_api_view"]

# The key under which META holds the decisions of throttles on a request.
_DECIDED = "tidegate.throttles"


class Throttle:
    """What is the same in all throttles; `settings` and `is_enabled` are those of the project."""

    limit: Any = None
    """A limit, or a function of the request that returns one."""
    key: Any = "user_or_ip"
    """Whom requests are charged to, as the option of rate_limit()."""
    cost: Any = 1
    """The units that a request charges, or a function of it."""
    exempt_when: Any = None
    """A function that returns true for requests that are not charged."""
    methods: Any = None
    """The methods of the requests that are charged; None for all."""
    scope: str | None = None
    """The name under which the views of this class count."""

    _counts_by_view = False
    _limiters: ClassVar[dict[tuple[type, str], tuple[Any, RequestLimiter]]] = {}

    def __init__(self) -> None:
        self._refusal: RequestDecision | None = None

    @staticmethod
    def project_settings() -> Settings:
        raise NotImplementedError

    @staticmethod
    def is_enabled() -> bool:
        raise NotImplementedError

    def allow_request(self, request: Any, view: Any) -> bool:
        """Charges the request; returns whether it may pass. REST framework calls it."""
        earlier: list[RequestDecision] | None = request.META.setdefault(_DECIDED, [])
        if earlier is None or not self.is_enabled():  # another throttle has refused the request
            return True
        try:
            outcome = self._limiter(view).check(request, BLOCKING)
        except Exception:
            self._undo(request, earlier)
            raise
        if outcome is None:
            return True
        if outcome.decision.allowed:
            earlier.append(outcome)
            view.headers.update(binding(earlier).text_fields())
            return True
        self._undo(request, earlier)
        self._refusal = outcome
        view.headers.update(outcome.text_fields())
        return False

    def wait(self) -> float | None:
        """Returns the seconds to wait after a refusal, None if no wait helps."""
        return None if self._refusal is None else self._refusal.wait

    def _undo(self, request: Any, earlier: list[RequestDecision]) -> None:
        """Gives back what this request was charged by other throttles and the middleware."""
        request.META[_DECIDED] = None
        for granted in (*request.META.pop(GRANTED, ()), *earlier):
            BLOCKING.run(granted.undo(BLOCKING))

    def _limiter(self, view: Any) -> RequestLimiter:
        kind = type(self)
        scope = kind._scope_in(view)
        settings = self.project_settings()
        known = self._limiters.get((kind, scope))
        if known is None or known[0] is not settings:
            limiter = settings.limiter(
                kind.limit,
                scope,
                key=key_function(kind.key),
                cost=kind.cost,
                cost_after=None,
                exempt_when=kind.exempt_when,
                methods=charged_methods(kind.methods),
                on_refused=None,
            )
            known = self._limiters[kind, scope] = settings, limiter
        return known[1]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.limit is not None and not callable(cls.limit):
            refuse_places(as_limits(cls.limit, "token-bucket"), "a throttle")
        key_function(cls.key)
        charged_methods(cls.methods)
        check_scope(cls.scope)
        check_synchronous(limit=cls.limit, key=cls.key, cost=cls.cost, exempt_when=cls.exempt_when)

    @classmethod
    def _scope_in(cls, view: Any) -> str:
        if cls.limit is None:
            raise ConfigurationError(
                f"the throttle {cls.__module__}.{cls.__qualname__} has no limit; expected a class "
                "with a limit, such as class Throttle(RateThrottle): limit = '100/minute', or "
                "throttle('100/minute')"
            )
        owner = type(view) if cls._counts_by_view else cls
        return cls.scope or f"{owner.__module__}.{owner.__name__}"


def refuse_api_view(view: Any) -> None:
    """Raises ConfigurationError for a view that `@api_view` made: its user is known only inside."""
    kind: Any = getattr(view, "cls", None)
    views: Any = sys.modules.get("rest_framework.views")
    if views is None or not isinstance(kind, type) or not issubclass(kind, views.APIView):
        return
    if kind.__qualname__ == "WrappedAPIView":
        raise ConfigurationError(
            f"@rate_limit stands above @api_view on {kind.__name__}, which authenticates, so "
            "the limit would see no user; expected @rate_limit below @api_view, or "
            "@throttle_classes([tidegate.django.throttle(...)])"
        )
