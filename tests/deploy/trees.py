"""Bare Debian systems in directories, in which commands run as root or as a user.

    debootstrap ──► a bare system ──copy──► the stages of an image

A command sees the files and processes of its system only, and the network of the
machine.  When it ends, so do all processes that it has started.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.conftest import children_of
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import Iterator

MIRROR: Final = "http://deb.debian.org/debian"
RELEASE: Final = "trixie"
OWN_AUTHORITIES: Final = Path("/usr/local/share/ca-certificates")
"""Certificates that this machine trusts in addition, for example of its proxy."""


class Tree:
    """A system in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def bare(cls, root: Path, release: str = RELEASE) -> Tree:
        """Install a bare Debian: without Python, and without certificates."""
        subprocess.run(
            ["debootstrap", "--variant=minbase", release, root, MIRROR], check=True, stdout=subprocess.DEVNULL
        )
        tree = cls(root)
        tree.path("/etc/apt/apt.conf.d/mirror").write_text('Acquire::Check-Valid-Until "false";\n')  # it may be old
        shutil.copy("/etc/hosts", tree.path("/etc/hosts"))  # an installer writes it; it names the machine
        if OWN_AUTHORITIES.is_dir():
            shutil.copytree(OWN_AUTHORITIES, tree.path(OWN_AUTHORITIES), dirs_exist_ok=True)
        return tree

    def copy(self, root: Path) -> Tree:
        """Return a copy of the system."""
        subprocess.run(["cp", "--archive", "--reflink=auto", self.root, root], check=True)
        return Tree(root)

    def path(self, path: str | Path) -> Path:
        """Return where a file of the system is on this machine."""
        return self.root / Path(path).relative_to("/")

    def command(
        self, *words: str, directory: str = "/", user: str = "", writable: str = "", **environment: str
    ) -> list[str]:
        """Return the words of a command that runs another one in the system.

        `user` is its number; without it, root runs the command.  If `writable` is the
        path of a directory, nothing else can be written.
        """
        root = shlex.quote(str(self.root))
        steps = ["mount --make-rprivate /", f"mount --rbind {root} {root}"]
        if writable:
            steps += [f"mount --bind {root}{writable} {root}{writable}", f"mount -o remount,bind,ro {root}"]
        steps += [f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
        variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", **environment}
        inside = ["env", "-i", *(f"{name}={value}" for name, value in variables.items()), *words]
        identity = [f"--userspec={user}:{user}"] if user else []
        chroot = ["chroot", *identity, str(self.root), "sh", "-c", f'cd {shlex.quote(directory)} && exec "$@"', "sh"]
        steps.append(f"exec {shlex.join([*chroot, *inside])}")
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", " && ".join(steps)]

    @contextmanager
    def serving(self, *words: str, **options: str) -> Iterator[subprocess.Popen[str]]:
        """Run a hub, and wait until it serves; `options` are those of `command`."""
        process = subprocess.Popen(self.command(*words, **options), stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            assert any("Ctrl-C" in line for line in process.stdout), "the hub has ended"
            yield process
        finally:
            for first in children_of(process.pid):
                os.kill(first, signal.SIGKILL)
            process.communicate()

    def run(self, *words: str, directory: str = "/", user: str = "", writable: str = "", **environment: str) -> str:
        """Run a command, and return what it has printed.

        Raises AssertionError if it fails.
        """
        command = self.command(*words, directory=directory, user=user, writable=writable, **environment)
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        assert done.returncode == 0, f"{shlex.join(words)} ended with {done.returncode}:\n{done.stdout[-5000:]}"
        return done.stdout


def stop(process: subprocess.Popen[str]) -> int:
    """Stop what `Tree.serving` runs, as Docker does: with SIGTERM to its first process."""
    [first] = children_of(process.pid)
    os.kill(first, signal.SIGTERM)
    return process.wait(HANG)
