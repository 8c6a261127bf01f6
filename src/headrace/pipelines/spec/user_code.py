"""The user's Python code: pipeline files imported by path, and functions found in them."""

import ast
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.options import nearest
from headrace.pipelines.spec.model import SourceLocation, SpecError
from headrace.pipelines.spec.sections import listed


def import_file(path: Path) -> ModuleType:
    """Import a file anew and return its module. It can import the files beside it.

    Raises SpecError, with the line of the file where it failed. The module is not kept among those
    importable by name: so Spark pickles its functions by value for the workers, which have no such
    module, instead of by name.
    """
    if not path.is_file():
        raise SpecError(None, f"{path}: no such file")
    name = f"headrace_pipeline_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SpecError(None, f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Some kinds of classes look up their module while they are created.
    sys.modules[name] = module
    try:
        with on_path(path.parent):
            spec.loader.exec_module(module)
    except SpecError:
        raise
    except SyntaxError as error:
        place = SourceLocation(shown_path(error.filename or path), error.lineno or 1)
        raise SpecError(place, f"not valid Python: {error.msg}") from error
    except Exception as error:
        text = f"cannot be imported: {type(error).__name__}: {error}"
        raise SpecError(_place_of(error, path), text) from error
    finally:
        sys.modules.pop(name, None)
    return module


@contextmanager
def on_path(directory: Path) -> Iterator[None]:
    """Make the modules of a directory importable, like those beside a script."""
    entry = str(directory.absolute())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        # Not blindly the first entry: imported modules may have inserted others before it.
        sys.path.remove(entry)


def shown_path(path: str | Path) -> str:
    """The path for messages: relative to the current directory, if it is below that."""
    path = Path(path).absolute()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _place_of(error: BaseException, path: Path) -> SourceLocation:
    """The innermost line of the file itself in an error's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    file = str(path.absolute())
    lines = [frame.lineno for frame in frames if frame.filename == file and frame.lineno]
    return SourceLocation(shown_path(path), lines[-1] if lines else 1)


SPARK = "spark"


def load_function(function: str | Callable[..., Any], directory: Path) -> Callable[..., Any]:
    """The function of a step. Raises SpecError if it does not exist."""
    if not isinstance(function, str):
        return function
    module_name, _, name = function.rpartition(":")
    if module_name.endswith(".py"):
        module = import_file(directory / module_name)
    else:
        try:
            with on_path(directory):
                module = importlib.import_module(module_name)
        except ImportError as error:
            raise SpecError(None, f"{function}: {error}") from error
    found = getattr(module, name, None)
    if not callable(found):
        raise SpecError(None, f"{function}: there is no function {name!r} in {module_name}")
    return found  # type: ignore[no-any-return]


def function_problem(function: str | Callable[..., Any], directory: Path, inputs: int) -> str:
    """The problem of a step's function, found without importing it; "" if there is none."""
    if not isinstance(function, str):
        return _arity_problem(_parameters_of(function), inputs, getattr(function, "__name__", "it"))
    module_name, colon, name = function.rpartition(":")
    if not colon or not name.isidentifier():
        return f"{function!r} names no function: write file.py:name or package.module:name"
    if not module_name.endswith(".py"):
        return _module_problem(module_name, directory)
    path = directory / module_name
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        return f"{module_name} cannot be read: {error.strerror}: {path}"
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        return f"{module_name}{line} is not valid Python: {error.args[0]}"
    names = _top_level(tree)
    if name not in names:
        near = nearest(name, names)
        functions = [name for name, node in names.items() if node is not None]
        hint = f"did you mean {near!r}?" if near else f"it has {listed(functions) or 'none'}"
        return f"there is no function {name!r} in {module_name}; {hint}"
    node = names[name]
    return _arity_problem(_parameters_in(node), inputs, name) if node else ""


def _module_problem(module_name: str, directory: Path) -> str:
    if not all(part.isidentifier() for part in module_name.split(".")):
        return f"{module_name!r} names no module: write file.py:name or package.module:name"
    top = module_name.split(".", maxsplit=1)[0]
    # Only the topmost package, because finding a module below it would import the package.
    beside = PathFinder.find_spec(top, [str(directory)])
    found = top in sys.modules or beside or find_spec(top)
    return "" if found else f"there is no module {top!r}; a file is written as {top}.py:name"


def _top_level(tree: ast.Module) -> dict[str, ast.FunctionDef | None]:
    """The names that a module defines: functions with their definitions, others without."""
    names: dict[str, ast.FunctionDef | None] = {}
    for node in tree.body:
        match node:
            case ast.FunctionDef():
                names[node.name] = None if node.decorator_list else node
            case ast.ClassDef() | ast.AsyncFunctionDef():
                names[node.name] = None
            case ast.Assign(targets=targets):
                names |= {target.id: None for target in targets if isinstance(target, ast.Name)}
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {alias.asname or alias.name.split(".")[0]: None for alias in aliases}
            case ast.If() | ast.Try() | ast.With():
                names |= {
                    function.name: None
                    for function in ast.walk(node)
                    if isinstance(function, ast.FunctionDef)
                }
    return names


# The least and the most positional arguments of a function beside `spark`; None is any number.
_Arity = tuple[int, int | None]


def _parameters_in(node: ast.FunctionDef) -> _Arity:
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    required = positional[: len(positional) - len(arguments.defaults)]
    most = (
        None
        if arguments.vararg
        else len([parameter for parameter in positional if parameter.arg != SPARK])
    )
    return len([parameter for parameter in required if parameter.arg != SPARK]), most


def _parameters_of(function: Callable[..., Any]) -> _Arity:
    try:
        signature = inspect.signature(function)
    except ValueError:
        # Some functions written in C have no signature.
        return 0, None
    parameters = [
        parameter for parameter in signature.parameters.values() if parameter.name != SPARK
    ]
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    is_open = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    required = [parameter for parameter in positional if parameter.default is parameter.empty]
    return len(required), None if is_open else len(positional)


def _arity_problem(arity: _Arity, inputs: int, name: str) -> str:
    least, most = arity
    if least <= inputs and (most is None or inputs <= most):
        return ""
    more = " or more" if most is None else "" if least == most else f" to {most}"
    return f"{name} takes {least}{more} DataFrames, but 'inputs' names {inputs}"
