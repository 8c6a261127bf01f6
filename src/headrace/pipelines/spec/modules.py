"""Python files of a pipeline, imported by their path."""

import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from headrace.pipelines.spec.model import Place, SpecError


def import_file(path: Path) -> ModuleType:
    """The module of a file, run anew. Files beside it can be imported by it.

    Raises SpecError, with the line of the file where it went wrong. The module is not kept among
    those that can be imported by name: Spark then sends what its functions need to the workers,
    which have no such module, instead of its name.
    """
    if not path.is_file():
        raise SpecError(None, f"{path}: no such file")
    name = f"headrace_pipeline_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SpecError(None, f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Classes of some kinds look their module up while they are made.
    sys.modules[name] = module
    try:
        with on_path(path.parent):
            spec.loader.exec_module(module)
    except SpecError:
        raise
    except SyntaxError as error:
        place = Place(shown_path(error.filename or path), error.lineno or 1)
        raise SpecError(place, f"not valid Python: {error.msg}") from error
    except Exception as error:
        text = f"cannot be imported: {type(error).__name__}: {error}"
        raise SpecError(_place_of(error, path), text) from error
    finally:
        sys.modules.pop(name, None)
    return module


@contextmanager
def on_path(directory: Path) -> Iterator[None]:
    """Let the modules of a directory be imported, as those beside a script can be."""
    entry = str(directory.absolute())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        # Not blindly the first: what was imported may have put others before it.
        sys.path.remove(entry)


def shown_path(path: str | Path) -> str:
    """A path as messages name it: from the current directory, if it is below that."""
    path = Path(path).absolute()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _place_of(error: BaseException, path: Path) -> Place:
    """The last line of the file itself on the way to an error."""
    frames = traceback.extract_tb(error.__traceback__)
    file = str(path.absolute())
    lines = [one.lineno for one in frames if one.filename == file and one.lineno]
    return Place(shown_path(path), lines[-1] if lines else 1)
