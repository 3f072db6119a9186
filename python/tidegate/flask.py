"""Rate limiting as an extension of Flask.

::

    limiter = RateLimiter(app, "1000/hour", storage="redis://localhost")

    @app.post("/login")
    @limiter.limit("5/minute")
    def login(): ...

and with an application factory, whose configuration may say the rest::

    limiter = RateLimiter()

    def create_app():
        app = Flask(__name__)
        app.config["TIDEGATE_LIMIT"] = "1000/hour"
        limiter.init_app(app)
        return app
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from tidegate.limiter.errors import missing, without_extra

try:
    import flask
    from werkzeug.exceptions import TooManyRequests
except ImportError as error:
    raise without_extra("tidegate.flask", "flask", error) from None

from tidegate.limiter import errors
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.limit import as_limits
from tidegate.limiter.storage.hints import unknown_options
from tidegate.limiter.storage.uri import open_store
from tidegate.web.callables import check_synchronous
from tidegate.web.configuration import SLIPS_OF_TIDEGATE, follow, note_storage
from tidegate.web.frameworks.calls import limited_class
from tidegate.web.frameworks.flask_app import DECISION, LimitedApp
from tidegate.web.frameworks.flask_cli import add_command
from tidegate.web.frameworks.flask_headers import AddHeaders
from tidegate.web.frameworks.flask_views import MARK, LimitedView, PlacedLimit, limited_app
from tidegate.web.frameworks.order_check import (
    check_limit,
    check_view,
    reference_count,
    refuse_registered,
    without_limit,
)
from tidegate.web.headers import PROBLEM_TYPE
from tidegate.web.hooks import log
from tidegate.web.named_keys import key_function
from tidegate.web.options import (
    FlaskOptions,
    FlaskViewOptions,
    OptionReader,
    of_requests,
)
from tidegate.web.rule_requests import attributes_by_option
from tidegate.web.settings import Settings
from tidegate.web.shared_counters import check_scope, unique_scope

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tidegate._core import Decision
    from tidegate.limiter.limit import LimitLike
    from tidegate.web.request_limiter import RequestDecision

__all__ = ["RateLimitExceeded", "RateLimiter", "url_rule"]

T = TypeVar("T")

# Options that are not given are read from the configuration, except the cost of a view.
# The names here of options of Flask-Limiter.
_HINTS = {
    "default_limits": "endpoint_limit=, or TIDEGATE_ENDPOINT_LIMIT",
    "application_limits": "limit=, or TIDEGATE_LIMIT",
    "meta_limits": "meta_limit=, or TIDEGATE_META_LIMIT",
    "storage_options": "TIDEGATE_STORAGE_OPTIONS, or the options themselves",
}
_OPTIONS = OptionReader(FlaskOptions, {}, _HINTS)
_VIEW_OPTIONS = OptionReader(FlaskViewOptions, {"cost": 1}, _HINTS)

# What limits the requests of a whole application.
_LIMITS = ("limit", "endpoint_limit", "meta_limit", "rules")
_CONFIGURED = frozenset(
    (
        "enabled", "limit", "endpoint_limit", "meta_limit", "rules", "attributes", "tiers",
        "violations", "load", "key", "exempt_methods", "exempt_paths", "storage", "storage_options",
        "algorithm", "prefix", "on_limit_error", "on_no_key", "headers", "retry_jitter",
    )
)  # fmt: skip


def url_rule(request: flask.Request) -> str:
    """Returns the URL rule of a request, such as ``/users/<int:id>``, as an attribute for rules.

    ::

        RateLimiter(app, rules=rules, attributes={"endpoint": url_rule})

    Returns the path if no route matches the request.
    """
    return request.path if request.url_rule is None else request.url_rule.rule


class RateLimitExceeded(errors.RateLimitExceeded, TooManyRequests):
    """The exception of a refused request: a 429 with `decision`, `description` and `retry_after`.

    The application's error handler for this exception, for 429 or for HTTPException answers it; if
    there is none, the answer is a problem+json body. `retry_after` is in whole seconds, None if
    waiting does not help.
    """

    def __init__(self, outcome: RequestDecision) -> None:
        wait = outcome.wait
        advice = "" if wait is None else f" Try again in {wait} s."
        super().__init__(outcome.decision)
        self.description = f"The limit {outcome.decision.rule} refused this request.{advice}"
        self.retry_after: Any = wait
        """Whole seconds to wait; None if waiting does not help."""
        self._problem = outcome.problem()

    def get_headers(self, *args: Any, **kwargs: Any) -> list[tuple[str, str]]:
        return [("Content-Type", PROBLEM_TYPE.decode())]

    def get_body(self, *args: Any, **kwargs: Any) -> str:
        return self._problem.decode()


class RateLimiter:
    """Limits an application of Flask, its blueprints and its views.

    `limit` is the limit of each client for the whole application, `endpoint_limit` that for each
    endpoint without a limit of its own; either may be left out. Requests for paths that do not
    exist count for the application, and as one endpoint; static files are not limited. Counts are
    kept by endpoint, never by path. `meta_limit` limits the refusals of each client: a client that
    exceeds it is refused everything until that limit allows requests again.

    `rules` replace `limit` and `endpoint_limit`: a RuleSet or a RuleSource, a dict, or the path of
    a file, which is followed. `attributes` maps each attribute to the function of the request that
    returns it; endpoint (the path; url_rule() returns that of the route), method and ip need no
    function. `tiers`, `violations` and `load` are those of tidegate.Limiter. Limits of views and
    blueprints add to the rules: if one of them refuses a request, none charges it.

    `key`, `cost` and `exempt_when` are functions of the request. `on_refused` is a function of
    request and decision that returns what a view could return, sent as a 429 unless it has another
    status. None of these functions is async. `key` may also be ``"ip"`` (the default), ``"user"``
    or ``"user_or_ip"``. At `exempt_paths` only the limits of views and blueprints apply. The other
    options are those of tidegate.wsgi.RateLimitMiddleware. Options
    that are None are read from the configuration of the
    application: TIDEGATE_LIMIT, _ENDPOINT_LIMIT, _META_LIMIT, _RULES, _ATTRIBUTES, _TIERS,
    _VIOLATIONS, _LOAD, _KEY, _EXEMPT_METHODS, _EXEMPT_PATHS, _STORAGE, _STORAGE_OPTIONS,
    _ALGORITHM, _PREFIX, _ON_LIMIT_ERROR, _ON_NO_KEY, _HEADERS and _RETRY_JITTER. While
    TIDEGATE_ENABLED is false, which may change at any time, nothing is limited.
    All limits of a request form one plan: if one refuses the request, none charges it. The plan is
    decided in a `before_request` function that init_app() registers, after the functions that were
    registered earlier. A refusal raises RateLimitExceeded, for error handlers. All responses carry
    the fields, including errors.

    Each application has its own store, so applications do not share `memory://`. Raises
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
        # The options are read here too, so that mistakes raise where they are made.
        read = self._settings_with({}, lambda storage, options: open_store("memory://", {}))
        self._given["rules"] = read.rules
        self._exempt: list[Any] = []
        self.of_blueprints: list[tuple[flask.Blueprint, PlacedLimit]] = []
        """The limits of blueprints, in the order in which they were placed."""
        self._placed: weakref.WeakSet[PlacedLimit] = weakref.WeakSet()
        self._apps: weakref.WeakSet[flask.Flask] = weakref.WeakSet()
        if app is not None:
            self.init_app(app)
        elif any(self._given[name] is not None for name in _LIMITS):
            with contextlib.suppress(RuntimeError):  # old releases of Flask have no signals
                flask.request_started.connect(self._say_that_nothing_is_limited)

    def init_app(self, app: flask.Flask) -> None:
        """Limits `app`, one of several applications that this object may limit."""
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
        configured = _settings_of(app)
        _warn_of_other_settings(app)

        name = f"tidegate.flask.RateLimiter of {app.name}"

        def read() -> Settings:
            settings = self._settings_with(configured, open_store)
            settings.check_complete()
            chosen = configured.get("storage") or self._given.get("storage")
            note_storage(settings.storage, name, was_chosen=bool(chosen))
            return settings

        limited = LimitedApp(app, self, read(), RateLimitExceeded)
        for placed in self._placed:
            limited.limiter_of(placed)
        follow(limited, lambda one: one.read(read()))
        known[self] = limited
        self._apps.add(app)
        add_command(app, limited)
        app.before_request(limited.check)
        app.handle_user_exception = _settling(  # type: ignore[method-assign]
            limited, app.handle_user_exception
        )
        app.wsgi_app = AddHeaders(app.wsgi_app)  # type: ignore[method-assign]
        with contextlib.suppress(RuntimeError):
            flask.request_started.disconnect(self._say_that_nothing_is_limited)
            _watch_settings(app, configured)

    @_VIEW_OPTIONS.shown
    def limit(
        self, limit: LimitLike | Callable[..., Any], **options: Unpack[FlaskViewOptions]
    ) -> Callable[[T], T]:
        """Returns a decorator that limits a view, or a function that limits a blueprint.

        ::

            @app.post("/login")
            @limiter.limit("5/minute")
            def login(): ...

            limiter.limit("100/minute")(blueprint)

        On views the decorator stands below the one that registers the route; several may stand
        above each other. Classes of views have it in `decorators` or on their methods, or are
        decorated. A blueprint's limit is for each client over all of its endpoints. The options are
        those of tidegate.rate_limit; options that are None are the extension's. A limit for one
        endpoint or blueprint replaces `endpoint_limit`.
        """
        check_limit(limit, "@limiter.limit")
        given, _ = _VIEW_OPTIONS.read(options)
        if not callable(limit):
            as_limits(limit, given.algorithm or self._given["algorithm"] or "token-bucket")
        check_scope(given.scope)
        given.key = key_function(given.key)
        chosen = of_requests(given)
        check_synchronous(given, limit=limit)
        # Options that are None are the extension's.
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
        """Does what limit() does, and counts all with one `scope` and equal limits together."""
        return self.limit(limit, scope=scope, **options)

    def exempt(self, target: T) -> T:
        """Exempts a view, a class of views or a blueprint from all limits but its own.

        Returns its argument, so the decorator can stand above or below the one that registers a
        route. Blueprints nested in an exempt one are exempt too.
        """
        if not callable(target) and not isinstance(target, flask.Blueprint):
            raise ArgumentTypeError(
                f"exempt() was given {target!r}; expected a view, a class of views or a blueprint"
            )
        self._exempt.append(target)
        return target

    @property
    def decision(self) -> Decision | None:
        """The decision on the current request, or None."""
        found: Decision | None = flask.request.environ.get(DECISION)
        return found

    def _say_that_nothing_is_limited(self, app: flask.Flask, **_: Any) -> None:
        """Logs once that a process answers requests, and no application has this extension."""
        flask.request_started.disconnect(self._say_that_nothing_is_limited)
        given = ", ".join(
            f"{name}={self._given[name]!r:.80}" for name in _LIMITS if self._given[name] is not None
        )
        log.warning(
            "rate limiting: %s answers requests, but RateLimiter(%s) has no application and limits "
            "nothing; expected a call of its init_app() with the application",
            app.name, given,
        )  # fmt: skip

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
            **attributes_by_option(settings.attributes),
        )
        return settings

    def add_limit(self, placed: PlacedLimit) -> None:
        for app in self._apps:
            app.extensions["tidegate"][self].limiter_of(placed)
        self._placed.add(placed)

    def is_exempt(self, view: Any, blueprints: list[Any]) -> bool:
        found = list(blueprints)
        while view is not None:
            found += [view, getattr(view, "view_class", None)]
            view = getattr(view, "__wrapped__", None)
        return any(one is target for one in found for target in self._exempt)


# Type checkers are to find names that do not exist.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        elsewhere = {
            "RateLimit": "from tidegate.flask import RateLimiter",
            "RateLimitMiddleware": "from tidegate.wsgi import RateLimitMiddleware",
            "rate_limit": "from tidegate import rate_limit",
        }
        raise missing(__name__, name, elsewhere)


class _Decorator:
    """The result of RateLimiter.limit(), in the form that reference_count() expects."""

    def __init__(
        self, extension: RateLimiter, limit: Any, scope: str | None, options: dict[str, Any]
    ) -> None:
        self._extension = extension
        self._limit = limit
        self._scope = scope
        self._options = options

    @property
    def __name__(self) -> str:
        # Only a route reads it, for its endpoint.
        raise without_limit("@limiter.limit", self._limit)

    def __call__(self, target: Any) -> Any:
        references = reference_count(target)
        if isinstance(target, flask.Blueprint):
            if self._options["cost_after"] is not None:
                raise ConfigurationError(
                    f"cost_after was given for {target!r}; expected one for views"
                )
            placed = self._place(f"blueprint:{target.name}")
            self._extension.of_blueprints.append((target, placed))

            def check() -> None:
                limited_app(self._extension, target)

            # Not before_request(), which refuses blueprints that are registered already.
            target.before_request_funcs.setdefault(None, []).append(check)
            return target
        if inspect.isclass(target):
            placed = self._place(unique_scope(target))
            return limited_class(target, lambda: functools.partial(self._limited, placed))
        check_view(target)
        refuse_registered(target, references)
        return self._limited(self._place(unique_scope(target)), target)

    def _limited(self, placed: PlacedLimit, view: Any) -> Any:
        below: LimitedView | None = getattr(view, MARK, None)
        if below is None or below.is_of() is not view or below.extension is not self._extension:
            return LimitedView(self._extension, view, (placed,)).function
        return LimitedView(self._extension, below.view, (placed, *below.limits)).function

    def _place(self, own: str) -> PlacedLimit:
        placed = PlacedLimit(self._limit, self._scope or own, self._options)
        self._extension.add_limit(placed)
        return placed


def _settling(limited: LimitedApp, handle: Any) -> Any:
    """Returns an application's `handle` for exceptions, before which the cost is settled of a
    request that one of them has ended before its view."""

    def settle_and_handle(*args: Any) -> Any:
        request = flask.request._get_current_object()  # type: ignore[attr-defined]
        limited.settle_unreached(request, args[-1])
        return handle(*args)

    return settle_and_handle


def _settings_of(app: flask.Flask) -> dict[str, Any]:
    """Returns the settings of tidegate in the configuration of an application."""
    return {
        name[len("TIDEGATE_") :].lower(): value
        for name, value in app.config.items()
        if name.startswith("TIDEGATE_") and value is not None
    }


def _watch_settings(app: flask.Flask, known: dict[str, Any]) -> None:
    """Logs at the first request which settings have changed since init_app() read them as `known`.

    Raises RuntimeError in old releases of Flask, which have no signals.
    """

    def compare(sender: flask.Flask, **_: Any) -> None:
        # From all senders, of which it had one: else each request would look for receivers.
        flask.request_started.disconnect(compare)
        now = _settings_of(sender)
        changed = [
            f"TIDEGATE_{name.upper()}"
            for name in sorted({*known, *now} - {"enabled"})
            if known.get(name) != now.get(name)
        ]
        if changed:
            log.warning(
                "rate limiting: %s changed after init_app(), which had read the configuration; "
                "expected the settings before RateLimiter(app) or init_app(app)",
                ", ".join(changed),
            )

    flask.request_started.connect(compare, app, weak=False)


def _warn_of_other_settings(app: flask.Flask) -> None:
    """Logs settings that are not read: slips of the prefix, those whose case differs, and leftovers
    of Flask-Limiter, unless that is used as well."""
    wrong = ["RATELIMIT_"] if "limiter" not in app.extensions else []
    names = sorted(
        name
        for name in app.config
        if name.startswith(tuple(wrong))
        or name.upper() == "TIDEGATE"
        or name.upper().partition("_")[0] in SLIPS_OF_TIDEGATE
        or (name.upper().startswith("TIDEGATE_") and not name.startswith("TIDEGATE_"))
    )
    if names:
        log.warning(
            "rate limiting: the configuration has %s, which tidegate does not read; expected "
            "settings such as TIDEGATE_STORAGE, TIDEGATE_LIMIT and TIDEGATE_ENABLED",
            ", ".join(names),
        )
