"""deploy/Containerfile: its second stage installs every shared library that the program is linked with.

No container is built here: packages are compared with those of this Debian, the image's, that own the libraries.
"""

import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPILLWAY = pathlib.Path(os.environ.get("SPILLWAY_BINARY", ROOT / "build/release/spillway"))
IN_EVERY_IMAGE = {"libc6", "libgcc-s1", "libstdc++6"}  # apt itself needs them.


def debian():
    """This machine's release of Debian, or None."""
    release = pathlib.Path("/etc/os-release")
    known = dict(line.split("=", 1) for line in release.read_text().splitlines() if "=" in line) if release.exists() else {}
    return known.get("VERSION_ID", "").strip('"') if known.get("ID") == "debian" else None


def owner_of(library):
    """The package that a library's file belongs to. (Files of /usr/lib may be known as those of /lib.)"""
    real = str(pathlib.Path(library).resolve())
    for path in (real, real.removeprefix("/usr")):
        found = subprocess.run(["dpkg", "-S", path], capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.split(":")[0]
    return None


class ContainerTest(unittest.TestCase):
    def test_libraries_are_installed(self):
        containerfile = (ROOT / "deploy/Containerfile").read_text()
        final = containerfile.split("\nFROM debian:12-slim\n")[1]
        install = re.search(r"apt-get install (.*?)&&", final, re.DOTALL)[1].replace("\\\n", " ")
        installed = {word for word in install.split() if not word.startswith("-")}
        needed = re.findall(r"NEEDED.*\[(.*)\]", subprocess.check_output(["readelf", "-d", SPILLWAY], text=True))
        found = dict(re.findall(r"^\s*(\S+) => (/\S+)", subprocess.check_output(["ldd", SPILLWAY], text=True), re.MULTILINE))
        self.assertGreater(len(needed), 10)
        self.assertEqual([name for name in needed if name not in found and not name.startswith("ld-linux")], [])
        owners = {owner_of(found[name]): name for name in needed if name in found}
        # Those of a build with the CUDA device, which this image has not, come with CUDA.
        owners = {owner: name for owner, name in owners.items() if not name.startswith(("libcu", "libnccl"))}
        self.assertIn("libsqlite3-0", owners)
        missing = {owner: name for owner, name in owners.items() if owner not in installed | IN_EVERY_IMAGE}
        self.assertEqual(missing, {}, "deploy/Containerfile installs no package of these")


if __name__ == "__main__":
    if debian() != "12":
        print("deploy/Containerfile is of Debian 12, whose packages are not here")
        sys.exit(77)
    unittest.main()
