// Polls /v1/status and shows it. Paths are relative, so they work behind a proxy that adds a prefix.
import { drawPicture, summary } from "./picture.js";

const PERIOD = 2000;
const TIMEOUT = 10000;
const KEY = "ropeswitch-key";

const element = (id) => document.getElementById(id);
const shown = new Map();
let timer;
let asking = false;
let paused = false;
let needsKey = false;
let latest = null;

// The server's answer: {status: data}, or {message, needsKey} if there is nothing to show.
async function ask() {
  const key = sessionStorage.getItem(KEY);
  const headers = key === null ? {} : { Authorization: `Bearer ${key}` };
  let response;
  let body;
  try {
    response = await fetch("v1/status", { headers, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT) });
    body = await response.text();
  } catch (error) {
    if (error.name !== "TypeError" && error.name !== "TimeoutError") throw error;
    return { message: "The server does not respond. Retrying every 2 s." };
  }
  const isJson = (response.headers.get("content-type") ?? "").startsWith("application/json");
  if (response.ok && isJson) return { status: JSON.parse(body) };
  if (response.status === 401) {
    sessionStorage.removeItem(KEY);
    return { message: key === null ? "This server needs an API key." : "This API key is wrong.", needsKey: true };
  }
  // An error in OpenAI's shape; a proxy in front of the server may answer anything.
  const why = isJson ? JSON.parse(body).error?.message : undefined;
  return { message: `No data: ${why ?? `status ${response.status} ${response.statusText}`}` };
}

async function update() {
  if (asking) return;
  asking = true;
  try {
    const answer = await ask();
    needsKey = answer.needsKey === true;
    if (answer.status) show(answer.status);
    say(answer.message ?? (paused ? "Paused" : "Up to date"), answer.message !== undefined);
    element("figures").classList.toggle("stale", answer.message !== undefined);
    element("key-form").hidden = !needsKey;
    element("forget").hidden = sessionStorage.getItem(KEY) === null;
  } finally {
    asking = false;
    next();
  }
}

function next() {
  clearTimeout(timer);
  if (paused || needsKey || document.hidden) return;
  timer = setTimeout(update, PERIOD);
}

// Writes only changes: a screen reader announces each one.
function say(text, bad = false) {
  if (element("state").textContent !== text) element("state").textContent = text;
  element("state").classList.toggle("bad", bad);
}

function show(status) {
  element("server").textContent = `${status.model}, ropeswitch ${status.version} on vLLM ${status.vllm_version}`;
  element("time").textContent = `Updated at ${new Date().toLocaleTimeString()}.`;
  element("figures").hidden = false;
  const angles = status.angles === "exact" ? "exact angles" : "Hugging Face's angles";
  element("ladder-note").textContent =
    `Maximum length ${number(status.max_model_len)} tokens; ${angles}` +
    (status.policy === "reserve" ? "; each request uses the set for its prompt and output limit." : ".");
  rows("ladder", status.sets, (set) => [
    head(set.name),
    number(set.max_length),
    set.factor === null ? "listed" : String(Number(set.factor.toPrecision(6))),
    set.scale.toPrecision(5),
    number(set.start_tokens),
    text(set.source),
  ]);
  const figures = status.figures;
  for (const section of document.querySelectorAll("[data-measured]")) section.hidden = figures === null;
  element("note").hidden = figures !== null;
  element("note").textContent = "The server runs with --disable-log-stats, so nothing is measured.";
  latest = figures === null ? null : status;
  if (figures !== null) {
    showFigures(figures);
    showPicture();
  }
}

function showPicture() {
  if (latest === null) return;
  drawPicture(element("picture"), latest);
  element("picture-summary").textContent = summary(latest);
}

function showFigures(figures) {
  const most = Math.max(1, ...figures.live.map((row) => row.waiting + row.generating));
  rows("live", figures.live, (row) => [
    head(row.length_band),
    text(row.factor_set),
    number(row.waiting),
    number(row.generating),
    bar((row.waiting + row.generating) / most),
  ]);
  rows("events", figures.events.map((event) => ({ ...event, seconds_ago: ago(event.seconds_ago) })), (event) => [
    head(event.seconds_ago),
    text(event.length_band),
    text(event.factor_set),
    number(event.recomputed_tokens),
    number(event.cached_tokens),
    seconds(event.stall),
  ]);
  const measured = figures.latency.some((row) => row.time_to_first_token.count > 0);
  element("latency-note").textContent = measured ? "Quantiles by prompt length." : "No requests yet.";
  rows("latency", figures.latency, (row) => [
    head(row.length_band),
    ...[row.time_to_first_token, row.inter_token_latency, row.end_to_end].flatMap((times) => [
      seconds(times.p50),
      seconds(times.p95),
      seconds(times.p99),
      number(times.count),
    ]),
  ]);
  const switched = figures.switches.some((row) => row.count > 0);
  element("switches-note").textContent = switched
    ? "Requests that outgrew their factor set and continued in the next one."
    : "No request has outgrown its factor set yet.";
  rows("switches", figures.switches, (row) => [
    head(row.factor_set),
    number(row.count),
    number(row.recomputed_tokens),
    number(row.cached_tokens),
    seconds(row.stall.mean),
    atMost(row.stall.p50),
    atMost(row.stall.p95),
    atMost(row.stall.p99),
  ]);
  const outcomes = [
    ...Object.entries(figures.outcomes),
    ...Object.entries(figures.rejections).map(([name, count]) => [`rejected: ${name}`, count]),
  ];
  rows("outcomes", outcomes, ([name, count]) => [head(name), number(count)]);
}

// Rewrites a table's body if the values have changed.
function rows(id, values, cells) {
  const now = JSON.stringify(values);
  if (shown.get(id) === now) return;
  shown.set(id, now);
  element(id).replaceChildren(...values.map((value) => filled("tr", ...cells(value).map(cell))));
}

function cell(content) {
  return content instanceof Node ? content : filled("td", content);
}

function filled(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

function head(name) {
  const made = filled("th", name);
  made.scope = "row";
  return made;
}

function text(value) {
  const made = filled("td", value);
  made.className = "text";
  return made;
}

function bar(share) {
  const made = filled("td", filled("i"));
  made.className = "bar";
  made.firstChild.style.width = `${100 * share}%`;
  made.setAttribute("aria-hidden", "true");
  return made;
}

function number(value) {
  return value.toLocaleString("en");
}

function seconds(value) {
  if (value === null) return "–";
  if (value < 0.9995) return `${(1000 * value).toPrecision(3)} ms`;
  return value < 600 ? `${value.toPrecision(3)} s` : `${number(Math.round(value / 60))} min`;
}

function ago(value) {
  return value < 60 ? "under 1 min ago" : value < 3600 ? `${Math.floor(value / 60)} min ago` : `${Math.floor(value / 3600)} h ago`;
}

// Coarse buckets: only the upper bound is known.
function atMost(value) {
  return value === null ? "–" : `≤ ${seconds(value)}`;
}

element("latency-columns").append(
  ...[1, 2, 3].flatMap(() => ["p50", "p95", "p99", "count"]).map((name) => {
    const made = filled("th", name);
    made.scope = "col";
    return made;
  }),
);

element("pause").addEventListener("click", () => {
  paused = !paused;
  element("pause").setAttribute("aria-pressed", String(paused));
  if (paused) {
    clearTimeout(timer);
    say("Paused");
  } else if (!needsKey) {
    update();
  }
});

element("forget").addEventListener("click", () => {
  sessionStorage.removeItem(KEY);
  location.reload();
});

element("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = element("key");
  const key = field.value.trim();
  if (!/^[!-~]+$/.test(key)) {
    say("API keys have printable ASCII characters without spaces.", true);
    field.focus();
    return;
  }
  sessionStorage.setItem(KEY, key);
  field.value = "";
  await update();
  (needsKey ? field : element("figures")).focus();
});

// Height changes come from the tables and do not affect the picture.
let drawnWidth = 0;
new ResizeObserver(([entry]) => {
  if (entry.contentRect.width === drawnWidth) return;
  drawnWidth = entry.contentRect.width;
  showPicture();
}).observe(element("figures"));

document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else if (!paused && !needsKey) update();
});

update();
