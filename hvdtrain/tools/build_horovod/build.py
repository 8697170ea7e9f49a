"""Builds Horovod for this environment, or takes the wheel that an earlier build left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from hvdtrain import process
from hvdtrain.errors import BuildError, InputError
from hvdtrain.process import Command
from hvdtrain.tools.build_horovod.cache import Cache, CachedWheel, copy_whole, locked, scratch_folder
from hvdtrain.tools.build_horovod.edits import apply_edits
from hvdtrain.tools.build_horovod.facts import SDIST_NAME, Facts, gather_facts
from hvdtrain.tools.build_horovod.install import Environment, install, is_installed
from hvdtrain.tools.build_horovod.memory import free_memory_mib
from hvdtrain.tools.build_horovod.plan import (
    Folders,
    build_command,
    fetch_command,
    install_command,
    links,
    proof_command,
    unpack_command,
)
from hvdtrain.tools.build_horovod.progress import BuildOutput, Reporter
from hvdtrain.tools.build_horovod.proof import prove
from hvdtrain.tools.build_horovod.room import choose_scratch_parent, default_jobs
from hvdtrain.tools.build_horovod.sdist import obtain_sdist, unpack_sdist
from hvdtrain.tools.build_horovod.toolchain import BuildTools, check_pip, check_python, find_build_tools

SCRATCH_PREFIX = "hvdtrain-horovod-"


@dataclass(frozen=True)
class Request:
    """What the user asked for.

    Attributes:
        gpu: ``auto``, ``none`` or ``nccl``.
        jobs: How many compilers run at once; None for as many as cores and memory allow.
        wheel_dir: Copy the wheel there and install nothing; None to install it.
        force: Build even if the cache has the wheel.
    """

    gpu: str = "auto"
    jobs: int | None = None
    wheel_dir: Path | None = None
    force: bool = False


@dataclass(frozen=True)
class Outcome:
    """What there is now.

    Attributes:
        wheel: The wheel, in the cache or in the folder that the user named.
        cached: Whether an earlier build had left it.
        installed: Whether it is installed in this environment.
        up_to_date: Whether nothing had to be done.
        proof: What rank 0 of the two-rank proof reported.
    """

    wheel: Path
    cached: bool
    installed: bool
    up_to_date: bool
    proof: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Preview:
    """What ``run`` would do.

    Attributes:
        cached: Whether the cache has the wheel, so that nothing is compiled.
        up_to_date: Whether it is installed and proven too, so that nothing is done at all.
        commands: What would be run, in order. The scratch folder's name ends in ``XXXXXXXX`` here.
    """

    cached: bool
    up_to_date: bool
    commands: tuple[Command, ...]


class Builder:
    """One build, with the facts, the cache and the reporter that it works with.

    Raises:
        InputError: Something that the wheel depends on is missing or unfit.
    """

    def __init__(
        self, request: Request, environ: Mapping[str, str], cache: Cache, reporter: Reporter
    ) -> None:
        self.request, self.environ, self.cache, self.reporter = request, environ, cache, reporter
        self.facts = gather_facts(environ, request.gpu)
        check_pip()
        self.environment = Environment(self.facts, cache)
        self.jobs = request.jobs or default_jobs(len(os.sched_getaffinity(0)), free_memory_mib())

    def preview(self) -> Preview:
        """What ``run`` would do, with the same checks and without a change to anything.

        Raises:
            InputError: As ``run``.
        """
        self.cache.check_writable()
        found = self._find()
        commands: list[Command] = []
        folders = Folders(Path(f"{SCRATCH_PREFIX}XXXXXXXX"))
        wheel = self.cache.entry(self.facts.key) / self.facts.wheel_name
        if found is None:
            tools, parent = self._check_prerequisites()
            folders = Folders(parent / folders.scratch)
            links(self.facts, folders)
            commands = self._build_commands(tools, folders)
        elif self.request.wheel_dir is None and self.environment.is_proven(found):
            return Preview(cached=True, up_to_date=True, commands=())
        if self.request.wheel_dir is None:
            commands += [install_command(self.facts, found.wheel if found else wheel), self._proof(None)]
        return Preview(cached=found is not None, up_to_date=False, commands=tuple(commands))

    def run(self) -> Outcome:
        """Takes or builds the wheel, installs it or copies it, and proves it.

        Raises:
            InputError: Something is missing; nothing was compiled.
            BuildError: Compiling, installing or proving failed.
        """
        self.cache.prepare()
        # The lock is held to the end: somebody's --force puts another folder in the place of this wheel's.
        with _ended_by_signals(), locked(self.cache.lock(self.facts.key), self._on_wait):
            found = self._find()
            wheel = found or self._build()
            if self.request.wheel_dir is not None:
                copy = copy_into(wheel.wheel, self.request.wheel_dir)
                return Outcome(copy, found is not None, False, False, wheel.manifest["proof"])
            return self._install(wheel, cached=found is not None)

    def _find(self) -> CachedWheel | None:
        return None if self.request.force else self.cache.find(self.facts.key, self.reporter.say)

    def _install(self, wheel: CachedWheel, *, cached: bool) -> Outcome:
        with locked(self.environment.lock, self._on_wait):
            if self.environment.is_proven(wheel):
                return Outcome(wheel.wheel, cached, True, cached, wheel.manifest["proof"])
            if not is_installed(wheel.wheel):
                self.reporter.say(f"installing {wheel.wheel.name} into {self.facts.python.prefix}")
                install(self.facts, wheel)
            self.reporter.say("proving the installation on two ranks")
            proof = prove(self.facts, self.environ, None)
            self.environment.note_proof(wheel.sha256)
        return Outcome(wheel.wheel, cached, True, False, proof)

    def _check_prerequisites(self) -> tuple[BuildTools, Path]:
        """The tools and the folder to build with; raises InputError before anything is compiled."""
        check_python()
        tools = find_build_tools(self.environ.get("PATH", os.defpath), self.facts.python.bin_dir)
        return tools, choose_scratch_parent(self.cache, self.facts.gpu.kind)

    def _build(self) -> CachedWheel:
        """Builds and proves in a scratch folder, then publishes; the key's lock is held."""
        self._tell_choices()
        tools, parent = self._check_prerequisites()
        self.cache.sweep(self.facts.key)
        try:
            with scratch_folder(parent, SCRATCH_PREFIX) as scratch:
                return self._build_in(Folders(scratch), tools)
        except OSError as error:
            # a disk that fills up half-way, as a rule
            raise BuildError(
                f"the build stopped: {error}; free space, or set TMPDIR or HVDTRAIN_CACHE"
            ) from error

    def _build_in(self, folders: Folders, tools: BuildTools) -> CachedWheel:
        started_s = time.monotonic()
        self._prepare(folders)
        wheel = self._compile(tools, folders)
        self.reporter.say("proving the wheel on two ranks")
        unpacked = process.run(unpack_command(self.facts, wheel, folders))
        if unpacked.returncode != 0:
            raise BuildError(f"pip could not unpack {wheel.name}: {unpacked.stderr.strip()[-300:]}")
        key = self.facts.key
        manifest = {
            "schema": 1,
            "key": key,
            "facts": self.facts.document(),
            "edits": {edit.name: edit.reason for edit in self.facts.edits},
            "proof": prove(self.facts, self.environ, folders.site),
            "seconds": round(time.monotonic() - started_s, 1),
        }
        return self.cache.publish(key, wheel, manifest, self.cache.log(key))

    def _tell_choices(self) -> None:
        mpi, gpu = self.facts.mpi, self.facts.gpu
        if mpi.passed_over is not None:
            self.reporter.say(f"MPI: {mpi.bin_dir}, this environment's own, not {mpi.passed_over} on PATH")
        self.reporter.say(f"GPU: {gpu.kind} ({gpu.why})")

    def _prepare(self, folders: Folders) -> None:
        for name, target in links(self.facts, folders).items():
            name.parent.mkdir(parents=True, exist_ok=True)
            name.symlink_to(target)
        folders.temporary.mkdir()
        sdist = obtain_sdist(self.facts, self.cache.sdists, folders, self.reporter.say)
        unpack_sdist(sdist, folders.scratch)
        apply_edits(self.facts.edits, folders.source)

    def _compile(self, tools: BuildTools, folders: Folders) -> Path:
        command = build_command(self.facts, tools, folders, self.jobs, self.environ)
        log = self.cache.log(self.facts.key)
        self.reporter.say(f"building {describe(self.facts)} with {self.jobs} jobs; log: {log}")
        output = BuildOutput(self.reporter.percent)
        with log.open("w", encoding="utf-8") as file:

            def keep(line: str) -> None:
                file.write(f"{line}\n")
                output.line(line)

            keep(command.display())
            code = process.stream(command, keep, base_env=self.environ)
        wheels = list(folders.wheels.glob("horovod-*.whl"))
        if code != 0 or len(wheels) != 1:
            for line in output.excerpt():
                self.reporter.say(f"  {line}")
            what = f"Horovod did not build (pip ended with {code})"
            raise BuildError(f"{what}; the log is {log}; {output.advice()}")
        return wheels[0]

    def _build_commands(self, tools: BuildTools, folders: Folders) -> list[Command]:
        commands = [build_command(self.facts, tools, folders, self.jobs, self.environ)]
        if not (self.cache.sdists / SDIST_NAME).exists():
            commands.insert(0, fetch_command(self.facts, folders))
        unpack = unpack_command(self.facts, folders.wheels / self.facts.wheel_name, folders)
        return [*commands, unpack, self._proof(folders.site)]

    def _proof(self, site: Path | None) -> Command:
        return proof_command(self.facts, self.environ, site, root=os.geteuid() == 0)

    def _on_wait(self, holder: str) -> None:
        self.reporter.say(f"waiting: {holder} is at the same wheel or environment")


def describe(facts: Facts) -> str:
    """A build in one clause."""
    gpu = "NCCL" if facts.gpu.kind == "nccl" else "CPU"
    return f"Horovod for torch {facts.torch.version}, {facts.mpi.vendor} {facts.mpi.version}, {gpu}"


def copy_into(wheel: Path, folder: Path) -> Path:
    """Copies a wheel into a folder, whole or not at all.

    Raises:
        InputError: It cannot be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        copy_whole(wheel, folder / wheel.name)
    except OSError as error:
        raise InputError(f"cannot put the wheel there: {error}", where=f"--wheel-dir {folder}") from error
    return folder / wheel.name


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into an exit, so that the compilers end and the scratch folder goes."""

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    kept = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
