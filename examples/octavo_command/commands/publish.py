"""Copies the metrics of finished or running runs to Weights & Biases or MLflow, from metrics.jsonl."""
import importlib
import json
from pathlib import Path

from octavo_command import files
from octavo_command.errors import CommandError
from octavo_command.parser import Parser

SUMMARY = "copy the metrics of runs to Weights & Biases or MLflow"
MOST_BYTES = 4 << 30
SERVICES = ("mlflow", "wandb")
STEP_KEYS = ("epoch", "loss", "learning_rate", "gradient_norm", "milliseconds", "tokens_per_second", "skipped")


class Metrics:
    """A run's records. If a step was repeated after a resume, its last record counts."""

    def __init__(self, folder):
        self.folder = folder
        self.configuration = {}
        self.summary = {}
        self.steps = {}
        self.tags = set()
        file = folder / "metrics.jsonl"
        try:
            lines = files.read(file, MOST_BYTES).decode("utf-8").split("\n")
        except OSError as error:
            raise CommandError(f"cannot read {file}: {error.strerror}; pass the folder of a run") from error
        except UnicodeDecodeError as error:
            raise CommandError(f"{file} must be UTF-8 text, but is not: byte {error.start} is "
                               f"{error.object[error.start]:#04x}; remove the damaged line") from error
        for number, line in enumerate(lines[:-1], 1):  # the last one is empty, or not complete yet
            try:
                self.add(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise CommandError(f"{file}:{number}: not a valid record of a run: {error}") from error
        if not self.configuration:
            raise CommandError(f"{file} has no record of the start of a run; pass the folder of a run")

    def add(self, record):
        event = record.pop("event")
        if event == "run":
            self.configuration = record
        elif event == "resumed":
            self.steps = {step: values for step, values in self.steps.items() if step <= record["step"]}
            self.summary = {}
        elif event == "step":
            values = {f"train/{key}": float(record[key]) for key in STEP_KEYS if record.get(key) is not None}
            self.steps.setdefault(record["step"], {}).update(values)
            for operand in record.get("operands", []):
                for key in ("amax", "scale", "saturated", "flushed"):
                    if operand.get(key) is not None:
                        self.steps[record["step"]][f"operands/{operand['name']}/{key}"] = float(operand[key])
        elif event == "evaluation" and record["loss"] is not None:
            self.steps.setdefault(record["step"], {})["validation/loss"] = record["loss"]
        elif event == "summary":
            self.summary = record

    @property
    def name(self):
        return self.configuration.get("name") or self.folder.resolve().name


def to_wandb(wandb, metrics, options):
    run = wandb.init(project=options.project, name=metrics.name, config=metrics.configuration,
                     mode="online" if options.online else "offline", dir=str(options.out))
    for step, values in sorted(metrics.steps.items()):
        run.log(values, step=step)
    run.summary.update(metrics.summary)
    folder = Path(run.dir).parent
    run.finish()
    return "sent" if options.online else f"written to {folder}; send it with: wandb sync {folder}"


def to_mlflow(mlflow, metrics, options):
    from mlflow.entities import Metric, Param
    uri = options.uri or f"sqlite:///{options.out.resolve() / 'mlflow.db'}"
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(options.project)
    number = experiment.experiment_id if experiment else client.create_experiment(options.project)
    run = client.create_run(number, run_name=metrics.name)
    params = [Param(key, str(value)[:500]) for key, value in metrics.configuration.items()]
    client.log_batch(run.info.run_id, params=params)
    batch = [Metric(key, value, 0, step) for step, values in sorted(metrics.steps.items())
             for key, value in values.items()]
    for begin in range(0, len(batch), 1000):  # the most that MLflow accepts at once
        client.log_batch(run.info.run_id, metrics=batch[begin:begin + 1000])
    for key, value in metrics.summary.items():
        if isinstance(value, (int, float)):
            client.log_metric(run.info.run_id, f"summary/{key}", value)
    client.set_terminated(run.info.run_id)
    return f"written to {uri}"


def parser():
    words = Parser(prog="octavo publish", description=SUMMARY, allow_abbrev=False)
    words.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    words.add_argument("--to", required=True, choices=SERVICES, help="the service")
    words.add_argument("--project", default="octavo", help="project or experiment (octavo)")
    words.add_argument("--out", type=Path, default=Path("."), help="folder for the service's files (.)")
    words.add_argument("--online", action="store_true", help="with --to wandb, upload to its server immediately")
    words.add_argument("--uri", help="with --to mlflow, the tracking server; by default, mlflow.db in --out")
    return words


def run(words):
    options = parser().parse_args(words)
    runs = [Metrics(folder) for folder in options.runs]
    try:
        service = importlib.import_module(options.to)
    except ImportError as error:
        raise CommandError(f"publish needs the Python package {options.to}, but cannot import it "
                           f"({error}); install it with: pip install {options.to}") from error
    send = to_wandb if options.to == "wandb" else to_mlflow
    for metrics in runs:
        print(f"{metrics.folder} | {len(metrics.steps)} steps {send(service, metrics, options)}")
    return 0
