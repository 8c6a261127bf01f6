# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""The message codec: decodes and encodes the messages of every API and version by a `Schema`."""

import struct as _struct

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

from headrace.errors import ProtocolError

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.cpython.mem import PyMem_Free, PyMem_Malloc, PyMem_Realloc
    from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
    from cython.cimports.libc.string import memcpy

# The layout of one version of a message on the wire.
#
# `schema.py` makes these objects from the message classes. Their attributes are typed in
# `message_codec.pxd`, so that the codec reads them without a Python call.


COMPILED: bool = cython.compiled

KINDS = {
    "bool": 1,
    "int8": 2,
    "int16": 3,
    "uint16": 4,
    "int32": 5,
    "uint32": 6,
    "int64": 7,
    "float64": 8,
    "string": 9,
    "bytes": 10,
    "records": 11,
    "uuid": 12,
    "struct": 13,
}


@cython.final
@cython.cclass
class Field:
    """A field: its kind, and the encoding of its length, null and tag."""

    def __init__(self, name, kind, is_array, nullable, compact, tag, schema, default):
        self.name = name
        self.kind = KINDS[kind]
        self.is_array = is_array
        self.nullable = nullable
        self.compact = compact
        self.tag = tag
        self.schema = schema
        self.default = default
        self.fresh = isinstance(default, list)


@cython.final
@cython.cclass
class Schema:
    """The fields of a struct, and its class."""

    def __init__(self, cls, fields, tagged, absent, flexible):
        self.cls = cls
        self.fields = fields
        self.tagged = tagged
        self.absent = absent
        self.flexible = flexible


# The decoder.
#
# Rule: no length from the wire is used before it was compared with the bytes that are there, and no
# message may have more than `max_elements` array elements, so memory stays in proportion to the
# frame.


@cython.final
@cython.cclass
class _MessageReader:
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
        """Move past `count` bytes and return their position."""
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
def _read_value(reader: _MessageReader, field: Field):
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
    """The default of a field that the message does not have; a list is never shared."""
    return [] if field.fresh else field.default


@cython.cfunc
def _read_nullable_struct(reader: _MessageReader, field: Field):
    if field.nullable and not field.is_array:
        if field.tag >= 0:
            if reader.uvarint() == 0:
                return None
        elif reader.signed(1) < 0:
            return None
    return _read_struct(reader, field.schema)


@cython.cfunc
def _read_field(reader: _MessageReader, field: Field):
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
def _read_struct(reader: _MessageReader, schema: Schema):
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
def _read_tagged(reader: _MessageReader, schema: Schema, value) -> cython.int:
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
    """Decode a message; return it and the position after it."""
    reader: _MessageReader = _MessageReader(memoryview(buffer), position, max_elements)
    try:
        value = _read_struct(reader, schema)
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a string is not UTF-8: {error}") from None
    return value, reader.position


# The encoder.
#
# Large record sets are not copied: a frame is a list of buffers to send in order.


# A records field shorter than this is copied: cheaper than sending another buffer.
_INLINE_BYTES_MAX = cython.declare(cython.Py_ssize_t, 4096)


@cython.final
@cython.cclass
class _MessageWriter:
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
        """Add a large buffer to the frame without copying it."""
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
def _write_value(writer: _MessageWriter, field: Field, value) -> cython.int:
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
def _write_null(writer: _MessageWriter, field: Field, width: cython.int) -> cython.int:
    if not field.nullable:
        raise ValueError(f"{field.name} cannot be null in this version")
    return writer.length(-1, field.compact, width)


@cython.cfunc
@cython.exceptval(-1)
def _write_string(writer: _MessageWriter, field: Field, value) -> cython.int:
    if value is None:
        return _write_null(writer, field, 2)
    data: bytes = value.encode()
    writer.length(len(data), field.compact, 2)
    return writer.raw(data)


@cython.cfunc
@cython.exceptval(-1)
def _write_bytes(writer: _MessageWriter, field: Field, value) -> cython.int:
    if value is None:
        return _write_null(writer, field, 4)
    size: cython.Py_ssize_t = len(value)
    writer.length(size, field.compact, 4)
    if field.kind == 11 and size > _INLINE_BYTES_MAX:
        return writer.splice(value)
    return writer.raw(bytes(value))


@cython.cfunc
@cython.exceptval(-1)
def _write_nullable_struct(writer: _MessageWriter, field: Field, value) -> cython.int:
    if field.nullable and not field.is_array:
        if value is None:
            return writer.store(0 if field.tag >= 0 else 255, 1)
        writer.store(1, 1)
    return _write_struct(writer, field.schema, value)


@cython.cfunc
@cython.exceptval(-1)
def _write_field(writer: _MessageWriter, field: Field, value) -> cython.int:
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
def _write_struct(writer: _MessageWriter, schema: Schema, value) -> cython.int:
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
def _write_tagged(writer: _MessageWriter, schema: Schema, value) -> cython.int:
    field: Field
    present: list = []
    for field in schema.tagged.values():
        content = getattr(value, field.name)
        if content is not field.default and content != field.default:
            present.append((field, content))
    writer.uvarint(len(present))
    for item in present:
        field = item[0]
        inner: _MessageWriter = _MessageWriter()
        _write_field(inner, field, item[1])
        data: bytes = b"".join(inner.buffers())
        writer.uvarint(field.tag)
        writer.uvarint(len(data))
        writer.raw(data)
    return 0


def encode(schema: Schema, message):
    """Encode a message as one bytes object."""
    writer: _MessageWriter = _MessageWriter()
    _write_struct(writer, schema, message)
    return b"".join(writer.buffers())


def encode_frame(schema: Schema, message, header: bytes):
    """Encode a frame, its length, header and message, as buffers to send in order.

    Large record sets are not copied: do not change them until they are sent.
    """
    writer: _MessageWriter = _MessageWriter()
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
