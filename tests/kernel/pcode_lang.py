# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Parser of the ISA manual's pseudocode: text -> nested tuples (kind, ...), no evaluation here."""

from __future__ import annotations

import re
from functools import cache
from typing import NoReturn

Node = tuple

TYPE = re.compile(r"(bf|fp|[ubif])(\d+)$")
_SUFFIX = {"": ("i", 32), "U": ("u", 32), "ULL": ("u", 64), "LL": ("i", 64), "L": ("i", 64)}

_TOKEN = re.compile(
    r"""\s+ | //[^\n]* | "[^"\n]*"
    | (?P<cast>\d+'(?:BF|[UIFB]))(?![\w.])
    | (?P<sized>\d+'(?:0x[0-9a-fA-F]+|\d+\.\d+|\d+)[UIFB]?)
    | (?P<float>\d+\.\d+F?)
    | (?P<int>(?:0x[0-9a-fA-F]+|\d+)(?:ULL|LL|UL|U|L)?)
    | (?P<name>[A-Za-z_]\w*)
    | (?P<op>\*\*|<<|>>|<=|>=|==|!=|<>|&&|\|\||\+:|\+=|-=|[-+*/%&|^~!<>=?:;,.(){}\[\]])
    """,
    re.VERBOSE,
)

# Loosest first; every operator is left-associative but `**`.
_LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!=", "<>"),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
_BLOCK_ENDS = ("endif", "endfor", "else", "elsif", ")", "")


class PcodeSyntaxError(ValueError):
    """The text is prose, or a form that this parser does not know."""


@cache
def parse(text: str) -> tuple[Node, ...]:
    """All statements of one instruction."""
    parser = _Parser(_tokens(text))
    block = parser.block()
    if parser.peek:
        parser.fail("a statement")
    return block


def view_type(name: str) -> tuple[str, int] | None:
    """("f", 32) of "f32"; None for a field name."""
    match = TYPE.match(name)
    return (match[1], int(match[2])) if match else None


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise PcodeSyntaxError(f"unknown character {text[position]!r} in {text[:60]!r}")
        if match.lastgroup:
            found.append((match.lastgroup, match[0]))
        position = match.end()
    return found + [("end", "")]


class _Parser:
    """Recursive descent over (group, text) tokens."""

    def __init__(self, tokens: list[tuple[str, str]]):
        self.tokens = tokens
        self.at = 0

    @property
    def peek(self) -> str:
        return self.tokens[self.at][1]

    def fail(self, wanted: str) -> NoReturn:
        near = " ".join(text for _, text in self.tokens[max(0, self.at - 4) : self.at + 4])
        raise PcodeSyntaxError(f"expected {wanted} near {near!r}")

    def take(self) -> tuple[str, str]:
        self.at += 1
        return self.tokens[self.at - 1]

    def accept(self, *texts: str) -> str:
        if self.peek in texts and self.tokens[self.at][0] != "end":
            return self.take()[1]
        return ""

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.fail(repr(text))

    def name(self) -> str:
        group, text = self.take()
        if group != "name":
            self.fail("a name")
        return text

    # Statements

    def block(self) -> tuple[Node, ...]:
        statements = []
        while True:
            while self.accept(";"):
                pass
            if self.peek in _BLOCK_ENDS:
                return tuple(statements)
            statements.append(self.statement())
            if self.peek != ";" and self.peek not in _BLOCK_ENDS:
                self.fail("';'")

    def statement(self) -> Node:
        if self.accept("if"):
            return self.conditional()
        if self.accept("for"):
            return self.loop()
        if self.accept("declare"):
            return self.declaration()
        if self.accept("return"):
            return ("return", self.expression())
        if self.accept("break"):
            return ("break",)
        if self.tokens[self.at + 1][1] == "=" and self.tokens[self.at + 2][1] == "lambda":
            return self.function()
        target = self.expression()
        if self.peek in ("+=", "-="):
            operator = self.take()[1][0]
            return ("assign", (target,), ("binary", operator, target, self.expression()))
        targets = []
        value = target
        while self.accept("="):
            targets.append(value)
            value = self.expression()
        return ("assign", tuple(targets), value) if targets else ("value", value)

    def conditional(self) -> Node:
        arms = []
        otherwise: tuple[Node, ...] = ()
        while True:
            condition = self.expression()
            self.expect("then")
            arms.append((condition, self.block()))
            if self.accept("elsif"):
                continue
            if self.accept("else"):
                otherwise = self.block()
            self.expect("endif")
            return ("if", tuple(arms), otherwise)

    def loop(self) -> Node:
        variable = self.name()
        self.expect("in")
        first = self.expression()
        self.expect(":")
        last = self.expression()
        self.expect("do")
        body = self.block()
        self.expect("endfor")
        return ("for", variable, first, last, body)

    def declaration(self) -> Node:
        variable = self.name()
        self.expect(":")
        group, text = self.take()
        if group != "cast":
            self.fail("a type")
        count = None
        if self.accept("["):
            count = int(self.take()[1])
            self.expect("]")
        return ("declare", variable, _cast_type(text), count)

    def function(self) -> Node:
        name = self.name()
        self.expect("=")
        self.expect("lambda")
        self.expect("(")
        parameters = [self.name()]
        while self.accept(","):
            parameters.append(self.name())
        self.expect(")")
        self.expect("(")
        body = self.block()
        self.expect(")")
        return ("lambda", name, tuple(parameters), body)

    # Expressions

    def expression(self) -> Node:
        condition = self.binary(0)
        if not self.accept("?"):
            return condition
        positive = self.expression()
        self.expect(":")
        return ("ternary", condition, positive, self.expression())

    def binary(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self.power()
        left = self.binary(level + 1)
        while True:
            operator = self.accept(*_LEVELS[level])
            if not operator:
                return left
            left = ("binary", operator, left, self.binary(level + 1))

    def power(self) -> Node:
        base = self.unary()
        return ("binary", "**", base, self.power()) if self.accept("**") else base

    def unary(self) -> Node:
        operator = self.accept("-", "+", "~", "!")
        return ("unary", operator, self.unary()) if operator else self.postfix(self.primary())

    def primary(self) -> Node:
        group, text = self.take()
        if group == "cast":
            self.expect("(")
            value = self.expression()
            self.expect(")")
            return ("cast", _cast_type(text), value)
        if group in ("sized", "float", "int"):
            return _number(group, text)
        if group == "name":
            return ("name", text)
        if text == "(":
            value = self.expression()
            self.expect(")")
            return value
        if text == "{":
            parts = [self.expression()]
            while self.accept(","):
                parts.append(self.expression())
            self.expect("}")
            return ("concat", tuple(parts))
        self.at -= 1
        self.fail("an operand")

    def postfix(self, node: Node) -> Node:
        while True:
            if self.accept("."):
                field = self.name()
                kind = view_type(field)
                node = ("view", node, kind) if kind else ("name", f"{node[1]}.{field}")
            elif self.accept("["):
                node = self.subscript(node)
            elif node[0] == "name" and self.accept("("):
                node = ("call", node[1], self.arguments())
            else:
                return node

    def subscript(self, node: Node) -> Node:
        first = self.expression()
        if self.accept(":"):
            node = ("slice", node, first, self.expression())
        elif self.accept("+:"):
            width = self.expression()
            last = ("binary", "-", ("binary", "+", first, width), ("number", ("i", 32), 1))
            node = ("slice", node, last, first)
        else:
            node = ("index", node, first)
        self.expect("]")
        return node

    def arguments(self) -> tuple[Node, ...]:
        found: list[Node] = []
        while not self.accept(")"):
            if found:
                self.expect(",")
            found.append(self.expression())
        return tuple(found)


def _cast_type(text: str) -> tuple[str, int]:
    width, kind = text.split("'")
    return kind.lower(), int(width)


def _number(group: str, text: str) -> Node:
    """("number", type, integer) or ("real", type, decimal text)."""
    if group == "float":
        return ("real", ("f", 32 if text.endswith("F") else 64), text.rstrip("F"))
    if group == "sized":
        width, digits = text.split("'")
        if "." in digits:
            return ("real", ("f", int(width)), digits.rstrip("F"))
        kind = "i" if digits.endswith("I") else "u"
        return ("number", (kind, int(width)), int(digits.rstrip("UI"), 0))
    match = re.match(r"(0x[0-9a-fA-F]+|\d+)([UL]*)$", text)
    return ("number", _SUFFIX[match[2]], int(match[1], 0))
