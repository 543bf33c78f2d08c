"""Triton's command line into that of `naiad serve`. Pure: texts in, texts out.

Owns how flags are spelled (`--flag value`, `--flag=value`, repeated) and how their values are read.
What each flag means here stands in `tritonserver_flags`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from naiad.cli.tritonserver_flags import (
    AUTO_COMPLETE_SETTING,
    BACKEND_ABSENT,
    BACKEND_SETTINGS,
    FLAGS,
    METRICS_HARMLESS,
    METRICS_NO_EFFECT,
    TRACE_NO_EFFECT,
    Absent,
    Flag,
    Kind,
    NoEffect,
    Off,
    Repository,
    Setting,
    Switch,
    To,
)
from naiad.config.backends import NOT_IN_THIS_RELEASE, SHIPPED_BACKENDS
from naiad.config.faults import did_you_mean

_TRUE: Final = frozenset({"true", "on", "1"})
_FALSE: Final = frozenset({"false", "off", "0"})
DEFAULTS: Final = {
    "--http-address": "0.0.0.0",
    "--id": "triton",
    "--log-format": "default",
}
"""Where Triton's are not those of `naiad serve`."""
OFF: Final = "off"
"""In the place of a port."""


class WrongFlag(Exception):
    """One sentence: which flag, what was expected, what to do."""


@dataclass(slots=True)
class Translated:
    """What to give to `naiad serve`, and what to tell the person: one line for a flag."""

    options: dict[str, list[str]] = field(default_factory=dict)
    switches: dict[str, bool] = field(default_factory=dict)
    closed: dict[str, bool] = field(default_factory=dict)
    """Ports, by their option: whether they are not to be opened."""
    repositories: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        """For the command line of `naiad serve`."""
        out = []
        for option, value in DEFAULTS.items():
            if option not in self.options:
                out.append(f"{option}={value}")
        for option, values in self.options.items():
            if not self.closed.get(option):
                out += [f"{option}={value}" for value in values]
        out += [f"{option}={OFF}" for option, is_closed in self.closed.items() if is_closed]
        out += [option for option, is_on in self.switches.items() if is_on]
        return [*out, "--may-be-empty", "--", *self.repositories]


def translated(given: Sequence[str], own: Mapping[str, bool]) -> Translated:
    """What a command line of Triton's means for `naiad serve`.

    Args:
        given: the command line, without the program's name.
        own: the options of `naiad serve`, and whether each has no value; those that Triton does
            not have may be given too.

    Raises WrongFlag.
    """
    out = Translated(switches={"--exit-on-error": True})
    rest = list(given)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        flag = FLAGS.get(name)
        if flag is None and name in own:
            flag = Flag("none", Switch(name)) if own[name] else Flag("text", To(name))
        if flag is None:
            raise WrongFlag(_unknown(name, own))
        if flag.kind == "none":
            if equals:
                raise WrongFlag(f"{name} takes no value, got {value!r:.80}")
            value = "true"
        elif not equals:
            if not rest or rest[0].startswith("--"):
                raise WrongFlag(f"{name} requires a value: {name}={_EXAMPLE[flag.kind]}")
            value = rest.pop(0)
        _apply(out, name, flag, _checked(name, flag.kind, value), own)
    return out


def _unknown(name: str, own: Iterable[str]) -> str:
    if not name.startswith("-"):
        return f"Unexpected argument: {name:.80}; every option is a --flag"
    current = [flag for flag, what in FLAGS.items() if not what.advice]
    guess = did_you_mean(name, [*current, *own]) or did_you_mean(name, FLAGS)
    return f"unrecognized option '{name:.80}'" + (f"; {guess}" if guess else "")


_EXAMPLE: Final[dict[Kind, str]] = {
    "text": "TEXT",
    "integer": "NUMBER",
    "number": "NUMBER",
    "boolean": "true|false",
    "none": "",
}


def _checked(name: str, kind: Kind, value: str) -> str:
    """The value as `naiad serve` writes it. Raises WrongFlag."""
    if kind in ("boolean", "none"):
        folded = value.lower()
        if folded in _TRUE:
            return "true"
        if folded in _FALSE:
            return "false"
        raise WrongFlag(f"{name}: invalid value for bool option: {value:.80}; use true or false")
    if kind in ("integer", "number"):
        try:
            number = int(value) if kind == "integer" else float(value)
        except ValueError:
            wanted = "a whole number" if kind == "integer" else "a number"
            raise WrongFlag(
                f"{name}: Invalid option value. Got {value:.80}; expected {wanted}"
            ) from None
        return str(number)
    return value


def _apply(out: Translated, name: str, flag: Flag, value: str, own: Mapping[str, bool]) -> None:
    advice = f"{name} is an old spelling; use {flag.advice}" if flag.advice else ""
    if advice:
        out.notes[name] = advice
    match flag.fate:
        case To(option):
            _check_there(name, option, own)
            many = out.options.setdefault(option, [])
            if option not in _REPEATABLE:
                many.clear()  # as in Triton the last one counts
            many.append(value)
        case Switch(option, when):
            _check_there(name, option, own)
            out.switches[option] = (value == "true") is when
        case Off(option):
            out.closed[option] = value == "false"
        case Repository():
            out.repositories.append(value)
        case NoEffect(why):
            out.notes[name] = f"{name} has no effect: {why}" + (f" ({advice})" if advice else "")
        case Absent(what, harmless):
            if value not in harmless:
                raise WrongFlag(f"{name}={value:.80}: {what}")
        case Setting("backend"):
            _backend(out, name, value)
        case Setting("metrics"):
            _metrics(out, name, value)
        case Setting("trace"):
            _trace(out, name, value)
        case Setting():
            _cache(name, value)


_REPEATABLE: Final = frozenset(
    {"--load-model", "--http-restricted-api", "--grpc-restricted-protocol"}
)


def _check_there(name: str, option: str, own: Mapping[str, bool]) -> None:
    if option not in own:
        raise WrongFlag(f"{name} is not in this release")


def _pair(name: str, text: str, form: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise WrongFlag(f"{name}: expected {form}, got {text!r:.80}")
    return key, value


_BACKEND_FORM: Final = "BACKEND,SETTING=VALUE or SETTING=VALUE"
_MODEL_SETTINGS: Final = "leave it out; docs/model_configuration.md has what a model can set"


def _backend(out: Translated, name: str, text: str) -> None:
    key, value = _pair(name, text, _BACKEND_FORM)
    if key == AUTO_COMPLETE_SETTING:
        is_on = _checked(f"{name} {key}", "boolean", value) == "true"
        out.switches["--disable-auto-complete-config"] = not is_on
        return
    absent = BACKEND_ABSENT.get(key)
    if absent is not None:
        if value.lower() not in absent.harmless:
            raise WrongFlag(f"{name}={key}=…: {absent.what}")
        return
    backend, comma, setting = key.partition(",")
    if comma and not (backend and setting):
        raise WrongFlag(f"{name}: expected {_BACKEND_FORM}, got {text!r:.80}")
    if comma and backend not in SHIPPED_BACKENDS:
        is_meant = backend in NOT_IN_THIS_RELEASE
        guess = "" if is_meant else did_you_mean(backend, SHIPPED_BACKENDS)
        out.notes[f"{name}={backend}"] = (
            f"{name}={backend:.80},... has no effect: there is no such backend in this release"
            + (f"; {guess}" if guess else "")
        )
        return
    why = BACKEND_SETTINGS.get(key)
    if why is None:
        known = (*BACKEND_SETTINGS, *BACKEND_ABSENT, AUTO_COMPLETE_SETTING)
        raise WrongFlag(
            f"{name}={key:.80}=…: no backend of this release has this setting; "
            + (did_you_mean(key, known) or _MODEL_SETTINGS)
        )
    out.notes[f"{name}={key}"] = f"{name}={key} has no effect: {why}"


def _metrics(out: Translated, name: str, text: str) -> None:
    key, value = _pair(name, text, "SETTING=VALUE")
    if key in METRICS_NO_EFFECT:
        out.notes[f"{name}={key}"] = f"{name}={key} has no effect: there are no summaries"
    elif METRICS_HARMLESS.get(key) != value.lower():
        raise WrongFlag(
            f"{name}={text:.80}: not in this release; the page always has counters, and histograms"
            " of its own names (naiad_*)"
        )


def _trace(out: Translated, name: str, text: str) -> None:
    key, value = _pair(name, text, "SETTING=VALUE or MODE,SETTING=VALUE")
    mode, comma, setting = key.rpartition(",")
    is_on = setting == "level" and value.upper() != "OFF"
    other = mode if comma else value if setting == "mode" else "triton"
    known = setting in TRACE_NO_EFFECT or setting in ("level", "mode")
    if is_on or other != "triton" or not known:
        raise WrongFlag(f"{name}={text:.80}: tracing is not in this release")
    if setting in TRACE_NO_EFFECT:
        out.notes[f"{name}={key}"] = f"{name}={key} has no effect: nothing is traced"


def _cache(name: str, text: str) -> None:
    key, value = _pair(name, text, "CACHE,SETTING=VALUE")
    if (key, value) != ("local,size", "0"):
        raise WrongFlag(f"{name}={text:.80}: the response cache is not in this release")
