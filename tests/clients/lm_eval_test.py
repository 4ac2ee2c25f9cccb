"""lm-eval over HTTP: every log-likelihood is that of transformers, with the tokenizer on the client's side
and on the server's."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from server import DEMO, SOURCE, ServedTest

GOLDEN = SOURCE / "tests/golden/lm_eval.jsonl"

TASK = """
task: spillway_choices
dataset_path: json
dataset_kwargs:
  data_files:
    test: {documents}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: 0
target_delimiter: ""
metric_list:
  - metric: acc
metadata:
  version: 1.0
"""


class LmEvalTest(ServedTest):
    flags = ("--format", "f32", "--kv-format", "f32")

    def scores(self, arguments):
        """{(context, continuation): (log-likelihood, greedy)} of a run of lm-eval."""
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        with (folder / "documents.jsonl").open("w") as file:
            for line in GOLDEN.open():
                document = json.loads(line)
                file.write(json.dumps({"context": document["context"],
                                       "choices": [choice["text"] for choice in document["choices"]]}) + "\n")
        (folder / "choices.yaml").write_text(TASK.format(documents=folder / "documents.jsonl"))
        command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args",
                   f"base_url={self.url}/v1/completions,model=demo,num_concurrent=4,{arguments}",
                   "--tasks", "spillway_choices", "--include_path", folder, "--output_path", folder / "out",
                   "--log_samples"]
        run = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600,
                             env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "HF_HUB_OFFLINE": "1",
                                  "OPENAI_API_KEY": "any"})
        self.assertEqual(run.returncode, 0, run.stderr[-3000:])
        found = {}
        for samples in (folder / "out").rglob("samples_*.jsonl"):
            for line in samples.open():
                sample = json.loads(line)
                for number, response in enumerate(sample["filtered_resps"]):
                    asked = sample["arguments"][f"gen_args_{number}"]
                    found[asked["arg_0"], asked["arg_1"]] = (float(response[0]), str(response[1]) == "True")
        return found

    def check(self, arguments):
        found = self.scores(arguments)
        checked = ends = 0
        for line in GOLDEN.open():
            document = json.loads(line)
            for choice in document["choices"]:
                with self.subTest(context=document["context"], choice=choice["text"]):
                    logprob, greedy = found[document["context"], choice["text"]]
                    self.assertAlmostEqual(logprob, choice["logprob"], delta=1e-4)
                    self.assertEqual(greedy, choice["greedy"])
                    checked += 1
                    ends += choice["then_end"]
        self.assertGreater(checked, 60)
        self.assertGreaterEqual(ends, 3)

    def test_with_the_tokenizer_of_the_client(self):
        self.check(f"tokenizer_backend=huggingface,tokenizer={DEMO},tokenized_requests=True")

    def test_with_the_tokenizer_of_the_server(self):
        self.check("tokenizer_backend=remote,tokenized_requests=True")


if __name__ == "__main__":
    unittest.main(verbosity=2)
