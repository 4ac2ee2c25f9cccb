"""deploy/workers.slurm and stages.slurm under a Slurm of the test's own (one machine, no munge): an array of workers drains
a queue, a worker whose time is over gives its rows back, and every row has its result; two stages are one run.
"""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clients"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from postgres import Postgres, programs  # noqa: E402
from server import DEMO, SOURCE, SPILLWAY  # noqa: E402

PATIENCE = 180
ROWS = 3000

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={port}
SlurmdPort={node_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=15
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Slurm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="spillway-slurm-")))
        cls.database = Postgres()
        cls.addClassCleanup(cls.database.close)
        for name in ("state", "spool"):
            (cls.folder / name).mkdir()
        port, node_port = free_ports(2)
        host = socket.gethostname().split(".")[0]
        user = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
        (cls.folder / "slurm.conf").write_text(CONFIG.format(folder=cls.folder, host=host, user=user, port=port,
                                                             node_port=node_port, cpus=os.cpu_count()))
        cls.environment = {**os.environ, "SLURM_CONF": str(cls.folder / "slurm.conf"), "SPILLWAY": str(SPILLWAY),
                           "SPILLWAY_DATABASE": cls.database.url, "SPILLWAY_CACHE": str(cls.folder / "cache"),
                           "SPILLWAY_HOST_MEMORY": "1GiB", "SPILLWAY_THREADS": "1", "SPILLWAY_BLOCK": "32"}
        for program in (["slurmctld", "-D", "-i"], ["slurmd", "-D", "-N", host]):
            daemon = subprocess.Popen(program, env=cls.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            cls.addClassCleanup(daemon.wait)
            cls.addClassCleanup(daemon.terminate)
        cls.eventually(lambda: "idle" in cls.slurm("sinfo", "-h", "-o", "%T", check=False), "no node")

    @classmethod
    def logs(cls):
        return "\n".join(f"{path}:\n{path.read_text()[-3000:]}" for path in cls.folder.glob("*.log"))

    @classmethod
    def eventually(cls, condition, text):
        end = time.monotonic() + PATIENCE
        while not (value := condition()):
            assert time.monotonic() < end, f"{text}\n{cls.logs()}"
            time.sleep(0.2)
        return value

    @classmethod
    def slurm(cls, *words, check=True):
        done = subprocess.run(words, env=cls.environment, capture_output=True, text=True, cwd=cls.folder)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.strip()

    def spillway(self, *words):
        done = subprocess.run([SPILLWAY, *map(str, words)], env=self.environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def status(self, job):
        return json.loads(self.spillway("queue", "status", "--job", job, "--json"))

    def submit(self, name, rows, new_tokens):
        path = self.folder / name
        path.write_text("".join(json.dumps({"custom_id": f"r{row}", "body": {
            "prompt": f"Row {row}: the", "max_tokens": new_tokens, "ignore_eos": True}}) + "\n" for row in range(rows)))
        return self.spillway("queue", "submit", "--input", path, "--model", "demo").split()[-1]

    def sbatch(self, name, *options):
        # Less than the script asks for: this is one small machine. Its output is in the log that is shown.
        return self.slurm("sbatch", "--parsable", "--cpus-per-task=1", "--mem=0", f"--output={self.folder}/{name}-%j.log",
                          *options, SOURCE / "deploy/workers.slurm", DEMO)

    def ended(self, job):
        return self.eventually(lambda: not self.slurm("squeue", "-h", "-j", job, check=False), "the jobs did not end")

    def test_array_drains_the_queue(self):
        job = self.submit("rows.jsonl", ROWS, 8)
        # More tasks than processors: some begin when others have ended, and find nothing left.
        array = self.sbatch("array", "--array=1-4")
        self.ended(array)
        status = self.status(job)
        self.assertEqual((status["state"], status["finished"], status["failed"]), ("done", ROWS, 0), self.logs())
        output = self.folder / "out.jsonl"
        self.spillway("queue", "fetch", "--job", job, "--output", output)
        ids = [json.loads(line)["custom_id"] for line in output.read_text().splitlines()]
        self.assertEqual(ids, [f"r{row}" for row in range(ROWS)])
        done = [path.read_text() for path in self.folder.glob("array-*.log") if "rows done" in path.read_text()]
        self.assertEqual(len(done), 4, self.logs())

    def test_stages_are_one_run(self):
        rows, output = self.folder / "stages.jsonl", self.folder / "stages.out"
        rows.write_text("".join(json.dumps({"custom_id": f"r{row}", "body": {
            "prompt": f"Row {row}: the", "max_tokens": 5, "ignore_eos": True}}) + "\n" for row in range(50)))
        # Two processes on the one node that there is, as root, as tests are in a container.
        self.environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                OMPI_MCA_btl_vader_single_copy_mechanism="none")
        run = self.slurm("sbatch", "--parsable", "--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1", "--mem=0",
                         f"--output={self.folder}/stages-%j.log", SOURCE / "deploy/stages.slurm", "batch", DEMO,
                         "--input", rows, "--output", output)
        self.ended(run)
        self.assertTrue(output.exists(), self.logs())
        self.assertIn("rank 1 (", self.logs())
        self.assertEqual(len(output.read_text().splitlines()), 50)
        # And without mpirun, as Slurm itself starts processes for MPI.
        said = self.slurm("srun", "--mpi=pmix", "-n", "2", "--mem=0", SPILLWAY, "bench", DEMO, "--stages", "2", "--sequences", "4",
                          "--prompt-tokens", "8", "--new-tokens", "4")
        self.assertIn("on 2 stages", said)

    def test_a_task_that_is_ended_gives_its_rows_back(self):
        job = self.submit("long.jsonl", 2000, 400)
        first = self.sbatch("ended")
        self.eventually(lambda: self.status(job)["claimed"] > 0, "nothing was claimed")
        self.slurm("scancel", "--signal=TERM", first)
        self.ended(first)
        status = self.status(job)
        self.assertEqual(status["claimed"], 0, self.logs())
        self.assertGreater(status["given_back"], 0, status)
        self.spillway("queue", "cancel", "--job", job)


if __name__ == "__main__":
    if programs() is None or not all(map(shutil.which, ("slurmctld", "slurmd", "sbatch"))):
        print("Skipped: PostgreSQL or Slurm is not installed (Debian: postgresql, slurm-wlm)", file=sys.stderr)
        sys.exit(77)
    unittest.main(verbosity=2)
