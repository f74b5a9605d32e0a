"""Formats of JSON schemas that are enforced, as patterns. Each allows less than its standard, never more."""

from __future__ import annotations

_DATE = (
    r"[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:0[0-9]|1[0-4]):[0-5][0-9])"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_GROUP = r"[0-9a-fA-F]{1,4}"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,6}}"
_URI_CHAR = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})"
_UUID = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": r"P(?:[0-9]{1,4}W|[0-9]{1,4}D(?:T[0-9]{1,4}H(?:[0-9]{1,4}M(?:[0-9]{1,4}S)?)?)?|T[0-9]{1,4}[HMS])",
    "uuid": _UUID,
    **{f"uuid{version}": _UUID for version in range(1, 6)},
    "email": rf"[A-Za-z0-9_+-]{{1,32}}(?:\.[A-Za-z0-9_+-]{{1,15}}){{0,2}}@{_LABEL}(?:\.{_LABEL}){{1,4}}",
    "hostname": _HOST,
    "ipv4": rf"{_OCTET}(?:\.{_OCTET}){{3}}",
    "ipv6": rf"{_GROUP}(?::{_GROUP}){{7}}|(?:{_GROUP}(?::{_GROUP}){{0,2}})?::(?:{_GROUP}(?::{_GROUP}){{0,2}})?",
    "uri": rf"[a-z][a-z0-9+.-]{{1,15}}://{_HOST}(?::[0-9]{{1,4}})?(?:/{_URI_CHAR}*)?"
    rf"(?:\?(?:{_URI_CHAR}|\?)*)?(?:#(?:{_URI_CHAR}|\?)*)?",
}
NOT_KEPT = (
    *("idn-email", "idn-hostname", "uri-reference", "iri", "iri-reference", "uri-template", "json-pointer"),
    *("relative-json-pointer", "regex"),
)
"""The other formats of JSON schemas. More names, such as `int32` and `password`, are notes for people."""
