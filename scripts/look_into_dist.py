"""Say what a built wheel or sdist lacks (called by scripts/build with the folder of both)."""

import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("executor", "server", "tool_clients")


def main(folder: str) -> int:
    """Print what is missing; 0 when nothing is."""
    lacking = [
        *wheel_lacks(next(Path(folder).glob("*.whl"))),
        *sdist_lacks(next(Path(folder).glob("*.tar.gz"))),
    ]
    for line in lacking:
        print(f"build: {line}", file=sys.stderr)
    return 1 if lacking else 0


def wheel_lacks(wheel: Path) -> list[str]:
    """Every file of our packages is in it, the typing marks and the SQL too, and the example server."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wanted |= {f"server/examples/{path.name}" for path in (ROOT / "examples").glob("files_server.py")}
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    return [
        *(f"{wheel.name} lacks {name}" for name in sorted(wanted - names)),
        *(
            f"{wheel.name} installs {top!r}, which is no package of ours"
            for top in sorted(tops - set(PACKAGES))
        ),
    ]


def sdist_lacks(sdist: Path) -> list[str]:
    """What a packager needs to build and test without this repository."""
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    wanted = {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "constraints.txt",
        "tests/conftest.py",
        "scripts/test",
        *(f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")),
    }
    strays = sorted(
        {name for name in names if {"node_modules", ".venv", "__pycache__"} & set(name.split("/"))}
    )
    return [
        *(f"{sdist.name} lacks {name}" for name in sorted(wanted - names)),
        *(f"{sdist.name} carries {name}" for name in strays[:5]),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
