"""One point of a sweep that Weights & Biases drives: `autoshard plan`, then `autoshard run`, both logged to its run."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import wandb

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="llama3.2-1b")
parser.add_argument("--nodes", default="1")
parser.add_argument("--seq-len", default="2048")
parser.add_argument("--global-batch", default="64")
parser.add_argument("--steps", default="5")
parser.add_argument("--processes", default="2")
options, layout = parser.parse_known_args()  # what is left, such as --tp=8, is for `autoshard plan`

with wandb.init(config=vars(options) | {"layout": layout}) as run, TemporaryDirectory() as folder:
    autoshard = [sys.executable, "-m", "autoshard"]
    plan = Path(folder, "plan.json")
    problem = [f"--{name}={getattr(options, name.replace('-', '_'))}" for name in ("model", "nodes", "seq-len")]
    asked = [*problem, f"--global-batch={options.global_batch}", *layout, f"--out={plan}", "--format=json"]
    planned = subprocess.run([*autoshard, "plan", *asked], stdout=subprocess.PIPE, check=False)
    run.summary["planned/fits"] = planned.returncode == 0
    if planned.returncode == 0:
        found = json.loads(planned.stdout)
        names = ("step_time_s", "tokens_per_s", "mfu", "memory_bytes", "fits_probability")
        run.log({f"planned/{name}": found[name] for name in names})
        size = [f"--steps={options.steps}", f"--processes={options.processes}", f"--output={folder}"]
        ended = subprocess.run([*autoshard, "run", str(plan), *size], check=False)
        run.summary["rehearsal/equals_one_process"] = ended.returncode == 0
        for metrics in Path(folder).glob("*/metrics.jsonl"):
            for line in metrics.read_text().splitlines():
                values = json.loads(line)
                run.log({f"run/{name}": value for name, value in values.items()})
