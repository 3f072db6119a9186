"""The scopes of decorated functions, which are parts of keys that outlive the process."""

from __future__ import annotations

from django.views import View as DjangoView
from flask.views import MethodView
from tidegate.web.shared_counters import unique_scope


def test_scopes_of_functions_with_one_name_are_numbered_from_2() -> None:
    def view() -> None: ...

    name = f"{__name__}.{view.__qualname__}"
    assert [unique_scope(view) for _ in range(3)] == [name, f"{name}#2", f"{name}#3"]


class Tides(DjangoView):
    pass


class Ships(MethodView):
    decorators = [lambda view: lambda: unique_scope(view)]  # noqa: RUF012


class Berths(Ships):
    init_every_request = False


def test_scopes_of_classes_of_views_do_not_depend_on_their_order() -> None:
    """A worker may register them in another order, or not all of them."""
    name = __name__
    assert unique_scope(Tides.as_view()) == f"{name}.Tides"
    found = [view() for view in (Ships.as_view("ships"), Berths.as_view("b"), Ships.as_view("s"))]
    assert found == [f"{name}.ships", f"{name}.b", f"{name}.s"]
    undecorated = type("Undecorated", (MethodView,), {"__module__": name})
    assert unique_scope(undecorated.as_view("of another name")) == f"{name}.Undecorated"
