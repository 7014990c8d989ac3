"""The style of the report's page."""

from typing import Final

STYLE: Final = """
:root {
  color-scheme: light dark;
  --font: system-ui, "Segoe UI", "DejaVu Sans";
  --back: #ffffff; --text: #1b1f24; --faint: #57606a; --line: #d0d7de; --shade: #f6f8fa;
  --target: #1f6fd6; --baseline: #d9730d; --mark: #c2185b;
  --good: #1a7f37; --warn: #9a6700; --bad: #c62828;
}
@media (prefers-color-scheme: dark) {
  :root {
    --back: #0f1318; --text: #e6eaef; --faint: #9ba6b2; --line: #30363d; --shade: #171d24;
    --target: #5aa2f7; --baseline: #f0964a; --mark: #f06aa0;
    --good: #4ac26b; --warn: #d4a72c; --bad: #ff8078;
  }
}
* { box-sizing: border-box; }
body {
  max-width: 76rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem;
  background: var(--back); color: var(--text); font: 100%/1.5 var(--font), sans-serif;
}
h1 { margin: 0; font-size: 1.6rem; line-height: 1.25; overflow-wrap: anywhere; }
h2 { margin: 2.5rem 0 0.5rem; font-size: 1.25rem; }
h3 { margin: 2rem 0 0.25rem; font-size: 1.05rem; }
p, dl { margin: 0.25rem 0 0.75rem; }
.faint, figcaption, footer, dt { color: var(--faint); }
.about { max-width: 56rem; }
.run { display: flex; flex-wrap: wrap; gap: 0.4rem 2.5rem; margin: 1rem 0; }
.run dt { font-size: 0.85rem; }
.run dd { margin: 0; overflow-wrap: anywhere; }
.dot::before {
  content: ""; display: inline-block; width: 0.7em; height: 0.7em; margin-right: 0.45em; border-radius: 50%;
  background: var(--faint);
}
.dot.target::before { background: var(--target); }
.dot.baseline::before { background: var(--baseline); }
.verdict {
  margin: 1.25rem 0; padding: 0.9rem 1.2rem; border: 1px solid var(--line); border-left: 0.4rem solid var(--tone);
  border-radius: 0.5rem; background: var(--shade);
}
.verdict.good { --tone: var(--good); } .verdict.warn { --tone: var(--warn); } .verdict.bad { --tone: var(--bad); }
.verdict strong { display: block; font-size: 1.15rem; color: var(--tone); overflow-wrap: anywhere; }
.verdict ul { margin: 0.25rem 0 0; padding: 0; list-style: none; }
.table { overflow-x: auto; margin: 0.5rem 0 1rem; border: 1px solid var(--line); border-radius: 0.5rem; }
table { width: 100%; border-collapse: collapse; font-size: 0.9rem; }
th, td { padding: 0.3rem 0.65rem; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
thead th { background: var(--shade); font-weight: 600; vertical-align: bottom; }
thead tr:only-child th { white-space: normal; }
thead tr + tr th { font-weight: 400; color: var(--faint); padding-top: 0; }
th[colspan] { text-align: center; }
.text, th.text, tbody th { text-align: left; }
tbody th { font-weight: 400; }
tbody th[rowspan] { font-weight: 600; vertical-align: top; }
.wide { white-space: normal; overflow-wrap: anywhere; min-width: 16rem; }
tbody tr.first { border-top: 1px solid var(--line); }
.ratio td, .ratio th { color: var(--faint); }
td.better { color: var(--good); } td.worse { color: var(--bad); }
.ok { color: var(--good); } .broken { color: var(--bad); font-weight: 600; }
figure { margin: 1.25rem 0 0; overflow-x: auto; }
figure svg { display: block; width: 100%; min-width: 46rem; height: auto; }
figcaption { max-width: 60rem; font-size: 0.9rem; }
:focus-visible { outline: 3px solid var(--target); outline-offset: 2px; }
footer { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); font-size: 0.9rem; }
pre { overflow-x: auto; font-size: 0.85rem; }
.folded { margin-top: 1.5rem; border-top: 1px solid var(--line); }
.folded > summary { padding: 0.75rem 0; cursor: pointer; }
.folded > summary h2 { display: inline; margin: 0; }
"""
