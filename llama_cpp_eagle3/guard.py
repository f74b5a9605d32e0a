"""Objects after `close`: every use raises."""

from __future__ import annotations

from typing import Any, NoReturn

from .errors import Eagle3Error


def closed_error(name: str) -> Eagle3Error:
    """The error of an object that is used after `close`."""
    return Eagle3Error(f"this {name} is closed: load the model again, or close it later")


class Closed:
    """A freed object: every attribute raises."""

    _name: str

    def __getattr__(self, name: str) -> NoReturn:
        raise closed_error(self._name)


def bury(thing: Any, name: str) -> None:
    """Turn a freed object into `Closed`, so that code that still holds it gets an error and no freed memory."""
    thing.__dict__.clear()
    thing.__dict__["_name"] = name
    thing.__class__ = Closed
