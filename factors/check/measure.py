"""Measures D and D_logit on a model's weights and adds them to a report."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from tqdm import tqdm

from ropeswitch.factors.check.report import Report
from ropeswitch.factors.check.shift import ARITHMETIC, Shift, shift_difference
from ropeswitch.factors.factor_set import FactorError, FactorSet
from ropeswitch.factors.local_model import LocalModel
from ropeswitch.factors.strict_json import read_text


def with_shifts(
    report: Report, sets: Sequence[FactorSet], model: str, lengths: Sequence[int], sequences: int, text: str | None
) -> Report:
    """Return the report with D and D_logit of every set, in every arithmetic.

    Args:
        report: Report on the same sets.
        sets: Sets to rotate with.
        model: Folder of the model.
        lengths: Sequence lengths in tokens.
        sequences: Number of sequences to average over.
        text: File to take consecutive sequences from; None for random tokens with a fixed seed.

    Raises:
        FactorError: when the model cannot be opened, or the text is too short.
    """
    shifts: dict[str, list[Shift]] = {each.name: [] for each in sets}
    with tqdm(total=len(ARITHMETIC) * len(sets) * len(lengths), desc="shift", delay=2, leave=False) as bar:
        for dtype in dict.fromkeys(each.dtype for each in ARITHMETIC):
            local = LocalModel.load(model, str(dtype).removeprefix("torch."), "cpu")
            for arithmetic in (each for each in ARITHMETIC if each.dtype == dtype):
                for factor_set in sets:
                    for length in lengths:
                        ids = _ids(local, sequences, length, text)
                        shifts[factor_set.name].append(shift_difference(local, factor_set, ids, arithmetic))
                        bar.update()
    return replace(report, sets=tuple(replace(each, shifts=tuple(shifts[each.name])) for each in report.sets))


def _ids(local: LocalModel, sequences: int, length: int, text: str | None) -> torch.Tensor:
    """Return token ids, int64 ``[sequences, length]``."""
    if text is None:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(local.model.config.vocab_size, (sequences, length), generator=generator)
    try:
        ids = local.tokenizer(read_text(text), return_tensors="pt", add_special_tokens=False)["input_ids"][0]
    except FactorError as error:
        raise FactorError(f"{text!r}: {error}") from error
    if len(ids) < sequences * length:
        raise FactorError(f"{text!r}: {len(ids)} tokens; {sequences} sequences of {length} need {sequences * length}")
    return ids[: sequences * length].reshape(sequences, length)
