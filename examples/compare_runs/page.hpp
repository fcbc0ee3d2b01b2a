/// @file
/// The report's style sheet and script, which are the same in every report.
#pragma once

#include <string_view>

namespace compare_runs {

/// --s0 is the baseline's colour. Any two of the series' colours differ by at least 20 CIELAB units
/// in normal vision and under simulated protanopia, deuteranopia and tritanopia (Machado et al.
/// 2009), and each has a contrast of at least 3 with the page.
inline constexpr std::string_view style_sheet = R"css(
:root { color-scheme: light dark;
  --page: #ffffff; --ink: #1d2127; --muted: #5d6672; --line: #dfe3e8; --panel: #f6f7f9;
  --s0: #1d2127; --s1: #203992; --s2: #b9772c; --s3: #648f75; --s4: #804477; --s5: #595126;
  --s6: #3492eb; --s7: #7536eb; }
@media (prefers-color-scheme: dark) { :root {
  --page: #14171b; --ink: #e6e9ed; --muted: #9aa4b0; --line: #2c323a; --panel: #1c2026;
  --s0: #f2f4f6; --s1: #677dbe; --s2: #c15d4f; --s3: #5eeb9a; --s4: #b06682; --s5: #b49c28;
  --s6: #a4c2eb; --s7: #9d50eb; } }
.s0 { --c: var(--s0) } .s1 { --c: var(--s1) } .s2 { --c: var(--s2) } .s3 { --c: var(--s3) }
.s4 { --c: var(--s4) } .s5 { --c: var(--s5) } .s6 { --c: var(--s6) } .s7 { --c: var(--s7) }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 2.2rem 1.4rem 4rem; max-width: 1360px; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.01em }
h2 { font-size: 1.15rem; margin: 2.6rem 0 .6rem }
h3 { font-size: .95rem; margin: 1.4rem 0 .4rem }
p { margin: .4rem 0; max-width: 95ch }
.muted, figcaption, .notes { color: var(--muted); font-size: .88rem }
.notes { padding-left: 1.1rem; margin: .8rem 0; max-width: 95ch }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: .92rem;
  font-variant-numeric: tabular-nums }
th, td { padding: .42rem .7rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line) }
th { color: var(--muted); font-weight: 600; font-size: .82rem; white-space: normal;
  vertical-align: bottom }
th:first-child, td:first-child, td.text, th.text { text-align: left }
th:first-child, td:first-child { padding-left: 0 }
td:last-child, th:last-child { padding-right: 0 }
td:first-child:not(.name) { font-weight: 600 }
tr.heading td { padding-top: .8rem !important }
tr.stopped td:last-child { font-weight: 600 }
.results td:first-child { white-space: normal }
.ends td:last-child { white-space: normal; min-width: 11em; padding-left: 1.5rem }
.operands { font-size: .84rem }
.origin { font-size: .82rem }
.origin :is(th, td) { white-space: normal; padding: .3rem .4rem }
.origin td:nth-child(2) { overflow-wrap: anywhere; min-width: 9em }
.operands :is(th, td):not(:first-child) { padding: .3rem .4rem }
.operands td:nth-child(3) { white-space: normal; min-width: 10em }
td.name { font: .8rem/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, monospace }
tr.baseline td { background: var(--panel) }
.results tr.baseline td:first-child { box-shadow: -8px 0 0 var(--panel) }
.results tr.baseline td:last-child { box-shadow: 8px 0 0 var(--panel) }
.key { display: inline-block; min-width: 1.45em; padding: 0 .3em; margin-right: .5em;
  border-radius: .3em; background: var(--c); color: var(--page); font-size: .8em;
  font-weight: 700; line-height: 1.45; text-align: center }
.controls { position: sticky; top: 0; z-index: 1; margin-top: 1.2rem; display: flex; flex-wrap: wrap;
  gap: .2rem 1.1rem; padding: .55rem 0; background: var(--page);
  border-bottom: 1px solid var(--line); font-size: .88rem }
label { cursor: pointer; white-space: nowrap }
label input { margin: 0 .4em 0 0; accent-color: var(--c, var(--muted)); vertical-align: -.1em }
label .key { margin-right: .35em }
.panel { position: relative }
figure { margin: 1.6rem 0 0 }
figure h2 { margin: 0 }
svg.chart { display: block; width: 100%; height: auto; margin-top: .5rem; overflow: visible;
  touch-action: pan-y; font-size: 13px }
svg.narrow { display: none }
svg text { fill: var(--muted) }
.grid { stroke: var(--line) } .axis { stroke: var(--muted) }
.raw { fill: none; stroke: var(--c); opacity: .2; stroke-width: 1 }
.smooth { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round }
.s0 .smooth, .s0.smooth { stroke-width: 2.6 }
.d1 .smooth { stroke-dasharray: 10 5 } .d2 .smooth { stroke-dasharray: 3 4 }
.d3 .smooth { stroke-dasharray: 12 4 3 4 } .d4 .smooth { stroke-dasharray: 6 3 }
.dot { fill: var(--page); stroke: var(--c); stroke-width: 2 }
.line-marker { fill: var(--c); stroke: var(--c); stroke-width: 1.5 }
.swatch { width: 40px; height: 12px; margin-right: .4em; vertical-align: -.1em }
.off { margin: .1rem 0 0 }
.views { display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-size: .85rem; color: var(--muted) }
.mark { fill: none; stroke: var(--c); stroke-width: 1.8 }
.leader { fill: none; stroke: var(--c); opacity: .45 }
svg text.label { fill: var(--c); font-weight: 600; paint-order: stroke; stroke: var(--page);
  stroke-width: 3px; stroke-linejoin: round }
.cursor { stroke: var(--muted); stroke-dasharray: 3 3; visibility: hidden }
.tip { position: absolute; pointer-events: none; visibility: hidden; padding: .4rem .6rem;
  border: 1px solid var(--line); border-radius: .4rem; background: var(--panel);
  font-size: .8rem; line-height: 1.5; font-variant-numeric: tabular-nums; white-space: nowrap }
.tip span { display: flex; justify-content: space-between; gap: 1.2em }
.tip i { color: var(--c); font-style: normal; font-weight: 600 }
pre { margin: 0; padding: .8rem 1rem; background: var(--panel); border-left: 3px solid var(--c);
  border-radius: 0 .4rem .4rem 0; white-space: pre-wrap; overflow-wrap: anywhere;
  font: .85rem/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, monospace }
details { margin: .7rem 0 } summary { cursor: pointer; color: var(--muted); font-size: .9rem }
@media (max-width: 640px) {
  body { padding: 1.3rem 1rem 3rem }
  h1 { font-size: 1.4rem }
  .controls { position: static } .controls label { white-space: normal }
  svg.wide { display: none } svg.narrow { display: block }
  .cards thead { display: none }
  .cards tr { display: grid; grid-template-columns: 1fr 1fr; gap: 0 1.2rem; padding: .7rem 0;
    border-bottom: 1px solid var(--line) }
  .cards tr.baseline td { background: none; box-shadow: none !important }
  .cards :is(td, td:not(:first-child)) { display: flex; justify-content: space-between; gap: .5em;
    padding: .1rem 0; border: 0; min-width: 0 }
  .cards td:first-child { grid-column: 1 / -1; justify-content: flex-start; align-items: center;
    padding-bottom: .25rem; font-weight: 600; white-space: normal; overflow-wrap: anywhere }
  .cards td:not(:first-child)::before { content: attr(data-name); color: var(--muted);
    white-space: normal; text-align: left }
  .results td:last-child:nth-child(even), .ends td:last-child,
  .ends td:nth-last-child(2):nth-child(even), .origin td:nth-child(2) { grid-column: 1 / -1 }
  .origin td { overflow-wrap: anywhere }
  .operands td:nth-child(2) { order: 1 } .operands td:nth-child(4) { order: 2; white-space: normal }
  .operands td:nth-child(3) { order: 3; grid-column: 1 / -1 }
  .operands td:nth-child(n+5) { order: 4 }
  .operands tr { font-size: .8rem; gap: 0 .9rem }
}
@media print { .controls { position: static } }
)css";

/// Shows the values under the pointer. Everything else in the report works without it.
inline constexpr std::string_view script = R"js(
const data = JSON.parse(document.getElementById('data').textContent);
const shown = run => document.getElementById('show-' + run).checked;
const nearest = (points, step) => {
  let low = 0, high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < step) low = middle + 1; else high = middle;
  }
  return low > 0 && step - points[low - 1][0] < points[low][0] - step ? points[low - 1] : points[low];
};
for (const svg of document.querySelectorAll('svg.chart')) {
  const cursor = svg.querySelector('.cursor'), tip = svg.parentElement.querySelector('.tip');
  if (!cursor) continue;
  const {chart, left, right, first, last, scale: kind} = svg.dataset;
  const along = kind === 'logarithmic' ? Math.log : value => +value;
  const back = kind === 'logarithmic' ? Math.exp : value => value;
  const hide = () => { cursor.style.visibility = tip.style.visibility = 'hidden'; };
  const show = event => {
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    const share = ((event.clientX - box.left) * scale - left) / (right - left);
    if (share < -0.02 || share > 1.02) return hide();
    const wanted = back(along(first) + Math.min(Math.max(share, 0), 1) * (along(last) - along(first)));
    const rows = data.charts[chart].map((points, run) => [run, points])
        .filter(([run, points]) => points.length && shown(run))
        .map(([run, points]) => [run, ...nearest(points, wanted)]);
    if (!rows.length) return hide();
    const step = rows.reduce((a, b) => Math.abs(b[1] - wanted) < Math.abs(a[1] - wanted) ? b : a)[1];
    tip.replaceChildren('step ' + step, ...rows.filter(row => row[1] === step).map(row => {
      const line = document.createElement('span'), name = document.createElement('i');
      line.className = data.styles[row[0]];
      name.textContent = data.labels[row[0]];
      line.append(name, row[2] === null ? 'not finite' : row[2].toLocaleString('en', {maximumSignificantDigits: 5}));
      return line;
    }));
    const x = +left + (along(step) - along(first)) / (along(last) - along(first)) * (right - left);
    cursor.setAttribute('x1', x); cursor.setAttribute('x2', x);
    const figure = svg.parentElement.getBoundingClientRect(), at = box.left - figure.left + x / scale;
    const tipLeft = at + 14 + tip.offsetWidth > figure.width ? at - 14 - tip.offsetWidth : at + 14;
    tip.style.left = Math.max(0, tipLeft) + 'px';
    tip.style.top = box.top - figure.top + 12 + 'px';
    cursor.style.visibility = tip.style.visibility = 'visible';
  };
  svg.addEventListener('pointermove', show);
  svg.addEventListener('pointerdown', show);
  svg.addEventListener('pointerleave', hide);
}
)js";

}  // namespace compare_runs
