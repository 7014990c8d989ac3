"""The command against a server of the real engine: the figures are those of the same model evaluated on this machine."""

import json
from pathlib import Path

import pytest

from ropeswitch.factors.evaluate.endpoint_target import EndpointTarget
from ropeswitch.factors.evaluate.local_target import LocalTarget
from ropeswitch.factors.evaluate.target import Window
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.server.cli import main
from tests.factors.conftest import MODEL
from tests.factors.evaluate.conftest import answered
from tests.passkey_tiny.passkey import REPLY_TOKENS, make_prompt
from tests.server.running import ENGINE, running


@pytest.mark.full
def test_a_served_model_is_what_it_is_here(target: LocalTarget, texts: Path, tmp_path: Path) -> None:
    folder = tmp_path / "answered"
    folder.mkdir()
    judged = str(answered(folder, target.model, 300, 3))
    tasks = ["--tasks", "perplexity,passkey", "--lengths", "245,300", "--tries", "2"]
    flags = [*tasks, "--text", str(texts), "--documents", "2", "--windows", "2"]
    last = ["--text", str(folder), "--documents", "3", "--lengths", "300", "--judge-last", judged]
    last += ["--tasks", "perplexity"]
    rows = {}
    with running(tmp_path, MODEL, *ENGINE) as server:
        for name, where in (("here", MODEL), ("served", server.url)):
            output = str(tmp_path / f"{name}.json")
            assert main(["factors", "eval", where, *flags, "-o", output]) == 0
            found = json.loads(Path(output).read_text())
            assert main(["factors", "eval", where, *last, "-o", output + "-last"]) == 0
            rows[name] = found["rows"] + json.loads(Path(output + "-last").read_text())["rows"]
            replies = [each.get("reply") for cell in found["cells"] for each in cell["result"]]
            rows[name].append(replies)
        served, here = rows["served"], rows["here"]
        assert served.pop() == here.pop()
        assert len(served) == len(here) == 2 * 2 * 3 + 3
        for theirs, ours in zip(served, here, strict=True):
            for key, value in ours.items():
                expected = pytest.approx(value, rel=1e-3) if isinstance(value, float) else value
                assert theirs[key] == expected, (key, ours)
        wrong = {row["set_name"]: row["value"] for row in served[-3:]}
        assert wrong["switched"] == wrong["long"] < 1.1 < 5 < wrong["short"]

        remote = EndpointTarget.connect(server.url, None, MODEL, False)
        assert (remote.sets, remote.opening) == (target.sets, target.opening)
        prompt, _ = make_prompt(target.model.tokenizer, 240, 5, chat=False)
        assert isinstance(prompt, str)
        for name in target.sets:
            served_replies, replies = (list(each.replies([prompt], name, REPLY_TOKENS)) for each in (remote, target))
            assert served_replies == replies
        chat = EndpointTarget.connect(server.url, None, None, True)
        local = LocalTarget(MODEL, target.model, target.ladder, chat=True)
        question, key = make_prompt(target.model.tokenizer, 230, 6)
        assert isinstance(question, list)
        text = question[0]["content"]
        assert chat.encode(text) == local.encode(text) and len(chat.encode(text)) == 230
        assert list(chat.replies([text], "switched", 44)) == list(local.replies([text], "switched", 44)) != [""]
        assert key in next(local.replies([text], "switched", 44))

        with pytest.raises(FactorError, match=r"answered 400: .*rope_factor_set.*middle"):
            list(remote.losses([Window([1, 5, 6], 1)], "middle"))
        # For perplexity the longest prompt is one token shorter than the server's limit, which the server itself refuses.
        longest = remote.longest("long")
        assert longest == 1023
        assert len(next(remote.losses([Window([1, *[5] * (longest - 1)], longest - 2)], "long"))) == 2
        with pytest.raises(FactorError, match="answered 400"):
            list(remote.losses([Window([1, *[5] * longest], longest)], "long"))
