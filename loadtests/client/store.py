"""The results folder of a load test, written while it runs and read when it resumes."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.files import save_text
from ropeswitch.loadtests.client.records import Exchange, Run, Sample, exchange_line, exchange_of

SETTINGS = "settings.json"
RUNS = "runs"


class Store:
    """A results folder.

    ``settings.json`` has the test's settings. ``runs/NAME/`` has a run's ``requests.jsonl`` (a line as each request ends),
    ``metrics.jsonl`` and ``run.json`` (written last).
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        """Open or create a folder.

        Raises:
            UsageError: if it has runs with other settings, or is neither empty nor a load test's.
        """
        self.folder = folder
        path = folder / SETTINGS
        # Until its first run, a folder has no results that another test's could be combined with.
        if path.exists() and (folder / RUNS).exists():
            found = _read(path)
            changed = sorted(key for key in found.keys() | settings.keys() if found.get(key) != settings.get(key))
            if changed:
                raise UsageError(
                    f"--out {folder} has a load test with other settings ({', '.join(changed)}): use another folder, or "
                    "the same settings to resume it"
                )
        elif not path.exists() and folder.exists() and any(folder.iterdir()):
            raise UsageError(f"--out {folder} is not empty and has no load test: use another folder")
        else:
            folder.mkdir(parents=True, exist_ok=True)
            self.write(SETTINGS, json.dumps(settings, indent=1) + "\n")

    def run(self, name: str) -> Run | None:
        """Return a stored run; None if its ``run.json`` was not written."""
        folder = self.folder / RUNS / name
        if not (folder / "run.json").exists():
            return None
        head = _read(folder / "run.json")
        return Run(
            **head,
            exchanges=tuple(exchange_of(line) for line in _lines(folder / "requests.jsonl")),
            samples=tuple(Sample(**line) for line in _lines(folder / "metrics.jsonl")),
        )

    def is_complete(self, name: str) -> bool:
        """Whether a run is stored and was not cut short."""
        path = self.folder / RUNS / name / "run.json"
        return path.exists() and bool(_read(path)["complete"])

    def begin(self, name: str) -> IO[str]:
        """Open a run's ``requests.jsonl`` for writing line by line, emptied; remove its ``run.json``."""
        folder = self.folder / RUNS / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").unlink(missing_ok=True)
        return (folder / "requests.jsonl").open("w", encoding="utf-8", buffering=1)

    def end(self, run: Run) -> None:
        """Write the ``metrics.jsonl`` and ``run.json`` of a run that has ended."""
        folder = f"{RUNS}/{run.name}"
        self.write(f"{folder}/metrics.jsonl", "".join(json.dumps(asdict(sample)) + "\n" for sample in run.samples))
        self.write(f"{folder}/run.json", json.dumps(run.head(), indent=1) + "\n")

    def write(self, name: str, text: str) -> Path:
        """Write a file in the folder atomically and return its path."""
        path = self.folder / name
        save_text(path, text, overwrite=True)
        return path

    def write_requests(self, runs: Sequence[Run]) -> Path:
        """Write the requests of all runs to ``requests.jsonl``, each line with its run's name."""
        lines = (json.dumps({"run": run.name} | exchange_line(each)) for run in runs for each in run.exchanges)
        return self.write("requests.jsonl", "".join(line + "\n" for line in lines))


def keep(file: IO[str], exchange: Exchange) -> None:
    """Append an exchange's line to a file."""
    try:
        file.write(json.dumps(exchange_line(exchange)) + "\n")
    except OSError as error:
        raise UsageError(f"{file.name}: {error.strerror}; earlier requests are kept") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise UsageError(f"{path} is not valid JSON: {error}") from error
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
