"""The pages for operators. Each route reads what its page shows, and renders a template."""

from __future__ import annotations

import datetime as dt
import re
import secrets
import urllib.parse
from typing import TYPE_CHECKING, Any

from starlette.responses import RedirectResponse, Response

from tidegate.rules.sql.violation_table import top_violations
from tidegate.server.admin import anomaly_routes, operation_routes, rule_routes, user_routes
from tidegate.server.admin.bodies import Asked, Note, ResetAsked, Unlock
from tidegate.server.admin.problems import ProblemError
from tidegate.server.call_times import quantile
from tidegate.server.dashboard import live, user_pages
from tidegate.server.dashboard.app import open_route, signed_in
from tidegate.server.dashboard.assets import asset
from tidegate.server.dashboard.charts import line_chart, step_chart
from tidegate.server.dashboard.filters import short_time
from tidegate.server.dashboard.session import (
    FORM_COOKIE,
    PATH,
    SESSION_COOKIE,
    set_cookie,
)
from tidegate.server.records import anomaly_table, users

if TYPE_CHECKING:
    from starlette.requests import Request

    from tidegate.server.dashboard.app import Dashboard, Visit
    from tidegate.server.dashboard.charts import Chart

__all__ = ["ROUTES"]

_ATTRIBUTES = ("user", "ip", "tier", "endpoint", "method", "api_key")
_MOST_ROWS = 200


def sign_in_page(request: Request, form: dict[str, str]) -> Response:
    """Shows the form that takes a token."""
    return _sign_in(request, 200, None)


def _sign_in(request: Request, status: int, problem: str | None) -> Response:
    dashboard: Dashboard = request.app.state.dashboard
    # An existing cookie stays, so that a form in another tab remains valid.
    known = request.cookies.get(FORM_COOKIE, "")
    secret = known if re.fullmatch(r"[\w-]{43}", known, re.ASCII) else secrets.token_urlsafe(32)
    page = dashboard.templates.get_template("sign_in.html").render(
        csrf=secret, problem=problem, actor=None, path=""
    )
    response = Response(page, status, media_type="text/html")
    set_cookie(request, response, FORM_COOKIE, secret)
    return response


def sign_in(request: Request, form: dict[str, str]) -> Response:
    """Opens a session."""
    dashboard: Dashboard = request.app.state.dashboard
    remote = request.client.host if request.client else None
    token = form.get("token", "").strip()
    if not token or len(token) > 8192:
        return _sign_in(request, 401, "The token is missing. Type one.")
    try:
        name = dashboard.sign_in(token, remote)
    except ProblemError as error:
        said = error.detail[:1].upper() + error.detail[1:].rstrip(".") + "."
        return _sign_in(request, error.status, said)
    dashboard.sessions.close(request.cookies.get(SESSION_COOKIE))
    response = RedirectResponse(f"{PATH}/", 303)
    set_cookie(request, response, SESSION_COOKIE, name)
    return response


def sign_out(visit: Visit) -> Response:
    """Ends the session."""
    visit.dashboard.sessions.close(visit.request.cookies.get(SESSION_COOKIE))
    response = RedirectResponse(f"{PATH}/sign-in", 303)
    response.delete_cookie(SESSION_COOKIE, path=PATH)
    return response


def _now_values(visit: Visit) -> dict[str, Any]:
    dashboard = visit.dashboard
    started = dashboard.state.started
    now = dashboard.clock()
    seconds = live.seconds_of(dashboard.recent(), now, started)
    times = dashboard.times()
    slices = live.slices_of(seconds, times, now)
    allowed, refused = ([each[i] for each in seconds] for i in (0, 1))
    label = (
        f"Decisions per second of the last five minutes: {sum(allowed)} allowed, "
        f"{sum(refused)} refused, at most {max(allowed, default=0)} and "
        f"{max(refused, default=0)} in one second"
    )
    stats = dashboard.admin.limiter.stats()
    counters = dashboard.counters()
    with dashboard.admin.database.connect() as connection:
        waiting = anomaly_table.open_anomalies(connection)
        pending = len(
            users.list_requests(connection, status="PENDING", user=None, before=None, most=100)
        )
    return {
        "at": dt.datetime.fromtimestamp(now, dt.timezone.utc),
        "chart": line_chart(allowed, refused, label, live.SECONDS),
        "slices": slices,
        "p50": quantile((each.buckets for each in times), 0.5),
        "p99": quantile((each.buckets for each in times), 0.99),
        "times": _times_chart(slices),
        "allowed": sum(allowed),
        "refused": sum(refused),
        "degraded": sum(each.degraded for each in seconds),
        "in_shadow": sum(each.in_shadow for each in seconds),
        "storage_problem": dashboard.ping(),
        "problem": dashboard.state.problem(),
        "version": dashboard.state.version,
        "started": dt.datetime.fromtimestamp(started, dt.timezone.utc),
        "configurations": [
            (each, dt.datetime.fromtimestamp(each.since, dt.timezone.utc))
            for each in dashboard.state.configurations()
        ],
        "stats": stats,
        "dropped": sum(count for name, count in counters.items() if name.endswith("_dropped")),
        "anomalies": waiting,
        "pending": pending,
    }


def _times_chart(slices: list[live.Slice]) -> Chart:
    """Draws the quantiles of the slices, in microseconds."""
    lines = {
        f"{name}-line": [None if value is None else value * 1e6 for value in values]
        for name, values in (
            ("p50", [each.p50 for each in reversed(slices)]),
            ("p99", [each.p99 for each in reversed(slices)]),
        )
    }
    most = max((each.p99 for each in slices if each.p99 is not None), default=None)
    label = "Times of checks in the last five minutes: p50 and p99 of each ten seconds"
    if most is not None:
        label += f", at most {short_time(most)}"
    return step_chart(lines, label, live.SECONDS // live.SLICE)


def overview(visit: Visit) -> Response:
    """Shows what happens now; a user without a role sees the page about that user."""
    if not visit.may("viewer"):
        return RedirectResponse(f"{PATH}/me", 303)
    return visit.page("overview.html", **_now_values(visit))


def live_overview(visit: Visit) -> Response:
    """Returns the parts of the overview that change."""
    parts = ("state", "figures", "chart", "times", "slices")
    return visit.parts("overview", parts, _now_values(visit))


def _key_values(visit: Visit) -> dict[str, Any]:
    return {"callers": live.top_callers(visit.dashboard.recent())}


def keys(visit: Visit) -> Response:
    """Shows the callers that are refused most, and those whose refusals rose."""
    rises = top_violations(visit.dashboard.admin.database.engine, most=20, timeout=5.0)
    return visit.page("keys.html", rises=rises, **_key_values(visit))


def live_keys(visit: Visit) -> Response:
    """Returns the callers of the last five minutes."""
    return visit.parts("keys", ("callers",), _key_values(visit))


def key(visit: Visit) -> Response:
    """Shows why a request would be allowed or refused."""
    asked = _attributes(visit.query)
    explained = None
    asks = bool(asked) and "ask" in visit.query and visit.may("operator")
    if asked:
        explained = operation_routes.explain(visit.dashboard.admin, Asked(attributes=asked))
    return visit.page(
        "key.html",
        names=_ATTRIBUTES,
        asked=asked,
        explained=explained,
        is_unlocked="unlocked" in visit.query,
        asks=asks,
        units=operation_routes.units_of(visit.dashboard.admin.limiter, asked) if asks else {},
    )


def _attributes(given: dict[str, str]) -> dict[str, str]:
    return {name: given[name][:1000] for name in _ATTRIBUTES if given.get(name)}


def unlock(visit: Visit) -> Response:
    """Forgets what a key has used. Asks first."""
    asked = _attributes(visit.form)
    if not asked:
        raise ProblemError(422, "There is no key; expected a user, an ip or the like.")
    if visit.form.get("confirmed") != "yes":
        return RedirectResponse(f"{PATH}/key?{urllib.parse.urlencode({**asked, 'ask': '1'})}", 303)
    operation_routes.reset(visit.dashboard.admin, visit.actor, ResetAsked(attributes=asked))
    query = urllib.parse.urlencode({**asked, "unlocked": "1"})
    return RedirectResponse(f"{PATH}/key?{query}", 303)


def shadow(visit: Visit) -> Response:
    """Shows what rules in shadow would refuse."""
    limiter = visit.dashboard.admin.limiter
    stats = limiter.rule_stats()
    shown = {rule.id: rule for rule in limiter.rules.rules}
    found = [
        (id, shown[id], counts)
        for id, counts in stats.items()
        if id in shown and (shown[id].shadow or counts.refused_in_shadow)
    ]
    return visit.page("shadow.html", rules=found)


def anomalies(visit: Visit) -> Response:
    """Shows callers whose number of requests is unusual."""
    shows_all = visit.query.get("all") == "1"
    with visit.dashboard.admin.database.connect() as connection:
        rows = anomaly_table.list_anomalies(connection, only_open=not shows_all, most=_MOST_ROWS)
    enforcement = visit.dashboard.admin.enforcement
    return visit.page(
        "anomalies.html",
        rows=rows,
        shows_all=shows_all,
        is_enforced=enforcement is not None,
        penalties=[] if enforcement is None else enforcement.in_force()[:_MOST_ROWS],
    )


def acknowledge(visit: Visit) -> Response:
    """Records that somebody has seen an anomaly."""
    id = visit.path_id()
    with visit.dashboard.admin.database.change(visit.actor) as change:
        row = anomaly_table.acknowledge(change.connection, id, change.now)
        if row is None:
            raise ProblemError(404, f"There is no anomaly {id} that is not acknowledged yet.")
        change.record("anomaly.acknowledge", f"anomaly:{id}", after={"caller": row.caller})
    return RedirectResponse(f"{PATH}/anomalies", 303)


def unlock_caller(visit: Visit) -> Response:
    """Ends the penalty of a caller."""
    caller = visit.form.get("caller", "")[:300]
    if not caller:
        raise ProblemError(422, "The caller is missing; expected one who is throttled or blocked.")
    anomaly_routes.unlock(visit.dashboard.admin, visit.actor, Unlock(caller=caller))
    return RedirectResponse(f"{PATH}/anomalies", 303)


def requests(visit: Visit) -> Response:
    """Shows users' requests for other tiers."""
    with visit.dashboard.admin.database.connect() as connection:
        rows = users.list_requests(connection, status=None, user=None, before=None, most=_MOST_ROWS)
    rows.sort(key=lambda row: row.status != "PENDING")
    return visit.page("requests.html", rows=rows)


def decide(visit: Visit) -> Response:
    """Approves or rejects a request."""
    verdicts = {"approve": user_routes.approve, "reject": user_routes.reject}
    verdict = verdicts.get(visit.form.get("verdict", ""))
    if verdict is None:
        raise ProblemError(422, "The verdict is missing; expected approve or reject.")
    note = Note(note=visit.form.get("note", "").strip()[:2000] or None)
    verdict(visit.dashboard.admin, visit.actor, visit.path_id(), note)
    return RedirectResponse(f"{PATH}/requests", 303)


def rules(visit: Visit) -> Response:
    """Shows the rules in force."""
    admin = visit.dashboard.admin
    found = rule_routes.list_rules(admin, Response())
    return visit.page(
        "rules.html", rules=found["rules"], advice=found["advice"], stats=admin.limiter.rule_stats()
    )


ROUTES = [
    open_route("/sign-in", sign_in_page),
    open_route("/sign-in", sign_in, post=True),
    open_route("/static/{name}", asset),
    signed_in("/sign-out", sign_out, role=None, post=True),
    signed_in("/", overview, role=None),
    signed_in("/live/overview", live_overview, is_use=False),
    signed_in("/keys", keys),
    signed_in("/live/keys", live_keys, is_use=False),
    signed_in("/key", key),
    signed_in("/key/unlock", unlock, role="operator", post=True),
    signed_in("/shadow", shadow),
    signed_in("/anomalies", anomalies),
    signed_in("/anomalies/{id}/acknowledge", acknowledge, role="operator", post=True),
    signed_in("/anomalies/unlock", unlock_caller, role="operator", post=True),
    signed_in("/requests", requests),
    signed_in("/requests/{id}", decide, role="operator", post=True),
    signed_in("/rules", rules),
    *user_pages.ROUTES,
]
