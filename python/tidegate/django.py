"""Rate limiting for Django: middleware for a project, and a decorator for its views.

::

    MIDDLEWARE = [..., "tidegate.django.RateLimitMiddleware"]
    TIDEGATE = {"LIMIT": "1000/hour", "STORAGE": "redis://localhost"}

    @rate_limit("5/minute", key="user_or_ip")
    def login(request): ...
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Iterable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Callable, TypeVar, Union

from tidegate.limiter.errors import without_extra

try:
    from asgiref.sync import iscoroutinefunction, markcoroutinefunction
    from django.conf import settings
    from django.core import checks
    from django.core.exceptions import ImproperlyConfigured
    from django.http import HttpResponse
    from django.http.response import HttpResponseBase
except ImportError as error:
    raise without_extra("tidegate.django", "django", error) from None

from tidegate.limiter.errors import ConfigurationError
from tidegate.limiter.storage.hints import unknown_options
from tidegate.web.callables import check_synchronous
from tidegate.web.decisions import DECISIONS, GRANTED
from tidegate.web.execution import AWAITING, BLOCKING, Execution
from tidegate.web.frameworks import decorator as decorators
from tidegate.web.frameworks.django_routes import route_path
from tidegate.web.frameworks.django_views import ViewDecorator
from tidegate.web.frameworks.rest_framework import Throttle
from tidegate.web.frameworks.streams import settle_after_django
from tidegate.web.headers import PROBLEM_TYPE, extend
from tidegate.web.hooks import log
from tidegate.web.named_keys import key_function
from tidegate.web.options import DjangoViewOptions, OptionReader
from tidegate.web.refusal import PLAIN, USUAL, plain_body
from tidegate.web.request_limiter import RequestDecision, RequestLimiter
from tidegate.web.rule_requests import RuleRequests, attributes_by_option
from tidegate.web.settings import Settings
from tidegate.web.shared_counters import shared_store

if TYPE_CHECKING:
    from django.http import HttpRequest
    from typing_extensions import Unpack

    from tidegate.limiter.limit import LimitLike

__all__ = [
    "RateLimitMiddleware",
    "RateThrottle",
    "SettingsError",
    "rate_limit",
    "route_path",
    "throttle",
]

T = TypeVar("T")

# Options that are not given are read from the settings, except the cost of a view.
_OPTIONS = OptionReader(
    DjangoViewOptions, {"cost": 1}, {"block": "on_refused=", "enabled": "TIDEGATE['ENABLED']"}
)
GetResponse = Callable[[Any], Any]
Response = Union[HttpResponseBase, Awaitable[HttpResponseBase]]

_AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
_RAISED = "tidegate.raised"
_CONFIGURED = frozenset(
    (
        "enabled", "limit", "rules", "attributes", "tiers", "violations", "load", "key", "cost",
        "cost_after", "exempt_when", "exempt_methods", "exempt_paths", "storage", "storage_options",
        "algorithm", "prefix", "clock", "on_limit_error", "on_no_key", "on_refused", "headers",
        "retry_jitter",
    )
)  # fmt: skip


# The settings that apply to views too. COST and COST_AFTER are those of the middleware.
_OF_VIEWS = _CONFIGURED - {"cost", "cost_after"}


class SettingsError(ConfigurationError, ImproperlyConfigured):  # type: ignore[misc]
    """A setting that is not accepted."""


class RateLimitMiddleware:
    """Answers 429 above the limit of the setting TIDEGATE, and adds its state to all responses.

    TIDEGATE is a dict of LIMIT, KEY (a function of the request, "package.module:function",
    "ip", "user" or "user_or_ip"), COST, COST_AFTER (a function of the request, and of the response
    or the exception that the view raised), EXEMPT_WHEN, EXEMPT_METHODS, EXEMPT_PATHS, STORAGE,
    STORAGE_OPTIONS, ALGORITHM, PREFIX, CLOCK, ON_LIMIT_ERROR, ON_NO_KEY, ON_REFUSED (a function
    of request and decision that returns a response, or an exception to raise), HEADERS,
    RETRY_JITTER and ENABLED, which is read for each request. They are the options of
    tidegate.asgi.RateLimitMiddleware. RULES replace LIMIT (the path of a file, which is followed,
    a dict, a RuleSet or RuleSource, or "package.module:name"), with ATTRIBUTES (a mapping from
    each attribute to a function of the request, or its name), TIERS, VIOLATIONS and LOAD. Without
    LIMIT and RULES, the middleware only adds the fields of limits on views to the responses that
    Django makes of exceptions.

    Limits of decorated views add to LIMIT and RULES: if a view's limit refuses a request, these do
    not charge it.

    Each client has one count for the project, whatever the path. The middleware should stand as
    early as possible, but below AuthenticationMiddleware if KEY needs the user. It supports WSGI
    and ASGI; functions may be async under ASGI. The decision is in
    ``request.META["tidegate.decision"]``. Raises SettingsError when the project is loaded.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response
        self._settings = _settings()
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        # Servers run no checks.
        for warning in _unread_settings(name):
            log.warning("rate limiting: %s", warning.msg)
        problem = _misplaced(name)
        if problem is not None:
            raise SettingsError(problem)
        self._request_limiter: RequestLimiter | RuleRequests | None = None
        try:
            if self._settings.limit is not None:
                self._request_limiter = self._settings.limiter(
                    self._settings.limit,
                    "project",
                    cost=self._settings.cost,
                    cost_after=self._settings.cost_after,
                )
            else:
                self._request_limiter = self._settings.rule_requests()
        except ConfigurationError as exc:
            raise SettingsError(f"TIDEGATE: {exc}") from exc
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)
        else:
            try:
                check_synchronous(
                    LIMIT=self._settings.limit,
                    KEY=self._settings.key,
                    COST=self._settings.cost,
                    COST_AFTER=self._settings.cost_after,
                    EXEMPT_WHEN=self._settings.exempt_when,
                    ON_REFUSED=self._settings.on_refused,
                    **attributes_by_option(self._settings.attributes, "ATTRIBUTES"),
                )
            except ConfigurationError as exc:
                raise SettingsError(f"TIDEGATE: {exc}") from exc

    def __call__(self, request: HttpRequest) -> Response:
        if self._is_async:
            return self._answer_later(request)
        outcome = BLOCKING.run(self._check(request, BLOCKING))
        if outcome is not None and not outcome.decision.allowed:
            return BLOCKING.run(self._refuse(request, outcome, BLOCKING))
        if outcome is None or not outcome.limits.lease_ns:
            return self._answer(request, outcome)
        outcome.hold()
        is_held = True
        try:
            response = self._answer(request, outcome)
            is_held = not settle_after_django(request, response, outcome.leave, None)
            return response
        finally:
            if is_held:
                BLOCKING.run(outcome.leave(BLOCKING))

    def _answer(self, request: HttpRequest, outcome: RequestDecision | None) -> HttpResponseBase:
        try:
            response: Any = self.get_response(request)
        except BaseException as exc:
            if outcome is not None:
                BLOCKING.run(self._settle(request, _raised(exc), outcome, BLOCKING))
            raise
        if outcome is not None:
            outcome = BLOCKING.run(self._settle(request, response, outcome, BLOCKING))
        return self._with_headers(request, response, outcome)

    async def _answer_later(self, request: HttpRequest) -> HttpResponseBase:
        outcome = await self._check(request, AWAITING)
        if outcome is not None and not outcome.decision.allowed:
            return await self._refuse(request, outcome, AWAITING)
        if outcome is None or not outcome.limits.lease_ns:
            return await self._answer_async(request, outcome)
        outcome.hold()
        is_held = True
        try:
            response = await self._answer_async(request, outcome)
            # The thread that closes a stream may block.
            is_held = not settle_after_django(request, response, outcome.leave, None)
            return response
        finally:
            if is_held:
                await AWAITING.to_the_end(outcome.leave(AWAITING))

    async def _answer_async(
        self, request: HttpRequest, outcome: RequestDecision | None
    ) -> HttpResponseBase:
        try:
            response: Any = await self.get_response(request)
        except BaseException as exc:
            if outcome is not None:
                await AWAITING.to_the_end(self._settle(request, _raised(exc), outcome, AWAITING))
            raise
        if outcome is not None:
            outcome = await self._settle(request, response, outcome, AWAITING)
        return self._with_headers(request, response, outcome)

    async def _check(self, request: HttpRequest, execution: Execution) -> RequestDecision | None:
        limiter = self._request_limiter
        if limiter is None or not _is_enabled():
            return None
        method = request.method or ""
        if method in self._settings.exempt_methods and limiter.exempts(request, method):
            return None
        exempt_paths = self._settings.exempt_paths
        if exempt_paths is not None and exempt_paths(request) and limiter.exempts(request):
            return None
        checked = limiter.check(request, execution)
        outcome = await checked if isinstance(checked, CoroutineType) else checked
        if outcome is not None:
            request.META["tidegate.decision"] = outcome.decision
            if outcome.decision.allowed:
                request.META[GRANTED] = (outcome,)
        return outcome

    async def _settle(
        self,
        request: HttpRequest,
        response: HttpResponseBase | Exception | None,
        outcome: RequestDecision,
        execution: Execution,
    ) -> RequestDecision:
        # A view's limit that refused the request has given it back.
        if not request.META.pop(GRANTED, ()):
            return await outcome.standing(execution)
        cost_after = self._settings.cost_after
        if cost_after is None:
            return outcome
        answer = request.META.pop(_RAISED, response)
        settle = functools.partial(outcome.settle, request, answer)
        if settle_after_django(request, response, settle, cost_after):
            return outcome
        return await settle(execution)

    def process_exception(self, request: HttpRequest, exception: Exception) -> None:
        """Notes the exception of a view, which Django answers, for COST_AFTER."""
        if self._settings.cost_after is not None:
            request.META[_RAISED] = exception

    async def _refuse(
        self, request: HttpRequest, outcome: RequestDecision, execution: Execution
    ) -> HttpResponseBase:
        response = await outcome.service_answer(
            request,
            execution,
            accepts=_is_answer,
            expected="an HttpResponse, an exception, a dict, list, str or bytes",
            convert=_response_of,
        )
        if isinstance(response, Exception):
            raise response
        if response is USUAL:
            response = HttpResponse(
                outcome.problem(), status=429, content_type=PROBLEM_TYPE.decode()
            )
        return self._with_headers(request, response, outcome)

    def _with_headers(
        self, request: HttpRequest, response: HttpResponseBase, outcome: RequestDecision | None
    ) -> HttpResponseBase:
        for nearer in reversed(request.META.pop(DECISIONS, ())):
            extend(response.headers, nearer)
        if outcome is not None:
            extend(response.headers, outcome)
        return response


@_OPTIONS.shown
def rate_limit(
    limit: LimitLike | Callable[..., Any], **options: Unpack[DjangoViewOptions]
) -> Callable[[T], T]:
    """Limits views of Django as tidegate.rate_limit does: functions, async or not, and classes.

    ::

        @rate_limit("5/minute")
        def login(request): ...

        @method_decorator(rate_limit("5/minute"), name="dispatch")
        class Login(View): ...

        path("login", rate_limit("5/minute")(login))

    Options that are None are taken from the setting TIDEGATE, and `key` may be a name as there;
    COST and COST_AFTER apply only to the middleware. The decorator may stand on classes and, by
    `method_decorator`, on their methods; each class has its own counts. Responses that Django makes
    of an exception of the view carry the fields if the middleware is installed.
    """
    given, storage_options = _OPTIONS.read(options)
    configured = _settings(reads_rules=False)
    if given.storage is None and storage_options:
        raise ConfigurationError(
            f"the options {unknown_options(storage_options, ())} were given without a storage; "
            "expected storage options with storage=, or in TIDEGATE['STORAGE_OPTIONS']"
        )
    given.key = key_function(given.key)
    merged = {
        name: getattr(configured, name) if value is None and name in _OF_VIEWS else value
        for name, value in vars(given).items()
    }
    merged["exempt_when"] = _unless_disabled(merged["exempt_when"])
    decorator: Any = decorators.rate_limit(limit, **merged, **storage_options)
    limited: Any = ViewDecorator(decorator)
    return limited  # type: ignore[no-any-return]


class RateThrottle(Throttle):
    """A throttle of Django REST framework, which runs once that has authenticated the user.

    ::

        class Uploads(RateThrottle):
            limit = "20/hour"

        class UploadView(APIView):
            throttle_classes = [Uploads]

    and for all views ``REST_FRAMEWORK = {"DEFAULT_THROTTLE_CLASSES": ["shop.limits.Uploads"]}``.
    All views with one class share counts. The class has these attributes: `limit`, a limit or a
    function of the request; `key`, ``"user_or_ip"`` unless it says otherwise; `cost`, `exempt_when`
    and `methods` as those of rate_limit(); `scope`, the name under which it counts. All else comes
    from the setting TIDEGATE. A class is checked when it is made, and raises ConfigurationError.

    REST framework raises its Throttled where a throttle refuses, for its EXCEPTION_HANDLER. All
    responses carry the fields. Of several throttles on a view the first that refuses decides: what
    the others and the middleware charged is given back.
    """

    @staticmethod
    def project_settings() -> Settings:
        """Returns the settings of the project."""
        return _present_settings()

    @staticmethod
    def is_enabled() -> bool:
        """Returns whether the project limits anything."""
        return _is_enabled()


def throttle(
    limit: LimitLike | Callable[..., Any],
    *,
    key: Callable[[Any], Any] | str = "user_or_ip",
    cost: int | Callable[[Any], Any] = 1,
    exempt_when: Callable[[Any], Any] | None = None,
    methods: Iterable[str] | None = None,
    scope: str | None = None,
) -> type[RateThrottle]:
    """Returns a RateThrottle with these attributes. Views with it have their own counts, unless it
    has a `scope`.

    ::

        @api_view(["POST"])
        @throttle_classes([throttle("5/minute")])
        def login(request): ...
    """
    attributes = {
        "__module__": __name__,
        "limit": _plain(limit),
        "key": _plain(key),
        "cost": _plain(cost),
        "exempt_when": _plain(exempt_when),
        "methods": methods if methods is None else tuple(methods),
        "scope": scope,
        "_counts_by_view": True,
    }
    return type("RateThrottle", (RateThrottle,), attributes)


def _plain(value: Any) -> Any:
    """Returns a function as an attribute of a class that is not a method."""
    return staticmethod(value) if inspect.isfunction(value) else value


_known_settings: tuple[Any, Settings] | None = None


def _present_settings() -> Settings:
    """Returns the settings, which are read again if the project has others."""
    global _known_settings
    configured = getattr(settings, "TIDEGATE", None)
    known = _known_settings
    if known is None or known[0] is not configured:
        _known_settings = known = configured, _settings(reads_rules=False)
    return known[1]


def _unless_disabled(exempt_when: Any) -> Any:
    """Applies `exempt_when`, and the setting that disables all limits."""
    if inspect.iscoroutinefunction(exempt_when):

        async def exempt_later(request: Any) -> bool:
            return not _is_enabled() or bool(await exempt_when(request))

        return exempt_later

    def exempt(request: Any) -> Any:
        return not _is_enabled() or (exempt_when is not None and exempt_when(request))

    return exempt


def _raised(exc: BaseException) -> Any:
    """Returns what COST_AFTER gets for a request that `exc` has ended without a response."""
    return exc if isinstance(exc, Exception) else None


def _is_answer(answer: Any) -> bool:
    return isinstance(answer, (HttpResponseBase, Exception, *PLAIN))


def _response_of(answer: Any) -> Any:
    """Returns the response for an answer of ON_REFUSED; raises if it cannot be encoded."""
    if not isinstance(answer, PLAIN):
        return answer
    body, kind = plain_body(answer)
    return HttpResponse(body, status=429, content_type=kind)


def _is_enabled() -> bool:
    return bool(getattr(settings, "TIDEGATE", {}).get("ENABLED", True))


def _settings(*, reads_rules: bool = True) -> Settings:
    configured = getattr(settings, "TIDEGATE", {})
    if not isinstance(configured, dict):
        raise SettingsError(
            f"TIDEGATE is {configured!r}; expected a dict such as {{'LIMIT': '100/minute'}}"
        )
    for name in configured:
        if not isinstance(name, str) or not name.isupper():
            raise SettingsError(f"TIDEGATE has {name!r}; expected names such as 'LIMIT'")
    try:
        read = Settings(
            {},
            {name.lower(): value for name, value in configured.items() if value is not None},
            name="TIDEGATE['{}']",
            accepted=_CONFIGURED,
            open_store=shared_store,
            reads_rules=reads_rules,
        )
        read.check_complete()
        return read
    except ConfigurationError as exc:
        raise SettingsError(str(exc)) from exc


def _misplaced(name: str) -> str | None:
    """Returns what is wrong with the place of the middleware `name`, or None."""
    order = list(settings.MIDDLEWARE)
    asking = _asks_for_user()
    if asking is None or name not in order or _AUTHENTICATION not in order:
        return None
    if order.index(name) > order.index(_AUTHENTICATION):
        return None
    return (
        f"{asking} asks for the user, whom {_AUTHENTICATION} finds; expected {name} below it in "
        "MIDDLEWARE"
    )


def _asks_for_user() -> str | None:
    """Returns the setting that needs the user by name, or None."""
    configured = getattr(settings, "TIDEGATE", {})
    if configured.get("KEY") in ("user", "user_or_ip"):
        return "TIDEGATE['KEY']"
    attributes = configured.get("ATTRIBUTES")
    if isinstance(attributes, dict) and "user" in attributes.values():
        return "TIDEGATE['ATTRIBUTES']"
    return None


def _unread_settings(name: str) -> list[Any]:
    """Returns warnings of settings that nothing reads, and of the middleware `name` without any."""
    found = []
    other = [each for each in dir(settings) if each.startswith("TIDEGATE_") and each.isupper()]
    if other:
        found.append(
            checks.Warning(
                f"the settings have {', '.join(sorted(other))}, which tidegate does not read; "
                "expected keys of TIDEGATE, such as TIDEGATE = {'LIMIT': '100/minute'}",
                id="tidegate.W006",
            )
        )
    if name in settings.MIDDLEWARE and not getattr(settings, "TIDEGATE", {}):
        found.append(
            checks.Warning(
                f"{name} is in MIDDLEWARE and the setting TIDEGATE is missing or empty, so the "
                "middleware limits nothing; expected TIDEGATE = {'LIMIT': '100/minute'}",
                id="tidegate.W007",
            )
        )
    return found


@checks.register("tidegate")  # type: ignore[untyped-decorator]
def _check_settings(app_configs: Any = None, **options: Any) -> list[Any]:
    """Returns what `manage.py check` reports about the settings, if this module is imported."""
    try:
        _settings()
    except SettingsError as exc:
        return [checks.Error(str(exc), id="tidegate.E001")]
    name = f"{__name__}.{RateLimitMiddleware.__qualname__}"
    problem = _misplaced(name)
    if problem is not None:
        return [checks.Error(problem, id="tidegate.E002")]
    found = []
    leftover = [name for name in dir(settings) if name.startswith("RATELIMIT_")]
    if leftover and not any("django_ratelimit" in name for name in settings.MIDDLEWARE):
        found.append(
            checks.Warning(
                f"the settings have {', '.join(sorted(leftover))}, which tidegate does not read; "
                "expected keys of TIDEGATE, such as ENABLED, STORAGE and ON_REFUSED",
                id="tidegate.W005",
            )
        )
    configured = getattr(settings, "TIDEGATE", {})
    limits = [each for each in ("LIMIT", "RULES") if configured.get(each) is not None]
    asking = _asks_for_user()
    found += _unread_settings(name)
    times = list(settings.MIDDLEWARE).count(name)
    if times > 1:
        found.append(
            checks.Warning(
                f"{name} is {times} times in MIDDLEWARE, so each request is counted {times} "
                "times; expected it once",
                id="tidegate.W009",
            )
        )
    if limits and name not in settings.MIDDLEWARE:
        found.append(
            checks.Warning(
                f"TIDEGATE['{limits[0]}'] limits nothing without {name} in MIDDLEWARE",
                id="tidegate.W003",
            )
        )
    if asking is not None and "rest_framework" in settings.INSTALLED_APPS:
        found.append(
            checks.Warning(
                f"{asking} asks for the user, whom Django REST framework authenticates after all "
                "middleware, so users of tokens count by their address; expected "
                "tidegate.django.RateThrottle on its views",
                id="tidegate.W008",
            )
        )
    elif asking is not None and _AUTHENTICATION not in settings.MIDDLEWARE:
        found.append(
            checks.Warning(
                f"{asking} asks for the user, and {_AUTHENTICATION} is not in MIDDLEWARE",
                id="tidegate.W004",
            )
        )
    return found
