"""octavo publish reads the records that count, and sends them to MLflow if that is installed."""
import importlib.util
import json
import os
import sys
import tempfile
import types
import unittest
import unittest.mock
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
from octavo_command.commands import publish  # noqa: E402
from octavo_command.errors import CommandError  # noqa: E402


def step(number, loss):
    return {"event": "step", "step": number, "loss": loss, "learning_rate": 0.1, "skipped": loss is None}


class Publish(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, records, end=""):
        text = "".join(json.dumps(record) + "\n" for record in records)
        (self.folder / "metrics.jsonl").write_text(text + end, encoding="utf-8")

    def write_resumed(self):
        self.write([{"event": "run", "name": "mine", "seed": 3}, step(1, 5.0), step(2, 4.0), step(3, 9.0),
                    {"event": "resumed", "step": 2}, step(3, None), step(4, 2.0),
                    {"event": "evaluation", "step": 4, "loss": 2.5},
                    {"event": "summary", "train_loss": 2.0}], end='{"event":"st')

    def test_of_a_repeated_step_the_last_record_counts(self):
        self.write_resumed()
        metrics = publish.Metrics(self.folder)
        self.assertEqual({number: values.get("train/loss") for number, values in metrics.steps.items()},
                         {1: 5.0, 2: 4.0, 3: None, 4: 2.0})
        self.assertEqual(metrics.steps[4]["validation/loss"], 2.5)
        self.assertEqual((metrics.name, metrics.configuration["seed"], metrics.summary["train_loss"]),
                         ("mine", 3, 2.0))

    def test_what_is_no_run_is_refused(self):
        for lines in ([], [{"event": "step"}], [["list"]]):
            self.write(lines)
            self.assertRaises(CommandError, publish.Metrics, self.folder)
        self.assertRaises(CommandError, publish.Metrics, self.folder / "none")

    def test_damaged_files_are_refused(self):
        path = self.folder / "metrics.jsonl"
        for content, reason in ((b'{"event":"run","name":"a"}\n\xff\n', "must be UTF-8 text"),
                                (b"[" * 100_000 + b"\n", "not a valid record")):
            path.write_bytes(content)
            with self.assertRaisesRegex(CommandError, reason):
                publish.Metrics(self.folder)
        path.unlink()
        os.mkfifo(path)
        with self.assertRaisesRegex(CommandError, "must be a regular file"):
            publish.Metrics(self.folder)

    def test_evaluations_without_a_finite_loss_are_left_out(self):
        self.write([{"event": "run", "name": "mine"}, step(1, 5.0), {"event": "evaluation", "step": 1, "loss": None}])
        self.assertNotIn("validation/loss", publish.Metrics(self.folder).steps[1])

    def test_mlflow_receives_every_metric_in_batches_that_it_accepts(self):
        batches = []

        class Client:
            def __init__(self, tracking_uri):
                pass

            def get_experiment_by_name(self, name):
                return types.SimpleNamespace(experiment_id="1")

            def create_run(self, number, run_name):
                return types.SimpleNamespace(info=types.SimpleNamespace(run_id="2"))

            def log_batch(self, run, metrics=(), params=()):
                batches.append((metrics, params))

            def log_metric(self, run, key, value):
                pass

            def set_terminated(self, run):
                pass

        def metric(key, value, timestamp, step):
            return key, value, step

        entities = types.SimpleNamespace(Metric=metric, Param=lambda key, value: (key, value))
        service = types.SimpleNamespace(MlflowClient=Client, entities=entities)
        self.write([{"event": "run", "name": "mine"}] + [step(number, 5.0) for number in range(1, 801)])
        with unittest.mock.patch.dict(sys.modules, {"mlflow": service, "mlflow.entities": entities}):
            publish.run([str(self.folder), "--to", "mlflow"])
        self.assertLessEqual(max(len(metrics) for metrics, _ in batches), 1000)
        losses = [metric for metrics, _ in batches for metric in metrics if metric[0] == "train/loss"]
        self.assertEqual(losses, [("train/loss", 5.0, number) for number in range(1, 801)])

    @unittest.skipUnless(importlib.util.find_spec("mlflow"), "mlflow is not installed")
    def test_mlflow_has_every_step(self):
        import mlflow
        self.write_resumed()
        self.assertEqual(publish.run([str(self.folder), "--to", "mlflow", "--out", str(self.folder)]), 0)
        client = mlflow.MlflowClient(f"sqlite:///{self.folder / 'mlflow.db'}")
        (run,) = client.search_runs(client.get_experiment_by_name("octavo").experiment_id)
        history = client.get_metric_history(run.info.run_id, "train/loss")
        self.assertEqual([(metric.step, metric.value) for metric in history], [(1, 5.0), (2, 4.0), (4, 2.0)])


if __name__ == "__main__":
    unittest.main()
