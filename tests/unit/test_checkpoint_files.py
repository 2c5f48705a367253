"""Boxes, safetensors files, manifests, locks, folders: each by hand; what is broken or malicious is one error."""

import contextlib
import fcntl
import json
import multiprocessing
import os
import pathlib
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from autoshard.checkpoint import lock
from autoshard.checkpoint.boxes import Box, boxes_of_run
from autoshard.checkpoint.directory import LocalFolder, LocalStore
from autoshard.checkpoint.layout import Piece
from autoshard.checkpoint.lock import STALE_AFTER_S, directory_lock
from autoshard.checkpoint.manifest import QUANTITIES, FileRecord, Manifest, read_manifest
from autoshard.checkpoint.open_place import open_store
from autoshard.checkpoint.read import CheckpointReader, tensor_key
from autoshard.checkpoint.store import MANIFEST, file_problem, prune
from autoshard.checkpoint.tensor_file import TensorBytes, checksum, read_header, tensor_stream
from autoshard.errors import AutoshardError
from autoshard.files.codec import to_json
from autoshard.files.first_difference import first_difference
from autoshard.models.registry import load_model
from autoshard.spec.dropout import Dropout
from autoshard.spec.model import ModelSpec
from autoshard.spec.rope import RopeScaling
from tests.traced_models import ODD

LLAMA = load_model("llama3-8b")
PATHS = getattr(pathlib, "_normal_accessor", None)
"""What Python 3.10's paths have of os, bound when pathlib is imported; later ones ask os."""


def bytes_of(values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return values.reshape(-1).view(np.uint8)


def test_a_run_is_the_rest_of_a_row_whole_rows_and_the_start_of_one() -> None:
    # rows of 4: [3] of row 0, rows 1 and 2, [0, 1] of row 3
    assert list(boxes_of_run((5, 4), 3, 14)) == [
        Box((0, 3), (1, 1)),
        Box((1, 0), (2, 4)),
        Box((3, 0), (1, 2)),
    ]
    assert list(boxes_of_run((5, 4), 5, 7)) == [Box((1, 1), (1, 2))]
    assert list(boxes_of_run((5, 4), 0, 20)) == [Box((0, 0), (5, 4))]
    assert list(boxes_of_run((5, 4), 7, 7)) == []


def test_a_single_number_is_a_box_without_dims() -> None:
    assert list(boxes_of_run((), 0, 1)) == [Box((), ())]
    assert list(boxes_of_run((), 0, 0)) == []
    shard = np.arange(4.0)
    Piece("share", Box((), ()), 2, True).view(shard)[()] = 7.0
    assert shard.tolist() == [0.0, 1.0, 7.0, 3.0]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=4))
def test_the_rows_around_a_box_are_one_run_of_elements(dims: list[tuple[int, int, int]]) -> None:
    outer = Box((5,) * len(dims), tuple(sum(one) for one in dims))
    inner = Box(tuple(5 + before for before, _, _ in dims), tuple(size for _, size, _ in dims))
    array = np.arange(outer.elements).reshape(outer.sizes)
    around = outer.rows_around(inner)
    elements = array[around.slices(outer.offsets)].reshape(-1)
    assert list(elements) == list(range(outer.position(around), outer.position(around) + around.elements))
    assert around.common(inner) == inner
    found = elements.reshape(around.sizes)[inner.slices(around.offsets)]
    assert (found == array[inner.slices(outer.offsets)]).all()


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_a_runs_boxes_hold_its_elements_in_order(shape: list[int], data: st.DataObject) -> None:
    size = prod(shape)
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    array = np.arange(size).reshape(shape)
    boxes = list(boxes_of_run(tuple(shape), start, stop))
    found = [int(one) for box in boxes for one in array[box.slices((0,) * len(shape))].reshape(-1)]
    assert found == list(range(start, stop))
    assert len(boxes) <= 2 * len(shape) - 1


def write_tensors(path: Path, tensors: list[TensorBytes]) -> tuple[int, str]:
    """A new file -> (bytes, SHA-256)."""
    stream = tensor_stream(tensors)
    path.write_bytes(b"".join(stream.chunks))
    return stream.bytes, checksum(path)


def test_what_is_written_the_safetensors_library_reads(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32)
    tensors = [TensorBytes("a", "F32", (2, 3), bytes_of(values)), TensorBytes("b", "F32", (0,), bytes_of(values[:0]))]
    size, _ = write_tensors(tmp_path / "x.safetensors", tensors)
    assert size == (tmp_path / "x.safetensors").stat().st_size
    assert load_file(tmp_path / "x.safetensors")["a"].tolist() == values.reshape(2, 3).tolist()
    save_file({"c": values, "d": values[:2]}, tmp_path / "y.safetensors")
    assert {key: one.shape for key, one in read_header(tmp_path / "y.safetensors").items()} == {"c": (6,), "d": (2,)}


def raw(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype: object = "F32", shape: object = (1,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


BROKEN = {
    "empty": b"",
    "a pickle": b"\x80\x04\x95\x1b\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "a header longer than the file": raw({}, length=2**63),
    "no JSON": raw(b"{'a': 1}"),
    "no object": raw([1]),
    "a key twice": raw(b'{"t": 1, "t": 1}'),
    "nested a million deep": raw(b"[" * 1_000_000),
    "unknown dtype": raw(entry("O"), b"abcd"),
    "a shape that is no list": raw(entry(shape="1"), b"abcd"),
    "a negative size": raw(entry(shape=(-1,)), b"abcd"),
    "a size that overflows": raw(entry(shape=(2**61, 2**61)), b"abcd"),
    "offsets that disagree with the shape": raw(entry(offsets=(0, 2)), b"abcd"),
    "data cut off": raw(entry(), b"abc"),
    "data left over": raw(entry(), b"abcde"),
    "data before the start": raw(entry(offsets=(-4, 0)), b"abcd"),
    "overlapping tensors": raw({**entry(), "u": entry()["t"]}, b"abcd"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_tensor_file_is_one_error(tmp_path: Path, name: str) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(BROKEN[name])
    with pytest.raises(AutoshardError) as error:
        read_header(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def manifest(files: tuple[FileRecord, ...] = (), step: int = 4) -> Manifest:
    return Manifest(step, json.loads(json.dumps(to_json(LLAMA))), {}, "F32", 1e-3, 0, {"torch": "2"}, 1, files)


def test_a_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    one = manifest((FileRecord("rank-00000.safetensors", 8, "ab", ("a", "b")),))
    (tmp_path / MANIFEST).write_text(one.to_json())
    assert read_manifest(tmp_path) == one


def changed(**values: object) -> str:
    """A manifest with a valid checksum and other content."""
    return replace(manifest(), **values).to_json()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("[]", "is not one of autoshard's"),
        (manifest().to_json().replace('"step": 4', '"step": 5'), "was changed after it was written"),
        (manifest().to_json().replace('"format_version": 1', '"format_version": 2'), "this autoshard reads 1"),
        (manifest().to_json().replace('"format_version": 1', '"format_version": true'), "this autoshard reads 1"),
        (changed(step="4"), "is not one of autoshard's"),
        (changed(model=[]), "is not one of autoshard's"),
        (changed(files=(FileRecord("../../etc/passwd", 1, "", ()),)), "is not one of autoshard's"),
        (changed(files=(FileRecord("/etc/passwd", 1, "", ()),)), "is not one of autoshard's"),
        (changed(files=(FileRecord("..", 1, "", ()),)), "is not one of autoshard's"),
        (changed(files=(FileRecord("a", 1.5, "", ()),)), "is not one of autoshard's"),  # type: ignore[arg-type]
    ],
)
def test_a_broken_manifest_is_one_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(AutoshardError, match=message) as error:
        read_manifest(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("step", -5, "step=-5 of its content must be a whole number from 0 to 1,000,000,000"),
        ("step", 4.0, "step=4.0 of its content must be a whole number from 0 to 1,000,000,000"),
        ("step", True, "step=True of its content must be a whole number from 0 to 1,000,000,000"),
        ("world_size", 0, "world_size=0 of its content must be a whole number from 1 to 1,000,000,000"),
        (
            "seed",
            2**70,
            "seed=1180591620717411303424 of its content must be a whole number from 0 to 9,223,372,036,854,775,807",
        ),
        (
            "learning_rate",
            "x",
            "learning_rate='x' of its content must be a finite number of at least 0, without quotes",
        ),
        ("learning_rate", -1e-3, "learning_rate=-0.001 of its content must be a finite number of at least 0"),
        ("versions", {"torch": 2}, "its content.versions.torch is 2; it must be a text"),
        (
            "quantities",
            ("weights",),
            "quantities=a list of 1 of its content must be master, first_moment, second_moment or master",
        ),
        (
            "files",
            (FileRecord("../a", 1, "", ()),),
            "name='../a' of a file of its content must be the name of a file",
        ),
        (
            "files",
            (FileRecord("a\0b", 1, "", ()),),
            "name='a\\x00b' of a file of its content must be the name of a file",
        ),
        ("dtype", "I8", "dtype='I8' of its content must be one of: BF16, F16, F32, F64"),
        (
            "files",
            (FileRecord("a", -1, "", ()),),
            "bytes=-1 of file 'a' must be a whole number from 0 to 9,223,372,036,854,775,807",
        ),
    ],
)
def test_numbers_that_no_run_has(tmp_path: Path, field: str, value: object, message: str) -> None:
    (tmp_path / MANIFEST).write_text(changed(**{field: value}))
    with pytest.raises(AutoshardError) as error:
        read_manifest(tmp_path)
    path = tmp_path / MANIFEST
    assert str(error.value) == f"checkpoint manifest {path} is not one of autoshard's: {message}"


def test_the_manifest_says_the_step_whatever_the_folder_is_called(tmp_path: Path) -> None:
    for name in ("step-00000004", "best", "step-4"):
        (tmp_path / name).mkdir()
        (tmp_path / name / MANIFEST).write_text(manifest().to_json())
        assert read_manifest(tmp_path / name).step == read_manifest(LocalFolder(tmp_path / name)).step == 4
    renamed = (tmp_path / "step-00000004").rename(tmp_path / "step-00000009")
    for folder in (renamed, LocalFolder(renamed)):
        with pytest.raises(AutoshardError) as error:
            read_manifest(folder)
        assert str(error.value) == f"checkpoint {renamed} is of step 4 by its manifest: rename it to step-00000004"


def test_a_checkpoint_of_another_model_is_refused_by_the_field(tmp_path: Path) -> None:
    manifest().check_model(replace(LLAMA, name="another name"), tmp_path)
    manifest().check_model(replace(LLAMA, dropout=Dropout(0.1)), tmp_path)  # a choice of each run
    with pytest.raises(AutoshardError, match="is of another model: hidden_size=4096, the plan's has 8192"):
        manifest().check_model(replace(LLAMA, hidden_size=8192), tmp_path)


def test_a_checkpoint_of_a_traced_module_is_of_any_length_of_its_trace(tmp_path: Path) -> None:
    """Nothing of the weights depends on it, but where it counts learned positions."""
    one = replace(manifest(), model=to_json(ODD))
    one.check_model(replace(ODD, max_position_embeddings=2 * ODD.max_position_embeddings), tmp_path)
    learned = replace(ODD, rope_theta=None, max_position_embeddings=128)
    with pytest.raises(AutoshardError, match="is of another model: max_position_embeddings=128, the plan's has 256"):
        replace(one, model=to_json(learned)).check_model(replace(learned, max_position_embeddings=256), tmp_path)
    with pytest.raises(AutoshardError, match="is of another model: max_position_embeddings=8192, the plan's has 4096"):
        manifest().check_model(replace(LLAMA, max_position_embeddings=4096), tmp_path)


@pytest.mark.parametrize(
    ("found", "plans", "expected"),
    [
        (
            {"rope": {"type": "yarn", "factor": 8.0}},
            {"rope": {"type": "yarn", "factor": 16.0}},
            "rope.factor=8.0, 16.0",
        ),
        ({"kinds": ["full", "full"]}, {"kinds": ["full", "sliding"]}, "kinds[1]='full', 'sliding'"),
        ({"kinds": ["full"]}, {"kinds": ["full", "full"]}, "kinds=a list of 1, a list of 2"),
        ({}, {"mtp": {"num_layers": 1, "weight": 0.1}}, "mtp.num_layers=None, 1"),
        ({"mtp": {"num_layers": 1}}, {"mtp": None}, "mtp.num_layers=1, None"),
        ({"mtp": {}}, {"mtp": None}, "mtp=an object of 0, None"),
        ({"a": [{"b": 1, "c": 2}]}, {"a": [{"b": 1, "c": 3}]}, "a[0].c=2, 3"),
        ({"name": "one", "size": 1}, {"name": "other", "size": 1}, None),
    ],
)
def test_the_value_that_differs_is_named_also_inside_an_object(
    found: dict[str, Any], plans: dict[str, Any], expected: str | None
) -> None:
    words = None if expected is None else expected.replace(", ", ", the plan's has ")
    assert first_difference(found, plans, ("name",)) == words


def test_a_checkpoint_whose_positions_are_scaled_otherwise_is_refused_by_the_factor(tmp_path: Path) -> None:
    def scaled(factor: float) -> ModelSpec:
        return replace(LLAMA, rope_scaling=RopeScaling("llama3", factor, 1.0, 4.0, 8192))

    one = replace(manifest(), model=to_json(scaled(8.0)))
    one.check_model(scaled(8.0), tmp_path)
    with pytest.raises(AutoshardError, match=r"another model: rope_scaling\.factor=8\.0, the plan's has 32\.0$"):
        one.check_model(scaled(32.0), tmp_path)


def stored(folder: Path, key: str, shape: tuple[int, ...]) -> Manifest:
    values = np.zeros(prod(shape), np.float32)
    size, digest = write_tensors(folder / "r.safetensors", [TensorBytes(key, "F32", shape, bytes_of(values))])
    return manifest((FileRecord("r.safetensors", size, digest, ("model.norm.weight",)),))


def test_elements_that_no_file_has_are_an_error(tmp_path: Path) -> None:
    one = stored(tmp_path, tensor_key("master", "model.norm.weight", Box((0,), (4000,))), (4000,))
    reader = CheckpointReader(tmp_path, one, ["model.norm.weight"])
    piece = Piece("model.norm.weight", Box((3900,), (196,)), 0, True)
    with pytest.raises(AutoshardError, match=r"has 100 of 196 elements of the master of model.norm.weight"):
        reader.fill(QUANTITIES[0], piece, np.zeros(4 * 196, np.uint8))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("master/model.norm.weight@1", "lies outside the parameter"),
        ("master/model.norm.weight@-1", "lies outside the parameter"),
        ("master/model.norm.weight@99999999999999999999", "lies outside the parameter"),
        ("master/model.norm.weight@0,0", "lies outside the parameter"),
        ("master/no_such.weight@0", "is not a tensor of this checkpoint"),
        ("pickle/model.norm.weight@0", "is not a tensor of this checkpoint"),
        ("", "is not a tensor of this checkpoint"),
    ],
)
def test_tensors_that_do_not_belong_are_an_error(tmp_path: Path, key: str, message: str) -> None:
    one = stored(tmp_path, key, (4096,))
    with pytest.raises(AutoshardError, match=message):
        CheckpointReader(tmp_path, one, ["model.norm.weight"])


def written(store: LocalStore, step: int) -> dict[str, int]:
    store.write(step, "r.safetensors", [memoryview(b"data")], 4)
    return {"r.safetensors": 4}


def complete(store: LocalStore, *steps: int) -> None:
    for step in steps:
        store.point_to(store.commit(step, manifest(step=step).to_json(), written(store, step)))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("step*"))


def test_the_newest_stay_and_what_is_incomplete_goes(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for step in (1, 2, 3):
        complete(store, step)
        prune(store, step, keep=2, keep_every=None)
    written(store, 4)
    assert [folder.name for folder in store.folders()] == ["step-00000003", "step-00000002"]
    assert (tmp_path / "latest").read_text() == "step-00000003\n"
    assert store.clean(2) == ["step-00000003.aside-1"]
    assert names(tmp_path) == ["step-00000002", "step-00000003.aside-1"]
    assert (tmp_path / "latest").read_text() == "step-00000002\n"
    digest = checksum(tmp_path / "step-00000002" / "r.safetensors")
    assert file_problem(store.folders()[0], "r.safetensors", 4, digest) == ""
    assert store.clean(-1) == ["step-00000002.aside-1"]
    assert not (tmp_path / "latest").exists()


def test_every_tenth_stays_beside_the_newest_two(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for step in range(5, 50, 5):
        complete(store, step)
        prune(store, step, keep=2, keep_every=20)
    assert [int(name[5:]) for name in names(tmp_path)] == [20, 40, 45]


def test_the_order_is_that_of_steps_whatever_the_clock_said(tmp_path: Path) -> None:
    """The clock was set back between two saves: the newer checkpoint is older by its times."""
    store = LocalStore(tmp_path)
    complete(store, 8, 9, 10)
    for step, when in ((8, 4e9), (9, 1e9), (10, 1.0)):
        os.utime(tmp_path / f"step-{step:08}", (when, when))
    assert [folder.name[-2:] for folder in store.folders()] == ["10", "09", "08"]
    prune(store, 10, keep=2, keep_every=None)
    assert [folder.name[-2:] for folder in store.folders()] == ["10", "09"]


class Ended(BaseException):
    """What no handler of errors catches."""


def test_a_save_that_ends_at_any_moment_leaves_whole_checkpoints_and_latest_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def ending(name: str, moment: int) -> Callable[..., Any]:
        real = getattr(os, name)

        def step(*arguments: Any, **options: Any) -> Any:
            if len(seen) == moment:
                raise Ended
            seen.append(name)
            return real(*arguments, **options)

        return step

    for moment in range(100):
        store = LocalStore(tmp_path / str(moment))
        complete(store, 1)
        seen.clear()
        with monkeypatch.context() as patch:
            for name in ("mkdir", "fsync", "rename", "replace"):
                patch.setattr(os, name, ending(name, moment))
                if hasattr(PATHS, name):
                    patch.setattr(PATHS, name, getattr(os, name))
            with contextlib.suppress(Ended):
                complete(store, 2)
        steps = [folder.name for folder in store.folders()]
        assert steps in (["step-00000001"], ["step-00000002", "step-00000001"])
        for folder in store.folders():
            assert f"{read_manifest(folder).step:08}" == folder.name[-8:] and folder.size("r.safetensors") == 4
        assert (store.directory / "latest").read_text().strip() in steps
        if len(seen) < moment:
            break
    # the file's bytes, the manifest's, both names, the new name, its own; and only then the pointer
    order = ["mkdir", "fsync", "fsync", "replace", "fsync", "rename", "fsync", "fsync", "replace"]
    assert seen == order


def test_a_file_that_another_machine_has_is_not_committed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    sizes = written(store, 1) | {"rank-00001.safetensors": 1}
    with pytest.raises(AutoshardError, match="was written, but not here: all ranks need to share"):
        store.commit(1, manifest(step=1).to_json(), sizes)


def lock_removed(directory: Path) -> None:
    (directory / "lock").unlink()


@pytest.mark.parametrize("other", [False, True], ids=["nobody", "another run"])
@pytest.mark.parametrize("remove", [shutil.rmtree, lock_removed], ids=["folder", "lock"])
def test_a_run_whose_lock_was_removed_writes_and_deletes_nothing(
    tmp_path: Path, remove: Callable[[Path], None], other: bool
) -> None:
    directory = tmp_path / "ck"
    with contextlib.ExitStack() as locks:
        locks.enter_context(directory_lock(directory))
        store = LocalStore(directory)
        complete(store, 1)
        remove(directory)
        if other:
            locks.enter_context(directory_lock(directory))
            theirs = LocalStore(directory)
            complete(theirs, 3)
            written(theirs, 2)
        before = sorted(directory.rglob("*"))
        changes: list[Callable[[], object]] = [
            lambda: written(store, 2),
            lambda: store.commit(2, manifest(step=2).to_json(), {}),
            lambda: store.delete(LocalFolder(directory / "step-00000003")),
            lambda: store.point_to(LocalFolder(directory / "step-00000001")),
            lambda: store.clean(0),
        ]
        for change in changes:
            with pytest.raises(AutoshardError) as error:
                change()
            assert str(error.value) == (
                f"this run no longer holds the lock of {directory}: somebody removed the folder or its file lock, or "
                "another run took it; start it again"
            )
        store.discard(2)
        assert sorted(directory.rglob("*")) == before
    assert not other or (directory / "lock").read_text() == ""


def test_a_url_becomes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("s3://bucket/sweep", "file:///tmp/sweep"):
        with pytest.raises(AutoshardError, match=rf"^out={Path(url)} is a URL: name a folder of this machine$"):
            directory_lock(Path(url), "out").__enter__()
    with pytest.raises(AutoshardError, match="memory://x is no place for checkpoints"):
        open_store("memory://x")
    assert not list(tmp_path.iterdir())


def test_a_file_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_text("")
    with pytest.raises(AutoshardError) as error:
        directory_lock(Path("plan.json"), "out").__enter__()
    assert str(error.value) == "out=plan.json is a file: name a folder"


def fails(directory: Path, *files: str) -> None:
    with directory_lock(directory):
        for name in files:
            (directory / name).touch()
        raise ValueError("oh")


def test_folders_made_for_what_fails_are_removed_with_the_lock(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    for folder, files in (("before", ()), ("runs/one", ()), ("runs/two", ("log",))):
        with pytest.raises(ValueError, match="oh"):
            fails(tmp_path / folder, *files)
    found = sorted(str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*") if one.is_file())
    assert found == ["before/lock", "runs/two/lock", "runs/two/log"] and not (tmp_path / "runs/one").exists()
    with pytest.raises(ValueError, match="oh"):
        fails(tmp_path / "all" / "new")
    with directory_lock(tmp_path / "all" / "new"):  # as of a run whose failure is an exit code
        assert (tmp_path / "all" / "new" / "lock").exists()
    assert not (tmp_path / "all").exists()


def test_a_lock_that_its_holder_removed_meanwhile_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def removed(descriptor: int, operation: int) -> None:
        (tmp_path / "lock").unlink()

    monkeypatch.setattr(fcntl, "flock", removed)
    with pytest.raises(AutoshardError, match="is in use by another process"), directory_lock(tmp_path):
        raise AssertionError


def test_a_holder_that_was_taken_for_gone_leaves_the_record_of_the_next(tmp_path: Path) -> None:
    with directory_lock(tmp_path):
        (tmp_path / "lock").write_text('{"pid": 1, "host": "elsewhere"}')
    assert (tmp_path / "lock").read_text() == '{"pid": 1, "host": "elsewhere"}'


def hold(directory: Path, seconds: float) -> None:
    with directory_lock(directory):
        (directory / "held").touch()
        time.sleep(seconds)


def test_one_run_a_folder_and_a_dead_one_lets_go(tmp_path: Path) -> None:
    holder = multiprocessing.get_context("spawn").Process(target=hold, args=(tmp_path, 60))
    holder.start()
    try:
        deadline = time.monotonic() + 50
        while not (tmp_path / "held").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with (
            pytest.raises(AutoshardError, match=f"is in use by process {holder.pid} on ") as error,
            directory_lock(tmp_path),
        ):
            raise AssertionError
        assert str(error.value).endswith("give each run its own")
    finally:
        holder.kill()
        holder.join()
    with directory_lock(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    assert (tmp_path / "lock").read_text() == ""


def test_a_holder_on_another_machine_is_gone_when_its_heartbeat_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "WATCHED_S", 0.01)
    (tmp_path / "lock").write_text('{"pid": 1, "host": "elsewhere"}')
    with (
        pytest.raises(AutoshardError, match=r"is in use by process 1 on elsewhere: .*, wait 120 s"),
        directory_lock(tmp_path),
    ):
        raise AssertionError
    for seconds in (-STALE_AFTER_S - 10, 1e8):  # or the clock was years ahead when that run ended
        (tmp_path / "lock").write_text('{"pid": 1, "host": "elsewhere"}')
        os.utime(tmp_path / "lock", (time.time() + seconds, time.time() + seconds))
        with directory_lock(tmp_path):
            pass


def test_a_holder_that_lives_keeps_its_lock_when_the_clock_jumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "WATCHED_S", 0.5)
    path = tmp_path / "lock"
    path.write_text('{"pid": 1, "host": "elsewhere"}')
    os.utime(path, (1e9, 1e9))
    heartbeat = threading.Timer(0.1, lambda: os.utime(path, (2e9, 2e9)))
    heartbeat.start()
    with pytest.raises(AutoshardError, match="is in use by process 1 on elsewhere"), directory_lock(tmp_path):
        raise AssertionError
    heartbeat.join()
