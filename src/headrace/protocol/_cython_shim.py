"""A substitute for the module `cython`, for uncompiled modules without Cython installed.

Rule: nothing here has an effect. Types are placeholders, decorators return what they decorate,
`nogil` is an empty context. Only names that our modules use are defined; any other name fails.
"""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

compiled = False
NULL = None


class _Type:
    """A placeholder for a C type."""

    def __getitem__(self, item: object) -> "_Type":
        return self


bint = char = double = uchar = short = ushort = int = uint = longlong = ulonglong = Py_ssize_t = (
    void
) = _Type()
const = _Type()
p_char = p_uchar = p_void = p_int = p_uint = p_longlong = _Type()
p_const_char = p_const_uchar = p_const_int = p_const_longlong = _Type()


def _unchanged(decorated: T) -> T:
    return decorated


cclass = cfunc = ccall = inline = final = no_gc = _unchanged


def _configured(*_args: object, **_options: object) -> Callable[[T], T]:
    return _unchanged


exceptval = freelist = boundscheck = wraparound = cdivision = initializedcheck = _configured


class _NoGil:
    """`nogil` as a decorator and as a context manager."""

    def __call__(self, decorated: T) -> T:
        return decorated

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_raised: object) -> None:
        return None


nogil = _NoGil()


def declare(_type: object = None, value: Any = None, **_options: object) -> Any:
    """The initial value of a typed variable or attribute."""
    return value


def cast(_type: object, value: T, **_options: object) -> T:
    """The value itself: Python integers need no conversion."""
    return value
