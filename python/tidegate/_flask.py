"""What stands behind tidegate.flask: the limits of one application, and of one view."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Callable

import flask
from werkzeug.exceptions import TooManyRequests

from tidegate import _errors
from tidegate._errors import ConfigurationError
from tidegate._frameworks import VERDICTS, flask_refusal, limited_class
from tidegate._guard import Guard, Verdict, finished
from tidegate._headers import PROBLEM_TYPE
from tidegate._middleware import replacement
from tidegate._registered import check_view, reference_count, refuse_registered
from tidegate._scopes import own_scope
from tidegate._stack import Stack
from tidegate.wsgi import WSGIApp, with_fields

if TYPE_CHECKING:
    from tidegate._settings import Settings
    from tidegate.flask import RateLimit

__all__ = ["DECISION", "Decorator", "LimitedApp", "RateLimitExceeded", "Rule", "Telling"]

DECISION = "tidegate.decision"
_VIEWS = "tidegate.views"
_MARK = "__tidegate_flask_limit__"


class RateLimitExceeded(_errors.RateLimitExceeded, TooManyRequests):
    """What a refused request raises: a 429 with `decision`, `description` and `retry_after`.

    It is answered by the application's error handler for it, for 429 or for HTTPException,
    and by a problem+json body where there is none. `retry_after` is in whole seconds, None
    where no wait would help.
    """

    def __init__(self, verdict: Verdict) -> None:
        wait = verdict.wait
        advice = "" if wait is None else f" Try again in {wait} s."
        super().__init__(verdict.decision)
        self.description = f"The limit {verdict.decision.rule} refused this request.{advice}"
        self.retry_after: Any = wait
        self._problem = verdict.problem()

    def get_headers(self, *args: Any, **kwargs: Any) -> list[tuple[str, str]]:
        return [("Content-Type", PROBLEM_TYPE.decode())]

    def get_body(self, *args: Any, **kwargs: Any) -> str:
        return self._problem.decode()


class Rule:
    """A limit that stands on a view or a blueprint, in whatever application."""

    def __init__(self, limit: Any, scope: str, options: dict[str, Any]) -> None:
        self.limit = limit
        self.scope = scope
        self.options = options

    def is_for(self, method: str) -> bool:
        methods = self.options["methods"]
        return methods is None or method in methods


class Decorator:
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
                    f"cost_after was given for {target!r}; accepted is one for views"
                )
            rule = self._rule(f"blueprint:{target.name}")
            self._extension.of_blueprints.append((target, rule))
            return target
        if inspect.isclass(target):
            rule = self._rule(own_scope(target))
            return limited_class(target, lambda: functools.partial(self._limited, rule))
        check_view(target)
        refuse_registered(target, references)
        return self._limited(self._rule(own_scope(target)), target)

    def _limited(self, rule: Rule, view: Any) -> Any:
        below: LimitedView | None = getattr(view, _MARK, None)
        if below is None or below.is_of() is not view or below.extension is not self._extension:
            return LimitedView(self._extension, view, (rule,)).function
        return LimitedView(self._extension, below.view, (rule, *below.rules)).function

    def _rule(self, own: str) -> Rule:
        rule = Rule(self._limit, self._scope or own, self._options)
        self._extension.add_rule(rule)
        return rule


class LimitedView:
    """A view with limits of its own, which count in whatever application it is called in."""

    def __init__(self, extension: RateLimit, view: Any, rules: tuple[Rule, ...]) -> None:
        self.extension = extension
        self.view = view
        self.rules = rules
        self._settles = any(rule.options["cost_after"] is not None for rule in rules)
        self.function = self._wrapped()

    def _wrapped(self) -> Any:
        view = self.view

        @functools.wraps(view)
        def limited(*args: Any, **kwargs: Any) -> Any:
            answer, verdict = self._enter()
            if answer is not None:
                return answer
            result = view(*args, **kwargs)
            self._leave(verdict, result)
            return result

        @functools.wraps(view)
        async def limited_async(*args: Any, **kwargs: Any) -> Any:
            answer, verdict = self._enter()
            if answer is not None:
                return answer
            result = await view(*args, **kwargs)
            self._leave(verdict, result)
            return result

        chosen: Any = limited_async if inspect.iscoroutinefunction(view) else limited
        setattr(chosen, _MARK, self)
        # Decorators above copy what a function has, and are not what was limited here.
        self.is_of = weakref.ref(chosen)
        return chosen

    def _enter(self) -> tuple[Any, Verdict | None]:
        app = flask.current_app
        known: dict[RateLimit, LimitedApp] = app.extensions.get("tidegate", {})
        try:
            limited = known[self.extension]
        except KeyError:
            raise ConfigurationError(
                f"{self.view!r} is limited by an extension that {app.name} does not have; "
                "accepted is a call of its init_app() with the application"
            ) from None
        return limited.enter(self, flask.request._get_current_object())  # type: ignore[attr-defined]

    def _leave(self, verdict: Verdict | None, result: Any) -> None:
        if self._settles and verdict is not None:
            request = flask.request._get_current_object()  # type: ignore[attr-defined]
            finished(verdict.settle(request, result, True))


class Telling:
    """The WSGI application of Flask, with the fields of all that was judged on its responses.

    It is here that they cost least, and that no response goes without.
    """

    def __init__(self, app: WSGIApp) -> None:
        self._app = app

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if VERDICTS in environ:  # another extension tells
            return self._app(environ, start_response)
        # Before the call, for what is in between may copy the environ.
        verdicts: list[Verdict] = []
        environ[VERDICTS] = verdicts
        return self._app(environ, with_fields(start_response, verdicts))


class LimitedApp:
    """The limits of one application."""

    def __init__(self, app: flask.Flask, extension: RateLimit, settings: Settings) -> None:
        self._app = weakref.ref(app)
        self._config = app.config
        self._extension = extension
        self._settings = settings
        self._everywhere = (
            None
            if settings.limit is None
            else settings.guard(settings.limit, "app", cost=settings.cost)
        )
        if settings.endpoint_limit is not None:
            settings.guard(settings.endpoint_limit, "endpoint:")
        self._guards: weakref.WeakKeyDictionary[Rule, Guard] = weakref.WeakKeyDictionary()
        # By endpoint and method, of which there are no more than the application has routes.
        self._plans: dict[tuple[str | None, str], tuple[Any, list[LimitedView]]] = {}

    def guard_of(self, rule: Rule) -> Guard:
        """The guard of `rule` in this application."""
        guard = self._guards.get(rule)
        if guard is None:
            guard = self._settings.guard(rule.limit, rule.scope, **rule.options)
            self._guards[rule] = guard
        return guard

    def judge(self) -> Any:
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
        judge, views = plan
        return None if judge is None else self._charge(judge, views, request)

    def enter(self, view: LimitedView, request: flask.Request) -> tuple[Any, Verdict | None]:
        """What to answer instead of calling `view`, or the verdict that lets it be called.

        What another decorator hides, or what another view calls, was not judged before.
        """
        judged = request.environ.get(_VIEWS, {})
        if view not in judged:
            if not self._applies_to(request):
                return None, None
            answer = self._charge(_judge([*map(self.guard_of, view.rules)]), [view], request)
            if answer is not None:
                return answer, None
        return None, request.environ[_VIEWS][view]

    def _applies_to(self, request: flask.Request) -> bool:
        return bool(
            self._config["TIDEGATE_ENABLED"] and request.method not in self._settings.exempt_methods
        )

    def _charge(
        self, judge: Callable[..., Any], views: Sequence[LimitedView], request: flask.Request
    ) -> Any:
        environ = request.environ
        verdict: Verdict | None = judge(request, blocking=True)
        if verdict is None or verdict.decision.allowed:
            if views:
                environ.setdefault(_VIEWS, {}).update(dict.fromkeys(views, verdict))
            if verdict is not None:
                environ[DECISION] = verdict.decision
                environ.setdefault(VERDICTS, []).append(verdict)
            return None
        environ[DECISION] = verdict.decision
        verdicts = environ.setdefault(VERDICTS, [])
        for earlier in verdicts:
            finished(earlier.undo(True))
        verdicts[:] = [verdict]
        return self._refused(request, verdict)

    def _refused(self, request: flask.Request, verdict: Verdict) -> Any:
        answer = finished(
            replacement(verdict, request, "what a view returns", _is_answer, blocking=True)
        )
        if answer is None:
            raise RateLimitExceeded(verdict)
        return flask_refusal(answer)

    def _plan(self, request: flask.Request) -> tuple[Any, list[LimitedView]]:
        """What judges the requests for an endpoint, and the limited views that it is about."""
        app = self._app()
        assert app is not None
        endpoint = request.endpoint
        view = None if endpoint is None else app.view_functions.get(endpoint)
        views = self._limited_views(view, request.method)
        rules = [rule for one in views for rule in one.rules]
        blueprints = [app.blueprints[name] for name in request.blueprints if name in app.blueprints]
        guards = []
        is_static = endpoint is not None and endpoint.rpartition(".")[2] == "static"
        if not is_static and not self._extension.is_exempt(view, blueprints):
            if self._everywhere is not None:
                guards.append(self._everywhere)
            of_blueprints = [
                rule for known, rule in self._extension.of_blueprints if known in blueprints
            ]
            guards += map(self.guard_of, of_blueprints)
            limit = self._settings.endpoint_limit
            if limit is not None and not any(
                rule.is_for(request.method) for rule in [*of_blueprints, *rules]
            ):
                guards.append(self._settings.guard(limit, f"endpoint:{endpoint or ''}"))
        guards += map(self.guard_of, rules)
        return (_judge(guards) if guards else None), views

    def _limited_views(self, view: Any, method: str) -> list[LimitedView]:
        found = [getattr(view, _MARK, None)]
        view_class = getattr(view, "view_class", None)
        if view_class is not None:
            handler = getattr(view_class, method.lower(), None)
            if handler is None and method == "HEAD":
                handler = getattr(view_class, "get", None)
            found.append(getattr(handler, _MARK, None))
        return [one for one in found if one is not None and one.extension is self._extension]


def _is_answer(answer: Any) -> bool:
    return answer is not None


def _judge(guards: list[Guard]) -> Callable[..., Any]:
    return guards[0].judge if len(guards) == 1 else Stack(guards).judge
