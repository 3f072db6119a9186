"""Mistakes that would make a limit another one, or none, are refused or said."""

from __future__ import annotations

import logging

import pytest
import tidegate as tg
import tidegate.asgi
import tidegate.flask
import tidegate.wsgi


@pytest.mark.parametrize("option", ["methods", "exempt_methods"])
@pytest.mark.parametrize(("wrong", "near"), [("PSOT", "POST"), ("GTE", "GET"), ("DELET", "DELETE")])
def test_a_method_that_nobody_meant(option, wrong, near):
    def make(**options):
        if option == "methods":
            return tg.rate_limit("5/minute", **options)
        return tidegate.wsgi.RateLimitMiddleware(None, "5/minute", **options)

    with pytest.raises(tg.ConfigurationError, match=f"{option} has '{wrong}'.*'{near}'"):
        make(**{option: ["GET", wrong]})


@pytest.mark.parametrize("method", ["get", "PROPFIND", "PURGE", "FROBNICATE"])
def test_methods_that_there_are_and_those_of_a_service(method):
    assert tg.rate_limit("5/minute", methods=[method])


def test_no_method_at_all():
    with pytest.raises(tg.ConfigurationError, match="methods is \\[\\], which limits nothing"):
        tg.rate_limit("5/minute", methods=[])
    assert tidegate.wsgi.RateLimitMiddleware(None, "5/minute", exempt_methods=[])


@pytest.mark.parametrize("text", ["100/M", "100/mo", "100 per mon", "5/2 M"])
def test_a_unit_that_could_be_minutes_or_months(text):
    with pytest.raises(tg.ConfigurationError, match="could be minutes or months") as caught:
        tg.Limiter(text)
    assert text in str(caught.value)


@pytest.mark.parametrize("text", ["100/m", "100/MINUTE", "100/Month", "100/S", "100/H", "1/2 D"])
def test_units_in_capitals(text):
    assert tg.Limit(text)


@pytest.mark.parametrize("option", ["timeout", "connect_timeout"])
def test_milliseconds_where_seconds_are_meant(option, caplog):
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        tg.Limiter("5/minute", storage="redis://127.0.0.1:1", **{option: 50}).close()
    (message,) = [line for line in caplog.messages if option in line]
    assert "50 seconds" in message
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        tg.Limiter("5/minute", storage="redis://127.0.0.1:1", **{option: 0.5}).close()
    assert not [line for line in caplog.messages if option in line]


def test_two_limits_of_one_text_and_two_algorithms():
    limits = [tg.Limit("9/minute"), tg.Limit("9/minute", algorithm="fixed-window")]
    with pytest.raises(tg.ConfigurationError, match=r"token-bucket.*fixed-window.*name='strict'"):
        tg.Limiter(limits)
    named = tg.Limit("9/minute", algorithm="fixed-window", name="strict")
    assert tg.Limiter([limits[0], named]).hit("k")

    def view():
        pass

    inner = tg.rate_limit("9/minute", algorithm="fixed-window")(view)
    with pytest.raises(tg.ConfigurationError, match="two limits have the name"):
        tg.rate_limit("9/minute")(inner)
