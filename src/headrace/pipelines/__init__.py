"""Data pipelines on Spark: the `headrace` data source, and pipelines declared in a file.

    from headrace import pipelines

    spark = pipelines.session("orders")
    frame = spark.read.format("headrace").option("subscribe", "orders").load()

    declared = pipelines.load("orders.yaml")

Rule: a name is imported when it is first used; pyspark only when a session is made.
"""

from typing import TYPE_CHECKING

from headrace import exported_value

# Imported at once: otherwise the module of the same name would replace the function on import.
from headrace.pipelines.session import session

if TYPE_CHECKING:
    from headrace.pipelines.spec import load
    from headrace.pipelines.spec.builder import Builder, avro, csv, json, pipeline
    from headrace.pipelines.spec.checks import check
    from headrace.pipelines.spec.model import Pipeline, SpecError

__all__ = [
    "Builder",
    "Pipeline",
    "SpecError",
    "avro",
    "check",
    "csv",
    "json",
    "load",
    "pipeline",
    "session",
]

_MODULES = {
    "spec": ("load",),
    "spec.builder": ("Builder", "avro", "csv", "json", "pipeline"),
    "spec.checks": ("check",),
    "spec.model": ("Pipeline", "SpecError"),
}

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

# Hidden from type checkers, which would otherwise accept every misspelt name.
if not TYPE_CHECKING:

    def __getattr__(name):
        return exported_value(__name__, _MODULE_OF, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
