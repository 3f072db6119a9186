"""Projects of Django, each with its own counts, and both of Django's test clients."""

from __future__ import annotations

import contextlib

import pytest
import tidegate as tg

pytest.importorskip("django")

from django.conf import settings

if not settings.configured:
    settings.configure()

from asgiref.sync import async_to_sync
from django.http import HttpResponse
from django.test import AsyncClient, override_settings
from django.test import Client as DjangoClient
from django.urls import path

MIDDLEWARE = "tidegate.django.RateLimitMiddleware"
AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"


def page(request, rest=""):
    return HttpResponse("page")


@contextlib.contextmanager
def project(clock, urls=(), middleware=(MIDDLEWARE,), **tidegate):
    """Sets up a project with these views and settings, and its own counts."""
    tidegate.setdefault("STORAGE", tg.Limiter("1/second").storage)
    tidegate.setdefault("CLOCK", clock)
    with override_settings(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=(path("page/<str:rest>", page), *urls),
        MIDDLEWARE=list(middleware),
        TIDEGATE=tidegate,
    ):
        yield


class ProjectClient:
    """Wraps Django's two test clients in one interface."""

    def __init__(self, kind):
        self.is_async = kind == "async"

    def __call__(self, path, method="get", **options):
        # A client keeps its loaded middleware.
        client = AsyncClient if self.is_async else DjangoClient
        send = getattr(client(raise_request_exception=False), method)
        return async_to_sync(send)(path, **options) if self.is_async else send(path, **options)

    def statuses(self, *paths, **options):
        return [self(path, **options).status_code for path in paths]
