"""Applies limits to one application of Flask."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, Protocol

import flask

from tidegate.web.combined import combined
from tidegate.web.decisions import DECISIONS, GRANTED, binding, grant
from tidegate.web.execution import BLOCKING
from tidegate.web.frameworks.calls import flask_refusal
from tidegate.web.frameworks.flask_cli import blueprints_of
from tidegate.web.frameworks.flask_headers import leave
from tidegate.web.frameworks.flask_views import MARK, UNREACHED, marks_of, settle_now
from tidegate.web.frameworks.streams import closing_then
from tidegate.web.meta_limit import MetaLimit
from tidegate.web.refusal import USUAL
from tidegate.web.rule_requests import RuleRequests

if TYPE_CHECKING:
    from tidegate.limiter.rule_limiter import RuleLimiter
    from tidegate.web.frameworks.flask_views import LimitedView, PlacedLimit
    from tidegate.web.request_limiter import Checks, RequestDecision, RequestLimiter
    from tidegate.web.settings import Settings

    # What checks the requests for an endpoint, the views that it checks, and those of them whose
    # cost is known after the call.
    _Checked = tuple[Checks | None, list[LimitedView], list[LimitedView]]

__all__ = ["DECISION", "LimitedApp"]

# The keys under which a request keeps its decision, and those of its views.
DECISION = "tidegate.decision"
_VIEWS = "tidegate.views"


class Extension(Protocol):
    """The settings of tidegate.flask.RateLimiter for all of its applications."""

    enabled: bool
    of_blueprints: list[tuple[flask.Blueprint, PlacedLimit]]

    def is_exempt(self, view: Any, blueprints: list[Any]) -> bool: ...


class LimitedApp:
    """The limits of one application. `error` makes the exception that a refusal raises."""

    def __init__(
        self,
        app: flask.Flask,
        extension: Extension,
        settings: Settings,
        error: Callable[[RequestDecision], Exception],
    ) -> None:
        self._app = weakref.ref(app)
        self._config = app.config
        self._extension = extension
        self._enabled = extension.enabled
        self._error = error
        self.read(settings)

    def read(self, settings: Settings) -> None:
        """Makes the limits, with `settings`."""
        self._settings = settings
        self._by_rules = settings.rule_requests()
        self._everywhere = (
            None
            if settings.limit is None
            else settings.limiter(settings.limit, "app", cost=settings.cost)
        )
        if settings.endpoint_limit is not None:
            settings.limiter(settings.endpoint_limit, "endpoint:")
        self._meta = (
            None
            if settings.meta_limit is None
            else MetaLimit(settings.limiter(settings.meta_limit, "meta"))
        )
        self._limiters: weakref.WeakKeyDictionary[PlacedLimit, RequestLimiter] = (
            weakref.WeakKeyDictionary()
        )
        # The keys are endpoints and methods; the application's routes bound their number.
        self._plans: dict[tuple[str | None, str, bool], _Checked] = {}

    def limiter_of(self, placed: PlacedLimit) -> RequestLimiter:
        """Returns the limiter of `placed` in this application."""
        limiter = self._limiters.get(placed)
        if limiter is None:
            limiter = self._settings.limiter(placed.limit, placed.scope, **placed.options)
            self._limiters[placed] = limiter
        return limiter

    def rules_for(self, endpoint: str | None) -> RuleLimiter | None:
        """Returns the limiter with rules that requests for an endpoint meet, if there is one."""
        if self._by_rules is None or self._is_left_out(endpoint):
            return None
        return self._by_rules.limiter

    def check(self) -> Any:
        """Refuses the request that begins, or lets it pass by returning None."""
        request = flask.request._get_current_object()  # type: ignore[attr-defined]
        if request.method in self._settings.exempt_methods or not self._is_enabled():
            return self._check_exempt(request)
        endpoint = request.endpoint
        # Requests that no route matches may name any method, so it is left out.
        is_exempt = self._settings.exempt_paths is not None and self._is_exempt_path(request)
        which = (endpoint, "" if endpoint is None else request.method, is_exempt)
        limits, views, settling = self._plans.get(which) or self._plan(*which)
        rules = self._by_rules
        has_more = rules is not None or self._meta is not None
        if has_more and not is_exempt and not self._is_left_out(endpoint):
            return self._charge(limits, views, request, self._meta, rules, settling)
        return None if limits is None else self._charge(limits, views, request, settling=settling)

    def enter(
        self, view: LimitedView, request: flask.Request
    ) -> tuple[Any, RequestDecision | None]:
        """Returns the answer that replaces a call of `view`, or the outcome that allows the call.

        A view was not checked before if another decorator hides it, or if another view calls it.
        """
        checked = request.environ.get(_VIEWS, {})
        if view not in checked:
            placed = self._placed_for(request.method, view.limits) if self._is_enabled() else ()
            if not placed:
                return None, None
            limits = combined([*map(self.limiter_of, placed)])
            is_left_out = (
                request.method in self._settings.exempt_methods
                or self._is_left_out(request.endpoint)
                or self._is_exempt_path(request)
            )
            meta = None if is_left_out else self._meta
            answer = self._charge(limits, [view], request, meta)
            if answer is not None:
                return answer, None
        return None, request.environ[_VIEWS][view]

    def _check_exempt(self, request: flask.Request) -> Any:
        """Refuses a request with an exempt method by the limits of views and blueprints that name
        the method, and by rules that are about it all the same."""
        if not self._is_enabled():
            return None
        endpoint = request.endpoint
        which = (endpoint, "" if endpoint is None else request.method, True)
        limits, views, settling = self._plans.get(which) or self._plan(*which)
        rules = self._by_rules
        if rules is not None and (
            self._is_left_out(endpoint)
            or rules.exempts(request, request.method)
            or self._is_exempt_path(request)
        ):
            rules = None
        if limits is None and rules is None:
            return None
        return self._charge(limits, views, request, None, rules, settling)

    def settle_unreached(self, request: flask.Request, result: Any) -> Any:
        """Settles the cost of a request whose view was not called, by its response or the exception
        that ended it; returns that."""
        unreached = request.environ.get(UNREACHED)
        if unreached and self._extension in unreached:
            settle_now(unreached.pop(self._extension), request, result)
        return result

    def _is_exempt_path(self, request: flask.Request) -> bool:
        """Returns whether only the limits of views and blueprints apply to the request."""
        paths = self._settings.exempt_paths
        if paths is None or not paths(request):
            return False
        return self._by_rules is None or self._by_rules.exempts(request)

    def _is_enabled(self) -> bool:
        return bool(self._enabled and self._config["TIDEGATE_ENABLED"])

    def _placed_for(self, method: str, placed: Sequence[PlacedLimit]) -> list[PlacedLimit]:
        exempt = self._settings.exempt_methods
        return [each for each in placed if each.is_for(method, exempt)]

    def _charge(
        self,
        limits: Checks | None,
        views: Sequence[LimitedView],
        request: flask.Request,
        meta: MetaLimit | None = None,
        rules: RuleRequests | None = None,
        settling: Sequence[LimitedView] = (),
    ) -> Any:
        """Returns the answer to a refused request, or None if the request passes or nothing is
        charged."""
        environ = request.environ
        refusal = None if meta is None else BLOCKING.run(meta.refusal(request, BLOCKING))
        if refusal is not None:
            return self._refused(request, refusal, ())
        passed: list[RequestDecision] = []
        outcome: RequestDecision | None = None
        for checks in (rules, limits):
            outcome = None
            if checks is None:
                continue
            try:
                outcome = checks.check(request, BLOCKING)
            except Exception:
                # A limit function failed: the request does not reach its view.
                for earlier in (*environ.pop(GRANTED, ()), *passed):
                    BLOCKING.run(earlier.undo(BLOCKING))
                raise
            if outcome is None:
                continue
            if not outcome.decision.allowed:
                if meta is not None:
                    BLOCKING.run(meta.count(request, BLOCKING))
                return self._refused(request, outcome, passed)
            passed.append(outcome)
        if views:
            environ.setdefault(_VIEWS, {}).update(dict.fromkeys(views, outcome))
        if settling and outcome is not None:
            environ.setdefault(UNREACHED, {})[self._extension] = outcome
            flask.after_this_request(lambda response: self.settle_unreached(request, response))
        if passed:
            environ[DECISION] = binding(passed).decision
            if DECISIONS not in environ:
                _leave_with(request)
            environ[DECISIONS].extend(passed)
            for each in passed:
                each.hold()
            grant(environ, *passed)
        return None

    def _refused(
        self, request: flask.Request, refusal: RequestDecision, passed: Sequence[RequestDecision]
    ) -> Any:
        """Returns the answer to a refused request, and undoes `passed`, which charged it before."""
        request.environ[DECISION] = refusal.decision
        outcomes = request.environ.setdefault(DECISIONS, [])
        by_rules = [each for each in (*outcomes, *passed) if isinstance(each.limiter, RuleRequests)]
        # Those that were granted include those of middleware around the application.
        for earlier in (*request.environ.pop(GRANTED, ()), *outcomes, *passed):
            BLOCKING.run(earlier.undo(BLOCKING))
        outcomes[:] = [*(BLOCKING.run(each.standing(BLOCKING)) for each in by_rules), refusal]
        answer = BLOCKING.run(
            refusal.service_answer(
                request,
                BLOCKING,
                accepts=lambda answer: answer is not None,
                expected="what a view returns",
                convert=flask_refusal,
            )
        )
        if answer is USUAL:
            raise self._error(refusal)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _is_left_out(self, endpoint: str | None) -> bool:
        """Returns whether only its own limits apply to an endpoint: if it is static or exempt."""
        app = self._app()
        if app is None or endpoint is None:
            return False
        if endpoint.rpartition(".")[2] == "static":
            return True
        blueprints = [app.blueprints.get(name) for name in blueprints_of(endpoint)]
        return self._extension.is_exempt(app.view_functions.get(endpoint), blueprints)

    def _plan(self, endpoint: str | None, method: str, is_exempt: bool) -> _Checked:
        """Returns what checks an endpoint's requests, and the views that it checks."""
        limiters = [limiter for _, limiter in self.limits_of(endpoint, method, is_exempt)]
        views = self._limited_views(endpoint, method)
        settling = [each for each in views if each.cost_after is not None]
        plan = combined(limiters) if limiters else None, views, settling
        self._plans[endpoint, method, is_exempt] = plan
        return plan

    def limits_of(
        self, endpoint: str | None, method: str, is_exempt: bool = False
    ) -> list[tuple[str, RequestLimiter]]:
        """Returns the limiters of an endpoint's requests, each with the name of its scope.

        `is_exempt` leaves those for the application and its endpoints out.
        """
        app = self._app()
        assert app is not None
        is_exempt = is_exempt or method in self._settings.exempt_methods
        views = self._limited_views(endpoint, method)
        placed = self._placed_for(method, [each for one in views for each in one.limits])
        names = [name for name in blueprints_of(endpoint) if name in app.blueprints]
        blueprints = [app.blueprints[name] for name in names]
        found = []
        if not self._is_left_out(endpoint):
            if self._everywhere is not None and not is_exempt:
                found.append(("application", self._everywhere))
            of_blueprints = self._placed_for(
                method, [each for at, each in self._extension.of_blueprints if at in blueprints]
            )
            found += [(each.scope, self.limiter_of(each)) for each in of_blueprints]
            limit = self._settings.endpoint_limit
            if limit is not None and not is_exempt and not of_blueprints and not placed:
                limiter = self._settings.limiter(limit, f"endpoint:{endpoint or ''}")
                found.append(("endpoint", limiter))
        found += [(each.scope, self.limiter_of(each)) for each in placed]
        return found

    def _limited_views(self, endpoint: str | None, method: str) -> list[LimitedView]:
        app = self._app()
        view: Any = app.view_functions.get(endpoint) if app and endpoint is not None else None
        found = marks_of(view, method, MARK)
        return [one for one in found if one.extension is self._extension]


def _leave_with(request: flask.Request) -> None:
    """Gives the places of a request back when Flask closes it, since no response is closed: the
    application was called without its `wsgi_app`, as by full_dispatch_request() in a test."""
    outcomes: list[RequestDecision] = []
    request.environ[DECISIONS] = outcomes
    leaving = functools.partial(leave, outcomes)
    request.close = closing_then(request.close, leaving)  # type: ignore[method-assign]
