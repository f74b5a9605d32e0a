"""The parser of all commands: argparse, with whole flags only, llama.cpp's negations and its environment variables."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, cast

from ..config.flag import FALSY, TRUTHY, Flag
from ..log import shortened
from .flags import COMMON, VARIABLES

_BEGIN = "LLAMA_ARG_"
"""Of the names of variables that stand for flags."""
_NUMBER = re.compile(r"-\d|-\.\d")


class Parser(argparse.ArgumentParser):
    """Takes whole flags only, each with the value after it, whatever that looks like.

    argparse alone takes `-cnv` for `-c nv`, and refuses a value that begins with a dash. So flags are looked up before
    argparse sees them, and get their value with `=`. LLAMA_ARG_* variables are put in front of them, as flags.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{"allow_abbrev": False, "formatter_class": _Formatter, **kwargs})
        self._flags: list[Flag] = []
        self._by_action: dict[argparse.Action, Flag] = {}
        self._rare: list[argparse.Action] = []

    def add_flags(self, by_title: Mapping[str, Iterable[Flag]]) -> None:
        """Add flags, each under its title; those that are refused do not appear in the help."""
        if not self._flags:
            self.add_argument("--help-all", action=_HelpAll, help="show all flags and exit")
        for title, flags in by_title.items():
            group = self.add_argument_group(title)
            for flag in flags:
                self._flags.append(flag)
                action = _add(group, flag)
                if action is not None:
                    self._by_action[action] = flag

    def hide(self, *dests: str) -> None:
        """Show arguments that are no flags of llama.cpp only in `--help-all`; call this once they are added."""
        self._rare += [action for action in self._actions if action.dest in dests]

    def format_help(self) -> str:
        """The most important flags, a line each; `--help-all` has the others."""
        if not self._flags:
            return super().format_help()
        formatter = _Formatter(self.prog, is_short=True)
        formatter.add_usage(self.usage, [], [])
        formatter.add_text((self.description or "").partition("\n\n")[0])
        formatter.start_section("arguments")
        for action in self._actions:
            flag = self._by_action.get(action)
            if action not in self._rare and (flag is None or flag.attribute in COMMON):
                formatter.add_argument(action)
        formatter.end_section()
        return formatter.format_help()

    def format_help_all(self) -> str:
        """All flags that can be used, in groups, with their variables."""
        return super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, after the environment."""
        given = self._whole(list(sys.argv[1:] if args is None else args))
        return super().parse_known_args([*self._from_environment(given), *given], namespace)

    def error(self, message: str) -> NoReturn:
        """Print the error and where to read on; the flags are too many to repeat here."""
        self.exit(2, f"{self.prog}: error: {shortened(message)} (see `{self.prog} --help`)\n")

    def shorten_usage(self) -> None:
        """Reduce the usage to required arguments, in one line; call this once all arguments are added."""
        needed = [action for action in self._actions if action.required]
        options = [f"{action.option_strings[0]} {action.metavar}" for action in needed if action.option_strings]
        positionals = [str(action.metavar or action.dest) for action in needed if not action.option_strings]
        self.usage = " ".join(["%(prog)s [flags]", *options, *positionals])

    def _whole(self, args: Sequence[str]) -> list[str]:
        """The arguments, flags joined with their values."""
        actions = self._option_string_actions  # argparse has no public list
        found: list[str] = []
        left = iter(args)
        for arg in left:
            if arg == "--":
                return [*found, arg, *left]
            if not arg.startswith("-") or arg == "-" or (_NUMBER.match(arg) and arg not in actions):
                found.append(arg)
                continue
            name, equals, value = arg.partition("=")
            if name.startswith("--"):
                name = name.replace("_", "-")
            if name not in actions:
                close = sorted((known for known in actions if known.startswith(name)), key=len)
                close = close or difflib.get_close_matches(name, actions, 1)
                self.error(f"unknown flag {name}" + (f", did you mean {close[0]}?" if close else ""))
            if not equals and actions[name].nargs is None:
                following = next(left, None)
                if following is None:
                    self.error(f"{name}: expected a value after it")
                equals, value = "=", following
            if equals and value == "--":  # argparse would give it no value at all
                self.error(f"{name}: expected a value after it, found --, which ends the flags")
            found.append(f"{name}{equals}{value}")
        return found

    def _from_environment(self, given: Sequence[str]) -> list[str]:
        """The environment's variables as arguments."""
        found: list[str] = []
        names = {arg.partition("=")[0] for arg in given}
        for flag in self._flags:
            variable, value = _variable(flag)
            if not variable:
                continue
            if names & {*flag.names, *flag.no}:
                print(f"{self.prog}: {variable} is set, the flag on the command line overrides it", file=sys.stderr)
                continue
            try:
                found += _as_argument(flag, value)
            except (argparse.ArgumentTypeError, ValueError) as e:
                self.error(f"{variable}: {e}")
        if self._flags:
            for line in _misspelt():
                print(f"{self.prog}: {line}", file=sys.stderr)
        return found


def _misspelt() -> Iterator[str]:
    """What is wrong with variables of the environment that no command has a flag for."""
    known = {*VARIABLES, *(name.replace(_BEGIN, f"{_BEGIN}NO_") for name in VARIABLES)}
    for name in sorted(name for name in os.environ if name.startswith(_BEGIN) and name not in known):
        ends = {one.removeprefix(_BEGIN): one for one in known}  # the beginning alone would make all alike
        close = difflib.get_close_matches(name.removeprefix(_BEGIN), ends, 1)
        yield f"{name} is set, and no flag has such a variable" + (f": did you mean {ends[close[0]]}?" if close else "")


def _variable(flag: Flag) -> tuple[str, str]:
    """(name, value) of the environment variable that sets a flag; empty if there is none."""
    if flag.env and flag.no:
        negative = flag.env.replace(_BEGIN, f"{_BEGIN}NO_")
        if negative in os.environ:
            return negative, FALSY[0]
    # an env file that an editor of Windows wrote leaves \r at the end
    return (flag.env, os.environ[flag.env].removesuffix("\r")) if flag.env in os.environ else ("", "")


def _as_argument(flag: Flag, value: str) -> list[str]:
    """Check a variable's value, and make a flag of it."""
    if flag.metavar:
        if not value and flag.metavar in ("FNAME", "FILE"):
            raise ValueError("expected a file, found an empty text: unset it")
        if not flag.why_not:
            flag.read(value)
        return [f"{flag.names[0]}={value}"]
    if value not in (*TRUTHY, *FALSY):
        raise ValueError(f"expected on or off, found {value!r}")
    names = flag.on if value in TRUTHY else flag.off
    return [names[0]] if names else []


def _add(group: Any, flag: Flag) -> argparse.Action | None:
    """Add a flag to a group; returns its line of the help, if any."""
    if flag.why_not:
        names, nargs = [*flag.names, *flag.no], None if flag.metavar else 0
        group.add_argument(
            *names, action=_Refused, flag=flag, nargs=nargs, dest=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
        return None
    text = flag.help + (f" (env: {flag.env})" if flag.env else "")
    common = {"dest": flag.attribute, "default": flag.default, "help": text.replace("%", "%%")}
    if flag.metavar:
        action = "append" if flag.repeats else "store"
        optional = {} if flag.bare is None else {"nargs": "?", "const": flag.read(flag.bare)}
        added = group.add_argument(
            *flag.names, type=flag.read, metavar=flag.metavar, action=action, **optional, **common
        )
    else:
        default = bool(flag.default) if not flag.no else flag.default
        added = group.add_argument(*flag.names, *flag.no, action=_Switch, off=flag.no, **common | {"default": default})
    return cast(argparse.Action, added)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Shows a flag's value once, after the last of its names."""

    def __init__(self, prog: str, is_short: bool = False, **kwargs: Any):
        super().__init__(prog, **{"max_help_position": 30 if is_short else 34, **kwargs})
        self._is_short = is_short

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = action.option_strings
        if not names:
            return super()._format_action_invocation(action)
        if self._is_short:
            names = [*[n for n in names if n[1] != "-"][:1], *[n for n in names if n[1] == "-"][:1]]
        value = "" if action.nargs == 0 else " " + self._format_args(action, action.dest.upper())
        return ", ".join(names) + value

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help
        if not self._is_short or text is None:
            return text
        text, *_ = text.partition(" (env: ")
        n_most = self._width - self._max_help_position
        for end in (" (", "; "):  # details are for --help-all
            if len(text) > n_most:
                text = text.partition(end)[0]
        return text


class _HelpAll(argparse.Action):
    """`--help-all`."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{**kwargs, "nargs": 0, "dest": argparse.SUPPRESS, "default": argparse.SUPPRESS})

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        sys.stdout.write(parser.format_help_all())
        parser.exit()


class _Switch(argparse.Action):
    """A flag without a value, and those that switch it off."""

    def __init__(self, *args: Any, off: Sequence[str], **kwargs: Any):
        super().__init__(*args, **{**kwargs, "nargs": 0})
        self._off = off

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, option_string not in self._off)


class _Refused(argparse.Action):
    """A refused flag: an error with the reason."""

    def __init__(self, *args: Any, flag: Flag, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._flag = flag

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if option_string not in self._flag.no:
            parser.error(f"{option_string} is not possible here: {self._flag.why_not}")
