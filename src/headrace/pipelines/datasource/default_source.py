"""The data source class for Spark: creates the reader or writer for each kind of request.

Rule: options are parsed where they are used, since the same class reads and writes.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headrace.pipelines.datasource.read_options import batch_options, read_options, stream_options


class DefaultSource(DataSource):
    """Topics, as DataFrames to read and to write: `format("headrace")`."""

    @classmethod
    def name(cls) -> str:
        """The name of the data source in `format(...)`."""
        return "headrace"

    def schema(self) -> StructType:
        """The columns of a read."""
        from headrace.pipelines.datasource.record_columns import spark_schema  # noqa: PLC0415

        return spark_schema(read_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader behind `spark.read`."""
        options = batch_options(self.options)
        if options.path is not None:
            from headrace.pipelines.datasource.direct_scan import scan_reader  # noqa: PLC0415

            return scan_reader(options)
        from headrace.pipelines.datasource.readers import batch_reader  # noqa: PLC0415

        return batch_reader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader behind `spark.readStream`."""
        from headrace.pipelines.datasource.readers import StreamReader  # noqa: PLC0415

        return StreamReader(stream_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer behind `frame.write`."""
        from headrace.pipelines.datasource.writer import BatchWriter  # noqa: PLC0415

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer behind `frame.writeStream`."""
        from headrace.pipelines.datasource.writer import StreamWriter  # noqa: PLC0415

        return StreamWriter(self.options, schema, overwrite)
