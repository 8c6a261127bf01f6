"""From the batches of an answer or a file to the Arrow batches that Spark gets.

Rule: one way for both, so that a scan of files gives what a broker would.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter

import pyarrow as pa

from headrace.client.consumer.chunks import spans_of
from headrace.pipelines.source.arrays import Arrays
from headrace.protocol.records import BatchHeader, decode_columns
from headrace.types import Buffer, TopicPartition

# What is decoded at once. Beyond it a batch of rows is no quicker, only larger.
DECODED_BYTES = 4 * 1_048_576


class Decoder:
    """Decodes the records of one partition, the wanted columns of them.

    `position` is that of the batch in the data where decoding is, or where it failed.
    """

    def __init__(
        self, columns: tuple[str, ...], tp: TopicPartition, rows_max: int, *, check_crcs: bool
    ) -> None:
        self._arrays = Arrays(columns, tp, rows_max)
        self._decode = partial(
            decode_columns,
            check_crcs=check_crcs,
            total_bytes_max=DECODED_BYTES,
            with_keys="key" in columns,
            with_values="value" in columns,
            with_headers="headers" in columns,
        )
        self.position = 0

    def batches(
        self, data: Buffer, headers: Sequence[BatchHeader], begin: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        """The records with offsets in [begin, end) of some batches of `data`.

        Raises CorruptBatch, after what comes before it.
        """
        wanted = (header for header in headers if header.base_offset < end)
        for is_append_time, alike in groupby(wanted, attrgetter("is_log_append_time")):
            for start, limit in spans_of(list(alike)):
                self.position = start
                while self.position < limit:
                    found = self._decode(data, self.position, limit, begin)
                    self.position = found.end_position
                    yield from self._arrays.batches(found, end, is_log_append_time=is_append_time)
