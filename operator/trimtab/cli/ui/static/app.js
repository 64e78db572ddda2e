// The page: which run is shown, what of it, and the keys.

import { Chart, forgetZoom } from "/static/chart.js";
import { charts } from "/static/curves.js";
import { Decisions } from "/static/decisions.js";
import { html, render, useEffect, useMemo, useRef, useState } from "/static/dom.js";
import { Feed } from "/static/feed.js";
import { Fleet } from "/static/fleet.js";
import { Runs } from "/static/runs.js";
import { Samples } from "/static/samples.js";
import { Tasks } from "/static/tasks.js";
import { clock, moment, score } from "/static/words.js";

const TABS = { curves: "Curves", fleet: "Fleet", decisions: "Decisions", samples: "Samples", tasks: "Given up" };
const MOST = 16;
const KEYS = [
  ["j  k", "next and previous run, or sample"], ["1 … 5", "curves, fleet, decisions, samples, tasks given up"], ["o", "lay the next run over this one"],
  ["c", "take away what lies over it"], ["t", "by step or by time"], ["s", "smooth curves"], ["/", "filter runs"], ["?", "these keys"],
];

function read() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const tab = asked.get("tab");
  return { run: asked.get("run"), over: asked.getAll("over").slice(0, MOST - 1), tab: tab in TABS ? tab : "curves", sample: asked.get("sample") };
}

function write({ run, over, tab, sample }) {
  const asked = new URLSearchParams();
  if (run) asked.set("run", run);
  for (const one of over) asked.append("over", one);
  if (tab !== "curves") asked.set("tab", tab);
  if (sample && tab === "samples") asked.set("sample", sample);
  history.replaceState(null, "", `${location.pathname}#${asked}`);
}

function useScheme() {
  const [scheme, set] = useState(0);
  useEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const change = () => set((before) => before + 1);
    dark.addEventListener("change", change);
    return () => dark.removeEventListener("change", change);
  }, []);
  return scheme;
}

function useFeed() {
  const [version, changed] = useState(0);
  const feed = useMemo(() => {
    let due = false;
    return new Feed(() => {
      if (due) return;
      due = true;
      // Also in a window that nobody sees, where there are no frames.
      setTimeout(() => {
        due = false;
        changed((before) => before + 1);
      }, 50);
    });
  }, []);
  return [feed, version];
}

function Page() {
  const [feed, version] = useFeed();
  const [shown, show] = useState(read);
  const [filter, setFilter] = useState("");
  const [byTime, setByTime] = useState(false);
  const [smooth, setSmooth] = useState(false);
  const [help, setHelp] = useState(false);
  const scheme = useScheme();
  const now = Date.now() / 1000;

  const words = filter.toLowerCase();
  const runs = [...feed.runs]
    .sort((a, b) => (b.state === "running") - (a.state === "running") || (b.began_at ?? 0) - (a.began_at ?? 0) || (a.id < b.id ? -1 : 1))
    .filter((run) => `${run.job} ${run.where}`.toLowerCase().includes(words));
  const open = feed.runs.find((run) => run.id === shown.run) ?? runs[0];
  const over = shown.over.filter((id) => id !== open?.id && feed.runs.some((run) => run.id === id));
  const ids = open ? [open.id, ...over] : [];
  // A run keeps its colour while others come and go.
  const colours = useRef({});
  const kept = Object.fromEntries(Object.entries(colours.current).filter(([id]) => ids.includes(id)));
  for (const id of ids) {
    if (id in kept) continue;
    const taken = Object.values(kept);
    kept[id] = [0, 1, 2, 3, 4, 5].find((number) => !taken.includes(number)) ?? ids.indexOf(id) % 6;
  }
  colours.current = kept;

  // Of what was chosen before, not of what was drawn: keys may be faster than the page.
  const choose = (change) =>
    show((before) => {
      const next = { ...before, run: before.run ?? open?.id, ...(typeof change === "function" ? change(before) : change) };
      write(next);
      return next;
    });
  const openRun = (id) => {
    forgetZoom();
    choose((before) => ({ run: id, over: before.over.filter((one) => one !== id), sample: null }));
  };
  const layOver = (id) =>
    choose((before) => ({ over: before.over.includes(id) ? before.over.filter((one) => one !== id) : [...before.over, id].slice(0, MOST - 1) }));

  // One that starts meanwhile comes first in the list, and takes nobody away from what they look at.
  useEffect(() => {
    if (open) show((before) => (before.run ? before : { ...before, run: open.id }));
  }, [open?.id]);
  // Before they are drawn, so that a run that was just opened has its head at once.
  useMemo(() => feed.watch(ids), [ids.join(" ")]);
  useEffect(() => {
    document.title = open ? `${open.reward == null ? "" : `${score(open.reward)} · `}${open.job} · Trimtab` : "Trimtab";
  });
  useEffect(() => {
    const follow = () => show(read());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  useEffect(() => {
    const press = (event) => {
      if (event.metaKey || event.ctrlKey || event.altKey) return;
      if (event.target.matches("input, select")) {
        if (event.key === "Escape") event.target.blur();
        return;
      }
      const place = runs.findIndex((run) => run.id === open?.id);
      const step = { j: 1, k: -1 }[event.key];
      if (step && shown.tab !== "samples") {
        if (runs[place + step]) openRun(runs[place + step].id);
      } else if (/^[1-5]$/.test(event.key)) choose({ tab: Object.keys(TABS)[event.key - 1] });
      else if (event.key === "o") {
        const next = runs.find((run) => run.id !== open?.id && !over.includes(run.id));
        if (next) layOver(next.id);
      } else if (event.key === "c") choose({ over: [] });
      else if (event.key === "t") switchTime(!byTime);
      else if (event.key === "s") setSmooth(!smooth);
      else if (event.key === "?") setHelp(!help);
      else if (event.key === "Escape") setHelp(false);
      else if (event.key === "/") document.getElementById("filter").focus();
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });
  const switchTime = (to) => {
    forgetZoom();
    setByTime(to);
  };

  const details = ids.map((id) => feed.details.get(id)).filter(Boolean);
  const names = details.map((detail) => feed.runs.find((run) => run.id === detail.id)?.job ?? detail.id);
  const detail = details[0];
  return html`
    <${Runs} runs=${runs} shown=${open?.id} over=${over} colours=${kept} filter=${filter} onFilter=${setFilter} onOpen=${openRun} onOver=${layOver} now=${now} loaded=${feed.loaded} trouble=${feed.trouble} />
    <main>
      ${!feed.connected && feed.loaded && html`<p class="away" role="status">${feed.refused || "The server does not answer. This page goes on when it does."}</p>`}
      ${!feed.loaded && feed.refused && html`<p class="away" role="status">${feed.refused}</p>`}
      ${open && detail && html`
        <${Head} run=${open} detail=${detail} />
        <div class="bar">
          <div class="tabs" role="tablist">
            ${Object.entries(TABS).map(([tab, name]) => html`<button role="tab" id=${`tab-${tab}`} aria-selected=${shown.tab === tab} onClick=${() => choose({ tab })}>${name}<${Count} tab=${tab} detail=${detail} /></button>`)}
          </div>
          ${shown.tab === "curves" && html`<div class="tools">
            <div class="segments" role="group" aria-label="Horizontal axis">
              <button aria-pressed=${!byTime} onClick=${() => switchTime(false)}>step</button><button aria-pressed=${byTime} onClick=${() => switchTime(true)}>time</button>
            </div>
            <div class="segments"><button aria-pressed=${smooth} onClick=${() => setSmooth(!smooth)}>smooth</button></div>
          </div>`}
        </div>
        ${shown.tab === "curves" && html`<${Curves} details=${details} names=${names} colours=${kept} byTime=${byTime} smooth=${smooth} version=${version} scheme=${scheme} />`}
        ${shown.tab === "fleet" && html`<${Fleet} detail=${detail} now=${now} />`}
        ${shown.tab === "decisions" && html`<${Decisions} detail=${detail} />`}
        ${shown.tab === "samples" && html`<${Samples} key=${detail.id} feed=${feed} detail=${detail} policies=${open.policies ?? []} chosen=${shown.sample} onChoose=${(sample) => choose({ sample })} />`}
        ${shown.tab === "tasks" && html`<${Tasks} feed=${feed} detail=${detail} />`}
      `}
      ${help && html`<div class="help" role="dialog" aria-label="Keys"><table>${KEYS.map(([key, what]) => html`<tr><td><kbd>${key}</kbd></td><td>${what}</td></tr>`)}</table></div>`}
    </main>`;
}

function Head({ run, detail }) {
  const facts = [];
  if (run.began_at) facts.push(moment(run.began_at));
  facts.push(`ran for ${clock(run.seconds)}`);
  if (run.step) facts.push(run.max_steps ? `step ${run.step} of ${run.max_steps}` : `step ${run.step}`);
  const ended = detail.events.at(-1)?.what === "ended" ? detail.events.at(-1) : null;
  return html`<header class="head">
    <h1>${run.job}</h1><span class="state ${run.state}">${run.state}</span><span class="facts">${facts.join(" · ")}</span>
    ${ended?.why && html`<p class="trouble">${ended.why}</p>`}
    ${run.trouble && html`<p class="trouble">${run.trouble}</p>`}
    ${detail.now.trouble && html`<p class="trouble">${detail.now.trouble}</p>`}
  </header>`;
}

function Count({ tab, detail }) {
  const numbers = { fleet: detail.now.pods?.length, decisions: detail.decisions.length, tasks: detail.now.given_up?.length };
  return numbers[tab] ? html`<span class="count">${numbers[tab]}</span>` : "";
}

function Curves({ details, names, colours, byTime, smooth, version, scheme }) {
  const shown = charts(details, colours);
  if (!details[0].count) return "";
  if (!shown.length) return html`<p class="none wide">Nothing has been trained yet. The first curve comes with the first step.</p>`;
  return html`
    ${details.length === 1 && html`<dl class="figures">${details[0].figures.map((one) => html`<div key=${one.name} title=${one.note}><dt>${one.name}</dt><dd>${one.value}</dd></div>`)}</dl>`}
    <div class="charts">${shown.map((chart) => html`<${Chart} key=${chart.key} chart=${chart} details=${details} names=${names} byTime=${byTime} smooth=${smooth} version=${version} scheme=${scheme} />`)}</div>`;
}

if (location.search) history.replaceState(null, "", location.pathname + location.hash);
render(html`<${Page} />`, document.body);
