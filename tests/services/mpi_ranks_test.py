"""Ranks that are processes: tests/support/mpi_ranks_program.cc under Open MPI's mpirun, all on this machine."""

import os
import shutil
import subprocess
import sys
import time
import unittest

PROGRAM = os.environ.get("MPI_RANKS_PROGRAM", "build/release/tests/mpi_ranks_program")
# All ranks on one machine, more than it has cores; root is what containers have.
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,vader,tcp"]


def run(ranks, *words):
    environment = {**os.environ, "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
    return subprocess.run([*MPIRUN, "-np", str(ranks), PROGRAM, *words], env=environment, capture_output=True, text=True,
                          timeout=120)


def left_over():
    found = subprocess.run(["pgrep", "-f", os.path.basename(PROGRAM)], capture_output=True, text=True).stdout.split()
    return [pid for pid in found if int(pid) != os.getpid()]


class MpiRanks(unittest.TestCase):
    def test_processes_give_each_other_what_they_are_asked_for(self):
        for ranks in (1, 2, 3, 4):
            with self.subTest(ranks=ranks):
                done = run(ranks)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn(f"{ranks} ranks: all right", done.stdout)

    def test_mail_between_processes(self):
        for ranks in (1, 2, 4):
            with self.subTest(ranks=ranks):
                done = run(ranks, "mail")
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn(f"{ranks} ranks: all right", done.stdout)

    def test_mail_that_nobody_takes_keeps_nobody_from_ending(self):
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                done = run(ranks, "mail-unread")
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_rank_that_is_killed_ends_all(self):
        for what in ("die", "mail-die"):
            with self.subTest(what):
                began = time.monotonic()
                done = run(3, what)
                self.assertNotEqual(done.returncode, 0)
                self.assertLess(time.monotonic() - began, 10)
                self.assertIn("rank 1", done.stderr)  # mpirun names it, and the signal
                self.assertIn("signal 9", done.stderr)
                self.assertEqual(left_over(), [])

    def test_a_size_that_differs_is_an_error_with_both(self):
        done = run(2, "differ")
        self.assertNotIn("all right", done.stdout)
        self.assertIn("truncated", done.stderr.lower())
        self.assertEqual(left_over(), [])


if __name__ == "__main__":
    if shutil.which("mpirun") is None:
        print("Skipped: mpirun is not installed (Debian: openmpi-bin)", file=sys.stderr)
        sys.exit(77)
    unittest.main(verbosity=2)
