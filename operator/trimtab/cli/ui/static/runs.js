// The list of runs: which is shown, and which lie over it.

import { html } from "/static/dom.js";
import { DASH, ago, score } from "/static/words.js";

const WIDTH = 64;
const HEIGHT = 20;

function Spark({ curve }) {
  if (!curve?.length) return html`<svg class="spark" viewBox="0 0 ${WIDTH} ${HEIGHT}"></svg>`;
  const [low, high] = [Math.min(...curve), Math.max(...curve)];
  const span = high - low || 1;
  const x = (place) => (curve.length === 1 ? WIDTH : (place / (curve.length - 1)) * WIDTH);
  const points = curve.map((value, place) => `${x(place).toFixed(1)},${(HEIGHT - 2 - ((value - low) / span) * (HEIGHT - 4)).toFixed(1)}`);
  return html`<svg class="spark" viewBox="0 0 ${WIDTH} ${HEIGHT}" aria-hidden="true"><polyline points=${points.join(" ")} /></svg>`;
}

/** What was clicked needs no frame when keys are used after it. */
function opened(event, id, onOpen) {
  if (event.detail > 0) event.currentTarget.blur();
  onOpen(id);
}

export function Runs({ runs, shown, over, colours, filter, onFilter, onOpen, onOver, now, loaded, trouble }) {
  return html`<nav class="runs" aria-label="Runs">
    <header>
      <svg viewBox="0 0 32 32" class="mark" aria-hidden="true"><path d="M4 23 C10 23 11 10 17 10 S23 15 28 8" /></svg>
      <strong>Trimtab</strong>
      <input id="filter" type="search" placeholder="Filter" aria-label="Filter runs" value=${filter} onInput=${(event) => onFilter(event.target.value)} />
    </header>
    ${trouble && html`<p class="trouble">${trouble}</p>`}
    <ul>
      ${runs.map((run) => {
        const open = run.id === shown;
        const laid = over.includes(run.id);
        return html`<li key=${run.id} class=${open ? "open" : ""} data-run=${run.id}>
          <button class="run" aria-current=${open ? "true" : undefined} onClick=${(event) => opened(event, run.id, onOpen)} title=${run.where}>
            <span class="name">${run.job}</span>
            <${Spark} curve=${run.curve} />
            <span class="state ${run.state}">${run.state === "running" ? `step ${run.step ?? 0}` : run.state}</span>
            <span class="figure">${run.reward == null ? DASH : score(run.reward)}</span>
            <span class="where">${run.where}</span>
            <span class="when">${run.state === "running" ? "" : run.changed_at ? ago(run.changed_at, now) : ""}</span>
          </button>
          <button
            class=${`over ${open || laid ? `c${colours[run.id] ?? 0}` : ""}`}
            disabled=${open} aria-pressed=${laid} aria-label=${`Lay ${run.job} over the one that is shown`}
            title=${open ? "" : laid ? "Take away" : "Lay over the one that is shown"} onClick=${() => onOver(run.id)}
          ><i></i></button>
        </li>`;
      })}
    </ul>
    ${loaded && !runs.length && html`<p class="none">${filter ? "No run has this in its name." : "No runs here yet. Start one with trimtab run job.yaml, and it appears."}</p>`}
  </nav>`;
}
