"""JSON Schemas (draft 2020-12) applied in bounded time, whatever the schema and the value.

Schemas come from clients and from downstream servers, values from models. A pattern that backtracks for ever
would hold the interpreter lock (`re` has no time limit, so `regex` stands in for it), and references can make a
small schema exponential: each application has a budget. Nothing is ever fetched.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import regex  # type: ignore[import-untyped]
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend
from pydantic_core import to_json
from referencing import Registry
from referencing.exceptions import Unresolvable

MAX_STEPS: Final = 100_000
MAX_SECONDS: Final = 0.5
"""Parts of a schema looked at, and seconds of this thread, in one application. 10,000 values take some 0.1 s."""
MAX_FAULTS: Final = 1_000


class Unusable(Exception):
    """The schema cannot be applied to this value; the text says why."""


class TakesTooLong(Unusable):
    """More work than any sensible schema makes."""

    def __init__(self) -> None:
        super().__init__("it takes too long to check")


@dataclass(slots=True)
class _Budget:
    seconds: float = MAX_SECONDS
    steps: int = 0
    began: float = field(default_factory=time.thread_time)

    @property
    def left(self) -> float:
        return self.began + self.seconds - time.thread_time()

    def spend(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS or self.left <= 0:
            raise TakesTooLong


_budget: ContextVar[_Budget] = ContextVar("loopwright.json_schema.budget")


class Checker:
    """One schema, ready to be applied. `formats`: what the keyword `format` is looked at for; else for nothing."""

    def __init__(self, schema: Any, *, formats: FormatChecker | None = None) -> None:
        # an empty registry: the drafts' own schemas are known, and nothing is ever fetched
        self._validator: Any = _Bounded(schema, registry=Registry[Any](), format_checker=formats)

    def faults(self, value: Any, *, seconds: float = MAX_SECONDS) -> list[ValidationError]:
        """What is wrong with the value; empty when it meets the schema. Raises `Unusable`."""
        token = _budget.set(_Budget(seconds))
        try:
            return list(islice(self._validator.iter_errors(value), MAX_FAULTS))
        except Unusable:
            raise
        except (RecursionError, Unresolvable):
            raise Unusable("it points in circles or to nothing, or the value is too deep") from None
        except Exception as error:  # a hostile schema finds some way into any of the keywords
            raise Unusable(f"{type(error).__name__}: {error}") from error
        finally:
            _budget.reset(token)

    def worst(self, value: Any) -> ValidationError | None:
        """What to mend first in the value; None when it meets the schema. Raises `Unusable`."""
        found: ValidationError | None = best_match(self.faults(value))
        return found


def check_schema(schema: Any, *, seconds: float = MAX_SECONDS) -> None:
    """Raise `ValueError` for what is no JSON Schema (draft 2020-12), has patterns that cannot be used, or takes more
    than so many seconds of this thread to look at."""
    try:
        faults = _meta().faults(schema, seconds=seconds)
    except Unusable as error:
        raise ValueError(f"the schema cannot be checked: {error}") from None
    if faults:
        raise ValueError(f"not a JSON Schema: {faults[0].message[:500]}")


@lru_cache(maxsize=1)
def _meta() -> Checker:
    formats = FormatChecker(formats=())
    formats.checks("regex", raises=ValueError)(_is_regex)
    return Checker(Draft202012Validator.META_SCHEMA, formats=formats)


def _is_regex(pattern: object) -> bool:
    if isinstance(pattern, str):
        _compiled(pattern)
    return True


# ── patterns ─────────────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Any:
    """Raises `ValueError` for what is no regular expression."""
    try:
        return regex.compile(pattern)
    except Exception as error:  # noqa: BLE001 - RecursionError, OverflowError, …: none of them is a pattern of ours
        raise ValueError(f"the pattern cannot be used: {error}") from None


def _found(pattern: str, text: str) -> bool:
    budget = _budget.get()
    budget.spend()
    try:
        return _compiled(pattern).search(text, timeout=max(0.001, budget.left)) is not None
    except TimeoutError:
        raise TakesTooLong from None


# ── the keywords that the library would apply without limits ─────────────────────────────────────────


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(value, "string") and not _found(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: dict[str, Any], value: Any, schema: Any
) -> Iterator[ValidationError]:
    if validator.is_type(value, "object"):
        for pattern, part in patterns.items():
            for name, item in value.items():
                if _found(pattern, name):
                    yield from validator.descend(item, part, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, additional: Any, value: Any, schema: Any
) -> Iterator[ValidationError]:
    if not validator.is_type(value, "object"):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extra = [name for name in value if name not in known and not any(_found(p, name) for p in patterns)]
    if additional is False:
        if extra:
            verb = "was" if len(extra) == 1 else "were"
            named = ", ".join(map(repr, sorted(extra)))
            yield ValidationError(f"Additional properties are not allowed ({named} {verb} unexpected)")
        return
    for name in extra:
        yield from validator.descend(value[name], additional, path=name)


def _unevaluated_properties(
    validator: Any, unevaluated: Any, value: Any, schema: Any
) -> Iterator[ValidationError]:
    if not validator.is_type(value, "object"):
        return
    seen = _evaluated(validator, value, schema)
    extra = [
        name
        for name in value
        if name not in seen and not _is_valid(validator.descend(value[name], unevaluated, path=name))
    ]
    if extra:
        verb = "was" if len(extra) == 1 else "were"
        named = ", ".join(map(repr, sorted(extra)))
        yield ValidationError(f"Unevaluated properties are not allowed ({named} {verb} unexpected)")


def _evaluated(validator: Any, value: dict[str, Any], schema: Any) -> set[str]:
    """The properties that this schema looks at, by itself or through schemas that the value meets."""
    _budget.get().spend()
    if isinstance(schema, bool):
        return set()
    found: set[str] = set(schema.get("properties", {})) & set(value)
    for pattern in schema.get("patternProperties", {}):
        found |= {name for name in value if _found(pattern, name)}
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if (part := schema.get(keyword)) is not None:
            found |= {name for name, item in value.items() if _is_valid(validator.descend(item, part))}
    for keyword in ("$ref", "$dynamicRef"):
        if (ref := schema.get(keyword)) is not None:
            there = validator._resolver.lookup(ref)
            beyond = validator.evolve(schema=there.contents, _resolver=there.resolver)
            found |= _evaluated(beyond, value, there.contents)
    for part in _met(validator, value, schema):
        found |= _evaluated(validator, value, part)
    return found


def _met(validator: Any, value: dict[str, Any], schema: dict[str, Any]) -> Iterator[Any]:
    """The schemas beside this one whose word about the value counts."""
    for keyword in ("allOf", "oneOf", "anyOf"):
        for part in schema.get(keyword, ()):
            if _is_valid(validator.descend(value, part)):
                yield part
    for name, part in schema.get("dependentSchemas", {}).items():
        if name in value:
            yield part
    if "if" in schema:
        if _is_valid(validator.descend(value, schema["if"])):
            yield schema["if"]
            yield schema.get("then", True)
        else:
            yield schema.get("else", True)


def _is_valid(errors: Iterable[ValidationError]) -> bool:
    return next(iter(errors), None) is None


def _unique_items(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    """By hash: the library compares each item with each other one."""
    if wanted and validator.is_type(value, "array"):
        seen = {to_json(_canonical(item)) for item in value}
        if len(seen) < len(value):
            yield ValidationError(f"{str(value)[:200]} has non-unique elements")


def _canonical(value: Any) -> Any:
    """Equal for equal JSON: keys in order, and 1.0 is 1."""
    match value:
        case dict():
            return {key: _canonical(value[key]) for key in sorted(value)}
        case list():
            return [_canonical(item) for item in value]
        case float() if value.is_integer():
            return int(value)
        case _:
            return value


_Bounded: Any = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "unevaluatedProperties": _unevaluated_properties,
        "uniqueItems": _unique_items,
    },
)


def _evolve(self: Any, **changes: Any) -> Any:
    """The validator for another part of the schema: every step into one comes by here, and is counted.

    The library's own would go over to another draft's class, which counts nothing, where a part names it in
    `$schema`.
    """
    _budget.get().spend()
    kept = {
        "schema": self.schema,
        "format_checker": self.format_checker,
        "registry": self._registry,
        "_resolver": self._resolver,
    }
    return _Bounded(**(kept | changes))


_Bounded.evolve = _evolve
