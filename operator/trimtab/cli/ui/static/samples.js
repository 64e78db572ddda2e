// What the model said: rows to choose from, and one in full with its words coloured by how likely it found them.

import { html, useEffect, useRef, useState } from "/static/dom.js";
import { DASH, count, score } from "/static/words.js";

const WRITERS = { prompt: "Prompt", model: "Model", environment: "Environment", echo: "Echo" };
const LEVELS = [0.9, 0.5, 0.1, 0];
const CALM = { policy: "", step: "", benchmark: "", order: "newest" };

export function Samples({ feed, detail, policies, chosen, onChoose }) {
  const [wanted, want] = useState(CALM);
  const [found, find] = useState({ reading: true, samples: [], of: 0, error: "" });
  const [asked, again] = useState(0);
  const benchmarks = [...new Set([...detail.series.keys()].map((name) => /^[^/]+\/evaluation\/(.+)\/score$/.exec(name)?.[1]).filter(Boolean))];

  useEffect(() => {
    let gone = false;
    find((before) => ({ ...before, reading: true }));
    const query = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value));
    feed.ask(`/api/runs/${detail.id}/samples?${query}`).then(
      (answer) => gone || find({ reading: false, error: "", ...answer }),
      (error) => gone || find({ reading: false, samples: [], of: 0, error: error.message }),
    );
    return () => {
      gone = true;
    };
  }, [detail.id, detail.generation, asked, ...Object.values(wanted)]);

  const place = found.samples.findIndex((sample) => sample.id === chosen);
  const open = found.samples[Math.max(0, place)];
  const list = useRef(null);
  useEffect(() => {
    const move = (event) => {
      const by = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!by || event.target.matches("input, select") || event.metaKey || event.ctrlKey || event.altKey) return;
      const next = found.samples[Math.max(0, place) + by];
      if (!next) return;
      event.preventDefault();
      event.stopPropagation();
      onChoose(next.id);
    };
    addEventListener("keydown", move, true);
    return () => removeEventListener("keydown", move, true);
  }, [found, place]);
  useEffect(() => {
    list.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }, [open?.id]);

  const set = (name) => (event) => want({ ...wanted, [name]: event.target.value });
  return html`<div class="samples">
    <div class="chooser">
      <form onSubmit=${(event) => event.preventDefault()}>
        <div class="segments" role="group" aria-label="Order">
          ${["newest", "best", "worst"].map((order) => html`<button type="button" aria-pressed=${wanted.order === order} onClick=${() => want({ ...wanted, order })}>${order}</button>`)}
        </div>
        <input type="number" min="1" placeholder="step" aria-label="Step" value=${wanted.step} onInput=${set("step")} />
        ${policies.length > 1 && html`<select aria-label="Policy" value=${wanted.policy} onChange=${set("policy")}>
          <option value="">every policy</option>${policies.map((policy) => html`<option value=${policy}>${policy}</option>`)}
        </select>`}
        ${benchmarks.length > 0 && html`<select aria-label="Training or evaluation" value=${wanted.benchmark} onChange=${set("benchmark")}>
          <option value="">training</option>${benchmarks.map((name) => html`<option value=${name}>${name}</option>`)}
        </select>`}
        <button type="button" class="quiet" onClick=${() => again(asked + 1)} title="Read anew">${found.reading ? "reading…" : "read anew"}</button>
      </form>
      ${found.error && html`<p class="none">${found.error}</p>`}
      <ol ref=${list} id="samples">
        ${found.samples.map((sample) => html`<li key=${sample.id}>
          <button aria-current=${sample === open ? "true" : undefined} onClick=${() => onChoose(sample.id)}>
            <span class="reward ${tone(sample.reward)}">${sample.error ? "failed" : score(sample.reward)}</span>
            <span class="prompt">${sample.prompt}</span>
            <span class="facts">${facts(sample)}</span>
          </button>
        </li>`)}
      </ol>
      ${found.of > found.samples.length && html`<p class="none">The first ${found.samples.length} of ${found.of}.</p>`}
    </div>
    ${open ? html`<${Spoken} key=${open.id} feed=${feed} run=${detail.id} sample=${open} />` : html`<div class="spoken"></div>`}
  </div>`;
}

function facts(sample) {
  const words = [sample.step == null ? "not trained yet" : `step ${sample.step}`];
  if (sample.benchmark) words[0] = sample.benchmark;
  if (sample.newest_version != null) words.push(versions(sample));
  words.push(sample.response_tokens === 1 ? "1 token" : `${count(sample.response_tokens ?? 0)} tokens`);
  if (sample.group_size > 1) words.push(`${sample.group_index + 1} of ${sample.group_size}`);
  return words.join(" · ");
}

function versions({ oldest_version: oldest, newest_version: newest }) {
  return oldest === newest ? `version ${newest}` : `versions ${oldest} to ${newest}`;
}

function tone(reward) {
  if (reward == null) return "";
  return reward > 0.5 ? "high" : reward > 0 ? "middle" : "low";
}

function Spoken({ feed, run, sample }) {
  const [said, say] = useState({ texts: null, error: "" });
  useEffect(() => {
    let gone = false;
    feed.ask(`/api/runs/${run}/samples/${sample.sequence}`).then(
      (answer) => gone || say({ error: "", ...answer }),
      (error) => gone || say({ texts: null, error: error.message }),
    );
    return () => {
      gone = true;
    };
  }, [run, sample.id]);
  const parts = Object.entries(sample.reward_parts ?? {});
  return html`<article class="spoken" id="spoken">
    <header>
      <h2>${sample.prompt}</h2>
      <dl>
        <${Fact} name="reward" value=${score(sample.reward)} />
        ${parts.map(([name, value]) => html`<${Fact} name=${name} value=${score(value)} />`)}
        <${Fact} name="policy" value=${sample.role === sample.policy ? sample.policy : `${sample.policy} as ${sample.role}`} />
        <${Fact} name="step" value=${sample.step ?? DASH} />
        <${Fact} name="version" value=${sample.newest_version == null ? DASH : sample.oldest_version === sample.newest_version ? sample.newest_version : `${sample.oldest_version}–${sample.newest_version}`} />
        <${Fact} name="tokens" value=${`${sample.prompt_tokens ?? 0} + ${sample.response_tokens ?? 0}`} />
        ${sample.finish && html`<${Fact} name="ended by" value=${sample.finish} />`}
        <${Fact} name="took" value=${`${(sample.finished_at - sample.started_at).toFixed(1)} s`} />
        <${Fact} name="worker" value=${sample.worker} />
      </dl>
    </header>
    ${said.error && html`<p class="trouble">${said.error}</p>`}
    ${said.failure && html`<p class="trouble">${said.failure}</p>`}
    ${!said.texts && !said.error && html`<p class="none">Reading…</p>`}
    ${said.texts?.map((text) => html`<section class="text ${text.producer}">
      <h3>${label(text)}</h3>
      <pre dir="auto">${text.marks?.length ? text.marks.map(([word, logprob]) => html`<span class=${likely(logprob)} title=${`${(Math.exp(Math.min(0, logprob)) * 100).toFixed(1)} %`}>${word}</span>`) : text.text}</pre>
    </section>`)}
    ${said.is_whole === false && html`<p class="none">The rest is too long for a page: trimtab samples has it.</p>`}
    ${said.texts && html`<p class="scale">How likely the model found each token <span class="p0">from 90 %</span><span class="p1">50 %</span><span class="p2">10 %</span><span class="p3">less</span></p>`}
  </article>`;
}

function Fact({ name, value }) {
  return html`<div><dt>${name}</dt><dd>${value}</dd></div>`;
}

function label(text) {
  const words = [WRITERS[text.producer]];
  if (text.turn != null) words.push(`turn ${text.turn}`);
  if (text.version != null) words.push(`version ${text.version}`);
  words.push(text.tokens === 1 ? "1 token" : `${text.tokens} tokens`);
  if (text.reward != null) words.push(`reward ${score(text.reward)}`);
  return words.join(" · ");
}

function likely(logprob) {
  const probability = Math.exp(Math.min(0, logprob));
  return `p${LEVELS.findIndex((least) => probability >= least)}`;
}
