# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""How one version of a message lies on the wire, in the form the compiled codec walks.

`schema.py` makes these from the message tables; `decoder.py` and `encoder.py` follow them. The
attributes are typed in `layout.pxd`, which lets both reach them without a Python call.
"""

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

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
    """One field: its kind, and how its length, null and tag are written."""

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
    """The fields of one struct, and the class that holds their values."""

    def __init__(self, cls, fields, tagged, absent, flexible):
        self.cls = cls
        self.fields = fields
        self.tagged = tagged
        self.absent = absent
        self.flexible = flexible
