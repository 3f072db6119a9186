"""Rate limiting as an extension of Flask.

    limiter = RateLimit(app, "1000/hour", storage="redis://localhost")

    @app.post("/login")
    @limiter.limit("5/minute")
    def login(): ...

and with an application factory, whose configuration may say the rest:

    limiter = RateLimit()

    def create_app():
        app = Flask(__name__)
        app.config["TIDEGATE_LIMIT"] = "1000/hour"
        limiter.init_app(app)
        return app
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Callable, TypeVar

import flask

from tidegate._errors import ArgumentTypeError, ConfigurationError
from tidegate._flask import DECISION, Decorator, LimitedApp, RateLimitExceeded, Rule, Telling
from tidegate._functions import check_synchronous
from tidegate._limit import as_limits
from tidegate._middleware import methods_of
from tidegate._scopes import check_scope
from tidegate._settings import Settings, key_function
from tidegate._storage import open_store
from tidegate._unknown import unknown_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tidegate._clock import ClockLike
    from tidegate._core import Decision
    from tidegate._limit import LimitLike
    from tidegate._storage import StorageLike, StorageOptions

__all__ = ["RateLimit", "RateLimitExceeded"]

T = TypeVar("T")

_CONFIGURED = frozenset(
    (
        "enabled", "limit", "endpoint_limit", "key", "exempt_methods", "storage",
        "storage_options", "algorithm", "prefix", "on_no_key", "headers", "retry_jitter",
    )
)  # fmt: skip


class RateLimit:
    """Limits an application of Flask, its blueprints and its views.

    `limit` is what each client has for the whole application, `endpoint_limit` what it has
    for each endpoint that has no limit of its own; either may be left out. Requests for
    paths that do not exist count for the application, and as one endpoint; static files are not
    limited. Counts are kept by endpoint, never by path.

    `key`, `cost` and `exempt_when` are functions of the request, `on_refused` one of request and
    decision that returns what a view could return, which is a 429 unless it says otherwise; none
    of them is async. `key` may also be
    ``"ip"`` (the default), ``"user"`` or ``"user_or_ip"``. The other options are those of
    tidegate.wsgi.RateLimitMiddleware. What is None is read from the configuration of the
    application: TIDEGATE_LIMIT, _ENDPOINT_LIMIT, _KEY, _EXEMPT_METHODS, _STORAGE,
    _STORAGE_OPTIONS, _ALGORITHM, _PREFIX, _ON_NO_KEY, _HEADERS and _RETRY_JITTER. With
    TIDEGATE_ENABLED false, which may change at any time, nothing is limited.

    All limits that a request meets are one plan: one that is refused is charged by none. It
    is judged in a `before_request` function that init_app() registers, so that those which
    were registered earlier have run. A refusal raises RateLimitExceeded, for error handlers. All
    responses carry the fields, errors too.

    Each application has a store of its own, which `memory://` does not share. Raises
    ConfigurationError at construction and in init_app(). Thread-safe once they have run.
    """

    def __init__(
        self,
        app: flask.Flask | None = None,
        limit: LimitLike | Callable[..., Any] | None = None,
        *,
        endpoint_limit: LimitLike | Callable[..., Any] | None = None,
        key: Callable[[flask.Request], Any] | str | None = None,
        cost: int | Callable[[flask.Request], Any] | None = None,
        exempt_when: Callable[[flask.Request], Any] | None = None,
        exempt_methods: Iterable[str] | None = None,
        storage: StorageLike | None = None,
        algorithm: str | None = None,
        prefix: str | None = None,
        clock: ClockLike = None,
        on_no_key: str | None = None,
        on_refused: Callable[..., Any] | None = None,
        headers: Iterable[str] | None = None,
        retry_jitter: float | Callable[[float], Any] | None = None,
        **options: Unpack[StorageOptions],
    ) -> None:
        if options and storage is None:
            raise ConfigurationError(
                f"the options {unknown_options(options, _CONFIGURED)} were given without a "
                "storage; accepted are storage options with storage=, or TIDEGATE_STORAGE_OPTIONS"
            )
        self._given: dict[str, Any] = {
            "limit": limit,
            "endpoint_limit": endpoint_limit,
            "key": key,
            "cost": cost,
            "exempt_when": exempt_when,
            "exempt_methods": exempt_methods,
            "storage": storage,
            "algorithm": algorithm,
            "prefix": prefix,
            "clock": clock,
            "on_no_key": on_no_key,
            "on_refused": on_refused,
            "headers": headers,
            "retry_jitter": retry_jitter,
            "storage_options": options or None,
        }
        # Read here too, so that mistakes are told where they are made.
        self._settings_with({}, open_store=lambda storage, options: open_store("memory://", {}))
        self._exempt: list[Any] = []
        self.of_blueprints: list[tuple[flask.Blueprint, Rule]] = []
        self._rules: weakref.WeakSet[Rule] = weakref.WeakSet()
        self._apps: weakref.WeakSet[flask.Flask] = weakref.WeakSet()
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask) -> None:
        """Limits `app`, one of several that this object may limit."""
        if not isinstance(app, flask.Flask):
            raise ArgumentTypeError(
                f"the application is {app!r} of type {type(app).__name__}; accepted is a Flask"
            )
        known = app.extensions.setdefault("tidegate", {})
        if self in known:
            raise ConfigurationError(
                f"init_app() was called with {app!r} before; accepted is to call it once for each "
                "application"
            )
        app.config.setdefault("TIDEGATE_ENABLED", True)
        configured = {
            name[len("TIDEGATE_") :].lower(): value
            for name, value in app.config.items()
            if name.startswith("TIDEGATE_") and value is not None
        }
        limited = LimitedApp(app, self, self._settings_with(configured, open_store))
        for rule in self._rules:
            limited.guard_of(rule)
        known[self] = limited
        self._apps.add(app)
        app.before_request(limited.judge)
        app.wsgi_app = Telling(app.wsgi_app)  # type: ignore[method-assign]

    def limit(
        self,
        limit: LimitLike | Callable[..., Any],
        *,
        key: Callable[[flask.Request], Any] | str | None = None,
        cost: int | Callable[[flask.Request], Any] = 1,
        cost_after: Callable[[flask.Request, Any], Any] | None = None,
        exempt_when: Callable[[flask.Request], Any] | None = None,
        methods: Iterable[str] | None = None,
        scope: str | None = None,
        algorithm: str | None = None,
        on_no_key: str | None = None,
        on_refused: Callable[..., Any] | None = None,
        retry_jitter: float | Callable[[float], Any] | None = None,
    ) -> Callable[[T], T]:
        """A decorator that limits a view, or a function that limits a blueprint.

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
        if not callable(limit):
            as_limits(limit, algorithm or self._given["algorithm"] or "token-bucket")
        check_scope(scope)
        check_synchronous(
            limit=limit,
            key=key,
            cost=cost,
            cost_after=cost_after,
            exempt_when=exempt_when,
            on_refused=on_refused,
        )
        charged = None if methods is None else methods_of(methods, "methods")
        if charged is not None and "GET" in charged:
            charged |= {"HEAD"}
        chosen = {
            "key": key_function(key),
            "exempt_when": exempt_when,
            "algorithm": algorithm,
            "on_no_key": on_no_key,
            "on_refused": on_refused,
            "retry_jitter": retry_jitter,
        }
        options = {name: value for name, value in chosen.items() if value is not None}
        options.update(cost=cost, cost_after=cost_after, methods=charged)
        decorator: Any = Decorator(self, limit, scope, options)
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
                f"exempt() was given {target!r}; accepted is a view, a class of views or a "
                "blueprint"
            )
        self._exempt.append(target)
        return target

    @property
    def decision(self) -> Decision | None:
        """The decision on the current request; None where there is none."""
        found: Decision | None = flask.request.environ.get(DECISION)
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

    def add_rule(self, rule: Rule) -> None:
        for app in self._apps:
            app.extensions["tidegate"][self].guard_of(rule)
        self._rules.add(rule)

    def is_exempt(self, view: Any, blueprints: list[Any]) -> bool:
        found = list(blueprints)
        while view is not None:
            found += [view, getattr(view, "view_class", None)]
            view = getattr(view, "__wrapped__", None)
        return any(one is target for one in found for target in self._exempt)
