# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Writes docs/api.md from signatures and docstrings.

python docs/make_api.py
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("api.md")
# Public names by module, in reading order.
PUBLIC: dict[str, tuple[str, ...]] = {
    "mori_gemm_ar.op": ("GemmAllReduceOp", "Tuning", "Support", "Mode"),
    "mori_gemm_ar.ar": ("AllReduceOp",),
    "mori_gemm_ar.gemm": ("GemmOp", "preshuffle_b", "pack_a_exponents", "quantize_1x128", "quantize_mxfp8"),
    "mori_gemm_ar.layout": ("Recipe", "BLayout", "Wire", "Stage"),
    "mori_gemm_ar.runtime": ("LocalWorld", "RankContext", "ProcessWorld"),
    "mori_gemm_ar.integrations.torch_ops": (
        "register_op",
        "unregister_op",
        "registered_ops",
        "gemm_all_reduce",
        "all_reduce",
    ),
    "mori_gemm_ar.integrations.sglang": ("register", "try_fused", "arm", "counters", "teardown"),
    "mori_gemm_ar.errors": (),  # all of them
}
HEAD = """# API

Written by `python docs/make_api.py` from signatures and docstrings; a test compares the two. The meaning of operands,
layouts and scales is in [gemm](gemm.md), that of wires in [wire](wire.md), of groups in [processes](processes.md).
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for module_name, names in PUBLIC.items():
        module = importlib.import_module(module_name)
        parts.append(f"## {module_name}\n\n{text_of(module)}\n")
        for name in names or _classes(module):
            parts.append("\n".join(_entry(name, getattr(module, name))))
    return "\n".join(parts).rstrip() + "\n"


def text_of(thing: Any) -> str:
    """Its own docstring, without indentation that a page would show as code."""
    text = inspect.cleandoc(vars(thing).get("__doc__") or "") if isinstance(thing, type) else inspect.getdoc(thing)
    return re.sub(r"^    (?=\S)", "", text or "", flags=re.M)


def _classes(module: Any) -> list[str]:
    return [
        name for name, value in vars(module).items() if isinstance(value, type) and value.__module__ == module.__name__
    ]


def _entry(name: str, thing: Any) -> Iterator[str]:
    """Heading, signature and text of a public name; for a class its public methods too."""
    yield f"### {name}\n"
    if not isinstance(thing, type):
        yield f"```python\n{signature(name, thing)}\n```\n"
        yield f"{text_of(thing)}\n"
        return
    if is_dataclass(thing):
        yield f"```python\n{signature(name, thing)}\n```\n"
    yield f"{text_of(thing)}\n"
    if issubclass(thing, enum.Enum):
        yield "Members: " + ", ".join(f"`{member.name}`" for member in thing) + "\n"
        return
    if issubclass(thing, BaseException):
        return
    for method_name, method in _methods(thing):
        yield f"#### {name}.{method_name}\n"
        if isinstance(method, property):
            yield f"Property. {text_of(method.fget)}\n"
        else:
            yield f"```python\n{signature(method_name, method)}\n```\n"
            yield f"{text_of(method)}\n"


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties with a docstring, those of bases of this library included, in order."""
    seen = set()
    for owner in kind.__mro__:
        if not owner.__module__.startswith("mori_gemm_ar"):
            continue
        for name, raw in vars(owner).items():
            method = raw if isinstance(raw, property) else getattr(raw, "__func__", raw)
            documented = isinstance(raw, property) or (inspect.isfunction(method) and method.__doc__)
            if documented and name not in seen and (not name.startswith("_") or name == "__call__"):
                seen.add(name)
                yield name, method


def signature(name: str, function: Any) -> str:
    """A call as it is written, on one line or with an argument on each."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name not in ("self", "cls")]
    words, starred = [], False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        words.append(_parameter(parameter))
    returns = inspect.signature(function).return_annotation
    arrow = "" if returns in (inspect.Signature.empty, None) or isinstance(function, type) else f" -> {_type(returns)}"
    line = f"{name}({', '.join(words)}){arrow}"
    return line if len(line) <= 100 else f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){arrow}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = stars + parameter.name
    if parameter.annotation is not parameter.empty:
        text += f": {_type(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        text += f" = {_default(parameter.default)}"
    return text


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(value: Any) -> str:
    """As one would write it: a member by its name, a dataclass by its call, what is made when needed by dots."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if is_dataclass(value):
        return f"{type(value).__name__}()"
    if isinstance(value, type):
        return value.__name__
    return "..." if callable(value) or "factory" in repr(value) else repr(value)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
