# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Our constructor in the peer's style against the source of amd-mori 1.2.4: names, parameters, defaults, order."""

from __future__ import annotations

import ast
import inspect
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mori_gemm_ar.integrations import mori_compat
from tests.unit.mori_source import wheel

FUNCTIONS = {
    "op": ("supports", "padded_m"),
    "_shuffle": ("preshuffle_b", "preshuffle_a_scale"),
}
METHODS = (
    "__init__", "window_bytes_for", "padded_m", "pad_rows", "self_test", "__call__", "close", "__enter__", "__exit__",
)  # fmt: skip
# What is assigned in the constructor there and read by callers. Handles of its window are its own affair.
ATTRIBUTES = {
    "comm", "rank", "world_size", "n", "k", "quant", "block_m", "block_n", "sdma_queues", "gather_dtype",
    "gather_transport", "max_shapes", "m_max", "window_bytes",
}  # fmt: skip
CONSTANTS = ("DEFAULT_BLOCK_M", "DEFAULT_BLOCK_N", "SCALE_BLOCK_K")
# Further parameters of ours, behind theirs and optional.
OURS = {"__init__": {"timeout_s"}}
Signature = list[tuple[str, str, bool]]


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ast.Module]:
    """Parsed sources of the peer."""
    return parsed(wheel(tmp_path_factory))


def parsed(wheel: Path) -> dict[str, ast.Module]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: ast.parse(archive.read(f"mori/ops/gemm_ar/{name}.py")) for name in ("op", "_shuffle", "__init__")}


def constants(tree: ast.Module) -> dict[str, object]:
    """Module-level names that are bound to literals."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def declared(arguments: ast.arguments, names: dict[str, object]) -> Signature:
    """(name, default or "", keyword only) of each parameter; defaults that are constants by value."""

    def value(node: ast.expr | None) -> str:
        if node is None:
            return ""
        return repr(names[node.id]) if isinstance(node, ast.Name) else ast.unparse(node)

    blanks: list[ast.expr | None] = [None] * (len(arguments.args) - len(arguments.defaults))
    found = [(a.arg, value(d), False) for a, d in zip(arguments.args, [*blanks, *arguments.defaults], strict=True)]
    return found + [(a.arg, value(d), True) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]


def offered(function: Callable[..., object]) -> Signature:
    """The same of one of our functions."""
    return [
        (
            parameter.name,
            "" if parameter.default is parameter.empty else repr(parameter.default),
            parameter.kind is parameter.KEYWORD_ONLY,
        )
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is not parameter.VAR_POSITIONAL
    ]


def faults(trees: dict[str, ast.Module]) -> list[str]:
    """All disagreements."""
    found, names = [], constants(trees["op"])
    for module, functions in FUNCTIONS.items():
        there = {node.name: node for node in trees[module].body if isinstance(node, ast.FunctionDef)}
        for name in functions:
            found += compared(name, there.get(name), getattr(mori_compat, name), names)
    (owner,) = (n for n in trees["op"].body if isinstance(n, ast.ClassDef) and n.name == "GemmAllReduceOp")
    methods = {node.name: node for node in owner.body if isinstance(node, ast.FunctionDef)}
    for name in METHODS:
        # Static ones have no first parameter on either side.
        found += compared(name, methods.get(name), getattr(mori_compat.GemmAllReduceOp, name), names)
    found += [f"{name} is new there" for name in methods if name not in METHODS and name[0] != "_"]
    assigned = {
        node.attr
        for node in ast.walk(methods["__init__"])
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
        and node.attr[0] != "_"
    } - {"mem", "win", "dev_comm"}
    found += [f"attribute {name} is on one side only" for name in sorted(assigned ^ ATTRIBUTES)]
    for name in CONSTANTS:
        if names.get(name) != getattr(mori_compat, name):
            found.append(f"{name} is {names.get(name)} there")
    return found


def compared(
    name: str, there: ast.FunctionDef | None, here: Callable[..., object], names: dict[str, object]
) -> list[str]:
    if there is None:
        return [f"{name} does not exist there"]
    theirs, ours = declared(there.args, names), offered(here)
    further = [parameter for parameter in ours if parameter[0] in OURS.get(name, ())]
    if name == "__exit__":
        theirs = theirs[:1]
    if theirs + further != ours or any(not default or not keyword for _, default, keyword in further):
        return [f"{name}: {theirs} there, {ours} here"]
    return []


def test_signatures_are_the_peers(trees: dict[str, ast.Module]) -> None:
    assert faults(trees) == []


def test_exported_names_exist_there(trees: dict[str, ast.Module]) -> None:
    exported = {
        element.value
        for node in trees["__init__"].body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("__all__", "_LAZY")
        for element in (node.value.elts if isinstance(node.value, ast.List) else node.value.keys)
    }
    assert set(mori_compat.__all__) <= exported
    assert all(hasattr(mori_compat, name) for name in mori_compat.__all__)


CHANGES = {
    "renamed parameter": ("sdma_queues: int", "queues: int", "__init__: "),
    "other default": ("gather_dtype: str='bf16'", "gather_dtype: str='fp8'", "supports: "),
    "other constant": ("DEFAULT_BLOCK_N = 256", "DEFAULT_BLOCK_N = 128", "DEFAULT_BLOCK_N is 128 there"),
    "other order": (
        "b_preshuffled: torch.Tensor, a_scale: torch.Tensor",
        "a_scale: torch.Tensor, b_preshuffled: torch.Tensor",
        "__call__: ",
    ),
    "renamed method": ("def pad_rows", "def pad", "pad_rows does not exist there"),
    "new attribute": ("self.quant = quant", "self.quant = self.kind = quant", "attribute kind is on one side only"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_interface_is_noticed(trees: dict[str, ast.Module], name: str) -> None:
    old, new, fault = CHANGES[name]
    text = ast.unparse(trees["op"])
    assert old in text
    found = faults({**trees, "op": ast.parse(text.replace(old, new))})
    assert any(fault in one for one in found), found
