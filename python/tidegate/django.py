"""Rate limiting for Django: middleware for a project, and a decorator for its views.

MIDDLEWARE = [..., "tidegate.django.RateLimitMiddleware"]
TIDEGATE = {"LIMIT": "1000/hour", "STORAGE": "redis://localhost"}

@rate_limit("5/minute", key="user_or_ip")
def login(request): ...
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Callable, TypeVar, Union

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.http.response import HttpResponseBase

from tidegate import _decorator
from tidegate._django import ViewDecorator
from tidegate._errors import ConfigurationError
from tidegate._frameworks import VERDICTS
from tidegate._functions import check_synchronous
from tidegate._guard import Verdict, finished
from tidegate._headers import PROBLEM_TYPE, extend
from tidegate._middleware import replacement
from tidegate._scopes import shared_store
from tidegate._settings import Settings, key_function
from tidegate._unknown import unknown_options

if TYPE_CHECKING:
    from django.http import HttpRequest
    from typing_extensions import Unpack

    from tidegate._clock import ClockLike
    from tidegate._limit import LimitLike
    from tidegate._storage import StorageLike, StorageOptions

__all__ = ["RateLimitMiddleware", "SettingsError", "rate_limit"]

T = TypeVar("T")
GetResponse = Callable[[Any], Any]
Response = Union[HttpResponseBase, Awaitable[HttpResponseBase]]

_AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
_CONFIGURED = frozenset(
    (
        "enabled", "limit", "key", "cost", "exempt_when", "exempt_methods", "storage",
        "storage_options", "algorithm", "prefix", "clock", "on_no_key", "on_refused", "headers",
        "retry_jitter",
    )
)  # fmt: skip


class SettingsError(ConfigurationError, ImproperlyConfigured):  # type: ignore[misc]
    """A setting that is not accepted."""


class RateLimitMiddleware:
    """Answers 429 above the limit of the setting TIDEGATE, and tells clients where they stand.

    TIDEGATE is a dict of LIMIT, KEY (a function of the request, "package.module:function",
    "ip", "user" or "user_or_ip"), COST, EXEMPT_WHEN, EXEMPT_METHODS, STORAGE,
    STORAGE_OPTIONS, ALGORITHM, PREFIX, CLOCK, ON_NO_KEY, ON_REFUSED (a function of request and
    decision that returns a response), HEADERS, RETRY_JITTER and ENABLED, which is read for each
    request. They
    are the options of tidegate.asgi.RateLimitMiddleware. Without LIMIT it adds the fields of
    limits on views to responses that Django makes of exceptions, and no more.

    Each client has one count for the project, whatever the path. It stands as far up as it
    can, below AuthenticationMiddleware where KEY asks for the user. It is for
    WSGI and ASGI; functions may be async under ASGI. The decision is left in
    ``request.META["tidegate.decision"]``. Raises SettingsError when the project is loaded.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response
        self._settings = _settings()
        problem = _misplaced(f"{type(self).__module__}.{type(self).__qualname__}")
        if problem is not None:
            raise SettingsError(problem)
        self._guard = None
        if self._settings.limit is not None:
            try:
                self._guard = self._settings.guard(
                    self._settings.limit, "project", cost=self._settings.cost
                )
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
                    EXEMPT_WHEN=self._settings.exempt_when,
                    ON_REFUSED=self._settings.on_refused,
                )
            except ConfigurationError as exc:
                raise SettingsError(f"TIDEGATE: {exc}") from exc

    def __call__(self, request: HttpRequest) -> Response:
        if self._is_async:
            return self._answer_later(request)
        verdict = finished(self._judge(request, True))
        if verdict is not None and not verdict.decision.allowed:
            return finished(self._refuse(request, verdict, True))
        return self._told(request, self.get_response(request), verdict)

    async def _answer_later(self, request: HttpRequest) -> HttpResponseBase:
        verdict = await self._judge(request, False)
        if verdict is not None and not verdict.decision.allowed:
            return await self._refuse(request, verdict, False)
        return self._told(request, await self.get_response(request), verdict)

    async def _judge(self, request: HttpRequest, blocking: bool) -> Verdict | None:
        guard = self._guard
        if guard is None or request.method in self._settings.exempt_methods or not _is_enabled():
            return None
        verdict = guard.judge(request, blocking=blocking)
        if isinstance(verdict, CoroutineType):
            verdict = await verdict
        if verdict is not None:
            request.META["tidegate.decision"] = verdict.decision
        return verdict

    async def _refuse(
        self, request: HttpRequest, verdict: Verdict, blocking: bool
    ) -> HttpResponseBase:
        response: HttpResponseBase | None = await replacement(
            verdict, request, "an HttpResponse", _is_response, blocking=blocking
        )
        if response is None:
            response = HttpResponse(
                verdict.problem(), status=429, content_type=PROBLEM_TYPE.decode()
            )
        return self._told(request, response, verdict)

    def _told(
        self, request: HttpRequest, response: HttpResponseBase, verdict: Verdict | None
    ) -> HttpResponseBase:
        for nearer in reversed(request.META.pop(VERDICTS, ())):
            extend(response.headers, nearer.text_fields())
        if verdict is not None:
            extend(response.headers, verdict.text_fields())
        return response


def rate_limit(
    limit: LimitLike | Callable[..., Any],
    *,
    key: Callable[[HttpRequest], Any] | str | None = None,
    cost: int | Callable[[HttpRequest], Any] = 1,
    cost_after: Callable[[HttpRequest, Any], Any] | None = None,
    exempt_when: Callable[[HttpRequest], Any] | None = None,
    methods: Iterable[str] | None = None,
    scope: str | None = None,
    storage: StorageLike | None = None,
    algorithm: str | None = None,
    prefix: str | None = None,
    clock: ClockLike = None,
    on_no_key: str | None = None,
    on_refused: Callable[..., Any] | None = None,
    headers: Iterable[str] | None = None,
    retry_jitter: float | Callable[[float], Any] | None = None,
    **options: Unpack[StorageOptions],
) -> Callable[[T], T]:
    """As tidegate.rate_limit, for views of Django: functions, async or not, and classes.

        @rate_limit("5/minute")
        def login(request): ...

        @method_decorator(rate_limit("5/minute"), name="dispatch")
        class Login(View): ...

        path("login", rate_limit("5/minute")(login))

    What is None is taken from the setting TIDEGATE, and `key` may be a name as there; COST
    is the middleware's alone. It may stand on classes and, by `method_decorator`, on their
    methods; each class counts for itself. Responses that Django
    makes of an exception of the view carry the fields where the middleware is installed.
    """
    chosen = _settings()
    if storage is None and options:
        raise ConfigurationError(
            f"the options {unknown_options(options, ())} were given without a storage; accepted "
            "are storage options with storage=, or in TIDEGATE['STORAGE_OPTIONS']"
        )
    given = {
        "key": key_function(key),
        "storage": storage,
        "algorithm": algorithm,
        "prefix": prefix,
        "clock": clock,
        "on_no_key": on_no_key,
        "on_refused": on_refused,
        "headers": headers,
        "retry_jitter": retry_jitter,
    }
    merged = {
        name: getattr(chosen, name) if value is None else value for name, value in given.items()
    }
    decorator: Any = _decorator.rate_limit(
        limit,
        cost=cost,
        cost_after=cost_after,
        exempt_when=_unless_disabled(chosen.exempt_when if exempt_when is None else exempt_when),
        methods=methods,
        scope=scope,
        **merged,
        **options,
    )
    limited: Any = ViewDecorator(decorator)
    return limited  # type: ignore[no-any-return]


def _unless_disabled(exempt_when: Any) -> Any:
    """`exempt_when`, and the setting that disables all limits."""
    if inspect.iscoroutinefunction(exempt_when):

        async def exempt_later(request: Any) -> bool:
            return not _is_enabled() or bool(await exempt_when(request))

        return exempt_later

    def exempt(request: Any) -> Any:
        return not _is_enabled() or (exempt_when is not None and exempt_when(request))

    return exempt


def _is_response(answer: Any) -> bool:
    return isinstance(answer, HttpResponseBase)


def _is_enabled() -> bool:
    return bool(getattr(settings, "TIDEGATE", {}).get("ENABLED", True))


def _settings() -> Settings:
    configured = getattr(settings, "TIDEGATE", {})
    if not isinstance(configured, dict):
        raise SettingsError(
            f"TIDEGATE is {configured!r}; accepted is a dict such as {{'LIMIT': '100/minute'}}"
        )
    for name in configured:
        if not isinstance(name, str) or not name.isupper():
            raise SettingsError(f"TIDEGATE has {name!r}; accepted are names such as 'LIMIT'")
    try:
        return Settings(
            {},
            {name.lower(): value for name, value in configured.items() if value is not None},
            name="TIDEGATE['{}']",
            accepted=_CONFIGURED,
            open_store=shared_store,
        )
    except ConfigurationError as exc:
        raise SettingsError(str(exc)) from exc


def _misplaced(name: str) -> str | None:
    """What is wrong with the place of the middleware `name`; None where nothing is."""
    order = list(settings.MIDDLEWARE)
    if getattr(settings, "TIDEGATE", {}).get("KEY") not in ("user", "user_or_ip"):
        return None
    if name not in order or _AUTHENTICATION not in order:
        return None
    if order.index(name) > order.index(_AUTHENTICATION):
        return None
    return (
        f"TIDEGATE['KEY'] asks for the user, whom {_AUTHENTICATION} tells; accepted in MIDDLEWARE "
        f"is {name} below it"
    )


@checks.register("tidegate")  # type: ignore[untyped-decorator]
def _check_settings(app_configs: Any = None, **options: Any) -> list[Any]:
    """What `manage.py check` says of the settings, where this module is imported."""
    try:
        _settings()
    except SettingsError as exc:
        return [checks.Error(str(exc), id="tidegate.E001")]
    name = f"{__name__}.{RateLimitMiddleware.__qualname__}"
    problem = _misplaced(name)
    if problem is not None:
        return [checks.Error(problem, id="tidegate.E002")]
    configured = getattr(settings, "TIDEGATE", {})
    if configured.get("LIMIT") is not None and name not in settings.MIDDLEWARE:
        return [
            checks.Warning(
                f"TIDEGATE['LIMIT'] limits nothing without {name} in MIDDLEWARE",
                id="tidegate.W003",
            )
        ]
    if configured.get("KEY") in ("user", "user_or_ip") and _AUTHENTICATION not in (
        settings.MIDDLEWARE
    ):
        return [
            checks.Warning(
                f"TIDEGATE['KEY'] asks for the user, and {_AUTHENTICATION} is not in MIDDLEWARE",
                id="tidegate.W004",
            )
        ]
    return []
