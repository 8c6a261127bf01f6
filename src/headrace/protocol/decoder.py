# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""Bytes into messages, for every API and version: one walk along a `Schema`.

Rule: no length from the wire is believed before it was compared with the bytes that are there, and
no message may hold more than `max_elements` array elements, so memory stays in proportion to the
frame.
"""

import struct as _struct

from headrace.errors import ProtocolError

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
    from cython.cimports.headrace.protocol.layout import Field, Schema
else:
    from headrace.protocol.layout import Field, Schema

COMPILED: bool = cython.compiled


@cython.final
@cython.cclass
class _Reader:
    view = cython.declare(object)
    if cython.compiled:
        data = cython.declare(cython.const[cython.uchar][::1])
        start = cython.declare(cython.p_const_uchar)
    position = cython.declare(cython.Py_ssize_t)
    end = cython.declare(cython.Py_ssize_t)
    elements_left = cython.declare(cython.longlong)

    def __init__(self, view, position, max_elements):
        self.view = view
        if cython.compiled:
            self.data = view
            self.end = self.data.shape[0]
            if self.end:
                self.start = cython.address(self.data[0])
        else:
            self.end = len(view)
        self.position = position
        self.elements_left = max_elements

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1)
    def take(self, count: cython.longlong) -> cython.Py_ssize_t:
        """Move past `count` bytes and return where they start."""
        position: cython.Py_ssize_t = self.position
        if count < 0 or self.end - position < count:
            raise ProtocolError(f"{count} bytes announced, {self.end - position} are there")
        self.position = position + count
        return position

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=True)
    def unsigned(self, count: cython.int) -> cython.ulonglong:
        position: cython.Py_ssize_t = self.take(count)
        if cython.compiled:
            value: cython.ulonglong = 0
            i: cython.int
            for i in range(count):
                value = (value << 8) | self.start[position + i]
            return value
        return int.from_bytes(self.view[position : position + count], "big")

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=True)
    def signed(self, count: cython.int) -> cython.longlong:
        if cython.compiled:
            value: cython.ulonglong = self.unsigned(count)
            sign: cython.ulonglong = cython.cast(cython.ulonglong, 1) << (8 * count - 1)
            return cython.cast(cython.longlong, (value ^ sign) - sign)
        position = self.take(count)
        return int.from_bytes(self.view[position : position + count], "big", signed=True)

    @cython.cfunc
    @cython.exceptval(-1)
    def uvarint(self) -> cython.longlong:
        value: cython.ulonglong = 0
        shift: cython.int = 0
        byte: cython.ulonglong
        while True:
            if self.position >= self.end or shift > 28:
                raise ProtocolError("a varint is cut short or longer than 32 bits")
            if cython.compiled:
                byte = self.start[self.position]
            else:
                byte = self.view[self.position]
            self.position += 1
            value |= (byte & 127) << shift
            if byte < 128:
                if value > 2147483648:
                    raise ProtocolError("a length is larger than 31 bits")
                return value
            shift += 7

    @cython.cfunc
    @cython.exceptval(-2)
    def length(self, compact: cython.bint, width: cython.int) -> cython.longlong:
        """The length before a string, bytes or array; -1 is null."""
        if compact:
            return self.uvarint() - 1
        value: cython.longlong = self.signed(width)
        if value < -1:
            raise ProtocolError(f"negative length {value}")
        return value

    @cython.cfunc
    def text(self, size: cython.longlong):
        position: cython.Py_ssize_t = self.take(size)
        if cython.compiled:
            at: cython.p_const_uchar = self.start + position
            return PyUnicode_DecodeUTF8(cython.cast(cython.p_char, at), size, cython.NULL)
        return str(self.view[position : position + size], "utf-8")

    @cython.cfunc
    def raw(self, size: cython.longlong):
        position: cython.Py_ssize_t = self.take(size)
        if cython.compiled:
            at: cython.p_const_uchar = self.start + position
            return PyBytes_FromStringAndSize(cython.cast(cython.p_char, at), size)
        return bytes(self.view[position : position + size])


@cython.cfunc
def _read_value(reader: _Reader, field: Field):
    kind: cython.int = field.kind
    size: cython.longlong
    position: cython.Py_ssize_t
    if kind == 5:
        return reader.signed(4)
    if kind == 7:
        return reader.signed(8)
    if kind == 3:
        return reader.signed(2)
    if kind == 9:
        size = reader.length(field.compact, 2)
        if size < 0:
            return _null(field)
        return reader.text(size)
    if kind == 13:
        return _read_nullable_struct(reader, field)
    if kind == 2:
        return reader.signed(1)
    if kind == 1:
        return reader.unsigned(1) != 0
    if kind == 10 or kind == 11:
        size = reader.length(field.compact, 4)
        if size < 0:
            return _null(field)
        if kind == 10:
            return reader.raw(size)
        position = reader.take(size)
        return reader.view[position : position + size]
    if kind == 12:
        return reader.raw(16)
    if kind == 4:
        return reader.unsigned(2)
    if kind == 6:
        return reader.unsigned(4)
    assert kind == 8
    return _struct.unpack(">d", reader.raw(8))[0]


@cython.cfunc
def _null(field: Field):
    if not field.nullable:
        raise ProtocolError(f"{field.name} is null")
    return None


@cython.cfunc
@cython.inline
def _missing(field: Field):
    """What a field is when the wire does not have it; a list is never shared."""
    return [] if field.fresh else field.default


@cython.cfunc
def _read_nullable_struct(reader: _Reader, field: Field):
    if field.nullable and not field.is_array:
        if field.tag >= 0:
            if reader.uvarint() == 0:
                return None
        elif reader.signed(1) < 0:
            return None
    return _read_struct(reader, field.schema)


@cython.cfunc
def _read_field(reader: _Reader, field: Field):
    if not field.is_array:
        return _read_value(reader, field)
    count: cython.longlong = reader.length(field.compact, 4)
    if count < 0:
        return _null(field)
    if count > reader.end - reader.position:
        raise ProtocolError(f"{field.name} announces {count} elements, more than the frame holds")
    reader.elements_left -= count
    if reader.elements_left < 0:
        raise ProtocolError(f"{field.name}: too many array elements in one message")
    values: list = []
    i: cython.longlong
    for i in range(count):
        values.append(_read_value(reader, field))
    return values


@cython.cfunc
def _read_struct(reader: _Reader, schema: Schema):
    value = schema.cls.__new__(schema.cls)
    field: Field
    for field in schema.fields:
        setattr(value, field.name, _read_field(reader, field))
    for field in schema.absent:
        setattr(value, field.name, _missing(field))
    if schema.flexible:
        _read_tagged(reader, schema, value)
    return value


@cython.cfunc
@cython.exceptval(-1)
def _read_tagged(reader: _Reader, schema: Schema, value) -> cython.int:
    field: Field
    for field in schema.tagged.values():
        setattr(value, field.name, _missing(field))
    count: cython.longlong = reader.uvarint()
    i: cython.longlong
    for i in range(count):
        tag: cython.longlong = reader.uvarint()
        size: cython.longlong = reader.uvarint()
        found = schema.tagged.get(tag)
        if found is None:
            reader.take(size)
            continue
        field = found
        start: cython.Py_ssize_t = reader.position
        setattr(value, field.name, _read_field(reader, field))
        if reader.position - start != size:
            raise ProtocolError(f"tagged field {field.name} is not {size} bytes long")
    return 0


def decode(schema: Schema, buffer, position: cython.Py_ssize_t, max_elements: cython.longlong):
    """Read one message; return it and the position after it."""
    reader: _Reader = _Reader(memoryview(buffer), position, max_elements)
    try:
        value = _read_struct(reader, schema)
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a string is not UTF-8: {error}") from None
    return value, reader.position
