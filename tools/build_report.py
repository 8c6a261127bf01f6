"""Say which build of the codec this environment has, and which one it should have.

A module with a `.pyi` beside it is written in Cython's pure mode: it is compiled where there is a C
compiler, and runs as it is where there is none.
"""

import argparse
import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"


def compiled_modules(source: Path = SOURCE) -> list[str]:
    """The dotted names of the modules that have a compiled form."""
    stubs = sorted(source.glob("headrace/**/*.pyi"))
    return [".".join(stub.relative_to(source).with_suffix("").parts) for stub in stubs]


def is_compiled(module: str) -> bool:
    """Whether an import of `module` would load a shared library rather than the Python file."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")


def obstacle() -> str | None:
    """Why nothing can be compiled here, or None when it can."""
    if os.environ.get("HEADRACE_PURE") == "1":
        return "HEADRACE_PURE=1 is set"
    configured = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if not any(shutil.which(name) for name in (configured, "cc", "gcc", "clang")):
        return "no C compiler found"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "no Python headers found; on Debian or Ubuntu: sudo apt install python3-dev"
    return None


def report() -> str:
    """One line: the build in use, and when it is not the compiled one, the reason."""
    modules = compiled_modules()
    pure = [module for module in modules if not is_compiled(module)]
    if not pure:
        return "codec: compiled"
    reason = obstacle() or "the build failed; see build/codec.log"
    if len(pure) < len(modules):
        return f"codec: only partly compiled, without {', '.join(pure)} ({reason})"
    return f"codec: pure Python ({reason})"


def expected() -> str:
    """The build that tests must meet here; on stderr, loudly, when it is not the compiled one."""
    reason = obstacle()
    if reason is None:
        return "compiled"
    print(f"!!! THE COMPILED CODEC IS NOT TESTED HERE: {reason}", file=sys.stderr)
    return "pure"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--expected", action="store_true", help="print `compiled` or `pure`")
    print(expected() if parser.parse_args().expected else report())


if __name__ == "__main__":
    main()
