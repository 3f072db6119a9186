"""A Django project in one file, with the middleware and limits on views, for WSGI and ASGI.

pip install 'tidegate[django]' gunicorn uvicorn
cd examples && gunicorn --workers 4 django_app:wsgi
cd examples && uvicorn --workers 4 django_app:asgi
curl -i http://127.0.0.1:8000/tides

The workers count together in shared memory; with TIDEGATE_STORAGE=redis://localhost all hosts
count together.
"""

from __future__ import annotations

import os

from django.conf import settings
from tidegate import Decision, keys

# Accounts by their API keys; a real service would query its database.
ACCOUNTS = {"8f14e45fceea167a": "acme"}

settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    SECRET_KEY=os.environ.get("SECRET_KEY", "for an example"),
    MIDDLEWARE=["tidegate.django.RateLimitMiddleware"],
    TIDEGATE={
        "LIMIT": ["20/second", "1000/hour"],
        "KEY": keys.first_of(keys.api_key(ACCOUNTS.get), keys.client_ip()),
        "EXEMPT_WHEN": lambda request: request.path == "/health",
        "STORAGE": os.environ.get("TIDEGATE_STORAGE", "shm://django-app"),
    },
)

from django.core.asgi import get_asgi_application  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.http import HttpRequest, HttpResponse, JsonResponse  # noqa: E402
from django.urls import path  # noqa: E402
from django.utils.decorators import method_decorator  # noqa: E402
from django.views import View  # noqa: E402
from tidegate.django import rate_limit  # noqa: E402


def too_many(request: HttpRequest, decision: Decision) -> HttpResponse:
    """An answer in this project's own style; the header fields are added to it."""
    return JsonResponse({"ok": False, "wait": decision.retry_after}, status=429)


def health(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


@rate_limit("10/minute")
def tides(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"high": "04:12", "low": "10:31"})


# The cost of a forecast is known only afterwards.
@rate_limit("100/hour", cost=10, cost_after=lambda request, answer: int(answer["X-Days"]))
@rate_limit("3/minute")
async def forecast(request: HttpRequest) -> HttpResponse:
    days = min(int(request.GET.get("days", "1")), 30)
    return JsonResponse({"days": ["calm"] * days}, headers={"X-Days": str(days)})


@method_decorator(rate_limit("2/minute", methods=["POST"], on_refused=too_many), name="dispatch")
class Berths(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return JsonResponse({"free": ["north", "south"]})

    def post(self, request: HttpRequest) -> HttpResponse:
        return JsonResponse({"booked": request.POST.get("berth", "north")}, status=201)


urlpatterns = [
    path("health", health),
    path("tides", tides),
    path("forecast", forecast),
    path("berths", Berths.as_view()),
]

wsgi = get_wsgi_application()
asgi = get_asgi_application()
