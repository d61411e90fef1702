"""Correct Triton's interpreter for bfloat16: it stores such numbers as 16-bit integers, multiplies these and truncates.

After the correction each operation rounds to the nearest even bfloat16, and products of tiles are summed in float32.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


@functools.cache
def correct_interpreter() -> None:
    """Patch the interpreter of this process, once."""
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    cast, dot, binary = builder.cast_impl, builder.create_dot, builder.binary_op

    def cast_impl(self: Any, x: Any, to: Any) -> Any:
        types = x.dtype.scalar, to.scalar
        if types == (tl.bfloat16, tl.float32):
            return handle(_widen(x.data), tl.float32)
        if types == (tl.float32, tl.bfloat16):
            return handle(_narrow(x.data), tl.bfloat16)
        return cast(self, x, to)

    def create_fp_to_fp(self: Any, x: Any, to: Any, rounding: Any) -> Any:
        return cast_impl(self, x, to)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        a, b = (handle(_widen(x.data), tl.float32) if _is_bfloat16(x) else x for x in (a, b))
        return dot(self, a, b, *rest)

    def binary_op(self: Any, a: Any, b: Any, op: Callable[..., Any]) -> Any:
        if _is_bfloat16(a) and _is_bfloat16(b):
            return handle(_narrow(op(_widen(a.data), _widen(b.data))), tl.bfloat16)
        return binary(self, a, b, op)

    builder.cast_impl, builder.create_fp_to_fp = cast_impl, create_fp_to_fp
    builder.create_dot, builder.binary_op = create_dot, binary_op


def _is_bfloat16(x: Any) -> bool:
    return bool(x.dtype.scalar == tl.bfloat16)


def _widen(x: Any) -> Any:
    return (x.astype(np.uint32) << 16).view(np.float32)


def _narrow(x: Any) -> Any:
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)
