"""Compile the codec where that is possible, and say which build of it is in use.

A module with a `.pyi` beside it is written in Cython's pure mode: it is compiled where there is a C
compiler, and runs as it is where there is none.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOG = Path("build") / "codec.log"
SHARED = Path("headrace/_cyutility.py")


def compiled_modules(root: Path = ROOT) -> list[str]:
    """The dotted names of the modules that have a compiled form."""
    stubs = sorted(root.glob("src/headrace/**/*.pyi"))
    return [".".join(stub.relative_to(root / "src").with_suffix("").parts) for stub in stubs]


def is_compiled(module: str) -> bool:
    """Whether an import of `module` would load a shared library rather than the Python file."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")


def obstacle() -> str | None:
    """Why nothing can be compiled here, or None when it can."""
    if os.environ.get("HEADRACE_PURE") == "1":
        return "HEADRACE_PURE=1 is set"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return "no C compiler found"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "no Python headers found; on Debian or Ubuntu: sudo apt install python3-dev"
    return None


def remove_stale(root: Path = ROOT) -> list[Path]:
    """Remove libraries older than their source, in the package and among what setuptools keeps.

    A compile that fails leaves the old library in place, and Python would load it in preference to
    the changed source; so would it the library of a module that is gone. With HEADRACE_PURE=1
    every library is stale. Cython's own, which they share, has no source here.
    """
    is_pure = os.environ.get("HEADRACE_PURE") == "1"
    removed = []
    for base in (root / "src", *root.glob("build/lib*")):
        for library in sorted(base.glob("headrace/**/*.so")):
            name = library.relative_to(base).with_name(library.name.split(".")[0] + ".py")
            is_shared = name == SHARED
            if is_pure or (not is_shared and _is_stale(library, root / "src" / name)):
                library.unlink()
                removed.append(library)
    return removed


def _is_stale(library: Path, source: Path) -> bool:
    """Whether the source, or a declaration it may have included, is newer or missing."""
    if not source.exists():
        return True
    inputs = (source, *source.parent.glob("*.pxd"))
    return library.stat().st_mtime < max(path.stat().st_mtime for path in inputs)


def build() -> None:
    """Compile what is not up to date; a module that cannot be compiled stays plain Python."""
    remove_stale()
    (ROOT / LOG).parent.mkdir(exist_ok=True)
    with (ROOT / LOG).open("w") as log:
        jobs = str(os.cpu_count() or 1)
        command = [sys.executable, "setup.py", "build_ext", "--inplace", "--parallel", jobs]
        done = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, check=False)
    if done.returncode != 0:
        tail = (ROOT / LOG).read_text().splitlines()[-20:]
        raise SystemExit("\n".join([*tail, f"compiling the codec failed; see {LOG}"]))


def report() -> str:
    """One line: the build in use, and when it is not the compiled one, the reason."""
    modules = compiled_modules()
    pure = [module for module in modules if not is_compiled(module)]
    if not pure:
        return "codec: compiled"
    reason = obstacle() or f"the C compiler failed; see {LOG}"
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
    parser.add_argument("command", choices=["build", "report", "expected"])
    match parser.parse_args().command:
        case "build":
            build()
            print(report())
        case "report":
            print(report())
        case "expected":
            print(expected())


if __name__ == "__main__":
    main()
