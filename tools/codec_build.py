"""Compile the codec if possible, and report the build that is in use.

A module with a `.pyi` beside it is written in Cython's pure mode: it is compiled if there is a C
compiler, and runs uncompiled otherwise. The compiler is Python's own or, if that is not installed,
the one in the package `ziglang`, which `tools/bootstrap.sh` installs then.
"""

import argparse
import importlib.util
import os
import shlex
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


def is_pure_wanted() -> bool:
    """Whether the environment demands plain Python."""
    return os.environ.get("HEADRACE_PURE") == "1"


def compiler() -> str | None:
    """The command of the C compiler, or None."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if shutil.which(shlex.split(command)[0]) is not None:
        return str(command)
    if importlib.util.find_spec("ziglang") is not None:
        return shlex.join([sys.executable, "-m", "ziglang", "cc"])
    return None


def has_headers() -> bool:
    """Whether Python's C headers are installed: Debian has a separate package for them."""
    return Path(sysconfig.get_path("include"), "Python.h").exists()


def obstacle() -> str | None:
    """The reason why the codec cannot be compiled here, or None."""
    if is_pure_wanted():
        return "HEADRACE_PURE=1 is set"
    missing, packages = [], []
    if compiler() is None:
        missing.append("no C compiler")
        packages.append("build-essential")
    if not has_headers():
        missing.append("no Python headers")
        packages.append("python3-dev")
    if not missing:
        return None
    return (
        f"{' and '.join(missing)} found; on Debian or Ubuntu: sudo apt install {' '.join(packages)}"
    )


def lacks_only_a_compiler() -> bool:
    """Whether a compiler from the package index is the only missing part."""
    return not is_pure_wanted() and compiler() is None and has_headers()


def remove_stale(root: Path = ROOT) -> list[Path]:
    """Remove libraries older than their source, in the package and in setuptools' build directory.

    A failed compilation leaves the old library in place, and Python would load it in preference to
    the changed source; likewise the library of a module that was removed. With HEADRACE_PURE=1
    every library is stale. Cython's shared library has no source here.
    """
    is_pure = is_pure_wanted()
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
    """Compile the outdated modules; a module that cannot be compiled stays plain Python."""
    remove_stale()
    command = compiler()
    if command is None or obstacle() is not None:
        return
    (ROOT / LOG).parent.mkdir(exist_ok=True)
    with (ROOT / LOG).open("w") as log:
        jobs = str(os.cpu_count() or 1)
        done = subprocess.run(
            [sys.executable, "setup.py", "build_ext", "--inplace", "--parallel", jobs],
            cwd=ROOT,
            env=os.environ | {"CC": command},
            stdout=log,
            stderr=log,
            check=False,
        )
    if done.returncode != 0:
        tail = (ROOT / LOG).read_text().splitlines()[-20:]
        raise SystemExit("\n".join([*tail, f"compiling the codec failed; see {LOG}"]))


def report() -> str:
    """One line: the build in use, and the reason if it is not the compiled one."""
    modules = compiled_modules()
    pure = [module for module in modules if not is_compiled(module)]
    if not pure:
        return "codec: compiled"
    reason = obstacle() or f"the C compiler failed; see {LOG}"
    if len(pure) < len(modules):
        return f"codec: only partly compiled, without {', '.join(pure)} ({reason})"
    return f"codec: pure Python ({reason})"


def expected() -> str:
    """The build that tests must use here, with a warning on stderr unless it is compiled."""
    reason = obstacle()
    if reason is None:
        return "compiled"
    print(f"!!! THE COMPILED CODEC IS NOT TESTED HERE: {reason}", file=sys.stderr)
    return "pure"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["build", "report", "expected", "lacks-only-a-compiler"])
    parser.add_argument(
        "--done",
        type=Path,
        metavar="FILE",
        help="touched by `build`, unless something is missing here: then the next one tries again",
    )
    arguments = parser.parse_args()
    match arguments.command:
        case "build":
            build()
            print(report())
            if arguments.done is not None and (is_pure_wanted() or obstacle() is None):
                arguments.done.touch()
        case "lacks-only-a-compiler":
            sys.exit(not lacks_only_a_compiler())
        case "report":
            print(report())
        case "expected":
            print(expected())


if __name__ == "__main__":
    main()
