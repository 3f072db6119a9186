"""The logs of AWS (load balancers and CloudFront), and the W3C format in general."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.limiter.errors import ConfigurationError
from tidegate.tuning.logs.layout import Layout, Meaning, kind_of, meanings, pattern

__all__ = ["alb", "w3c"]

_ALB = (
    "type time elb client:port target:port request_processing_time target_processing_time "
    "response_processing_time elb_status_code target_status_code received_bytes sent_bytes "
    '"request" "user_agent" ssl_cipher ssl_protocol target_group_arn "trace_id" "domain_name" '
    '"chosen_cert_arn" matched_rule_priority request_creation_time'
)
# IPv6 has no brackets: what follows the last colon is always the port.
_ADDRESS_PORT: Meaning = ("address_port", "ip")
_ALB_KNOWN = meanings(
    {
        "time": ("request_creation_time",),
        "status": ("elb_status_code",),
        "bytes": ("sent_bytes",),
        "user_agent": ("user_agent",),
    },
    {
        "time": ("end_time", "duration"),
        "client:port": _ADDRESS_PORT,
        "request": ("request", "url"),
    },
)

IIS = "Internet Information S"  # ervices, or Server: in #Software:
_IIS_FIELDS = {"sc-substatus", "sc-win32-status"}
_W3C_KNOWN = meanings(
    {
        "method": ("cs-method",),
        "path": ("cs-uri-stem",),
        "status": ("sc-status",),
        "bytes": ("sc-bytes",),
    },
    {
        "date": ("date", "date"),
        "time": ("clock", "clock"),
        "c-ip": ("key", "ip"),
        "cs-username": ("encoded_key", "user"),
        "cs(User-Agent)": ("encoded_key", "user_agent"),
        "time-taken": ("time_taken", "duration"),  # the reader finds the unit, for each file
    },
)


def alb(columns: Mapping[str, str]) -> Layout:
    """AWS's application load balancer, which logs when a request came and when it was answered."""
    pieces: list[tuple[str, str | None]] = []
    for number, name in enumerate(_ALB.split(" ")):
        quoted = name.startswith('"')
        before = (" " if number else "") + ('"' if quoted else "")
        pieces += [(before, None), ("", name.strip('"')), ('"' if quoted else "", None)]
    pieces.append((" ", None))  # more fields may follow
    known = dict(_ALB_KNOWN)
    if columns.get("ip") == "target:port":
        known["target:port"] = _ADDRESS_PORT
    return pattern("alb", pieces, known, columns, end_stamped=False, open_end=True)


def w3c(
    fields: list[str], columns: Mapping[str, str], duration_unit: str | None, *, is_iis: bool
) -> Layout:
    """The layout for the `fields` of #Fields:. CloudFront and IIS log when a request ended."""
    for column, name in columns.items():
        if name not in fields:
            raise ConfigurationError(
                f"the column {column} is mapped to {name!r}, which the log does not have; "
                f"expected one of {', '.join(fields)}"
            )
    known = dict(_W3C_KNOWN)
    known["x-host-header" if "x-host-header" in fields else "cs-host"] = ("encoded_key", "host")
    known.update(
        (name, (kind_of(column), column))
        for column, name in columns.items()
        if (column, name) != ("duration", "time-taken")
    )
    if duration_unit is not None:
        known.update(
            (name, (kind_of("duration", duration_unit), column))
            for name, (_, column) in known.items()
            if column == "duration"
        )
    found = [(name, *known[name]) for name in fields if name in known]
    given = set(columns)
    fields_read = [
        (name, kind, column)
        for name, kind, column in found
        if column not in given or columns[column] == name
    ]
    kinds = {kind for _, kind, _ in fields_read}
    if not {"date", "clock"} <= kinds and "time" not in kinds:
        raise ConfigurationError(
            f"the log has the fields {', '.join(fields)}; expected date and time among them"
        )
    is_iis = is_iis or not _IIS_FIELDS.isdisjoint(fields)
    return Layout(
        "iis" if is_iis else "cloudfront" if "x-edge-location" in fields else "w3c",
        "w3c",
        tuple(fields_read),
        end_stamped=True,
    )
