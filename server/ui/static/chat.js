// Chats with the served model and shows, for each answer, its factor sets and latencies as it streams.
import { colour } from "./picture.js";

const KEY = "ropeswitch-key";
const element = (id) => document.getElementById(id);

let messages = [];
let rope = null;
let model = "";
let running = null;

function headers() {
  const key = sessionStorage.getItem(KEY);
  const sent = { "content-type": "application/json" };
  if (key !== null) sent.authorization = `Bearer ${key}`;
  return sent;
}

function say(text, bad = false) {
  element("state").textContent = text;
  element("state").classList.toggle("bad", bad);
}

// The error of a response in OpenAI's shape; a proxy may answer anything.
async function problem(response) {
  const body = await response.text();
  try {
    return JSON.parse(body).error.message;
  } catch (error) {
    if (!(error instanceof SyntaxError || error instanceof TypeError)) throw error;
    return `status ${response.status} ${response.statusText}`;
  }
}

async function connect() {
  let found;
  try {
    found = await Promise.all(["../v1/rope", "../v1/models"].map((path) => fetch(path, { headers: headers(), cache: "no-store" })));
  } catch (error) {
    if (error.name !== "TypeError") throw error;
    say("The server does not respond. Reload the page to retry.", true);
    return;
  }
  const failed = found.find((response) => !response.ok);
  if (failed?.status === 401) {
    const wrong = sessionStorage.getItem(KEY) !== null;
    sessionStorage.removeItem(KEY);
    element("key-form").hidden = false;
    say(wrong ? "This API key is wrong." : "This server needs an API key.", true);
    element("key").focus();
    return;
  }
  if (failed !== undefined) {
    say(await problem(failed), true);
    return;
  }
  const [ladder, models] = await Promise.all(found.map((response) => response.json()));
  rope = ladder;
  model = models.data[0].id;
  element("key-form").hidden = true;
  element("forget").hidden = sessionStorage.getItem(KEY) === null;
  element("server").textContent = `${model}, up to ${rope.max_model_len.toLocaleString("en")} tokens`;
  say("Ready");
  element("text").focus();
}

// The set that rotates a sequence: under `length` the first that is long enough, otherwise the prompt's.
function setOf(tokens, first) {
  if (rope.policy !== "length") return first;
  return rope.sets.find((set) => tokens <= set.max_length)?.name ?? first;
}

function bubble(role, text) {
  const item = document.createElement("li");
  item.className = role;
  const who = document.createElement("strong");
  who.textContent = role === "user" ? "You" : model;
  const reasoning = document.createElement("p");
  reasoning.className = "reasoning";
  const body = document.createElement("p");
  body.className = "text";
  body.tabIndex = 0;
  body.textContent = text;
  item.append(who, reasoning, body);
  element("messages").append(item);
  item.scrollIntoView({ block: "nearest" });
  return { item, reasoning, body };
}

// One line of facts about an answer so far.
class Facts {
  constructor(item) {
    this.started = performance.now();
    this.first = null;
    this.last = null;
    this.longest = 0;
    this.sets = [];
    this.tokens = 0;
    this.prompt = 0;
    this.note = "";
    this.line = document.createElement("p");
    this.line.className = "facts";
    item.append(this.line);
  }

  arrive() {
    const now = performance.now();
    if (this.first === null) this.first = now - this.started;
    else this.longest = Math.max(this.longest, now - this.last);
    this.last = now;
  }

  use(name) {
    if (this.sets.at(-1) !== name) this.sets.push(name);
  }

  show(progress = null) {
    const parts = this.sets.map((name, position) => {
      const chip = document.createElement("span");
      chip.className = `chip ${colour(rope.sets.findIndex((set) => set.name === name))}`;
      // The first token past the set before; a chunk of the stream may hold several.
      const before = rope.sets.find((set) => set.name === this.sets[position - 1]);
      chip.textContent = before ? `→ ${name} at ${(before.max_length + 1).toLocaleString("en")} tokens` : name;
      return chip;
    });
    const facts = [];
    if (progress !== null) facts.push(`prefill ${progress.processed.toLocaleString("en")} of ${progress.total.toLocaleString("en")} tokens`);
    if (this.prompt) facts.push(`prompt ${this.prompt.toLocaleString("en")} tokens`);
    if (this.first !== null) facts.push(`first token ${milliseconds(this.first)}`);
    if (this.tokens > 1) {
      const rate = (1000 * (this.tokens - 1)) / Math.max(1, this.last - this.started - this.first);
      facts.push(`${this.tokens.toLocaleString("en")} tokens`, `${Number(rate.toPrecision(3)).toLocaleString("en")} tokens/s`, `longest gap ${milliseconds(this.longest)}`);
    }
    if (this.note) facts.push(this.note);
    this.line.replaceChildren(...parts.flatMap((part) => [part, " "]), facts.join(" · "));
  }
}

function milliseconds(value) {
  return value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toPrecision(3)} s`;
}

// Yields the decoded data of each event of a stream.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

async function answer(question) {
  // A new chat started while this one streams has a different list.
  const chat = messages;
  const { item, reasoning, body } = bubble("assistant", "");
  const facts = new Facts(item);
  running = new AbortController();
  element("send").hidden = true;
  element("stop").hidden = false;
  say("Answering…");
  let text = "";
  try {
    const response = await fetch("../v1/chat/completions", {
      method: "POST",
      headers: headers(),
      signal: running.signal,
      body: JSON.stringify({
        model,
        messages: chat,
        max_tokens: Number(element("max-tokens").value),
        temperature: Number(element("temperature").value),
        stream: true,
        stream_options: { include_usage: true, continuous_usage_stats: true },
        return_progress: true,
      }),
    });
    if (!response.ok) throw new Error(await problem(response));
    const first = response.headers.get("x-rope-factor-set");
    facts.use(first);
    for await (const chunk of events(response.body)) {
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.usage) {
        facts.prompt = chunk.usage.prompt_tokens;
        facts.tokens = chunk.usage.completion_tokens;
        // The newest token was computed from the sequence before it.
        const length = facts.prompt + facts.tokens - 1;
        if (facts.tokens > 0) facts.use(setOf(length, first));
      }
      const choice = chunk.choices?.[0];
      if (choice?.delta?.reasoning || choice?.delta?.content) {
        facts.arrive();
        reasoning.textContent += choice.delta.reasoning ?? "";
        text += choice.delta.content ?? "";
        body.textContent = text;
        body.scrollTop = body.scrollHeight;
      }
      if (choice?.finish_reason === "length") facts.note = "stopped at the output limit";
      facts.show(chunk.prompt_progress ?? null);
    }
    chat.push({ role: "assistant", content: text });
    say("Ready");
  } catch (error) {
    if (error.name === "AbortError") {
      chat.push({ role: "assistant", content: text });
      say("Stopped");
    } else {
      // The question is not part of the chat: it can be changed and sent again.
      chat.pop();
      question.item.remove();
      item.remove();
      if (!element("text").value) element("text").value = question.text;
      say(error.name === "TypeError" ? "The server does not respond." : error.message, true);
    }
  } finally {
    running = null;
    element("send").hidden = false;
    const wasOnButton = [element("stop"), element("send"), document.body].includes(document.activeElement);
    element("stop").hidden = true;
    if (wasOnButton) element("text").focus();
  }
}

element("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = element("text").value;
  if (running !== null || rope === null || !text.trim()) return;
  messages.push({ role: "user", content: text });
  const { item } = bubble("user", text);
  element("text").value = "";
  answer({ item, text });
});

element("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) element("ask").requestSubmit();
});

element("forget").addEventListener("click", () => {
  sessionStorage.removeItem(KEY);
  location.reload();
});

element("stop").addEventListener("click", () => running?.abort());

element("clear").addEventListener("click", () => {
  running?.abort();
  messages = [];
  element("messages").replaceChildren();
  element("text").focus();
});

element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = element("key").value.trim();
  if (!/^[!-~]+$/.test(key)) {
    say("API keys have printable ASCII characters without spaces.", true);
    return;
  }
  sessionStorage.setItem(KEY, key);
  element("key").value = "";
  connect();
});

connect();
