"""Python steps: the user's function is found, called with frames, and held to what it promised.

Rule: whatever the function raises is told as the step's error, at the line of the user's file.
"""

import inspect
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from headrace.pipelines.frames.failures import SPARK_ERRORS, BuildError, blaming, essence
from headrace.pipelines.spec.functions import SPARK, load_function
from headrace.pipelines.spec.model import Pipeline, PythonStep, SpecError

_NOT_THE_USERS = (str(Path(__file__).parents[2]), "pyspark", "py4j", "importlib")


def call_step(
    spark: SparkSession, pipeline: Pipeline, step: PythonStep, frames: Sequence[DataFrame]
) -> DataFrame:
    """The frame that a step's function makes of its inputs."""
    with _users_code(step):
        function = load_function(step.function, pipeline.directory)
        send_by_value(_directories(step, pipeline))
        result = function(*frames, **_extra(function, spark))
    if not isinstance(result, DataFrame):
        text = f"{name_of(step)} returned {_kind(result)} and not a DataFrame"
        raise BuildError(step.place, f"step {step.name}", text, "return the frame it makes")
    return result


def name_of(step: PythonStep) -> str:
    """A step's function as messages name it."""
    if isinstance(step.function, str):
        return step.function
    return getattr(step.function, "__qualname__", repr(step.function))


def _directories(step: PythonStep, pipeline: Pipeline) -> set[Path]:
    """Where modules can be that no worker has: beside the pipeline, and beside the step's file."""
    root = pipeline.directory.absolute()
    file = step.function.rpartition(":")[0] if isinstance(step.function, str) else ""
    return {root, (root / file).parent} if file.endswith(".py") else {root}


def send_by_value(directories: Collection[Path]) -> None:
    """Let Spark send the code of modules in these directories along with what uses it.

    Workers can import what is installed, and these are not: they lie beside the pipeline.
    """
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and import_root(name, Path(file)) in directories:
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def import_root(name: str, file: Path) -> Path | None:
    """The directory from which a file is the module of this name; None if it has another name."""
    path = Path(*name.split("."))
    for ending in (f"{path}.py", f"{path}/__init__.py"):
        if str(file).endswith(f"/{ending}"):
            return Path(str(file).removesuffix(ending))
    return None


def _extra(function: Callable[..., Any], spark: SparkSession) -> dict[str, SparkSession]:
    return {SPARK: spark} if SPARK in inspect.signature(function).parameters else {}


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


@contextmanager
def _users_code(step: PythonStep) -> Iterator[None]:
    part = f"step {step.name}"
    try:
        with blaming(step.place, part):
            yield
    except BuildError as error:
        cause = error.__cause__
        assert isinstance(cause, SPARK_ERRORS)
        raise _blamed(step, cause, essence(cause)) from cause
    except SpecError as error:
        raise BuildError(step.place, part, str(error), "correct `python` of the step") from error
    except Exception as error:
        raise _blamed(step, error, f"{type(error).__name__}: {error}") from error


def _blamed(step: PythonStep, error: BaseException, text: str) -> BuildError:
    """The error of a step, with the last line of the user's on the way to it."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(foreign in frame.filename for foreign in _NOT_THE_USERS)
    ]
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    what = f"{name_of(step)} failed{where}: {' '.join(text.split())}"
    return BuildError(step.place, f"step {step.name}", what, "correct the function")
