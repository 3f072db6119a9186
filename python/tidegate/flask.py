"""Rate limiting as an extension of Flask.

::

    limiter = RateLimit(app, "1000/hour", storage="redis://localhost")

    @app.post("/login")
    @limiter.limit("5/minute")
    def login(): ...

and with an application factory, whose configuration may say the rest::

    limiter = RateLimit()

    def create_app():
        app = Flask(__name__)
        app.config["TIDEGATE_LIMIT"] = "1000/hour"
        limiter.init_app(app)
        return app
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, TypeVar

import flask
from werkzeug.exceptions import TooManyRequests

from tidegate import _errors
from tidegate._errors import ArgumentTypeError, ConfigurationError
from tidegate._integrations.calls import flask_refusal, limited_class
from tidegate._integrations.flask_cli import add_command, blueprints_of
from tidegate._integrations.flask_headers import AddHeaders
from tidegate._integrations.order_check import check_view, reference_count, refuse_registered
from tidegate._integrations.streams import settle_after_flask
from tidegate._limit import as_limits
from tidegate._storage.hints import unknown_options
from tidegate._storage.uri import open_store
from tidegate._web.callables import check_synchronous
from tidegate._web.combined import combined
from tidegate._web.decisions import DECISIONS
from tidegate._web.execution import BLOCKING
from tidegate._web.headers import PROBLEM_TYPE
from tidegate._web.hooks import log
from tidegate._web.meta_limit import MetaLimit
from tidegate._web.options import (
    FlaskOptions,
    FlaskViewOptions,
    OptionReader,
    of_requests,
)
from tidegate._web.refusal import USUAL
from tidegate._web.request_limiter import Checks, RequestDecision, RequestLimiter
from tidegate._web.settings import Settings, key_function
from tidegate._web.shared_counters import check_scope, unique_scope

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tidegate._core import Decision
    from tidegate._limit import LimitLike

__all__ = ["RateLimit", "RateLimitExceeded"]

T = TypeVar("T")

# What is given nowhere is read from the configuration, but for the cost of a view.
# What Flask-Limiter calls what has another name here.
_HINTS = {
    "default_limits": "endpoint_limit=, or TIDEGATE_ENDPOINT_LIMIT",
    "application_limits": "limit=, or TIDEGATE_LIMIT",
    "meta_limits": "meta_limit=, or TIDEGATE_META_LIMIT",
    "storage_options": "TIDEGATE_STORAGE_OPTIONS, or the options themselves",
}
_OPTIONS = OptionReader(FlaskOptions, {}, _HINTS)
_VIEW_OPTIONS = OptionReader(FlaskViewOptions, {"cost": 1}, _HINTS)

_CONFIGURED = frozenset(
    (
        "enabled", "limit", "endpoint_limit", "meta_limit", "key", "exempt_methods", "storage",
        "storage_options", "algorithm", "prefix", "on_limit_error", "on_no_key", "headers",
        "retry_jitter",
    )
)  # fmt: skip
_DECISION = "tidegate.decision"
_VIEWS = "tidegate.views"
_MARK = "__tidegate_flask_limit__"


class RateLimitExceeded(_errors.RateLimitExceeded, TooManyRequests):
    """What a refused request raises: a 429 with `decision`, `description` and `retry_after`.

    It is answered by the application's error handler for it, for 429 or for HTTPException,
    and by a problem+json body where there is none. `retry_after` is in whole seconds, None
    where no wait would help.
    """

    def __init__(self, outcome: RequestDecision) -> None:
        wait = outcome.wait
        advice = "" if wait is None else f" Try again in {wait} s."
        super().__init__(outcome.decision)
        self.description = f"The limit {outcome.decision.rule} refused this request.{advice}"
        self.retry_after: Any = wait
        self._problem = outcome.problem()

    def get_headers(self, *args: Any, **kwargs: Any) -> list[tuple[str, str]]:
        return [("Content-Type", PROBLEM_TYPE.decode())]

    def get_body(self, *args: Any, **kwargs: Any) -> str:
        return self._problem.decode()


class RateLimit:
    """Limits an application of Flask, its blueprints and its views.

    `limit` is what each client has for the whole application, `endpoint_limit` what it has
    for each endpoint that has no limit of its own; either may be left out. Requests for
    paths that do not exist count for the application, and as one endpoint; static files are not
    limited. Counts are kept by endpoint, never by path. `meta_limit` is how many refusals each
    client has: beyond it all of its requests are refused, until that limit lets it pass again.

    `key`, `cost` and `exempt_when` are functions of the request, `on_refused` one of request and
    decision that returns what a view could return, which is a 429 unless it says otherwise; none
    of them is async. `key` may also be
    ``"ip"`` (the default), ``"user"`` or ``"user_or_ip"``. The other options are those of
    tidegate.wsgi.RateLimitMiddleware. What is None is read from the configuration of the
    application: TIDEGATE_LIMIT, _ENDPOINT_LIMIT, _META_LIMIT, _KEY, _EXEMPT_METHODS, _STORAGE,
    _STORAGE_OPTIONS, _ALGORITHM, _PREFIX, _ON_LIMIT_ERROR, _ON_NO_KEY, _HEADERS and
    _RETRY_JITTER. With TIDEGATE_ENABLED false, which may change at any time, nothing is limited.

    All limits that a request meets are one plan: one that is refused is charged by none. It
    is decided in a `before_request` function that init_app() registers, so that those which
    were registered earlier have run. A refusal raises RateLimitExceeded, for error handlers. All
    responses carry the fields, errors too.

    Each application has a store of its own, which `memory://` does not share. Raises
    ConfigurationError at construction and in init_app(). Thread-safe once they have run.
    """

    @_OPTIONS.shown
    def __init__(
        self,
        app: flask.Flask | None = None,
        limit: LimitLike | Callable[..., Any] | None = None,
        **options: Unpack[FlaskOptions],
    ) -> None:
        given, storage_options = _OPTIONS.read(options)
        if storage_options and given.storage is None:
            unknown = unknown_options(storage_options, _CONFIGURED)
            raise ConfigurationError(
                f"the options {unknown} were given without a storage; expected storage options "
                "with storage=, or TIDEGATE_STORAGE_OPTIONS"
            )
        self._given: dict[str, Any] = {
            **vars(given),
            "limit": limit,
            "storage_options": storage_options or None,
        }
        self.enabled = given.enabled is not False
        # Read here too, so that mistakes are told where they are made.
        self._settings_with({}, open_store=lambda storage, options: open_store("memory://", {}))
        self._exempt: list[Any] = []
        self.of_blueprints: list[tuple[flask.Blueprint, _Rule]] = []
        self._rules: weakref.WeakSet[_Rule] = weakref.WeakSet()
        self._apps: weakref.WeakSet[flask.Flask] = weakref.WeakSet()
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask) -> None:
        """Limits `app`, one of several that this object may limit."""
        if not isinstance(app, flask.Flask):
            raise ArgumentTypeError(
                f"the application is {app!r} of type {type(app).__name__}; expected a Flask"
            )
        known = app.extensions.setdefault("tidegate", {})
        if self in known:
            raise ConfigurationError(
                f"init_app() was called with {app!r} before; expected to call it once for each "
                "application"
            )
        app.config.setdefault("TIDEGATE_ENABLED", True)
        configured = {
            name[len("TIDEGATE_") :].lower(): value
            for name, value in app.config.items()
            if name.startswith("TIDEGATE_") and value is not None
        }
        _warn_of_other_settings(app)
        limited = _LimitedApp(app, self, self._settings_with(configured, open_store))
        for rule in self._rules:
            limited.limiter_of(rule)
        known[self] = limited
        self._apps.add(app)
        add_command(app, limited.limits_of)
        app.before_request(limited.check)
        app.wsgi_app = AddHeaders(app.wsgi_app)  # type: ignore[method-assign]

    @_VIEW_OPTIONS.shown
    def limit(
        self, limit: LimitLike | Callable[..., Any], **options: Unpack[FlaskViewOptions]
    ) -> Callable[[T], T]:
        """A decorator that limits a view, or a function that limits a blueprint.

        ::

            @app.post("/login")
            @limiter.limit("5/minute")
            def login(): ...

            limiter.limit("100/minute")(blueprint)

        On views it stands below the decorator that registers the route; several may stand
        above each other. Classes of views have it in `decorators`, or on their methods, or
        are decorated. A blueprint's limit is for each client over all of its endpoints. The
        options are those of tidegate.rate_limit, and what is None is the extension's; a limit
        for one endpoint or blueprint takes the place of `endpoint_limit`.
        """
        given, _ = _VIEW_OPTIONS.read(options)
        if not callable(limit):
            as_limits(limit, given.algorithm or self._given["algorithm"] or "token-bucket")
        check_scope(given.scope)
        given.key = key_function(given.key)
        chosen = of_requests(given)
        check_synchronous(
            limit=limit,
            key=given.key,
            cost=given.cost,
            cost_after=given.cost_after,
            exempt_when=given.exempt_when,
            on_refused=given.on_refused,
        )
        # What is None is the extension's.
        own = {name: value for name, value in chosen.items() if value is not None}
        if given.algorithm is not None:
            own["algorithm"] = given.algorithm
        for name in ("cost_after", "methods"):
            own.setdefault(name, None)
        decorator: Any = _Decorator(self, limit, given.scope, own)
        return decorator  # type: ignore[no-any-return]

    def shared_limit(
        self, limit: LimitLike | Callable[..., Any], scope: str, **options: Any
    ) -> Callable[[T], T]:
        """As limit(), for all that name one `scope` and have equal limits to count together."""
        return self.limit(limit, scope=scope, **options)

    def exempt(self, target: T) -> T:
        """Leaves a view, a class of views or a blueprint out of all limits but its own.

        It returns what it was given, and so can stand above or below the decorator that
        registers a route. Blueprints that are nested in an exempt one are exempt too.
        """
        if not callable(target) and not isinstance(target, flask.Blueprint):
            raise ArgumentTypeError(
                f"exempt() was given {target!r}; expected a view, a class of views or a blueprint"
            )
        self._exempt.append(target)
        return target

    @property
    def decision(self) -> Decision | None:
        """The decision on the current request; None where there is none."""
        found: Decision | None = flask.request.environ.get(_DECISION)
        return found

    def _settings_with(self, configured: dict[str, Any], open_store: Any) -> Settings:
        settings = Settings(
            self._given,
            configured,
            name="TIDEGATE_{}",
            accepted=_CONFIGURED,
            open_store=open_store,
        )
        check_synchronous(
            limit=settings.limit,
            endpoint_limit=settings.endpoint_limit,
            key=settings.key,
            cost=settings.cost,
            exempt_when=settings.exempt_when,
            on_refused=settings.on_refused,
        )
        return settings

    def add_rule(self, rule: _Rule) -> None:
        for app in self._apps:
            app.extensions["tidegate"][self].limiter_of(rule)
        self._rules.add(rule)

    def is_exempt(self, view: Any, blueprints: list[Any]) -> bool:
        found = list(blueprints)
        while view is not None:
            found += [view, getattr(view, "view_class", None)]
            view = getattr(view, "__wrapped__", None)
        return any(one is target for one in found for target in self._exempt)


class _Rule:
    """A limit that stands on a view or a blueprint, in whatever application."""

    def __init__(self, limit: Any, scope: str, options: dict[str, Any]) -> None:
        self.limit = limit
        self.scope = scope
        self.options = options

    def is_for(self, method: str) -> bool:
        methods = self.options["methods"]
        return methods is None or method in methods


class _Decorator:
    """What RateLimit.limit() returns; of the shape that reference_count() goes by."""

    def __init__(
        self, extension: RateLimit, limit: Any, scope: str | None, options: dict[str, Any]
    ) -> None:
        self._extension = extension
        self._limit = limit
        self._scope = scope
        self._options = options

    def __call__(self, target: Any) -> Any:
        references = reference_count(target)
        if isinstance(target, flask.Blueprint):
            if self._options["cost_after"] is not None:
                raise ConfigurationError(
                    f"cost_after was given for {target!r}; expected one for views"
                )
            rule = self._rule(f"blueprint:{target.name}")
            self._extension.of_blueprints.append((target, rule))
            return target
        if inspect.isclass(target):
            rule = self._rule(unique_scope(target))
            return limited_class(target, lambda: functools.partial(self._limited, rule))
        check_view(target)
        refuse_registered(target, references)
        return self._limited(self._rule(unique_scope(target)), target)

    def _limited(self, rule: _Rule, view: Any) -> Any:
        below: _LimitedView | None = getattr(view, _MARK, None)
        if below is None or below.is_of() is not view or below.extension is not self._extension:
            return _LimitedView(self._extension, view, (rule,)).function
        return _LimitedView(self._extension, below.view, (rule, *below.rules)).function

    def _rule(self, own: str) -> _Rule:
        rule = _Rule(self._limit, self._scope or own, self._options)
        self._extension.add_rule(rule)
        return rule


class _LimitedView:
    """A view with limits of its own, which count in whatever application it is called in."""

    def __init__(self, extension: RateLimit, view: Any, rules: tuple[_Rule, ...]) -> None:
        self.extension = extension
        self.view = view
        self.rules = rules
        costs_after = (rule.options["cost_after"] for rule in rules)
        self._cost_after = next((each for each in costs_after if each is not None), None)
        self.function = self._wrapped()

    def _wrapped(self) -> Any:
        view = self.view

        @functools.wraps(view)
        def limited(*args: Any, **kwargs: Any) -> Any:
            answer, outcome = self._enter()
            if answer is not None:
                return answer
            result = view(*args, **kwargs)
            self._leave(outcome, result)
            return result

        @functools.wraps(view)
        async def limited_async(*args: Any, **kwargs: Any) -> Any:
            answer, outcome = self._enter()
            if answer is not None:
                return answer
            result = await view(*args, **kwargs)
            self._leave(outcome, result)
            return result

        chosen: Any = limited_async if inspect.iscoroutinefunction(view) else limited
        setattr(chosen, _MARK, self)
        # Decorators above copy what a function has, and are not what was limited here.
        self.is_of = weakref.ref(chosen)
        return chosen

    def _enter(self) -> tuple[Any, RequestDecision | None]:
        app = flask.current_app
        known: dict[RateLimit, _LimitedApp] = app.extensions.get("tidegate", {})
        try:
            limited = known[self.extension]
        except KeyError:
            raise ConfigurationError(
                f"{self.view!r} is limited by an extension that {app.name} does not have; "
                "expected a call of its init_app() with the application"
            ) from None
        return limited.enter(self, flask.request._get_current_object())  # type: ignore[attr-defined]

    def _leave(self, outcome: RequestDecision | None, result: Any) -> None:
        if self._cost_after is not None and outcome is not None:
            request = flask.request._get_current_object()  # type: ignore[attr-defined]
            settle = functools.partial(outcome.settle, request, result)
            if settle_after_flask(flask, result, settle, self._cost_after):
                return
            settled = BLOCKING.run(settle(BLOCKING))
            outcomes: list[RequestDecision] = request.environ.get(DECISIONS, [])
            outcomes[:] = [settled if each is outcome else each for each in outcomes]


class _LimitedApp:
    """The limits of one application."""

    def __init__(self, app: flask.Flask, extension: RateLimit, settings: Settings) -> None:
        self._app = weakref.ref(app)
        self._config = app.config
        self._extension = extension
        self._settings = settings
        self._enabled = extension.enabled
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
        self._limiters: weakref.WeakKeyDictionary[_Rule, RequestLimiter] = (
            weakref.WeakKeyDictionary()
        )
        # By endpoint and method, of which there are no more than the application has routes.
        self._plans: dict[tuple[str | None, str], tuple[Checks | None, list[_LimitedView]]] = {}

    def limiter_of(self, rule: _Rule) -> RequestLimiter:
        """The limiter of `rule` in this application."""
        limiter = self._limiters.get(rule)
        if limiter is None:
            limiter = self._settings.limiter(rule.limit, rule.scope, **rule.options)
            self._limiters[rule] = limiter
        return limiter

    def check(self) -> Any:
        """Refuses the request that begins, or lets it pass by returning None."""
        request = flask.request._get_current_object()  # type: ignore[attr-defined]
        if not self._applies_to(request):
            return None
        endpoint = request.endpoint
        # Methods of requests that no route is for are whatever strangers say.
        which = (endpoint, "" if endpoint is None else request.method)
        plan = self._plans.get(which)
        if plan is None:
            plan = self._plans[which] = self._plan(request)
        limits, views = plan
        has_meta = self._meta is not None and not self._is_left_out(endpoint)
        return self._charge(limits, views, request) if limits or has_meta else None

    def enter(
        self, view: _LimitedView, request: flask.Request
    ) -> tuple[Any, RequestDecision | None]:
        """What to answer instead of calling `view`, or the outcome that lets it be called.

        What another decorator hides, or what another view calls, was not checked before.
        """
        checked = request.environ.get(_VIEWS, {})
        if view not in checked:
            if not self._applies_to(request):
                return None, None
            answer = self._charge(combined([*map(self.limiter_of, view.rules)]), [view], request)
            if answer is not None:
                return answer, None
        return None, request.environ[_VIEWS][view]

    def _applies_to(self, request: flask.Request) -> bool:
        return bool(
            self._enabled
            and self._config["TIDEGATE_ENABLED"]
            and request.method not in self._settings.exempt_methods
        )

    def _charge(
        self, limits: Checks | None, views: Sequence[_LimitedView], request: flask.Request
    ) -> Any:
        environ = request.environ
        outcome = self._check(limits, request)
        if outcome is None or outcome.decision.allowed:
            if views:
                environ.setdefault(_VIEWS, {}).update(dict.fromkeys(views, outcome))
            if outcome is not None:
                environ[_DECISION] = outcome.decision
                environ.setdefault(DECISIONS, []).append(outcome)
            return None
        environ[_DECISION] = outcome.decision
        outcomes = environ.setdefault(DECISIONS, [])
        for earlier in outcomes:
            BLOCKING.run(earlier.undo(BLOCKING))
        outcomes[:] = [outcome]
        return self._refused(request, outcome)

    def _check(self, limits: Checks | None, request: flask.Request) -> RequestDecision | None:
        meta = self._meta
        if meta is not None and self._is_left_out(request.endpoint):
            meta = None
        outcome = None if meta is None else BLOCKING.run(meta.refusal(request, BLOCKING))
        if outcome is not None or limits is None:
            return outcome
        outcome = limits.check(request, BLOCKING)
        if meta is not None and outcome is not None and not outcome.decision.allowed:
            BLOCKING.run(meta.count(request, BLOCKING))
        return outcome

    def _is_left_out(self, endpoint: str | None) -> bool:
        """Whether an endpoint has no limits but its own: static files, and what is exempt."""
        app = self._app()
        if app is None or endpoint is None:
            return False
        if endpoint.rpartition(".")[2] == "static":
            return True
        blueprints = [app.blueprints.get(name) for name in blueprints_of(endpoint)]
        return self._extension.is_exempt(app.view_functions.get(endpoint), blueprints)

    def _refused(self, request: flask.Request, outcome: RequestDecision) -> Any:
        answer = BLOCKING.run(
            outcome.service_answer(
                request, BLOCKING, accepts=_is_answer, expected="what a view returns"
            )
        )
        if answer is USUAL:
            raise RateLimitExceeded(outcome)
        return flask_refusal(answer)

    def _plan(self, request: flask.Request) -> tuple[Checks | None, list[_LimitedView]]:
        """What checks the requests for an endpoint, and the limited views that it is about."""
        views = self._limited_views(request.endpoint, request.method)
        limiters = [limiter for _, limiter in self.limits_of(request.endpoint, request.method)]
        return (combined(limiters) if limiters else None), views

    def limits_of(self, endpoint: str | None, method: str) -> list[tuple[str, RequestLimiter]]:
        """The limiters that requests for an endpoint meet, each with what it counts for."""
        app = self._app()
        assert app is not None
        rules = [rule for one in self._limited_views(endpoint, method) for rule in one.rules]
        names = [name for name in blueprints_of(endpoint) if name in app.blueprints]
        blueprints = [app.blueprints[name] for name in names]
        found = []
        if not self._is_left_out(endpoint):
            if self._everywhere is not None:
                found.append(("application", self._everywhere))
            of_blueprints = [
                rule for known, rule in self._extension.of_blueprints if known in blueprints
            ]
            found += [(rule.scope, self.limiter_of(rule)) for rule in of_blueprints]
            limit = self._settings.endpoint_limit
            if limit is not None and not any(
                rule.is_for(method) for rule in [*of_blueprints, *rules]
            ):
                limiter = self._settings.limiter(limit, f"endpoint:{endpoint or ''}")
                found.append(("endpoint", limiter))
        found += [(rule.scope, self.limiter_of(rule)) for rule in rules if rule.is_for(method)]
        return found

    def _limited_views(self, endpoint: str | None, method: str) -> list[_LimitedView]:
        app = self._app()
        view: Any = app.view_functions.get(endpoint) if app and endpoint is not None else None
        found = [getattr(view, _MARK, None)]
        view_class = getattr(view, "view_class", None)
        if view_class is not None:
            handler = getattr(view_class, method.lower(), None)
            if handler is None and method == "HEAD":
                handler = getattr(view_class, "get", None)
            found.append(getattr(handler, _MARK, None))
        return [one for one in found if one is not None and one.extension is self._extension]


def _warn_of_other_settings(app: flask.Flask) -> None:
    """Says which settings of Flask-Limiter are left over, where it is not used as well."""
    names = sorted(name for name in app.config if name.startswith("RATELIMIT_"))
    if names and "limiter" not in app.extensions:
        log.warning(
            "rate limiting: the configuration has %s, which tidegate does not read; expected are "
            "settings such as TIDEGATE_STORAGE, TIDEGATE_LIMIT and TIDEGATE_ENABLED",
            ", ".join(names),
        )


def _is_answer(answer: Any) -> bool:
    return answer is not None
