"""Works out an expression of numbers. It reads the expression and never runs it, so that it needs no sandbox."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from trimtab.rollout.tools.tool import Bench

_MAX_CHARS = 500
_MAX_BITS = 4096
"""Of a whole number on the way: 9**9**9 would take all the memory there is."""
_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in ("sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "gcd")},
    "abs": abs,
    "min": min,
    "max": max,
    "round": round,
    "floor": math.floor,
    "ceil": math.ceil,
}
_NAMES = {"pi": math.pi, "e": math.e}


class _Wrong(ValueError):
    """The expression cannot be worked out."""


class Calculator:
    async def description(self, bench: Bench, /) -> str:
        return f"works out an expression, such as (3 + 4) * 2**10; it knows {', '.join(sorted(_FUNCTIONS))}, pi and e"

    async def use(self, given: str, bench: Bench, /) -> str:
        return calculated(given)


def calculated(expression: str) -> str:
    """The number, or what is wrong with the expression."""
    if len(expression) > _MAX_CHARS:
        return f"Error: it has over {_MAX_CHARS} characters"
    try:
        tree = ast.parse(expression.strip().replace("^", "**"), mode="eval")
        return str(_value(tree.body))
    except _Wrong as error:
        return f"Error: {error}"
    except SyntaxError:
        return "Error: no expression of numbers"
    except (ArithmeticError, ValueError, TypeError, RecursionError) as error:
        return f"Error: {error}"


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return _bounded(node.value)
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        return _bounded(_combined(node))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        if node.keywords:
            raise _Wrong(f"{node.func.id} takes no names")
        return _bounded(_FUNCTIONS[node.func.id](*map(_value, node.args)))
    raise _Wrong(f"{ast.unparse(node)[:80]} is neither a number nor an operation")


def _combined(node: ast.BinOp) -> Any:
    left, right = _value(node.left), _value(node.right)
    if isinstance(node.op, ast.Pow):
        if isinstance(left, int) and isinstance(right, int) and abs(right) * left.bit_length() > _MAX_BITS:
            raise _Wrong("the number is too large")
        return left**right
    if type(node.op) not in _OPERATIONS:
        raise _Wrong(f"{type(node.op).__name__} is no operation of numbers")
    return _OPERATIONS[type(node.op)](left, right)


def _bounded(value: Any) -> Any:
    if isinstance(value, complex):
        raise _Wrong("the result is no real number")
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise _Wrong("the number is too large")
    return value
