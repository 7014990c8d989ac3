"""The result of a verification, as a table and as JSON."""

import json
from collections.abc import Mapping, Sequence

from ropeswitch.factors.text_table import table
from ropeswitch.loadtests.verify.plan import ALONE, SHORTEST
from ropeswitch.loadtests.verify.run import Verification

Verdicts = Mapping[tuple[int, str, str], str]
HEADS = ("limit", "mode", "prompt", "requests", "error (mean)", "tolerance", "sets apart", "")


def lines(run: Verification, verdicts: Verdicts, left_out: Sequence[int]) -> list[str]:
    """Return the table, then what is wrong or unknown, and the limits that were left out, in tokens."""
    cells = [HEADS]
    for key, row in run.rows.items():
        apart = "" if row.how == ALONE or row.limit not in run.apart_at else str(run.apart_at[row.limit])
        figures = (str(row.worst), str(run.allowed(row)), apart)
        cells.append((f"{row.limit:,}", row.how, row.where, str(len(row.errors)), *figures, verdicts[key]))
    return [table(cells), *_reasons(run, left_out)]


def to_json(run: Verification, verdicts: Verdicts, left_out: Sequence[int]) -> str:
    """Return the content of the results file."""
    rows = [vars(row) | {"tolerance": run.allowed(row), "verdict": verdicts[key]} for key, row in run.rows.items()]
    endpoint = run.client.posts.endpoint
    found = {
        "url": endpoint.url,
        "model": endpoint.model,
        "ladder": vars(run.ladder),
        "apart": run.apart_at,
        "rows": rows,
    }
    return json.dumps(found | {"reasons": _reasons(run, left_out)}, indent=1) + "\n"


def _reasons(run: Verification, left_out: Sequence[int]) -> list[str]:
    found = [
        f"{row.limit:,} tokens, {row.how}, {row.where}: {reason}"
        for row in run.rows.values()
        for reason in dict.fromkeys(row.faults + row.unknown)
    ]
    found += [
        f"cannot tell around {end:,} tokens: the sets on both sides score the same tokens alike ({apart})"
        for end, apart in run.apart_at.items()
        if run.is_blind(end)
    ]
    if left_out:
        where = ", ".join(f"{end:,}" for end in left_out)
        found.append(f"not tried: limits at {where} tokens, below {SHORTEST} or beyond --longest {run.ladder.most:,}")
    return found
