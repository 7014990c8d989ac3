"""Write the golden files anew: `make chart-golden`, then read what git says has changed."""

from tests.deploy.chart.helm import CASES, HERE, case, files


def golden(name: str) -> str:
    """What a values file renders to, of the chart's templates but dashboards and alerts, which have tests of their own."""
    left_out = ("templates/dashboards.yaml", "templates/prometheusrule.yaml")
    return "".join(
        f"# {path}\n{text.strip()}\n" for path, text in sorted(files(case(name)).items()) if path not in left_out
    )


if __name__ == "__main__":
    for name in CASES:
        (HERE / "golden" / f"{name}.yaml").write_text(golden(name), encoding="utf-8")
