"""`autoshard serve`: it plans, shares its state by address, refuses what it should, and cannot be made to run code."""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request

import autoshard
from autoshard.backends.problem import Problem
from autoshard.cli import main
from autoshard.errors import AutoshardError
from autoshard.planner.options import OPTIONS
from autoshard.planner.ranking import Timed
from autoshard.planner.watching import BestSoFar
from autoshard.server import app, desk
from autoshard.server.best_shown import BestShown
from autoshard.server.desk import Desk
from autoshard.server.form import page
from autoshard.server.isolated import SAY_S, Limits, TookTooMuchError, Work
from autoshard.server.state import NAMES, State, commands, read_states
from autoshard.server.uploads import MOST_BYTES, MOST_IN_ALL, Uploads
from autoshard.server.work import work
from tests.cases import ALL
from tests.multiprocess.started import by_default
from tests.unit import server_jobs

STOPS = "# the page stops a search after 8 s; with --time-limit 8 a command does so, too"
SMALL = {"model": "llama3-8b", "nodes": "1", "tp": "8"}
CONFIG = Path(__file__).parents[2] / "models/llama/configs/llama3-8b.json"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a server that runs while this module is tested. Its folder has a Python file that nobody may
    run."""
    with subprocess.Popen(
        [sys.executable, "-m", "autoshard", "serve", "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        found = re.match(r"(http://127\.0\.0\.1:\d+)/", process.stdout.readline())
        assert found is not None
        yield found[1]
        process.terminate()


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as found:
        yield found


# It plans


def test_the_answer_is_the_plan_of_the_interface(client: httpx.Client) -> None:
    plan = autoshard.plan("llama3-8b", nodes=1, tp=8)
    found = client.get("/answer", params=SMALL).json()
    assert found["title"] == plan.describe().layout
    assert "How sure that is" in found["html"]
    assert set(found["data"]) == {"machine", "timeline", "candidates"}
    served = client.get("/plan.json", params=SMALL)
    assert served.headers["content-disposition"] == 'attachment; filename="plan.json"'
    assert served.json()["strategy"] == json.loads(plan_text(plan))["strategy"]
    assert served.json()["estimate"] == json.loads(plan_text(plan))["estimate"]


@pytest.mark.parametrize("precision", ["fp8", "auto"])
def test_precisions_are_compared_as_the_command_does(client: httpx.Client, precision: str) -> None:
    plan = autoshard.plan("llama3-8b", "h100-80gb", nodes=1, tp=4, precision=precision)
    asked = {"model": "llama3-8b", "instance": "h100-80gb", "nodes": "1", "tp": "4", "precision": precision}
    served = client.get("/plan.json", params=asked).json()
    assert served["notes"] == list(plan.notes)
    assert any(note.startswith("precision fp8") for note in plan.notes)
    assert "candidates" in client.get("/answer", params=asked).json()["data"]


def plan_text(plan: Any) -> str:
    from autoshard.plans.plan_json import plan_to_json

    return plan_to_json(plan)


def test_a_slow_search_shows_the_best_so_far_until_its_answer_comes(client: httpx.Client) -> None:
    asked = {"model": "deepseek-v2", "instance": "h100-80gb", "nodes": "32"}
    shown = client.get("/answer", params={**asked, "live": "1"})
    assert shown.headers["content-type"] == "application/x-ndjson"
    *first, last = map(json.loads, shown.text.splitlines())
    assert first
    for one in first:
        assert one["open"] is True
        assert re.fullmatch(r"nothing is more than [0-9.]+ times as fast", one["proven"])
        assert "Still looking: what follows is not the answer yet." in one["html"]
    assert (last["open"], last["proven"]) == (False, "")
    assert "What was chosen" in last["html"]
    assert client.get("/answer", params={**asked, "live": "1"}).json() == last  # kept
    assert client.get("/answer", params={**SMALL, "tp": "3", "live": "1"}).status_code == 400


def test_two_plans_say_which_one_is_found() -> None:
    said: list[Mapping[str, Any]] = []
    states = [{"values": {"model": name, "nodes": 4}, "plan": "", "why": ""} for name in ("llama3-8b", "llama3-70b")]
    last = work({"do": "answer", "states": states, "uploads": {}}, said.append)
    assert last["open"] is False
    found = [re.search(r"<h2[^>]*>Found</h2>", one["html"]) is not None for one in said]
    assert found == sorted(found) and set(found) == {False, True}


def test_work_says_the_newest_once_its_time_has_come() -> None:
    said: list[Mapping[str, Any]] = []
    job = {"said": [(0.0, "worst"), (0.0, "better"), (SAY_S + 1.0, "late"), (0.0, "last")]}
    assert Work(server_jobs.find_slowly, job, Limits()).result(said.append) == {"found": "last"}
    assert said[0] == {"found": "better"}
    said.clear()
    assert Work(server_jobs.find_slowly, {"said": [(0.0, "first"), (0.0, "last")]}, Limits()).result() == {
        "found": "last"
    }
    slow = {"said": [(0.0, "first"), (60.0, "last")]}
    with pytest.raises(TookTooMuchError, match=r"^this takes more than 2 s; pin more, or ask for less$"):
        Work(server_jobs.find_slowly, slow, Limits(wall_s=2.0)).result(said.append)
    assert said == [{"found": "first"}]


def test_work_that_nobody_waits_for_any_more_leaves_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> Any:
        shared, job = Desk(Limits(), workers=1), {"uploads": {}, "said": [(0.0, "first"), (600.0, "last")]}
        said = asyncio.Event()
        first = asyncio.ensure_future(shared.ask("one", job, latest_wins=False, say=lambda value: said.set()))
        await said.wait()
        first.cancel()
        return await asyncio.wait_for(shared.ask("two", {**job, "said": [(0.0, "last")]}, latest_wins=False), 60)

    monkeypatch.setattr(desk, "work", server_jobs.find_slowly)
    assert asyncio.run(ask()) == {"found": "last"}


def test_no_layout_so_far_fits_for_sure() -> None:
    plan, said = autoshard.plan("llama3-8b", nodes=8, tp=32), list[Any]()
    problem = Problem(plan.model, plan.training, plan.cluster, plan.backend)
    BestShown(said.append)(BestSoFar(problem, Timed(2.0, plan.strategy), 1.0))
    assert " of memory, fits with more than 99.9 % probability.</p>" in said[0]["html"]


def test_why_not_and_two_side_by_side(client: httpx.Client) -> None:
    why = client.get("/answer", params={**SMALL, "why": "tp=32"}).json()["html"]
    assert "Why not tp=32?" in why
    assert "The plan first, what was asked second" in why
    illegal = client.get("/answer", params={**SMALL, "why": "tp=4"}).json()["html"]
    assert "tp=4 is not a group of trn1.32xlarge at lnc 1; degrees that are: 1, 2, 8, 32" in illegal
    both = client.get("/answer", params={**SMALL, "b.model": "llama3-8b", "b.tp": "32"}).json()
    assert "Two plans" in both["html"]
    assert {"timeline_0", "timeline_1", "machine_0", "machine_1"} <= set(both["data"])


def test_downloads(client: httpx.Client) -> None:
    report = client.get("/report.html", params=SMALL).text
    assert report.startswith("<!doctype html>")
    assert "What was chosen" in report
    both = {**SMALL, "b.model": "llama3-8b", "b.tp": "32"}
    assert "What differs" in client.get("/compare.html", params=both).text
    assert client.get("/compare.html", params=SMALL).json() == {"error": "a comparison needs two states"}
    assert client.get("/commands.txt", params=SMALL).text == (
        f"{STOPS}\nautoshard plan --model llama3-8b --nodes 1 --tp 8 -o plan.json\n"
        "autoshard report plan.json -o report.html\n"
    )
    for query in ({}, {**SMALL, "b.tp": "32"}):
        nothing = client.get("/commands.txt", params=query)
        assert (nothing.status_code, nothing.json()) == (400, {"error": "model is missing"})


def test_uploads_of_configs_and_plans(client: httpx.Client, tmp_path: Path) -> None:
    kind = {"Content-Type": "application/json"}
    config = client.post("/upload", content=CONFIG.read_bytes(), headers=kind).json()
    assert (config["kind"], config["name"]) == ("model", "uploaded")
    uploaded = client.get("/plan.json", params={**SMALL, "model": config["id"]}).json()
    assert uploaded["strategy"] == client.get("/plan.json", params=SMALL).json()["strategy"]
    plan = autoshard.plan("llama3-8b", nodes=1, tp=8).save(tmp_path / "plan.json").read_bytes()
    sent = client.post("/upload", content=plan, headers=kind).json()
    assert (sent["kind"], sent["name"]) == ("plan", "llama3-8b")
    assert client.get("/plan.json", params={"plan": sent["id"]}).text == plan.decode()


def test_the_page_has_a_field_for_whatever_may_be_asked(client: httpx.Client) -> None:
    from autoshard.server.state import NAMES

    page = client.get("/")
    assert [name for name in NAMES if f'name="{name}"' not in page.text or f'name="b.{name}"' not in page.text] == []
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert re.search(r"autoshard_client=[0-9a-f]{32}; HttpOnly; Path=/; SameSite=strict", page.headers["set-cookie"])
    for name in re.findall(r'(?:src|href)="([^"]+\.(?:js|css))"', page.text):
        assert client.get(f"/{name}").status_code == 200


# It refuses


NO_FILES = " must be a built-in model or an upload; this server reads no files and runs no code"


@pytest.mark.parametrize(
    ("pairs", "error"),
    [
        ({"model": "my_file.py:MyModel"}, "model='my_file.py:MyModel'" + NO_FILES),
        ({"model": "/etc/passwd"}, "model='/etc/passwd'" + NO_FILES),
        ({"model": "../config.json"}, "model='../config.json'" + NO_FILES),
        ({"model": "llama3-8b", "hardware": "x.json"}, "'hardware' cannot be asked for here; "),
        ({"model": "llama3-8b", "time_limit": "1e9"}, "'time_limit' cannot be asked for here; "),
        ({"model": "llama3-8b", "operators": "solver"}, "'operators' cannot be asked for here; "),
        ({"model": "llama3-8b", "expert_imbalance": "/x"}, "expert_imbalance: /x must be a number above 0"),
        ({"model": "llama3-8b", "instance": "../x"}, "instance='../x' must be one of: "),
        ({"model": "llama3-8b", "nodes": "1e3"}, "nodes: 1e3 must be a whole number of at least 1"),
        ({"model": "llama3-8b", "nodes": "9" * 400}, "'nodes' must be at most 300 printable letters"),
        ({"model": "llama3-8b", "tp": "1\n2"}, "'tp' must be at most 300 printable letters"),
        ({"plan": f"upload:{'a' * 32}", "nodes": "4"}, "'nodes' beside an uploaded plan, which says all of it; "),
        ({"plan": "plan.json"}, "plan='plan.json' must be an upload of this server; it reads no files"),
        ({"model": "llama3-8b", "b.model": "x.py:M"}, "model='x.py:M' must be a built-in model"),
    ],
)  # fmt: skip
def test_what_may_not_be_asked(pairs: dict[str, str], error: str) -> None:
    with pytest.raises(AutoshardError, match=f"^{re.escape(error)}"):
        read_states(list(pairs.items()))


def test_a_name_twice_and_too_many_values() -> None:
    with pytest.raises(AutoshardError, match=r"^the address has a name twice$"):
        read_states([("tp", "1"), ("tp", "2")])
    with pytest.raises(AutoshardError, match=r"^the address has 101 values; at most 100 work$"):
        read_states([("tp", "1")] * 101)


def test_states_and_their_commands() -> None:
    [one] = read_states([("model", "llama3-8b"), ("nodes", "4"), ("vpp", ""), ("why", "tp=4")])
    assert one == State({"model": "llama3-8b", "nodes": 4}, "", "tp=4")
    assert commands([one]) == [STOPS, "autoshard plan --model llama3-8b --nodes 4 -o plan.json"]
    [one] = read_states([("model", "llama3-8b"), ("lora", "16")])
    assert commands([one]) == [STOPS, "autoshard plan --model llama3-8b --lora 16 -o plan.json"]
    [one] = read_states([("model", "llama3-8b"), ("state_dtypes", "moments=bfloat16"), ("optimizer", "muon")])
    asked = "autoshard plan --model llama3-8b --state-dtypes moments=bfloat16 --optimizer muon -o plan.json"
    assert commands([one]) == [STOPS, asked]
    upload = f"upload:{'0' * 32}"
    [one] = read_states([("model", upload), ("recompute", "full")])
    assert one.uploads == (upload,)
    assert commands([one]) == [
        "# save the config that was uploaded as config.json",
        STOPS,
        "autoshard plan --model config.json --recompute full -o plan.json",
    ]


def test_an_empty_field_says_what_it_stands_for() -> None:
    """`any` is what is searched; the help of other options has a default."""
    shown = dict(re.findall(r'<input name="(\w+)" placeholder="([^"]*)"', page()))
    shown |= dict(re.findall(r'<select name="(\w+)"[^>]*><option value="">([^<]*)<', page()))
    assert {*shown} == {*NAMES} - {"model"}
    for name, words in shown.items():
        said = re.search(r"\(default: ([^);]*)", OPTIONS[name].help)
        assert (words == "any") == (said is None and name != "keep_bf16"), name
        if re.fullmatch(r"[\d.]+", words):
            assert said is not None and said[1].startswith(words), name
    assert shown["instance"] == "trn1.32xlarge" and f'value="{shown["instance"]}"' not in page()


def test_commands_for_two_states_name_each_file_once() -> None:
    first, second = (f"upload:{digit * 32}" for digit in "01")
    left, right = "# save the {} that was uploaded (first) as {}", "# save the {} that was uploaded (second) as {}"
    of_other = "autoshard plan --model {} --nodes 2 -o other.json"
    for ours, theirs, expected in (
        (
            {"model": "llama3-8b"},
            {"plan": first},
            [right.format("plan", "other.json"), STOPS, "autoshard plan --model llama3-8b -o plan.json"],
        ),
        ({"plan": first}, {"plan": second}, [left.format("plan", "plan.json"), right.format("plan", "other.json")]),
        (
            {"model": first},
            {"model": second, "nodes": "2"},
            [
                left.format("config", "config.json"),
                right.format("config", "other_config.json"),
                STOPS,
                "autoshard plan --model config.json -o plan.json",
                of_other.format("other_config.json"),
            ],
        ),
        (
            {"model": first},
            {"model": first, "nodes": "2"},
            [
                left.format("config", "config.json"),
                STOPS,
                "autoshard plan --model config.json -o plan.json",
                of_other.format("config.json"),
            ],
        ),
    ):
        assert commands(read_states([*ours.items(), *((f"b.{name}", value) for name, value in theirs.items())])) == (
            expected
        )


def test_errors_are_one_sentence_in_json(client: httpx.Client) -> None:
    gone = f"upload:{'0' * 32}"
    kind = {"Content-Type": "application/json"}
    for response, status, words in (
        (client.get("/answer"), 400, "model is missing"),
        (client.get("/answer", params={**SMALL, "tp": "3"}), 400, "tp=3"),
        (client.get("/answer", params={"model": gone}), 400, f"{gone} is not known here, or not any more"),
        (client.get("/nope"), 404, "Not Found"),
        (client.post("/answer"), 405, "Method Not Allowed"),
        (client.post("/upload", content=b"{}"), 400, "an upload must be JSON, with Content-Type: application/json"),
        (client.post("/upload", content=b"\x80\x04.", headers=kind), 400, "the upload, line 1: byte 0x80"),
        (
            client.post("/upload", content=b" " * (MOST_BYTES + 1), headers=kind),
            400,
            "an upload may have at most 4,000,",
        ),
        (client.post("/upload", content=b"[" * 100_000, headers=kind), 400, "the upload"),
        (client.post("/upload", content=b"{}", headers=kind), 400, "model_type is missing from the config of uploaded"),
        (client.post("/upload", content=b'{"format_version": 1}', headers=kind), 400, "plan lacks made_by"),
    ):
        assert response.status_code == status, response.text
        assert words in response.json()["error"]
        assert "\n" not in response.json()["error"]


def test_a_page_of_another_site_cannot_ask_under_its_own_name(client: httpx.Client) -> None:
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 400
    assert client.get("/", headers={"Host": "localhost"}).status_code == 200


def test_uploads_forget_the_oldest() -> None:
    uploads = Uploads()
    names = [uploads.add(bytes([i]) * MOST_BYTES) for i in range(MOST_IN_ALL // MOST_BYTES + 1)]
    with pytest.raises(AutoshardError, match="is not known here, or not any more: upload the file again"):
        uploads.get(names[0])
    assert uploads.get(names[1]) == bytes([1]) * MOST_BYTES
    with pytest.raises(AutoshardError, match=r"^an upload may have at most 4,000,000 bytes$"):
        uploads.add(bytes(MOST_BYTES + 1))


# It cannot be made to run code

ATTEMPTS = (
    "read",
    "read bytes by number",
    "write",
    "delete",
    "shell",
    "process",
    "fork",
    "connect",
    "unpickle",
    "trace",
)


@pytest.mark.parametrize("do", ATTEMPTS)
def test_a_process_of_the_server_reaches_nothing(do: str, tmp_path: Path) -> None:
    file = tmp_path / "theirs.py"
    file.write_text(f"open({str(tmp_path / 'made')!r}, 'w')\n")
    found = Work(server_jobs.attempt, {"do": do, "path": str(file)}, Limits()).result()
    assert found["refused"] is not None
    assert found["refused"].endswith(" is not allowed here")
    assert [one.name for one in tmp_path.iterdir()] == ["theirs.py"]


def test_the_same_attempts_succeed_outside(tmp_path: Path) -> None:
    """Else the test above would show nothing."""
    file = tmp_path / "theirs.py"
    for do in ("write", "read", "read bytes by number", "shell", "process", "unpickle", "trace", "delete"):
        if do == "trace":
            file.write_text("")
        assert server_jobs.attempt({"do": do, "path": str(file)}, print) == {"refused": None}
    assert [one.name for one in tmp_path.glob("theirs*")] == ["theirs.py.made"]


def test_limits_of_memory_and_time() -> None:
    small = Limits(wall_s=30.0, cpu_s=1, memory_bytes=2 * 2**30)
    with pytest.raises(TookTooMuchError, match=r"^this takes more than 2 GiB or 1 s$"):
        Work(server_jobs.take_memory, {}, small).result()
    with pytest.raises(TookTooMuchError, match=r"^this takes more than 2 GiB or 1 s$"):
        Work(server_jobs.take_time, {"sleeps": False}, small).result()
    with pytest.raises(TookTooMuchError, match=r"^this takes more than 0.5 s; pin more, or ask for less$"):
        Work(server_jobs.take_time, {"sleeps": True}, Limits(wall_s=0.5)).result()


def test_a_mistake_of_ours_tells_nothing_of_the_machine() -> None:
    with pytest.raises(AutoshardError, match=r"^this cannot be planned here \(RuntimeError\)$"):
        Work(server_jobs.crash, {}, Limits()).result()


def test_configs_that_name_code_run_none(client: httpx.Client, tmp_path: Path) -> None:
    made = tmp_path / "made"
    config = json.loads(CONFIG.read_text())
    config["auto_map"] = {"AutoModel": "theirs.Model"}
    config["_name_or_path"] = f"__import__('os').system('touch {made}')"
    headers = {"Content-Type": "application/json"}
    found = client.post("/upload", content=json.dumps(config).encode(), headers=headers).json()
    if "id" in found:
        client.get("/answer", params={"model": found["id"]})
    client.get("/answer", params={**SMALL, "why": f"__import__('os').system('touch {made}')"})
    assert not made.exists()


# It survives


def test_malformed_requests(url: str, client: httpx.Client) -> None:
    host, port = url.removeprefix("http://").split(":")
    dice = random.Random(1)
    post = b"POST /upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n"
    starts = [b"GET /answer?model=", b"GET / HTTP/1.1\r\nHost: localhost\r\n", post, b"", b"\x16\x03\x01"]
    for number in range(1000 if ALL else 250):
        raw = (
            dice.choice(starts) + dice.randbytes(dice.randrange(200)) + dice.choice([b"", b"\r\n\r\n", b"\n\n", b"\0"])
        )
        with socket.create_connection((host, int(port)), timeout=10) as sent:
            sent.sendall(raw)
        if number % 50 == 0:  # it still answers; a flood of a thousand at once it may turn away (503)
            assert client.get("/serve.css").status_code == 200
    words = [
        "model",
        "tp",
        "nodes",
        "why",
        "b.model",
        "plan",
        "llama3-8b",
        "-1",
        "%00",
        "1e999",
        "..",
        "'",
        "<b>",
        "\U0001f600",
    ]
    for _ in range(300 if ALL else 100):
        query = "&".join(f"{dice.choice(words)}={dice.choice(words)}" for _ in range(dice.randrange(6)))
        assert client.get(f"/commands.txt?{query}").status_code in (200, 400)
    assert client.get("/answer", params=SMALL).status_code == 200


def test_many_clients_at_once(url: str) -> None:
    def ask(number: int) -> tuple[int, str]:
        with httpx.Client(base_url=url, timeout=120) as client:
            client.get("/")  # each is a client of its own, with a cookie
            response = client.get("/answer", params={**SMALL, "global_batch": str(64 * (1 + number % 5))})
            return response.status_code, response.json().get("error", "")

    many = 50 if ALL else 25
    with ThreadPoolExecutor(many) as threads:
        assert set(threads.map(ask, range(many))) == {(200, "")}


def test_of_one_client_the_latest_question_wins(url: str) -> None:
    with httpx.Client(base_url=url, timeout=120) as client:
        client.get("/")
        slow: list[httpx.Response] = []
        question = {"model": "deepseek-v3", "instance": "trn2.48xlarge", "nodes": "64", "backend": "torch"}
        waiting = threading.Thread(target=lambda: slow.append(client.get("/answer", params=question)))
        waiting.start()
        for number in range(1, 100):  # until the first one has lost; it may not have come yet when the second one does
            newer = client.get("/answer", params={**SMALL, "global_batch": str(256 * number)})
            assert newer.status_code == 200
            if slow:
                break
        waiting.join()
    assert slow[0].status_code == 409
    assert slow[0].json() == {"error": "a later question took its place"}


# The command


def test_a_port_in_use_and_an_address_that_is_none(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    port = url.rpartition(":")[2]
    assert main(["serve", "--port", port]) == 2
    assert capsys.readouterr().err == (
        f"autoshard: error: port={port} of host=127.0.0.1 cannot be listened at: Address already in use; another "
        "--port may be free\n"
    )
    assert main(["serve", "--host", "203.0.113.5", "--port", port]) == 2  # of documents alone (RFC 5737)
    assert capsys.readouterr().err == (
        f"autoshard: error: port={port} of host=203.0.113.5 cannot be listened at: Cannot assign requested address; "
        "--host must be of this machine\n"
    )
    assert main(["serve", "--host", "256.1.1.1"]) == 2
    assert capsys.readouterr().err.startswith("autoshard: error: host=256.1.1.1 is no address that can be")


def test_a_client_that_leaves_and_the_end_of_the_server_print_no_traceback() -> None:
    half = b"POST /upload HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    command = [sys.executable, "-m", "autoshard", "serve", "--port", "0"]
    with (
        by_default(signal.SIGINT),
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        found = re.match(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
        assert found is not None
        here = ("127.0.0.1", int(found[1]))
        with socket.create_connection(here) as leaving:
            leaving.sendall(half)
            time.sleep(0.5)
        with socket.create_connection(here) as staying:
            staying.sendall(half)
            assert httpx.get(f"http://127.0.0.1:{found[1]}/", timeout=60).status_code == 200
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
    assert "Traceback" not in said and said.count("\n") <= 1, said


def test_an_upload_that_stalls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "UPLOAD_S", 0.05)

    async def stall() -> Any:
        await asyncio.Event().wait()

    request = Request({"type": "http", "headers": [(b"content-type", b"application/json")]}, stall)
    with pytest.raises(AutoshardError, match=r"^an upload may take at most 0 s$"):
        asyncio.run(app._upload(request))
