#!/usr/bin/env python3
"""scripts/build on machines made up for it: what CMake is told where there are nvcc and a GPU, and where there are not."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"


class Build(unittest.TestCase):
    """Runs it in a tree of its own with programs that write down how they were called."""

    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        self.calls = self.root / "calls"
        (self.root / "scripts").mkdir()
        shutil.copy(SCRIPTS / "build", self.root / "scripts")
        (self.root / "tools").mkdir()
        # None of this machine's programs may answer but those that every machine has.
        for tool in ("bash", "dirname", "mkdir", "cat", "grep", "sed", "tr", "sort", "tail", "ls"):
            (self.root / "tools" / tool).symlink_to(shutil.which(tool))
        for tool in ("cmake", "ninja"):
            self.program(tool, f'echo "{tool} $*" >> "$CALLS"')

    def program(self, name, text):
        """Writes an executable."""
        path = self.root / "tools" / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def machine(self, *capabilities):
        """A GPU of each, and an nvcc."""
        lines = "\\n".join(capabilities)
        self.program("nvidia-smi", f'[[ "$*" == "--query-gpu=compute_cap --format=csv,noheader" ]] || exit 1; printf "{lines}\\n"')
        self.program("nvcc", '[[ $1 == --list-gpu-code ]] && printf "sm_75\\nsm_80\\nsm_90\\nsm_120\\n"')

    def build(self, *arguments, **environment):
        """What CMake was told."""
        self.calls.unlink(missing_ok=True)
        env = {"PATH": str(self.root / "tools"), "CALLS": str(self.calls), **environment}
        command = ["bash", str(self.root / "scripts/build"), *arguments]
        run = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        return self.calls.read_text().splitlines()

    def test_a_machine_with_a_gpu_and_nvcc_gets_the_cuda_device_for_that_gpu(self):
        self.machine("9.0")
        self.assertEqual(self.build("release", "spillway"), [
            "cmake --preset release -B build/release -DSPILLWAY_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90-real",
            "ninja -C build/release spillway"])
        self.assertIn("-DSPILLWAY_CUDA=ON", self.build()[0])

    def test_every_kind_of_gpu_is_built_for_once(self):
        self.machine("12.0", "7.5", "12.0")
        self.assertIn("-DCMAKE_CUDA_ARCHITECTURES=75-real;120-real", self.build()[0])

    def test_a_gpu_that_the_kernels_or_nvcc_cannot_serve_is_none(self):
        for capability in ("7.0", "8.7", "[N/A]"):
            self.machine(capability)
            self.assertIn("-DSPILLWAY_CUDA=OFF", self.build()[0], capability)

    @unittest.skipIf(os.path.exists("/usr/local/cuda/bin/nvcc"), "this machine has nvcc where it is looked for")
    def test_without_nvcc_a_gpu_is_not_used(self):
        self.machine("9.0")
        (self.root / "tools/nvcc").unlink()
        self.assertIn("-DSPILLWAY_CUDA=OFF", self.build()[0])

    def test_elsewhere_and_where_it_is_not_wanted_the_cpu_is_built_for(self):
        self.assertIn("-DSPILLWAY_CUDA=OFF", self.build()[0])
        self.program("nvidia-smi", "echo no devices were found; exit 6")
        self.assertIn("-DSPILLWAY_CUDA=OFF", self.build()[0])
        self.machine("9.0")
        self.assertIn("-DSPILLWAY_CUDA=OFF", self.build(SPILLWAY_CUDA="OFF")[0])

    def test_other_presets_are_as_they_say_and_one_architecture_has_a_folder_of_its_own(self):
        self.machine("9.0")
        self.assertEqual(self.build("asan")[0], "cmake --preset asan -B build/asan")
        self.assertEqual(self.build("--arch", "80", "cuda", "spillway"), [
            "cmake --preset cuda -B build/cuda-80 -DCMAKE_CUDA_ARCHITECTURES=80-real",
            "ninja -C build/cuda-80 spillway"])


if __name__ == "__main__":
    unittest.main()
