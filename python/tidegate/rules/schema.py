"""The JSON Schema of a document of rules."""

from __future__ import annotations

from typing import Any

from tidegate.rules.document import PLURALS
from tidegate.rules.model import NAME, Rules

__all__ = ["json_schema"]


def json_schema() -> dict[str, Any]:
    """The schema for editors. It has both forms of fields that may be singular or plural."""
    schema = Rules.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "tidegate rules"
    sections = {"Rule", "Default", "Override", "Cost", "ListEntry"}
    for name in sections & schema["$defs"].keys():
        fields = schema["$defs"][name]["properties"]
        required = schema["$defs"][name].get("required", [])
        for one, many in PLURALS.items():
            if many in fields:
                fields[one] = fields[many]
                if many in required:
                    required.remove(many)
                    schema["$defs"][name].setdefault("anyOf", []).extend(
                        [{"required": [many]}, {"required": [one]}]
                    )
        _allow_one_text(fields)
        if "reserve" in fields:
            share = schema["$defs"]["Reserve"]["properties"]["normal"]
            text = {"type": share["type"], "pattern": share["pattern"]}
            fields["reserve"] = {
                "description": fields["reserve"].get("description", ""),
                "anyOf": [text, {"$ref": "#/$defs/Reserve"}],
            }
    if "Cost" in schema["$defs"]:
        schema["$defs"]["Cost"]["anyOf"] = [{"required": ["cost"]}, {"required": ["priority"]}]
    default = schema["properties"]["default"]
    default["anyOf"] += [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
    return schema


def _allow_one_text(fields: dict[str, Any]) -> None:
    """Accepts one text where a list of texts is expected."""
    for name, field in fields.items():
        item = field.get("items", {})
        if field.get("type") == "array" and item.get("type") == "string":
            rest = {key: value for key, value in field.items() if key not in ("type", "items")}
            several = {"type": "string", "pattern": rf"^{NAME}(\s*\+\s*{NAME})*$"}
            one = several if name == "by" else item
            fields[name] = {**rest, "anyOf": [one, {"type": "array", "items": item}]}
