"""Copy the package without anything compiled, so that the uncompiled codec can be tested too."""

import argparse
import shutil
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "headrace"


def copy_pure(target: Path, source: Path = SOURCE) -> Path:
    """Replace `target`/headrace by a copy of the package that holds no compiled module."""
    package = target / source.name
    if package.exists():
        shutil.rmtree(package)
    compiled = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
    shutil.copytree(source, package, ignore=compiled)
    return package


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path, help="a directory to put on PYTHONPATH")
    copy_pure(parser.parse_args().target)


if __name__ == "__main__":
    main()
