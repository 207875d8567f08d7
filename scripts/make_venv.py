"""Make `.venv` in this checkout what pyproject.toml and constraints.txt ask for (called by scripts/setup).

Standard library only. uv does the work where there is one, else `venv` and pip, also a pip that knows no
dependency groups: the dev group is read here. A stamp in `.venv` says what it was made from, so a second call
has nothing to do; a lock makes a call that comes meanwhile wait for the first.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
VENV: Final = ROOT / ".venv"
STAMP: Final = VENV / "loopwright-setup.json"
EXTRAS: Final = "anthropic,google"  # the tests and the type checker look at every provider's class
VENV_PYTHON: Final = VENV / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def main() -> int:
    """Bring `.venv` up to date; silent when it is."""
    parser = argparse.ArgumentParser(prog="scripts/setup", description=main.__doc__)
    parser.add_argument("--dev", action="store_true", help="install what the tests and checks need, too")
    dev: bool = parser.parse_args().dev
    with only_one():
        stamp = read_stamp()
        wanted = {
            "inputs": hash_of_inputs(),
            "checkout": str(ROOT),
            "python": list(base_python()),
            "dev": dev,
        }
        if stamp == wanted or stamp == {**wanted, "dev": True}:
            return 0
        dev = dev or stamp.get("dev") is True
        try:
            make(dev=dev, afresh=stamp.get("checkout", str(ROOT)) != str(ROOT))
        except subprocess.CalledProcessError as error:
            say(
                f"`{' '.join(map(str, error.cmd))}` failed; the lines above say why. Once that is mended, run it again."
            )
            return 1
        STAMP.write_text(json.dumps({**wanted, "dev": dev}), encoding="utf-8")
        say(f"{VENV.name} is ready ({'with' if dev else 'without'} the tests' tools)")
    return 0


def make(*, dev: bool, afresh: bool) -> None:
    """Install the project and its requirements, into a new `.venv` unless there is one that fits."""
    uv = find_uv()
    STAMP.unlink(missing_ok=True)
    if afresh or not works(
        VENV_PYTHON, f"import sys; sys.exit((sys.base_prefix, sys.version) != {base_python()!r})"
    ):
        say(f"making {VENV.name} with {'uv' if uv else 'venv and pip'} (Python {sys.version.split()[0]})")
        make_empty(uv)
    editable = f".[{EXTRAS}]" if dev else "."
    wanted = ["--constraint", "constraints.txt", "--editable", editable, *(dev_group() if dev else [])]
    say("installing Loopwright and what it needs")
    if uv:
        run([uv, "pip", "install", "--quiet", "--python", str(VENV_PYTHON), *wanted])
    else:
        run([*pip(), "install", "--quiet", "--disable-pip-version-check", *wanted])


def make_empty(uv: str | None) -> None:
    """A `.venv` with nothing in it, of the interpreter that runs this."""
    if VENV.is_symlink():
        VENV.unlink()
    elif VENV.exists():
        shutil.rmtree(VENV)
    base = getattr(sys, "_base_executable", sys.executable)
    if uv:
        run([uv, "venv", "--quiet", "--python", base, str(VENV)])
    else:
        # Debian ships `venv` without `ensurepip` unless python3-venv is installed.
        run(
            [
                base,
                "-m",
                "venv",
                *([] if importlib.util.find_spec("ensurepip") else ["--without-pip"]),
                str(VENV),
            ]
        )


def pip() -> list[str]:
    """The command line of a pip that installs into `.venv`."""
    own = [str(VENV_PYTHON), "-m", "pip"]
    if works(VENV_PYTHON, "import pip"):
        return own
    if works(VENV_PYTHON, "import ensurepip"):
        run([str(VENV_PYTHON), "-m", "ensurepip", "--default-pip"], quiet=True)
        return own
    base = Path(getattr(sys, "_base_executable", sys.executable))
    if works(base, "import pip"):
        return [str(base), "-m", "pip", "--python", str(VENV_PYTHON)]
    say(
        "this Python has neither pip nor ensurepip: `apt-get install python3-venv` (Debian, Ubuntu), or install uv"
    )
    raise SystemExit(1)


def find_uv() -> str | None:
    """A uv that runs, if there is one: version managers put stand-ins on PATH that don't."""
    uv = shutil.which("uv")
    if uv is None or subprocess.run([uv, "--version"], capture_output=True, check=False).returncode != 0:
        return None
    return uv


def dev_group() -> list[str]:
    """The requirements of the dependency group `dev`, for every pip."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    return [str(requirement) for requirement in groups["dev"]]


def hash_of_inputs() -> str:
    """What changes when the packages asked for do."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt", "scripts/make_venv.py"):
        digest.update((ROOT / name).read_bytes() + b"\0")
    return digest.hexdigest()


def base_python() -> tuple[str, str]:
    """The installation behind the interpreter that runs this; the same when asked from inside its `.venv`."""
    return sys.base_prefix, sys.version


def read_stamp() -> dict[str, object]:
    """What `.venv` was made from; nothing when it isn't there, was never finished, or can't be read."""
    try:
        stamp: object = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) and VENV_PYTHON.exists() else {}


def works(python: Path, code: str) -> bool:
    """Whether an interpreter is there, runs, and gets through `code`."""
    try:
        return subprocess.run([python, "-I", "-c", code], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def run(command: list[str], *, quiet: bool = False) -> None:
    """Run a command in the checkout, its words on stderr: stdout belongs to the script that called."""
    clean = {
        k: v
        for k, v in os.environ.items()
        if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_USER")
    }
    out = subprocess.DEVNULL if quiet else sys.stderr
    subprocess.run(command, cwd=ROOT, env=clean, stdout=out, check=True)


def say(text: str) -> None:
    """One line for the person who waits."""
    print(f"setup: {text}", file=sys.stderr, flush=True)


@contextmanager
def only_one() -> Iterator[None]:
    """Hold this checkout's lock; the operating system frees it however the holder ends."""
    with (ROOT / ".venv.lock").open("a+") as lock:
        if sys.platform == "win32":
            import msvcrt

            lock.seek(0)
            msvcrt.locking(lock.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("another script is setting up; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
