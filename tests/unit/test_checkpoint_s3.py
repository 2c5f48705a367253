"""Checkpoints in S3, against a server of its protocol: atomic, pruned, locked, and through what S3 does at times."""

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from autoshard.checkpoint import s3_bucket, s3_lock
from autoshard.checkpoint.manifest import read_manifest
from autoshard.checkpoint.open_place import named_folders, open_folder, open_store
from autoshard.checkpoint.s3 import S3Store, open_s3_store
from autoshard.checkpoint.s3_bucket import Bucket, S3Error, s3_client
from autoshard.checkpoint.store import PlaceError, file_problem, prune
from autoshard.errors import AutoshardError
from tests.s3_server import (
    BREAK_OFF,
    BUCKET,
    DENIED_403,
    ERROR_500,
    HANG,
    OK,
    SLOW_DOWN_503,
    Fault,
    Proxy,
    environment,
    s3_server,
)
from tests.unit.test_checkpoint_files import manifest

DATA = b"0123456789" * 100


@pytest.fixture(scope="module")
def server() -> Iterator[Proxy]:
    with s3_server() as proxy:
        yield proxy


@pytest.fixture
def proxy(server: Proxy, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    for name, value in environment(server).items():
        monkeypatch.setenv(name, value)
    server.fault = lambda method, path: OK
    server.seen.clear()
    return server


@pytest.fixture
def store(proxy: Proxy, request: pytest.FixtureRequest) -> S3Store:
    return open_s3_store(f"s3://{BUCKET}/{request.node.name}")


def write(store: S3Store, step: int) -> dict[str, int]:
    store.write(step, "r.safetensors", [memoryview(DATA)], len(DATA))
    return {"r.safetensors": len(DATA)}


def complete(store: S3Store, *steps: int) -> None:
    for step in steps:
        store.point_to(store.commit(step, manifest(step=step).to_json(), write(store, step)))


def names(store: S3Store) -> list[str]:
    return [folder.name for folder in store.folders()]


def contents(store: S3Store) -> list[str]:
    """Of all objects, without what every one starts with."""
    return sorted(key.removeprefix(store._prefix) for key in store._bucket.keys(store._prefix))


def test_a_checkpoint_is_complete_when_its_manifest_is_there(store: S3Store, proxy: Proxy) -> None:
    sizes = write(store, 5)
    with pytest.raises(AutoshardError, match=r"checkpoint manifest s3://.*/step-00000005/manifest.json does not exist"):
        read_manifest(store.folders()[0])
    folder = store.commit(5, manifest(step=5).to_json(), sizes)
    store.point_to(folder)
    assert [path.rpartition("/")[2].partition("?")[0] for method, path, _ in proxy.seen if method == "PUT"] == [
        "r.safetensors",
        "manifest.json",
        "latest",
    ]
    assert read_manifest(folder).step == 5
    assert store._bucket.get(f"{store._prefix}latest", 0, 14) == b"step-00000005\n"
    (same,) = named_folders(str(folder), "manifest.json")
    assert str(same) == str(folder) == str(open_folder(str(folder)))
    assert [str(one) for one in named_folders(str(store), "manifest.json")] == [str(folder)]
    assert same.read("r.safetensors", 3, 7).tobytes() == b"3456"


def test_a_file_that_is_not_there_keeps_a_checkpoint_from_being_one(store: S3Store) -> None:
    with pytest.raises(AutoshardError, match=r"step-00000001/b was written, but is not there"):
        store.commit(1, manifest(step=1).to_json(), write(store, 1) | {"b": 1})


def test_a_large_file_goes_up_in_parts_and_comes_back(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_bucket, "PART_BYTES", 5 << 20)  # the least that S3 takes
    data = np.random.default_rng(0).integers(0, 256, 12 << 20, dtype=np.uint8)
    chunks = [memoryview(data.tobytes())[start : start + 1_000_003] for start in range(0, data.size, 1_000_003)]
    store.write(1, "large", chunks, data.size)
    folder = store.commit(1, manifest(step=1).to_json(), {"large": data.size})
    assert b"".join(folder.chunks("large")) == data.tobytes()
    assert (folder.read("large", 7, 6_000_000) == data[7:6_000_000]).all()


def test_pruning_and_what_a_killed_run_left(store: S3Store) -> None:
    for step in (5, 10, 15, 20):
        complete(store, step)
        prune(store, step, keep=2, keep_every=10)
    assert names(store) == ["step-00000020", "step-00000015", "step-00000010"]
    write(store, 25)
    client = store._bucket.client
    client.create_multipart_upload(Bucket=BUCKET, Key=f"{store._prefix}step-00000025/half")
    assert store.clean(15) == ["step-00000020.aside-1"]
    assert names(store) == ["step-00000015", "step-00000010"]
    assert not client.list_multipart_uploads(Bucket=BUCKET, Prefix=store._prefix).get("Uploads")
    complete(store, 20)
    assert store.clean(15) == ["step-00000020.aside-2"]
    assert contents(store) == [
        "latest",
        *(f"step-{step}/{name}" for step in ("00000010", "00000015") for name in ("manifest.json", "r.safetensors")),
        *(f"step-00000020.aside-{n}/{name}" for n in (1, 2) for name in ("manifest.json", "r.safetensors")),
    ]
    assert store._bucket.get(f"{store._prefix}latest", 0, 14) == b"step-00000015\n"
    assert store.clean(-1) == ["step-00000015.aside-1", "step-00000010.aside-1"]
    assert "latest" not in contents(store)


@pytest.mark.parametrize("failed", ["PUT", "POST"], ids=["copying", "deleting"])
def test_a_checkpoint_that_is_half_set_aside_is_whole_in_one_place(
    store: S3Store, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, failed: str
) -> None:
    complete(store, 10)
    store.write(20, "a", [memoryview(DATA)], len(DATA))
    store.commit(20, manifest(step=20).to_json(), write(store, 20))
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    cut_off, left = open_s3_store(str(store)), [1]

    def fault(method: str, path: str) -> str:
        left[0] -= method == failed
        return ERROR_500 if method == failed and left[0] < 0 else OK

    proxy.fault = fault
    with pytest.raises(PlaceError, match=r"S3 answers (InternalError|500)"):
        cut_off.clean(10)
    proxy.fault = lambda method, path: OK
    store.clean(10)
    assert [key for key in contents(store) if key.startswith("step-00000020")] == [
        f"step-00000020.aside-1/{name}" for name in ("a", "manifest.json", "r.safetensors")
    ]


def test_what_was_never_complete_does_not_count_for_those_that_stay(store: S3Store) -> None:
    complete(store, 10, 20)
    write(store, 30)
    complete(store, 40)
    prune(store, 40, keep=2, keep_every=None)
    assert names(store) == ["step-00000040", "step-00000030", "step-00000020"]  # 30 goes when a run starts


def test_damage_is_named(store: S3Store) -> None:
    complete(store, 1)
    (folder,) = store.folders()
    digest = "0" * 64
    assert file_problem(folder, "r.safetensors", 9, digest) == "r.safetensors has 1,000 bytes, not 9"
    assert file_problem(folder, "r.safetensors", 1000, digest) == "r.safetensors was changed: its SHA-256 is another"
    assert file_problem(folder, "other", 1000, digest) == "other is missing"


def test_one_run_a_prefix(store: S3Store) -> None:
    held = (
        rf"checkpoint_dir={store} is in use by process {os.getpid()} on {socket.gethostname()}: give each run its own"
    )
    with store.lock():
        with pytest.raises(AutoshardError, match=held), store.lock():
            raise AssertionError
        with open_store(f"{store}-other").lock():
            pass
    assert contents(store) == []
    with store.lock():
        pass


def lock_of(store: S3Store, **holder: object) -> None:
    store._bucket.put(f"{store._prefix}lock", json.dumps(holder).encode())


def test_the_lock_of_a_killed_run_is_taken(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_lock, "WATCHED_S", 0.01)
    lock_of(store, pid=2**22 + 1, **s3_lock.id_space())  # beyond the largest id that Linux gives
    with store.lock():
        pass
    lock_of(store, pid=1, host="elsewhere")
    with pytest.raises(
        AutoshardError, match="by process 1 on elsewhere: give each run its own; if that run is gone, wait 120 s"
    ):
        store.lock().__enter__()
    monkeypatch.setattr(s3_lock, "STALE_AFTER_S", -1)
    with store.lock():
        pass


@pytest.mark.parametrize("other", ["boot", "pid_namespace", "host"])
def test_the_lock_of_another_machine_or_container_of_the_same_name_is_not_taken(store: S3Store, other: str) -> None:
    lock_of(store, pid=2**22 + 1, **{**s3_lock.id_space(), other: "another"})
    with pytest.raises(AutoshardError, match=r"is in use by process .*; if that run is gone, wait 120 s"):
        store.lock().__enter__()


def test_a_run_that_lost_its_lock_writes_and_deletes_nothing(store: S3Store) -> None:
    with store.lock():
        mine = open_s3_store(str(store))
        complete(mine, 1)
        store._bucket.delete([f"{store._prefix}lock"])
        with store.lock():
            theirs = open_s3_store(str(store))
            complete(theirs, 3)
            write(theirs, 2)
            before = contents(store)
            changes: list[Callable[[], object]] = [
                lambda: write(mine, 2),
                lambda: mine.commit(2, manifest(step=2).to_json(), {}),
                lambda: mine.delete(theirs.folders()[0]),
                lambda: mine.point_to(theirs.folders()[-1]),
                lambda: mine.clean(0),
            ]
            for change in changes:
                with pytest.raises(AutoshardError) as error:
                    change()
                assert str(error.value) == (
                    f"this run no longer holds the lock of {store}: somebody removed its object lock, or another run "
                    "took it; start it again"
                )
            mine.discard(2)
            assert contents(store) == before


def test_who_may_not_read_the_lock_reads_checkpoints(store: S3Store, proxy: Proxy) -> None:
    complete(store, 1)
    proxy.fault = lambda method, path: DENIED_403 if path.endswith("/lock") else OK
    assert names(open_s3_store(str(store))) == ["step-00000001"]


def failing(times: int, fault: str, method: str) -> tuple[Fault, list[int]]:
    """A fault of the first so many requests of a method, and how many are still to come."""
    left = [times]

    def decide(seen: str, path: str) -> str:
        if left[0] > 0 and seen.startswith(method):
            left[0] -= 1
            return fault
        return OK

    return decide, left


@pytest.mark.parametrize(
    ("fault", "method"), [(ERROR_500, "PUT"), (SLOW_DOWN_503, "GET"), (HANG, "PUT"), (HANG, "GET"), (BREAK_OFF, "GET")]
)
def test_a_request_that_fails_is_tried_again(
    proxy: Proxy, request: pytest.FixtureRequest, fault: str, method: str
) -> None:
    bucket = Bucket(BUCKET, s3_client(read_timeout_s=0.5))
    key = f"again-{fault}-{method}"
    if method == "GET":
        bucket.put(key, DATA)
    proxy.fault, left = failing(1, fault, method)
    if method == "PUT":
        bucket.put(key, DATA)
    assert bucket.get(key, 0, len(DATA)) == DATA
    assert left == [0]


def test_an_outage_is_one_line_and_no_damage(store: S3Store, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is skipped, set aside or deleted because S3 does not answer."""
    complete(store, 1)
    (folder,) = store.folders()
    before = contents(store)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    cut_off = open_s3_store(str(store))
    proxy.fault = lambda method, path: ERROR_500
    for action in (
        lambda: cut_off.write(2, "a", [memoryview(b"data")], 4),
        lambda: read_manifest(cut_off._folder(folder.name)),
        lambda: file_problem(cut_off._folder(folder.name), "r.safetensors", 1000, ""),
        lambda: cut_off.clean(0),
        lambda: cut_off.lock().__enter__(),
    ):
        with pytest.raises(PlaceError, match=rf"s3://{BUCKET}/.*: S3 answers (InternalError|500)") as error:
            action()
        assert "\n" not in str(error.value)
    proxy.fault = lambda method, path: OK
    assert contents(store) == before


def test_what_is_wrong_with_the_place_is_said(proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(AutoshardError, match="s3:// names no bucket: s3://BUCKET/PREFIX"):
        open_store("s3://")
    with pytest.raises(S3Error, match="s3://no-such-bucket/a/lock: there is no such bucket"):
        open_store("s3://no-such-bucket/a").lock().__enter__()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(S3Error, match=r"s3://b/lock: S3 cannot be used: Could not connect"):
        open_store("s3://b").lock().__enter__()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(S3Error, match=r"s3://b/lock: S3 cannot be used: Unable to locate credentials"):
        open_store("s3://b").lock().__enter__()
