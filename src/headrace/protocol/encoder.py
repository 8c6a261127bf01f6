# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""Messages into bytes, for every API and version: one walk along a `Schema`.

Large record sets are not copied: a frame is a list of buffers to send in order.
"""

import struct as _struct

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.cpython.mem import PyMem_Free, PyMem_Malloc, PyMem_Realloc
    from cython.cimports.headrace.protocol.layout import Field, Schema
    from cython.cimports.libc.string import memcpy
else:
    from headrace.protocol.layout import Field, Schema

COMPILED: bool = cython.compiled

# A records field shorter than this is copied into the frame: cheaper than one more buffer to send.
_INLINE_BYTES_MAX = cython.declare(cython.Py_ssize_t, 4096)


@cython.final
@cython.cclass
class _Writer:
    if cython.compiled:
        buffer = cython.declare(cython.p_uchar)
    else:
        chunk = cython.declare(object)
    size = cython.declare(cython.Py_ssize_t)
    capacity = cython.declare(cython.Py_ssize_t)
    spliced = cython.declare(list)
    spliced_bytes = cython.declare(cython.Py_ssize_t)

    def __cinit__(self):
        if cython.compiled:
            self.capacity = 512
            self.buffer = cython.cast(cython.p_uchar, PyMem_Malloc(512))
            if self.buffer == cython.NULL:
                raise MemoryError

    def __init__(self):
        if not cython.compiled:
            self.chunk = bytearray()
        self.size = 0
        self.spliced = []
        self.spliced_bytes = 0

    def __dealloc__(self):
        if cython.compiled:
            PyMem_Free(self.buffer)

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1)
    def reserve(self, count: cython.Py_ssize_t) -> cython.int:
        if cython.compiled:
            if self.capacity - self.size < count:
                capacity: cython.Py_ssize_t = max(self.capacity * 2, self.size + count)
                moved: cython.p_void = PyMem_Realloc(self.buffer, capacity)
                if moved == cython.NULL:
                    raise MemoryError
                self.buffer = cython.cast(cython.p_uchar, moved)
                self.capacity = capacity
        return 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1)
    def fixed(self, value: cython.longlong, count: cython.int) -> cython.int:
        """Write the low `count` bytes, after checking that the value fits in them."""
        if cython.compiled:
            if count < 8:
                top: cython.longlong = value >> (8 * count - 1)
                if top != 0 and top != -1:
                    raise OverflowError(f"{value} does not fit in {count} bytes")
            self.store(cython.cast(cython.ulonglong, value), count)
        else:
            self.chunk += value.to_bytes(count, "big", signed=True)
            self.size += count
        return 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1)
    def store(self, value: cython.ulonglong, count: cython.int) -> cython.int:
        if cython.compiled:
            self.reserve(count)
            i: cython.int
            for i in range(count):
                self.buffer[self.size + i] = cython.cast(
                    cython.uchar, (value >> (8 * (count - 1 - i))) & 255
                )
        else:
            self.chunk += value.to_bytes(count, "big")
        self.size += count
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def uvarint(self, value: cython.ulonglong) -> cython.int:
        while value > 127:
            self.store((value & 127) | 128, 1)
            value >>= 7
        self.store(value, 1)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def length(self, value: cython.longlong, compact: cython.bint, width: cython.int) -> cython.int:
        if compact:
            return self.uvarint(cython.cast(cython.ulonglong, value + 1))
        return self.fixed(value, width)

    @cython.cfunc
    @cython.exceptval(-1)
    def raw(self, data: bytes) -> cython.int:
        count: cython.Py_ssize_t = len(data)
        if cython.compiled:
            self.reserve(count)
            memcpy(self.buffer + self.size, PyBytes_AS_STRING(data), count)
        else:
            self.chunk += data
        self.size += count
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def splice(self, data) -> cython.int:
        """Put a large buffer here without copying it."""
        self.spliced.append((self.size, data))
        self.spliced_bytes += len(data)
        return 0

    @cython.cfunc
    def slice(self, start: cython.Py_ssize_t, end: cython.Py_ssize_t):
        if cython.compiled:
            at: cython.p_uchar = self.buffer + start
            return PyBytes_FromStringAndSize(cython.cast(cython.p_char, at), end - start)
        return bytes(self.chunk[start:end])

    @cython.cfunc
    def buffers(self):
        if not self.spliced:
            return [self.slice(0, self.size)]
        parts: list = []
        start: cython.Py_ssize_t = 0
        for position, data in self.spliced:
            parts.append(self.slice(start, position))
            parts.append(data)
            start = position
        if start < self.size:
            parts.append(self.slice(start, self.size))
        return parts


@cython.cfunc
@cython.exceptval(-1)
def _write_value(writer: _Writer, field: Field, value) -> cython.int:
    kind: cython.int = field.kind
    if kind == 5:
        return writer.fixed(value, 4)
    if kind == 7:
        return writer.fixed(value, 8)
    if kind == 3:
        return writer.fixed(value, 2)
    if kind == 9:
        return _write_string(writer, field, value)
    if kind == 13:
        return _write_nullable_struct(writer, field, value)
    if kind == 2:
        return writer.fixed(value, 1)
    if kind == 1:
        return writer.store(1 if value else 0, 1)
    if kind == 10 or kind == 11:
        return _write_bytes(writer, field, value)
    if kind == 12:
        if len(value) != 16:
            raise ValueError(f"{field.name} is not a 16-byte id")
        return writer.raw(bytes(value))
    if kind == 4 or kind == 6:
        width: cython.int = 2 if kind == 4 else 4
        number: cython.longlong = value
        if number < 0 or number >> (8 * width) != 0:
            raise OverflowError(f"{field.name}: {value} does not fit in {width} bytes")
        return writer.store(number, width)
    assert kind == 8
    return writer.raw(_struct.pack(">d", value))


@cython.cfunc
@cython.exceptval(-1)
def _write_null(writer: _Writer, field: Field, width: cython.int) -> cython.int:
    if not field.nullable:
        raise ValueError(f"{field.name} cannot be null in this version")
    return writer.length(-1, field.compact, width)


@cython.cfunc
@cython.exceptval(-1)
def _write_string(writer: _Writer, field: Field, value) -> cython.int:
    if value is None:
        return _write_null(writer, field, 2)
    data: bytes = value.encode()
    writer.length(len(data), field.compact, 2)
    return writer.raw(data)


@cython.cfunc
@cython.exceptval(-1)
def _write_bytes(writer: _Writer, field: Field, value) -> cython.int:
    if value is None:
        return _write_null(writer, field, 4)
    size: cython.Py_ssize_t = len(value)
    writer.length(size, field.compact, 4)
    if field.kind == 11 and size > _INLINE_BYTES_MAX:
        return writer.splice(value)
    return writer.raw(bytes(value))


@cython.cfunc
@cython.exceptval(-1)
def _write_nullable_struct(writer: _Writer, field: Field, value) -> cython.int:
    if field.nullable and not field.is_array:
        if value is None:
            return writer.store(0 if field.tag >= 0 else 255, 1)
        writer.store(1, 1)
    return _write_struct(writer, field.schema, value)


@cython.cfunc
@cython.exceptval(-1)
def _write_field(writer: _Writer, field: Field, value) -> cython.int:
    if not field.is_array:
        return _write_value(writer, field, value)
    if value is None:
        return _write_null(writer, field, 4)
    writer.length(len(value), field.compact, 4)
    for element in value:
        _write_value(writer, field, element)
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _write_struct(writer: _Writer, schema: Schema, value) -> cython.int:
    field: Field
    for field in schema.fields:
        _write_field(writer, field, getattr(value, field.name))
    if schema.flexible:
        if schema.tagged:
            _write_tagged(writer, schema, value)
        else:
            writer.store(0, 1)
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _write_tagged(writer: _Writer, schema: Schema, value) -> cython.int:
    field: Field
    present: list = []
    for field in schema.tagged.values():
        content = getattr(value, field.name)
        if content is not field.default and content != field.default:
            present.append((field, content))
    writer.uvarint(len(present))
    for item in present:
        field = item[0]
        inner: _Writer = _Writer()
        _write_field(inner, field, item[1])
        data: bytes = b"".join(inner.buffers())
        writer.uvarint(field.tag)
        writer.uvarint(len(data))
        writer.raw(data)
    return 0


def encode(schema: Schema, message):
    """A message as one bytes object."""
    writer: _Writer = _Writer()
    _write_struct(writer, schema, message)
    return b"".join(writer.buffers())


def encode_frame(schema: Schema, message, header: bytes):
    """A message behind its header and the frame's length, as buffers to send in order.

    Large record sets are handed on as they came, not copied: do not change them until sent.
    """
    writer: _Writer = _Writer()
    writer.store(0, 4)
    writer.raw(header)
    _write_struct(writer, schema, message)
    total: cython.Py_ssize_t = writer.size + writer.spliced_bytes - 4
    if total > 2147483647:
        raise OverflowError("a frame cannot be larger than 2 GiB")
    if cython.compiled:
        i: cython.int
        for i in range(4):
            writer.buffer[i] = cython.cast(cython.uchar, (total >> (24 - 8 * i)) & 255)
    else:
        writer.chunk[0:4] = total.to_bytes(4, "big")
    return writer.buffers()
