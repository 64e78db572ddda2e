// One chart: its lines on a canvas of uPlot, zones and decisions behind them, and beside its title what is under the pointer.

import { html, useEffect, useLayoutEffect, useRef, useState } from "/static/dom.js";
import { smoothed } from "/static/curves.js";
import { clock } from "/static/words.js";

const { uPlot } = globalThis;
const HEIGHT = 168;
const SMOOTH = 20;
const MOST_DOTS = 120;
const PLOTS = new Set();

/** Of all charts: a stretch that was drawn over with the pointer, until a double click. */
let zoom = null;

function zoomTo(range) {
  zoom = range;
  for (const plot of PLOTS) plot.setScale("x", range ?? whole(plot));
}

function whole(plot) {
  const xs = plot.data[0];
  return { min: xs.length ? xs[0] : 0, max: xs.length > 1 ? xs[xs.length - 1] : (xs[0] ?? 0) + 1 };
}

export function forgetZoom() {
  zoom = null;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function dataOf(chart, byTime, smooth) {
  const tables = chart.lines.map(({ series, points, until }) => {
    // What changes now and then is as it was until now.
    if (until) return lasting(byTime ? series.times : series.steps, series.values, byTime ? until.time : until.step);
    const values = smooth && !points && !chart.dots && !chart.stepped ? smoothed(series.values, SMOOTH) : series.values;
    return byTime ? inOrder(series.times, values) : [series.steps, values];
  });
  return uPlot.join(tables);
}

function lasting(xs, values, until) {
  return until > xs.at(-1) ? [[...xs, until], [...values, values.at(-1)]] : [xs, values];
}

/** Times of a version may be before those of the step that was told first. */
function inOrder(times, values) {
  let sorted = true;
  for (let place = 1; place < times.length && sorted; place += 1) sorted = times[place] >= times[place - 1];
  if (sorted) return [times, values];
  const order = times.map((_, place) => place).sort((a, b) => times[a] - times[b]);
  return [order.map((place) => times[place]), order.map((place) => values[place])];
}

function behind(plot, state) {
  const { chart, details, byTime } = state.current;
  const { ctx, bbox } = plot;
  const began = details[0]?.began;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  const ratio = devicePixelRatio;
  ctx.font = `${10.5 * ratio}px system-ui, sans-serif`;
  if (began && chart.bands) {
    for (const band of chart.bands(began)) {
      const [top, bottom] = [plot.valToPos(band.high, "y", true), plot.valToPos(band.low, "y", true)];
      ctx.globalAlpha = 0.08;
      ctx.fillStyle = colour(`--${band.tone}`);
      ctx.fillRect(bbox.left, top, bbox.width, bottom - top);
    }
    ctx.globalAlpha = 1;
  }
  const level = began && chart.level?.(began);
  if (level && details.length === 1) {
    const y = plot.valToPos(level.value, "y", true);
    ctx.strokeStyle = colour("--soft");
    ctx.globalAlpha = 0.7;
    ctx.setLineDash([4 * ratio, 4 * ratio]);
    line(ctx, bbox.left, y, bbox.left + bbox.width, y);
    ctx.setLineDash([]);
    ctx.globalAlpha = 1;
    ctx.fillStyle = colour("--soft");
    ctx.textAlign = "left";
    const under = y - bbox.top < 14 * ratio;
    ctx.fillText(level.label, bbox.left + 4 * ratio, under ? y + 12 * ratio : y - 4 * ratio);
  }
  if (chart.marks && details.length === 1) {
    for (const event of details[0].events) {
      if (event.what !== "rescaled" && event.what !== "died") continue;
      const x = plot.valToPos(byTime ? event.t : event.step, "x", true);
      const died = event.what === "died";
      ctx.strokeStyle = colour(died ? "--bad" : "--ink");
      ctx.globalAlpha = 0.45;
      ctx.setLineDash([2 * ratio, 3 * ratio]);
      line(ctx, x, bbox.top, x, bbox.top + bbox.height);
      ctx.setLineDash([]);
      if (chart.key !== "fleet" || died) continue;
      ctx.globalAlpha = 1;
      ctx.fillStyle = colour("--ink");
      ctx.textAlign = x > bbox.left + bbox.width * 0.85 ? "right" : "left";
      const gap = (ctx.textAlign === "left" ? 4 : -4) * ratio;
      ctx.fillText(`${event.before} → ${event.after}`, x + gap, bbox.top + bbox.height - 5 * ratio);
    }
  }
  ctx.restore();
}

function line(ctx, x0, y0, x1, y1) {
  ctx.lineWidth = devicePixelRatio;
  ctx.beginPath();
  ctx.moveTo(x0, y0);
  ctx.lineTo(x1, y1);
  ctx.stroke();
}

function optionsOf(state, width, point) {
  const { chart, byTime } = state.current;
  const soft = colour("--soft");
  const grid = { stroke: colour("--grid"), width: 1 };
  const font = "11px system-ui, sans-serif";
  const lines = chart.lines.map(({ series, colour: number, points, quiet, dash }) => {
    const stroke = colour(`--c${number}`);
    return {
      stroke: quiet ? `${stroke}73` : stroke,
      width: points ? 0 : quiet ? 1.25 : 1.75,
      dash: dash ?? undefined,
      spanGaps: true,
      paths: chart.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
      points: { show: points || (chart.dots && series.steps.length < MOST_DOTS ? true : undefined), size: 5, fill: stroke, stroke },
    };
  });
  return {
    width,
    height: HEIGHT,
    padding: [8, 14, 0, 0],
    legend: { show: false },
    cursor: {
      sync: { key: byTime ? "time" : "step", setSeries: false },
      drag: { x: true, y: false, setScale: false },
      points: { size: 6 },
      bind: { dblclick: () => () => zoomTo(null) },
    },
    scales: {
      x: { time: false },
      y: { range: (_, low, high) => rangeOf(state.current, low, high) },
    },
    axes: [
      { stroke: soft, grid, font, ticks: { show: false }, size: 26, gap: 4, values: (_, ticks) => ticks.map((tick) => (byTime ? clock(tick) : Number.isInteger(tick) ? tick : "")) },
      { stroke: soft, grid, font, ticks: { show: false }, size: 52, gap: 6, space: 34, values: (_, ticks) => ticks.map((tick) => short(chart.text(tick))) },
    ],
    series: [{}, ...lines],
    hooks: {
      drawClear: [(plot) => behind(plot, state)],
      setCursor: [(plot) => point(plot.cursor.idx == null ? null : plot.posToVal(plot.cursor.left, "x"))],
      setSelect: [
        (plot) => {
          if (plot.select.width < 6) return;
          const [min, max] = [plot.select.left, plot.select.left + plot.select.width].map((at) => plot.posToVal(at, "x"));
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          zoomTo({ min, max });
        },
      ],
    },
  };
}

/** Without zeros after the point that say nothing. */
function short(text) {
  return text.replace(/\.(\d*?)0+(?!\d)/, (_, digits) => (digits ? `.${digits}` : ""));
}

function rangeOf({ chart, details }, low, high) {
  if (low == null) return [chart.low ?? 0, chart.high ?? 1];
  const level = details.length === 1 && details[0].began ? chart.level?.(details[0].began) : null;
  let [bottom, top] = [Math.min(low, chart.low ?? low), Math.max(high, chart.high ?? high, level?.value ?? high)];
  if (bottom === top) top = bottom + (Math.abs(bottom) || 1);
  const room = (top - bottom) * 0.06;
  return [bottom === chart.low ? bottom : bottom - room, top === chart.high && !chart.exact ? top : top + room];
}

/** The value under the pointer: of what changes now and then the one that held, of others the nearest. */
function under(chart, xs, values, at) {
  let after = xs.findIndex((x) => x > at);
  if (after === -1) after = xs.length;
  if (chart.stepped) return values[after - 1];
  const gap = xs.length > 1 ? (xs.at(-1) - xs[0]) / (xs.length - 1) : 1;
  const nearest = after === 0 || (after < xs.length && xs[after] - at < at - xs[after - 1]) ? after : after - 1;
  return Math.abs(xs[nearest] - at) <= 2 * gap ? values[nearest] : null;
}

export function Chart({ chart, details, names, byTime, smooth, version, scheme }) {
  const place = useRef(null);
  const plot = useRef(null);
  const state = useRef(null);
  const [at, point] = useState(null);
  state.current = { chart, details, byTime };
  const shape = JSON.stringify([byTime, scheme, chart.lines.map((one) => [one.name, one.place, one.colour, one.quiet])]);

  useLayoutEffect(() => {
    const made = new uPlot(optionsOf(state, place.current.clientWidth, point), dataOf(chart, byTime, smooth), place.current);
    plot.current = made;
    PLOTS.add(made);
    if (zoom) made.setScale("x", zoom);
    const watch = new ResizeObserver(() => made.setSize({ width: place.current.clientWidth, height: HEIGHT }));
    watch.observe(place.current);
    return () => {
      watch.disconnect();
      PLOTS.delete(made);
      made.destroy();
      plot.current = null;
    };
  }, [shape]);

  useEffect(() => {
    const made = plot.current;
    if (!made) return;
    made.setData(dataOf(chart, byTime, smooth), false);
    made.setScale("x", zoom ?? whole(made));
  }, [shape, version, smooth]);

  const values = chart.lines.map(({ series }) => (at == null ? series.values.at(-1) : under(chart, byTime ? series.times : series.steps, series.values, at)));
  const where = at == null ? "" : byTime ? clock(at) : `step ${Math.round(at)}`;
  return html`<figure class="chart" data-chart=${chart.key}>
    <figcaption>
      <h2 title=${chart.note}>${chart.title}</h2>
      <span class="where">${where}</span>
      <ul class="legend">
        ${chart.lines.map(
          (one, number) => html`<li class=${`c${one.colour}${one.quiet ? " quiet" : ""}`}>
            ${(chart.lines.length > 1 || details.length > 1) && html`<i></i><span class="name">${labelOf(one, details, names)}</span>`}
            <span class="value">${chart.text(values[number])}</span>
          </li>`,
        )}
      </ul>
    </figcaption>
    <div class="plot" ref=${place}></div>
  </figure>`;
}

function labelOf(one, details, names) {
  if (details.length === 1) return one.label;
  return one.label && !one.single ? `${one.label} · ${names[one.place]}` : names[one.place];
}
