"""Numbers between bounds as grammars."""

from __future__ import annotations

import math
import sys
from decimal import Decimal
from fractions import Fraction

from .gbnf import Rules, one_of

_DIGITS_MAX = 16
"""Digits of an integer without bounds."""
_SAFE_DIGITS = 15
"""Decimals of so many digits are also different numbers in float64."""
_BOUND_DIGITS_MAX = 400
_STEP_MAX = 128
_FLOAT_MAX = Fraction(sys.float_info.max)
_N_LISTED = 2_000
"""Up to so many multiples are written out."""


class NumberError(ValueError):
    """There is no grammar for these numbers; the message says why."""


def exact(value: float) -> Fraction:
    """The exact value of a JSON number's shortest decimal."""
    return Fraction(Decimal(repr(value)))


def strict(value: float, sign: int) -> Fraction:
    """A bound, the least (sign 1) or the greatest (-1) number: as a decimal or as float64, whichever allows less.

    They differ from 2^53 on, where some read an integer exactly and the bound as float64.
    """
    found = exact(value)
    if isinstance(value, float) and abs(value) >= 2**53:
        return sign * max(sign * found, sign * Fraction(value))
    return found


def integers(rules: Rules, low: int | None, high: int | None, multiple: int = 1, hint: str = "integer") -> str:
    """GBNF of integers from low to high (None: no bound) that are multiples of a number.

    Raises:
        NumberError: there is none, or too many multiples.
    """
    if low is not None and high is not None and low > high:
        raise NumberError("no number is between its bounds")
    if any(bound is not None and abs(bound) >= 10**_BOUND_DIGITS_MAX for bound in (low, high)):
        raise NumberError(f"a bound has more than {_BOUND_DIGITS_MAX} digits")
    if multiple > 1:
        if multiple <= _STEP_MAX and low in (None, 0) and high in (None, 0) and (low, high) != (0, 0):
            sign = "" if low == 0 else '"-"? ' if high is None else '"-" '
            return f"({sign}{_multiples(rules, multiple, hint)})"
        if low is None or high is None or (high - low) // multiple > _N_LISTED:
            raise NumberError(f"there are more than {_N_LISTED} multiples")
        found = [str(n) for n in range(-(-low // multiple) * multiple, high + 1, multiple)]
        if not found:
            raise NumberError("no multiple is between its bounds")
        return one_of(f'"{text}"' for text in found)
    if low is None and high is None:
        return rules.json("integer")
    parts = []
    if low is None or low < 0:
        most = None if low is None else -low
        parts += [f'"-" {part}' for part in _natural(rules, max(0 if high is None else -high, 0), most, hint)]
    if high is None or high >= 0:
        parts += _natural(rules, max(low or 0, 0), high, hint)
    return one_of(parts)


def _multiples(rules: Rules, step: int, hint: str) -> str:
    """GBNF of zero and all multiples: a rule for each remainder of the digits so far."""
    names = [rules.name(hint) for _ in range(step)]

    def digits(remainder: int, start: int) -> list[str]:
        return [f'"{d}" {names[(10 * remainder + d) % step]}' for d in range(start, 10)]

    for remainder, name in enumerate(names):
        rules.set(name, " | ".join([*digits(remainder, 0), *(['""'] if remainder == 0 else [])]))
    return rules.add(hint, " | ".join(['"0"', *digits(0, 1)]))


def _natural(rules: Rules, low: int, high: int | None, hint: str) -> list[str]:
    """Alternatives for the integers from low >= 0 to high."""
    least = str(low)
    if high is None:
        free = max(_DIGITS_MAX, len(least) + 1)
        more = [f"[1-9] [0-9]{{{len(least)},{free - 1}}}"]
        return [_same_length(rules, least, "9" * len(least), hint), *more]
    if high < low:
        return []
    most = str(high)
    if len(least) == len(most):
        return [_same_length(rules, least, most, hint)]
    between = len(most) - len(least) - 1
    parts = [_same_length(rules, least, "9" * len(least), hint)]
    if between:
        parts.append(f"[1-9] [0-9]{{{len(least)},{len(most) - 2}}}")
    return [*parts, _same_length(rules, "1" + "0" * (len(most) - 1), most, hint)]


def _same_length(rules: Rules, low: str, high: str, hint: str) -> str:
    """Strings of digits of one length."""
    n = len(low)
    if n == 1:
        return _digit(int(low), int(high))
    if low[1:] == "0" * (n - 1) and high[1:] == "9" * (n - 1):
        return f"{_digit(int(low[0]), int(high[0]))} [0-9]{{{n - 1}}}"
    a, b = int(low[0]), int(high[0])
    if a == b:
        return f'"{a}" {rules.add(hint, _same_length(rules, low[1:], high[1:], hint))}'
    parts = [f'"{a}" {rules.add(hint, _same_length(rules, low[1:], "9" * (n - 1), hint))}']
    if b - a > 1:
        parts.append(f"{_digit(a + 1, b - 1)} [0-9]{{{n - 1}}}")
    parts.append(f'"{b}" {rules.add(hint, _same_length(rules, "0" * (n - 1), high[1:], hint))}')
    return one_of(parts)


def _digit(low: int, high: int) -> str:
    return f'"{low}"' if low == high else f"[{low}-{high}]"


def numbers(
    rules: Rules,
    low: Fraction | None,
    high: Fraction | None,
    above: bool = False,
    below: bool = False,
    decimals: int | None = None,
    hint: str = "number",
) -> str:
    """GBNF of decimals from low to high (None: no bound), without exponents if there are bounds.

    above, below: low and high themselves are excluded. decimals: digits after the point at most; None: no limit.

    Raises:
        NumberError: there is none.
    """
    if low is None and high is None:
        fraction = f'("." [0-9]{{1,{decimals}}})?'
        return rules.json("number") if decimals is None else f"{rules.json('integer')} {fraction}"
    if low is not None and high is not None and (low > high or (low == high and (above or below))):
        raise NumberError("no number is between its bounds")
    writer = _Decimals(rules, low, high, decimals, hint)
    if writer.may_be_rounded:
        low, above = _float_near(low, above, 1), False
        high, below = _float_near(high, below, -1), False
        if low is not None and high is not None and low > high:
            raise NumberError("no number of float64 is between its bounds")
        writer = _Decimals(rules, low, high, decimals, hint)
    parts = []
    if low is None or low < 0:
        least, is_above = (Fraction(0), False) if high is None or high > 0 else (-high, below)
        parts += [f'"-" {part}' for part in writer.natural(least, is_above, None if low is None else -low, above)]
    if high is None or high >= 0:
        least, is_above = (Fraction(0), False) if low is None or low < 0 else (low, above)
        parts += writer.natural(least, is_above, high, below)
    if not parts:
        raise NumberError("no number is between its bounds")
    return one_of(parts)


def _float_near(bound: Fraction | None, is_excluded: bool, sign: int) -> Fraction | None:
    """The bound as a number of float64 that is allowed itself; sign: 1 if it is the least one, -1 the greatest."""
    if bound is None or abs(bound) > _FLOAT_MAX:
        return bound
    near = float(bound)
    if is_excluded or sign * exact(near) < sign * bound:
        near = math.nextafter(near, sign * math.inf)
    return strict(near, sign) if math.isfinite(near) else bound


class _Decimals:
    def __init__(self, rules: Rules, low: Fraction | None, high: Fraction | None, decimals: int | None, hint: str):
        bounds = [bound for bound in (low, high) if bound is not None]
        if any(abs(bound) >= 10**_BOUND_DIGITS_MAX for bound in bounds):
            raise NumberError(f"a bound has more than {_BOUND_DIGITS_MAX} digits")
        self.rules, self.hint = rules, hint
        n_fraction = max(len(_digits(abs(bound))[1]) for bound in bounds)
        if n_fraction > 60:
            raise NumberError("a bound has more than 60 digits after its point")
        n_whole = max(len(_digits(abs(bound))[0]) for bound in bounds)
        self.n = decimals or max(1, n_fraction, _SAFE_DIGITS - n_whole)
        """Digits after the point."""
        self.may_be_rounded = n_whole + self.n > _SAFE_DIGITS
        """Whether numbers near a bound may be rounded to it or beyond it, unless it is one of float64."""

    def natural(self, low: Fraction, above: bool, high: Fraction | None, below: bool) -> list[str]:
        """Alternatives for low >= 0 to high."""
        whole_low, after_low = _digits(low)
        free = f'("." [0-9]{{1,{self.n}}})?'
        if high is None:
            more = integers(self.rules, int(whole_low) + 1, None, hint=self.hint)
            return [*self._at(whole_low, after_low, above, None, False), f"{more} {free}"]
        whole_high, after_high = _digits(high)
        if whole_low == whole_high:
            return self._at(whole_low, after_low, above, after_high, below)
        parts = self._at(whole_low, after_low, above, None, False)
        if int(whole_high) - int(whole_low) > 1:
            more = integers(self.rules, int(whole_low) + 1, int(whole_high) - 1, hint=self.hint)
            parts.append(f"{more} {free}")
        return [*parts, *self._at(whole_high, "", False, after_high, below)]

    def _at(self, whole: str, low: str, above: bool, high: str | None, below: bool) -> list[str]:
        """Alternatives with this integral part."""
        parts = []
        is_least, is_most = low == "" and not above, high is None or high != "" or not below
        if is_least and is_most:
            parts.append(f'"{whole}"')
        rest = self._rest(low, above, high, below, self.n, is_first=True)
        return [*parts, f'"{whole}." {rest}'] if rest else parts

    def _rest(
        self, low: str | None, above: bool, high: str | None, below: bool, n: int, is_first: bool = False
    ) -> str | None:
        """Up to n more digits. None as a bound: the digits so far are within it already."""
        low = None if low == "" and not above else low
        if (high == "" and below) or (n == 0 and low is not None):
            return None
        if low is None and high is None:
            return f"[0-9]{{1,{n}}}" if is_first else f"[0-9]{{0,{n}}}"
        parts = [] if is_first or low is not None else ['""']
        if n > 0:
            a = 0 if low is None else int(low[:1] or 0)
            b = 9 if high is None else int(high[:1] or 0)
            edges = {d for d, bound in ((a, low), (b, high)) if bound is not None and a <= b}
            for d in sorted(edges):
                new_low = None if low is None or d > a else low[1:]
                new_high = None if high is None or d < b else high[1:]
                rest = self._rest(new_low, above, new_high, below, n - 1)
                if rest is not None:
                    parts.append(f'"{d}" {rest}')
            first, last = a + (low is not None), b - (high is not None)
            if first <= last:
                parts.append(f"{_digit(first, last)} [0-9]{{0,{n - 1}}}")
        if not parts:
            return None
        return self.rules.add(self.hint, " | ".join(parts))


def _digits(value: Fraction) -> tuple[str, str]:
    """The integral part, and the digits after the point without trailing zeros."""
    whole = math.floor(value)
    rest, digits = value - whole, ""
    while rest and len(digits) < 1100:
        rest *= 10
        digits += str(math.floor(rest))
        rest -= math.floor(rest)
    return str(whole), digits
