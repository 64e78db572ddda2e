"""How the report looks: one style sheet, light and dark as the reader's system has it, and fit for paper."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #16191d; --soft: #5b6470; --rule: #dfe3e8; --grid: #eceff2;
  --c0: #2a6fdb; --c1: #0f9d76; --c2: #b7791f; --c3: #8250c8; --c4: #c2417c; --c5: #5b6470;
  --grow: #d4493e; --hold: #7a8594; --shrink: #2f86c9; --good: #0f7a52; --bad: #b3261e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #101317; --card: #181c22; --ink: #e8ebef; --soft: #9aa4b1; --rule: #2b323b; --grid: #232931;
    --c0: #6aa3f5; --c1: #3cc79b; --c2: #e0a94a; --c3: #b08df0; --c4: #ee7fb0; --c5: #9aa4b1;
    --grow: #f0776c; --hold: #8c97a6; --shrink: #63b3ed; --good: #4fd09d; --bad: #ff8a80;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 40px 24px 56px; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 16px; margin-bottom: 24px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0; letter-spacing: -0.02em; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0; }
.outcome { font-weight: 600; } .outcome.succeeded { color: var(--good); } .outcome.failed { color: var(--bad); }
.when, .note, footer { color: var(--soft); }
header .why { flex-basis: 100%; margin: 0; color: var(--bad); white-space: pre-wrap; overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 12px; margin: 0 0 12px; }
.figures div, figure, .decisions { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.figures div { padding: 14px 16px; }
.figures dt { color: var(--soft); font-size: 13px; }
.figures dt::first-letter, .legend span::first-letter { text-transform: uppercase; }
.figures dd { margin: 0; }
.figures dd.value { font-size: 26px; line-height: 1.25; font-weight: 600; letter-spacing: -0.01em; }
.figures dd.note { font-size: 12.5px; line-height: 1.4; }
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 12px; }
figure { margin: 0; padding: 16px 16px 10px; }
figure.wide { grid-column: 1 / -1; }
@media (max-width: 760px) { .charts { grid-template-columns: minmax(0, 1fr); } main { padding: 24px 12px; } }
figcaption .note { margin: 0 0 6px; font-size: 13px; line-height: 1.45; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 12.5px; color: var(--soft); }
.legend i { display: inline-block; width: 14px; height: 3px; border-radius: 2px; margin-right: 6px;
  vertical-align: middle; background: currentColor; }
.legend .quiet i { opacity: 0.45; }
svg { display: block; width: 100%; height: auto;
  font: 11.5px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; }
svg text { fill: var(--soft); font-variant-numeric: tabular-nums; }
.end { text-anchor: end; } .middle { text-anchor: middle; }
.grid { stroke: var(--grid); } .axis { stroke: var(--rule); }
.level { stroke: var(--soft); stroke-dasharray: 4 4; }
.band { opacity: 0.11; }
.band.grow { fill: var(--grow); } .band.hold { fill: var(--hold); } .band.shrink { fill: var(--shrink); }
svg .band-label.grow { fill: var(--grow); } svg .band-label.shrink { fill: var(--shrink); }
.mark line { stroke: var(--ink); stroke-width: 1.25; } svg .mark-label { fill: var(--ink); font-weight: 600; }
.mark.quiet line { stroke: var(--soft); stroke-dasharray: 2 4; } svg .mark.quiet .mark-label { fill: var(--soft); }
.series path { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.series.quiet path { stroke-width: 1.25; opacity: 0.55; }
.series rect { fill: currentColor; opacity: 0.85; }
.series circle { fill: transparent; }
.series.dots circle, .series.few circle { fill: currentColor; stroke: var(--card); stroke-width: 1.5; }
.series circle:hover { fill: currentColor; } .series rect:hover { opacity: 1; }
.color-0 { color: var(--c0); } .color-1 { color: var(--c1); } .color-2 { color: var(--c2); }
.color-3 { color: var(--c3); } .color-4 { color: var(--c4); } .color-5 { color: var(--c5); }
.decisions { margin-top: 12px; padding: 16px; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; margin-top: 8px; }
th { text-align: left; color: var(--soft); font-weight: 500; }
th, td { padding: 7px 14px 7px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
td.number { white-space: nowrap; font-variant-numeric: tabular-nums; }
footer { margin-top: 24px; font-size: 13px; }
@media print {
  body { background: none; } main { max-width: none; padding: 0; } figure, .decisions { break-inside: avoid; }
}
"""
