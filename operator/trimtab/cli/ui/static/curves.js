// Which curves there are and what belongs together in a chart, by the names that trackers know too.

import { bytes, count, percent, score } from "/static/words.js";

const KL = { reference_kl: "to the reference", sampling_drift: "drift since sampling", logprob_mismatch: "engine and trainer" };

/** `of` says of a policy's curve what it is called in the chart, or nothing if it is not of it. */
const CHARTS = [
  one("reward", "Reward", "Mean over the batch of each step.", score, "reward", { low: 0, high: 1, level: target, marks: true }),
  {
    key: "evaluation", title: "Evaluation", note: "Mean reward on held-out prompts, which are never trained on.", text: score,
    of: (name) => /^evaluation\/(.+)\/score$/.exec(name)?.[1], low: 0, high: 1, dots: true,
  },
  {
    key: "parts", title: "Parts of the reward", note: "What the workflow says that the reward is made of.", text: score,
    of: (name) => /^reward_parts\/(.+)$/.exec(name)?.[1], low: 0, high: 1,
  },
  {
    key: "waiting", title: "Waiting", note: "Share of its time that the trainer waits for samples. Points are the balance reports that scaling rests on.",
    text: percent, of: (name) => ({ waiting: "steps", "window/waiting": "reports" })[name],
    dotted: (name) => name === "window/waiting", low: 0, high: 1, bands: zones, marks: true,
  },
  {
    key: "fleet", title: "Fleet", note: "Rollout replicas that take tasks, and how many are wanted.", text: count,
    fleet: (name) => { const found = /^fleet\/(.+)\/(ready|wanted)$/.exec(name); return found && `${found[1]} ${found[2]}`; },
    stepped: true, quiet: (name) => name.endsWith("/wanted"), low: 0, high: 1, marks: true, exact: true,
  },
  one("cost", "Cost", "Of rollout replicas so far, by the costPerHour of their pools.", score, "cost", { low: 0 }),
  one("staleness", "Staleness", "Versions that a batch’s samples lag behind the trainer, on average.", score, "staleness", { low: 0, high: 1, level: bound }),
  one("samples", "Samples per second", "Trained, over five steps each.", count, "rate/samples", { low: 0 }),
  one("tokens", "Tokens per second", "Trained, over five steps each.", count, "rate/tokens", { low: 0 }),
  one("length", "Length", "Tokens of an answer, the environment’s words included.", count, "length", { low: 0 }),
  one("truncated", "Cut short", "Share of answers that ended for want of room.", percent, "truncated", { low: 0 }),
  one("entropy", "Entropy", "Of the policy’s choice of a token, in nats.", score, "trainer/entropy", { low: 0 }),
  {
    key: "kl", title: "KL", note: "How far the policy is from others, per token.", text: score,
    of: (name) => KL[/^trainer\/(.+)$/.exec(name)?.[1]],
  },
  one("loss", "Loss", "Of the step’s batch.", score, "trainer/loss"),
  one("gradient", "Gradient norm", "Before clipping.", score, "trainer/grad_norm", { low: 0 }),
  one("clipped", "Clipped", "Share of tokens whose weight the clip or the mask made zero.", percent, "trainer/left_out_fraction", { low: 0 }),
  {
    key: "queue", title: "Samples on their way", note: "In the making, and waiting for the trainer.", text: count,
    of: (name) => ({ running: "in the making", buffered: "waiting" })[name], low: 0,
  },
  one("weights", "Weight bytes", "What a rollout pod fetches for each version.", bytes, "weights/bytes", { low: 0, dots: true }),
];

const KNOWN = new Set(["trainer/tokens", "trainer/tokens_per_second", "trainer/entropy", "trainer/loss", "trainer/grad_norm", "trainer/left_out_fraction",
  ...Object.keys(KL).map((name) => `trainer/${name}`)]);

function one(key, title, note, text, wanted, more = {}) {
  return { key, title, note, text, of: (name) => (name === wanted ? "" : undefined), ...more };
}

function target(began) {
  return began.target_reward == null ? null : { value: began.target_reward, label: `target ${began.target_reward}` };
}

function bound(began) {
  return { value: began.max_staleness, label: `bound ${began.max_staleness}` };
}

function zones(began) {
  if (began.mode === "Off") return [];
  return [
    { low: began.tau_high, high: 1, tone: "grow", label: "grow" },
    { low: began.tau_low, high: began.tau_high, tone: "hold", label: "" },
    { low: 0, high: began.tau_low, tone: "shrink", label: "" },
  ];
}

/** A chart for each measure of the trainer that has none, such as those of critics. */
function others(details) {
  const found = new Set();
  for (const detail of details) {
    for (const name of detail.series.keys()) {
      const measure = /^[^/]+\/(trainer\/.+)$/.exec(name)?.[1];
      if (measure && !KNOWN.has(measure)) found.add(measure);
    }
  }
  return [...found].sort().map((name) => one(name, name.slice("trainer/".length).replaceAll("_", " "), "Told by the trainer.", score, name));
}

/** Charts that have something to show. `details` are the runs that lie over each other, the first of them in front. */
export function charts(details, colours) {
  const found = [];
  for (const spec of [...CHARTS, ...others(details)]) {
    const several = details.length > 1;
    // Of several runs the main line alone: what is beside it would be too much.
    const lines = details.flatMap((detail, place) => linesOf(spec, detail, place).filter((line) => !several || !line.beside));
    if (!lines.length) continue;
    const groups = [...new Set(lines.map((line) => line.group))];
    lines.forEach((line) => {
      line.colour = several ? colours[details[line.place].id] : groups.indexOf(line.group) % 6;
      if (several) line.quiet = false;
      line.single = several && lines.filter((other) => other.place === line.place).length === 1;
      line.dash = several && !line.single && line.within > 0 ? [6, 3 + 2 * (line.within % 3)] : null;
    });
    found.push({ ...spec, lines });
  }
  return found;
}

function linesOf(spec, detail, place) {
  const policies = new Set();
  const lines = [];
  for (const [name, series] of detail.series) {
    const slash = name.indexOf("/");
    const [policy, rest] = [name.slice(0, slash), name.slice(slash + 1)];
    const label = spec.fleet ? spec.fleet(name) : spec.of(rest);
    if (label == null) continue;
    policies.add(policy);
    lines.push({
      name, policy, label, series, place,
      // What is two sides of one thing has one colour.
      group: spec.dotted ? policy : spec.fleet ? label.split(" ")[0] : name,
      beside: Boolean(spec.quiet?.(name) || spec.dotted?.(rest)),
      until: spec.stepped ? { step: detail.newest, time: detail.time } : null,
      points: Boolean(spec.dotted?.(rest)), quiet: Boolean(spec.quiet?.(name)) || Boolean(spec.dotted && !spec.dotted(rest)),
    });
  }
  lines.sort((a, b) => (a.policy + a.label < b.policy + b.label ? -1 : 1));
  lines.forEach((line, number) => {
    line.within = number;
    if (!spec.fleet && policies.size > 1) line.label = line.label ? `${line.policy} ${line.label}` : line.policy;
  });
  return lines;
}

/** An exponential mean over about so many. */
export function smoothed(values, over) {
  if (over <= 1) return values;
  const keep = 1 - 2 / (over + 1);
  let mean = null;
  return values.map((value) => {
    if (value == null) return value;
    mean = mean == null ? value : keep * mean + (1 - keep) * value;
    return mean;
  });
}
