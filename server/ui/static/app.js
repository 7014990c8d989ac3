// Asks the server for its figures and shows them. Paths are relative, so that any prefix of a proxy stays in them.
"use strict";

const PERIOD = 2000;
const TIMEOUT = 10000;
const KEY = "ropeswitch-key";

const element = (id) => document.getElementById(id);
const shown = new Map();
let timer;
let asking = false;
let paused = false;
let needsKey = false;

// What the server answers: {status: data}, or {message, needsKey} where there is nothing to show.
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
    return { message: "The server does not answer. It is asked again every 2 seconds." };
  }
  const isJson = (response.headers.get("content-type") ?? "").startsWith("application/json");
  if (response.ok && isJson) return { status: JSON.parse(body) };
  if (response.status === 401) {
    sessionStorage.removeItem(KEY);
    return { message: key === null ? "This server needs an API key." : "This API key is wrong.", needsKey: true };
  }
  // An error in OpenAI's shape; a proxy before the server may answer anything.
  const why = isJson ? JSON.parse(body).error?.message : undefined;
  return { message: `There are no figures: ${why ?? `the answer is ${response.status} ${response.statusText}`}` };
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

// Only what is new is written: a screen reader tells every change.
function say(text, bad = false) {
  if (element("state").textContent !== text) element("state").textContent = text;
  element("state").classList.toggle("bad", bad);
}

function show(status) {
  element("server").textContent = `${status.model}, ropeswitch ${status.version} on vLLM ${status.vllm_version}`;
  element("time").textContent = `Figures of ${new Date().toLocaleTimeString()}.`;
  element("figures").hidden = false;
  const angles = status.angles === "exact" ? "exact angles" : "Hugging Face's angles";
  element("ladder-note").textContent =
    `Sequences of up to ${number(status.max_model_len)} tokens, rotated with ${angles}` +
    (status.policy === "reserve" ? ", each in the set of its prompt and output limit." : ".");
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
  element("note").textContent = "The server was started with --disable-log-stats and measures nothing.";
  if (figures !== null) showFigures(figures);
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
  const measured = figures.latency.some((row) => row.time_to_first_token.count > 0);
  element("latency-note").textContent = measured ? "Since the server started." : "No requests yet.";
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
    ? "Streams that outgrew their factor set and went on in the next, since the server started."
    : "No stream has outgrown its factor set yet.";
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

// Writes a table's body where its rows have changed.
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

// Of coarse buckets only their ends are known.
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
    say("An API key has printable ASCII characters without spaces.", true);
    field.focus();
    return;
  }
  sessionStorage.setItem(KEY, key);
  field.value = "";
  await update();
  (needsKey ? field : element("figures")).focus();
});

document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else if (!paused && !needsKey) update();
});

update();
