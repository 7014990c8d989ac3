"""Sweeps, a second server and interruptions; and input that is wrong."""

import signal
import ssl
import subprocess
from pathlib import Path

import pytest
from aiohttp import web

from ropeswitch.server import cli
from tests.loadtests.client.commands import loadtest, ran, refusal, requests, results, workload
from tests.loadtests.client.scripted import Reply, Scripted, serving
from tests.server.asking import wait_until
from tests.server.front.certificates import certificate
from tests.server.running import PROGRAM


def test_servers_take_turns_and_get_the_same_prompts(tmp_path: Path) -> None:
    with serving(Scripted()) as target, serving(Scripted(lambda number, body: Reply(before=0.05))) as baseline:
        order: list[str] = []
        target.reply = lambda number, body: order.append("t") or Reply()  # type: ignore[func-returns-value]
        baseline.reply = lambda number, body: order.append("b") or Reply(before=0.05)  # type: ignore[func-returns-value]
        flags = ["--baseline", baseline.url, "--repetitions", "3", "--concurrency", "1,2"]
        flags += ["--assert", "ratio_ttft_p50<0.9"]
        file = workload(tmp_path, arrival={"closed": {"concurrency": 1}}, requests=2)
        assert loadtest(tmp_path, file, target.url, *flags) == 0
        assert "".join(order) == "ttbbbbttttbb" * 2
        sent = [{str(body["messages"]) for body in server.asked} for server in (target, baseline)]
    assert sent[0] == sent[1] and len(sent[0]) == 12
    found = results(tmp_path)
    assert [point["label"] for point in found["points"]] == ["1 at a time", "2 at a time"]
    assert all(point["ratios"]["median_ttft_ms"] < 0.9 for point in found["points"])
    assert "completed" not in found


def test_a_rate_has_its_own_prompts_whatever_the_sweep_s_other_rates(tmp_path: Path) -> None:
    file = workload(tmp_path, arrival={"poisson": {"rate": 1}}, requests=4)
    with serving(Scripted()) as server:
        assert loadtest(tmp_path / "both", file, server.url, "--rate", "50,100") == 0
        assert loadtest(tmp_path / "alone", file, server.url, "--rate", "100") == 0
        sent = [str(body["messages"]) for body in server.asked]
    first, second, alone = (set(sent[at : at + 4]) for at in (0, 4, 8))
    assert second == alone and not first & second


def test_each_server_s_sequences_outgrow_its_own_factor_sets(tmp_path: Path) -> None:
    mix = [{"kind": "grows", "prompt": {"crossing": {"at": 100, "within": 1}}, "output": 44}]
    with serving(Scripted(limits=(100, 8192))) as target, serving(Scripted()) as baseline:
        assert loadtest(tmp_path, workload(tmp_path, mix=mix), target.url, "--baseline", baseline.url) == 0
    [point] = results(tmp_path)["points"]
    assert [point[side]["crossings"] for side in ("target", "baseline")] == [6, 0]


def start(folder: Path, file: str, url: str, *flags: str) -> "subprocess.Popen[bytes]":
    command = [*PROGRAM, "loadtest", file, "--url", url, "--out", str(folder / "out")]
    return subprocess.Popen([*command, "--no-report", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_an_interrupted_test_keeps_what_it_has_and_is_started_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    """It answers four requests and lets the others wait: the signal comes while they do."""
    file = workload(tmp_path, arrival={"poisson": {"rate": 50}}, requests=10)
    with serving(Scripted(lambda count, body: Reply(before=0 if count < 4 or count >= 10 else 60))) as server:
        process = start(tmp_path, file, server.url)
        lines = tmp_path / "out" / "requests.jsonl"
        waiting = lambda: len(server.asked) == 10 and lines.exists() and len(lines.read_text().splitlines()) == 4  # noqa: E731
        wait_until(waiting, "four answers", 120)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert b"Traceback" not in out + err and b"results so far are in" in err
        found = results(tmp_path)
        assert (found["completed"], found["interrupted"], found["failed"], found["complete"]) == (4, 6, 0, False)
        assert len(requests(tmp_path)) == 10
        assert loadtest(tmp_path, file, server.url, "--assert", "correct==1") == 0
        assert len(server.asked) == 20
        found = results(tmp_path)
        assert (found["completed"], found["interrupted"], found["complete"]) == (10, 0, True)
        assert loadtest(tmp_path, file, server.url) == 2
        assert "has the results of a load test: use another folder" in refusal(capsys)
        assert len(server.asked) == 20


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--url", "http://127.0.0.1:9"], "http://127.0.0.1:9 does not answer: [Errno 111] Connection refused"),
        (["--baseline", "http://127.0.0.1:9"], "http://127.0.0.1:9 does not answer"),
        (["--rate", "3"], "--rate: workload small has no rate"),
        (["--concurrency", "2,2"], "'2,2' contains a value twice"),
        (["--requests", "0"], "'0' must be a whole number from 1"),
        (["--longest", "5"], "--longest 5: a prompt with a pass key and its question needs"),
        (["--longest", "5x"], "'5x' must be a number of tokens"),
        (["--scale", "1000"], "but the server accepts 100000 tokens in total: use --longest 100000"),
        (["--text", "nothing"], "text 'nothing' is neither a file nor one of paper, village"),
        (["--assert", "band=0-7k,failed==0"], "the bands of this test are 0-8k,"),
        (["--assert", "ratio_ttft_p50<1"], "compares with a baseline: add --baseline"),
        (["--ca", "nothing", "--url", "https://127.0.0.1:9"], "--ca 'nothing'"),
        (["--tokenizer", "/nothing"], "--tokenizer '/nothing'"),
        (["--tokenizer", ""], "--tokenizer ''"),  # as a shell makes it of a variable that is not set
        (["--repetitions", "x"], "'x' must be a whole number"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], expected: str
) -> None:
    with serving(Scripted()) as server:
        assert loadtest(tmp_path, workload(tmp_path), server.url, *flags) == 2
        assert server.asked == []
    assert expected in refusal(capsys)
    assert not (tmp_path / "out" / "results.json").exists()


def test_a_server_whose_sets_are_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    class Starting(Scripted):
        refused = 0

        async def _rope(self, request: web.Request) -> web.Response:
            self.refused += 1
            return web.Response(status=503) if self.refused < 2 else await super()._rope(request)

    found, _ = ran(tmp_path, Starting(limits=(500, 1000)), "--wait", "10")
    assert found["points"][0]["target"]["bands"].keys() == {"0-500"}


def test_a_server_s_own_certificate_is_trusted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certfile, keyfile = certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certfile, keyfile)
    with serving(Scripted(), tls) as server:
        assert loadtest(tmp_path, workload(tmp_path), server.url) == 2
        assert "does not answer: [SSL: CERTIFICATE_VERIFY_FAILED]" in refusal(capsys)
        assert loadtest(tmp_path, workload(tmp_path), server.url, "--ca", certfile, "--assert", "correct==1") == 0
        assert cli.main(["verify", server.url, "--insecure"]) == 2 and "lists no factor sets" in refusal(capsys)


def test_other_servers_get_no_fields_of_vllms(tmp_path: Path) -> None:
    ran(tmp_path, server := Scripted(card={"owned_by": "someone"}))
    assert not any("cache_salt" in body for body in server.asked)


def test_the_key_is_sent_and_written_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: set[str] = set()

    class Watching(Scripted):
        async def _complete(self, request: web.Request) -> web.StreamResponse:
            seen.add(request.headers["Authorization"])
            return await super()._complete(request)

    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with serving(Watching()) as server:
        assert loadtest(tmp_path, workload(tmp_path), server.url, report=True) == 0
    assert seen == {"Bearer sk-secret"}
    output = capsys.readouterr()
    written = [path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(written) == 3 and not any(
        b"sk-secret" in each for each in [*written, output.out.encode(), output.err.encode()]
    )


def test_shipped_workloads_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["loadtest", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("chat", "documents", "mixed", "crossing", "soak"))
    assert cli.main(["loadtest"]) == 2
    assert refusal(capsys) == "workload is missing: see ropeswitch loadtest --help"
