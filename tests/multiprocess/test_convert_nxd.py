"""NxD's checkpoints: its file names, its layers' tensors, loaded as it loads them, and back bit by bit."""

from __future__ import annotations

import os
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autoshard.conversion.convert import Conversion, convert, open_source, source_for
from autoshard.conversion.nxd import NxdOptions, file_name, nxd_files
from autoshard.conversion.nxd_layout import ADJACENT, INTERLEAVED, NxdLayout
from autoshard.errors import AutoshardError
from autoshard.models.weights import parameter_dims
from autoshard.plans.plan import Plan
from autoshard.spec.lora import Lora
from autoshard.spec.model import ModelSpec
from tests.cases import some
from tests.multiprocess.models import MODELS
from tests.unit.plan_examples import plan_70b
from tests.unit.trn2_files import FILES, shrunken, trn2_plan
from tests.unit.weight_folders import bytes_of, huggingface_folder, plan, trained, weights

LLAMA = MODELS["llama"]
Options = dict[str, Any]
CASES: dict[str, tuple[str, Options, Options]] = {
    "llama": ("llama", {"tp": 2, "pp": 2, "vpp": 2}, {}),
    "llama, xser": ("llama", {"tp": 2, "pp": 2}, {"xser": True}),
    "llama, fused": ("llama", {"tp": 4, "dp": 2}, {"qkv": "fused"}),
    "separate": ("mistral", {"tp": 2}, {"qkv": "separate"}),
    "coalesced": ("llama with biases", {"tp": 2}, {"qkv": "coalesced"}),
    "kv heads twice": ("few kv heads", {"tp": 4}, {}),
    "kv heads twice, fused, xser": ("few kv heads", {"tp": 4, "pp": 2}, {"qkv": "fused", "xser": True}),
    "kv heads more often than need be": ("few kv heads", {"tp": 2}, {"kv_size_multiplier": 4}),
    "tied": ("tied", {"tp": 2, "pp": 2}, {}),
    "biases": ("llama with biases", {"tp": 2}, {"qkv": "fused"}),
    "qwen2": ("qwen2", {"tp": 4}, {"qkv": "fused"}),
    "qwen3": ("qwen3", {"tp": 4}, {}),
    "mixtral": ("mixtral", {"tp": 2, "dp": 2, "ep": 2}, {}),
    "mixtral, experts, xser": ("mixtral", {"dp": 4, "ep": 4, "pp": 2}, {"xser": True}),
    "qwen3 moe": ("qwen3 moe", {"tp": 2}, {}),
    "a block without experts": ("a dense block", {"tp": 2, "dp": 2, "ep": 2}, {}),
    "dbrx": ("dbrx", {"tp": 2, "pp": 2}, {}),
    "dbrx, experts, fused, xser": ("dbrx", {"tp": 2, "dp": 2, "ep": 2}, {"qkv": "fused", "xser": True}),
    "gpt neox": ("gpt neox", {"tp": 2, "pp": 2}, {}),
}


def run(source: Path, target: Path, form: str, to: Plan | None = None, **options: Any) -> None:
    convert(open_source(source), target, Conversion(form, to, **options), lambda count: None, lambda count: None)


@pytest.mark.parametrize("name", CASES)
def test_to_nxd_and_back_is_the_same_bit_by_bit(name: str, tmp_path: Path) -> None:
    model, degrees, options = CASES[name]
    spec = replace(MODELS[model], num_key_value_heads=8) if options.get("qkv") == "coalesced" else MODELS[model]
    spec = replace(spec, vocab_size=95)  # does not divide by tp: padded
    hf = huggingface_folder(tmp_path / "hf", spec, "BF16")
    run(hf, tmp_path / "nxd", "nxd", plan(spec, **degrees), nxd=NxdOptions(**options))
    run(tmp_path / "nxd", tmp_path / "back", "hf")
    assert bytes_of(tmp_path / "back") == bytes_of(hf)
    assert (tmp_path / "back" / "config.json").read_bytes() == (hf / "config.json").read_bytes()


def test_it_gets_the_model_with_its_adapters_merged(tmp_path: Path) -> None:
    adapted = replace(LLAMA, lora=Lora(4, 8.0, ("down_proj", "q_proj", "v_proj")))
    source, _ = trained(tmp_path / "ours", adapted)
    for folder, conversion in (("hf", Conversion("hf")), ("nxd", Conversion("nxd", plan(adapted, tp=2, pp=2)))):
        convert(source, tmp_path / folder, conversion, lambda count: None, lambda count: None)
    run(tmp_path / "nxd", tmp_path / "back", "hf")
    assert bytes_of(tmp_path / "back") == bytes_of(tmp_path / "hf")
    begins = source_for(open_source(tmp_path / "nxd", adapted), plan(adapted))
    assert begins.model.lora is None  # a plan with adapters begins with new ones


def test_llama3_70b_at_tp_32_and_pp_8_is_256_files() -> None:
    to = plan_70b()
    names = parameter_dims(to.model)[0]
    files = [
        one for one in nxd_files(to, dict.fromkeys(names, "BF16"), NxdOptions()) if one.path.parent.name == "model"
    ]
    assert len(files) == 256
    assert {one.path.name for one in files} == {
        f"dp_rank_00_tp_rank_{tp:02d}_pp_rank_{pp:02d}.pt" for tp in range(32) for pp in range(8)
    }
    # 70.55 billion parameters in 2 bytes, norms 32 times, and each of the 8 key-value heads 4 times (4 x 8 = 32)
    norms, heads = 161 * 8192 * 31, 80 * 2 * 8 * 128 * 8192 * 3
    assert sum(one.size for one in files) == pytest.approx(2 * (70_553_706_496 + norms + heads), rel=1e-3)
    first = next(one for one in files if one.path.name == "dp_rank_00_tp_rank_09_pp_rank_00.pt")
    blocks = {int(name.split(".")[2]) for name, _ in first.regions if ".layers." in name}
    assert blocks == set(range(10))
    layout = NxdLayout(to.model, 32, 1, 4, INTERLEAVED, "gqa").tensors(9, 0)
    shapes = {name: one.shape for name, one in layout.items() if not name.startswith("model.layers.") or ".3." in name}
    assert shapes == {
        "model.embed_tokens.weight": (4008, 8192),
        "model.layers.3.input_layernorm.weight": (8192,),
        "model.layers.3.self_attn.qkv_proj.weight_q": (256, 8192),
        "model.layers.3.self_attn.qkv_proj.weight_k": (128, 8192),
        "model.layers.3.self_attn.qkv_proj.weight_v": (128, 8192),
        "model.layers.3.self_attn.o_proj.weight": (8192, 256),
        "model.layers.3.post_attention_layernorm.weight": (8192,),
        "model.layers.3.mlp.gate_up_proj.weight": (1792, 8192),
        "model.layers.3.mlp.down_proj.weight": (8192, 896),
        "model.norm.weight": (8192,),
        "lm_head.weight": (4008, 8192),
    }


@pytest.mark.parametrize("order", [INTERLEAVED, ADJACENT])
def test_a_rank_has_the_query_heads_that_go_with_its_key_value_head(order: str) -> None:
    # 8 query heads, 2 key-value heads, tp=4: K0 K1 K0 K1 with query heads 01 45 23 67, or K0 K0 K1 K1 with 01 23 45 67
    spec = MODELS["few kv heads"]
    layout = NxdLayout(spec, 4, 1, 2, order, "gqa")
    query, key = "model.layers.0.self_attn.qkv_proj.weight_q", "model.layers.0.self_attn.qkv_proj.weight_k"
    expected = [(0, 0), (1, 0), (0, 2), (1, 2)] if order == INTERLEAVED else [(0, 0), (0, 2), (1, 0), (1, 2)]
    for rank, (head, group) in enumerate(expected):
        tensors = layout.tensors(rank, 0)
        assert [place.box.offsets[0] for place in tensors[key].places] == [head]
        assert [place.box.offsets[:2] for place in tensors[query].places] == [(head, group)]
        assert tensors[query].shape == (16, 64)


def test_trn2_repeats_heads_side_by_side_and_reading_finds_out(tmp_path: Path) -> None:
    spec = MODELS["few kv heads"]
    hf = huggingface_folder(tmp_path / "hf", spec)
    to = plan(spec, tp=4)
    to = replace(to, cluster=replace(to.cluster, layout_rules="trn2"))
    run(hf, tmp_path / "tags" / "step_7", "nxd", to)
    key = published_tensor(spec, "model.layers.0.self_attn.k_proj.weight").chunk(2)
    for rank in range(4):
        state = torch.load(tmp_path / "tags" / "step_7" / "model" / file_name(rank, 0), weights_only=True)
        assert torch.equal(state["model.layers.0.self_attn.qkv_proj.weight_k"], key[rank // 2])
    run(tmp_path / "tags", tmp_path / "back", "hf")  # the newest checkpoint in there
    assert bytes_of(tmp_path / "back") == bytes_of(hf)


@pytest.mark.parametrize("name", some(reversed(FILES), 1))
def test_each_rank_of_the_trn2_files_has_its_file(name: str, tmp_path: Path) -> None:
    """With all ranks, cuts and heads of the plan, of a shrunken model: 32 x 4 files of the 70B, 16 of the 8B."""
    to = shrunken(trn2_plan(name, tmp_path))
    tp, pp = to.strategy.tp, to.strategy.pp
    hf = huggingface_folder(tmp_path / "hf", to.model)
    run(hf, tmp_path / "nxd", "nxd", to)
    files = sorted(path.name for path in (tmp_path / "nxd" / "model").iterdir())
    assert files == sorted(file_name(tp_rank, pp_rank) for tp_rank in range(tp) for pp_rank in range(pp))
    published = weights(to.model, "F32")
    for pp_rank, stage in enumerate(to.stages):
        state = torch.load(tmp_path / "nxd" / "model" / file_name(tp - 1, pp_rank), weights_only=True)
        blocks = {int(tensor.split(".")[2]) for tensor in state if ".layers." in tensor}
        assert blocks == set(stage.layers)
        for block in (stage.first_layer, stage.stop_layer - 1):
            key = f"model.layers.{block}.self_attn"
            heads = torch.from_numpy(published[f"{key}.k_proj.weight"]).chunk(8)
            assert torch.equal(state[f"{key}.qkv_proj.weight_k"], heads[-1]), "the last head is the last rank's"
    run(tmp_path / "nxd", tmp_path / "back", "hf")
    assert bytes_of(tmp_path / "back") == bytes_of(hf)


def published_tensor(spec: ModelSpec, name: str) -> torch.Tensor:
    return torch.from_numpy(weights(spec, "F32")[name])


def test_fused_tensors_as_torch_loads_them(tmp_path: Path) -> None:
    hf = huggingface_folder(tmp_path / "hf", LLAMA)
    run(hf, tmp_path / "nxd", "nxd", plan(LLAMA, tp=2), nxd=NxdOptions(qkv="fused"))
    published = {name: torch.from_numpy(value) for name, value in weights(LLAMA, "F32").items()}
    block = "model.layers.2."
    for rank in range(2):
        path = tmp_path / "nxd" / "model" / f"dp_rank_00_tp_rank_{rank:02d}_pp_rank_00.pt"
        state = torch.load(path, weights_only=True)
        parts = [published[f"{block}self_attn.{one}_proj.weight"].chunk(2)[rank] for one in "qkv"]
        assert torch.equal(state[f"{block}self_attn.qkv_proj.weight_qkv"], torch.cat(parts))
        parts = [published[f"{block}mlp.{one}_proj.weight"].chunk(2)[rank] for one in ("gate", "up")]
        assert torch.equal(state[f"{block}mlp.gate_up_proj.weight"], torch.cat(parts))
        down = published[f"{block}mlp.down_proj.weight"].chunk(2, dim=1)[rank]
        assert torch.equal(state[f"{block}mlp.down_proj.weight"], down)
        assert zipfile.ZipFile(path).testzip() is None  # every checksum


def test_experts_are_transposed_and_the_router_is_whole_on_every_rank(tmp_path: Path) -> None:
    spec = MODELS["mixtral"]
    hf = huggingface_folder(tmp_path / "hf", spec)
    run(hf, tmp_path / "nxd", "nxd", plan(spec, tp=2, dp=2, ep=2))
    state = torch.load(tmp_path / "nxd" / "model" / "dp_rank_00_ep_rank_01_tp_rank_00_pp_rank_00.pt", weights_only=True)
    published = {name: torch.from_numpy(value) for name, value in weights(spec, "F32").items()}
    moe = "model.layers.0.block_sparse_moe."
    halves = [published[f"{moe}experts.2.{one}.weight"].T.chunk(2, dim=1)[0] for one in ("w1", "w3")]
    assert torch.equal(state["model.layers.0.mlp.expert_mlps.mlp_op.gate_up_proj.weight"][0], torch.cat(halves, dim=1))
    down = published[f"{moe}experts.3.w2.weight"].T.chunk(2)[0]
    assert torch.equal(state["model.layers.0.mlp.expert_mlps.mlp_op.down_proj.weight"][1], down)
    assert torch.equal(state["model.layers.0.mlp.router.linear_router.weight"], published[f"{moe}gate.weight"])


def test_files_that_torch_saved_with_other_strides_and_around_the_state(tmp_path: Path) -> None:
    hf = huggingface_folder(tmp_path / "hf", LLAMA)
    run(hf, tmp_path / "nxd", "nxd", plan(LLAMA, tp=2))
    for path in (tmp_path / "nxd" / "model").iterdir():
        state = torch.load(path, weights_only=True)
        turned = {name: value.T.contiguous().T if "o_proj" in name else value for name, value in state.items()}
        torch.save({"model": turned, "step": 3}, path)
    run(tmp_path / "nxd", tmp_path / "back", "hf")
    assert bytes_of(tmp_path / "back") == bytes_of(hf)


class Runs:
    """What a pickle makes of this is the folder `ran`."""

    def __init__(self, ran: Path):
        self.ran = ran

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.ran),)


DAMAGES: dict[str, tuple[str, str]] = {
    "a rank is missing": ("missing", "dp_rank_00_tp_rank_00_pp_rank_01.pt is missing: the folder has tp=2 pp=2"),
    "cut off": (
        "cut",
        "tp_rank_01_pp_rank_01.pt is not a whole file of torch.save: cut off, damaged or of another kind",
    ),
    "of another dtype": ("dtype", "model.norm.weight is dtype torch.int64, not a tensor of BF16, F16, F32, F64"),
    "of two dtypes": ("dtypes", "qkv_proj.weight_q has dtype F64, in other ranks' files F32"),
    "of another model": ("shape", "model.norm.weight has shape [63]; the model's is [64]"),
    "of more": ("more", "has tensor model.layers.7.x, which nxd does not have"),
    "of less": ("less", "nxd/model has no tensor model.norm.weight of tensor-parallel rank 0, which nxd needs"),
    "a list": ("list", "tp_rank_01_pp_rank_01.pt is not a dict of tensors by name"),
    "runs something": ("runs", "is refused: it asks to run posix.mkdir, and a file of weights has nothing to run"),
    "replaces a tensor": (
        "runs inside",
        "is refused: it asks to run posix.mkdir, and a file of weights has nothing to run",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_one_line_and_nothing_runs(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, message = DAMAGES[damage]
    monkeypatch.chdir(tmp_path)
    hf = huggingface_folder(Path("hf"), LLAMA)
    run(hf, Path("nxd"), "nxd", plan(LLAMA, tp=2, pp=2), nxd=NxdOptions(xser=kind == "runs inside"))
    path = Path("nxd/model/dp_rank_00_tp_rank_01_pp_rank_01.pt")
    ran = tmp_path / "ran"
    state = {} if kind == "runs inside" else torch.load(path, weights_only=True)
    match kind:
        case "missing":
            Path("nxd/model/dp_rank_00_tp_rank_00_pp_rank_01.pt").unlink()
        case "cut":
            path.write_bytes(path.read_bytes()[:-100])
        case "dtype":
            torch.save({**state, "model.norm.weight": state["model.norm.weight"].long()}, path)
        case "dtypes":
            name = "model.layers.2.self_attn.qkv_proj.weight_q"
            torch.save({**state, name: state[name].double()}, path)
        case "shape":
            torch.save({**state, "model.norm.weight": state["model.norm.weight"][1:].clone()}, path)
        case "more":
            torch.save({**state, "model.layers.7.x": torch.ones(3)}, path)
        case "less":
            for one in Path("nxd/model").iterdir():
                state = torch.load(one, weights_only=True)
                state.pop("model.norm.weight", None)
                torch.save(state, one)
        case "list":
            torch.save(list(state.values()), path)
        case "runs":
            torch.save({**state, "x": Runs(ran)}, path)
        case "runs inside":
            torch.save(Runs(ran), path.with_name(path.name + ".tensors") / "tensor_0.pt")
    with pytest.raises(AutoshardError) as error:
        run(Path("nxd"), Path("back"), "hf")
    assert message in str(error.value), error.value
    assert "\n" not in str(error.value)
    assert not ran.exists() and not Path("back").exists()


def test_copies_of_a_head_that_differ_and_options_that_do_not_fit(tmp_path: Path) -> None:
    spec = MODELS["few kv heads"]
    hf = huggingface_folder(tmp_path / "hf", spec)
    run(hf, tmp_path / "nxd", "nxd", plan(spec, tp=4))
    path = tmp_path / "nxd" / "model" / "dp_rank_00_tp_rank_02_pp_rank_00.pt"
    state = torch.load(path, weights_only=True)
    state["model.layers.0.self_attn.qkv_proj.weight_k"] += 1
    torch.save(state, path)
    with pytest.raises(AutoshardError, match=r"the copies of the key-value heads differ \(kv_size_multiplier=2\)"):
        run(tmp_path / "nxd", tmp_path / "back", "hf")
    with pytest.raises(AutoshardError, match="kv_size_multiplier=2 needs qkv=gqa or fused, not separate"):
        run(hf, tmp_path / "out", "nxd", plan(spec, tp=4), nxd=NxdOptions(qkv="separate"))
    with pytest.raises(
        AutoshardError, match="kv_size_multiplier=3: tp=4 must divide 2 x 3 key-value heads, and 3 the 4"
    ):
        run(hf, tmp_path / "out", "nxd", plan(spec, tp=4), nxd=NxdOptions(kv_size_multiplier=3))
    gpt2 = huggingface_folder(tmp_path / "gpt2", MODELS["gpt2"])
    with pytest.raises(AutoshardError, match="model_type=gpt2 of tiny-llama has no layout for NxD; llama, mistral"):
        run(gpt2, tmp_path / "out", "nxd", plan(MODELS["gpt2"], tp=2))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("deepseek v3", "model_type=deepseek_v3 of nxd has no layout for NxD; llama, mistral"),
        ("one kv head", r"the copies of the key-value heads differ \(kv_size_multiplier=4\)"),
    ],
)
def test_the_config_of_another_model(name: str, message: str, tmp_path: Path) -> None:
    run(huggingface_folder(tmp_path / "hf", LLAMA), tmp_path / "nxd", "nxd", plan(LLAMA, tp=2))
    other = huggingface_folder(tmp_path / "other", MODELS[name]) / "config.json"
    (tmp_path / "nxd" / "config.json").write_bytes(other.read_bytes())
    with pytest.raises(AutoshardError, match=message):
        run(tmp_path / "nxd", tmp_path / "back", "hf")


def test_a_number_in_place_of_keys(tmp_path: Path) -> None:
    run(huggingface_folder(tmp_path / "hf", LLAMA), tmp_path / "nxd", "nxd", plan(LLAMA, tp=2))
    path = tmp_path / "nxd" / "model" / "dp_rank_00_tp_rank_00_pp_rank_00.pt"
    state = torch.load(path, weights_only=True)
    torch.save({**state, "model.layers.0.self_attn.qkv_proj.weight_k": torch.tensor(1.0)}, path)
    with pytest.raises(AutoshardError, match=r"weight_k has shape \[\], which tp=2 does not make of 4 key-value heads"):
        run(tmp_path / "nxd", tmp_path / "back", "hf")
